//! The fence of a quorum keeps its rules in every state; each bug breaks one.

use tenure_model::quorum::{self, QuorumBug};
use tenure_model::{explore_quorum, find_quorum};

/// No rule is broken in any state of any run of the suite, and the runs are as large as intended.
#[test]
fn a_quorum_breaks_no_rule() {
    for quorum in quorum::SUITE {
        let (name, outcome) = (quorum.name, explore_quorum(quorum));
        assert!(outcome.broken.is_empty(), "{name}: {outcome:?}");
        assert!(outcome.unique > 1_000, "{name}: too small to prove anything: {outcome:?}");
    }
}

/// The model itself is tested: each seeded bug is found, by a rule that it should break.
#[test]
fn every_bug_of_a_quorum_is_found() {
    for bug in QuorumBug::ALL {
        let (quorum, rules) = quorum::trap(bug);
        let outcome = find_quorum(quorum, rules);
        assert!(!outcome.broken.is_empty(), "{bug:?}: {outcome:?}");
    }
}
