//! Claims with a mode keep their rules in every state; each bug breaks one.

use tenure_model::together::{self, TogetherBug};
use tenure_model::{explore_together, find_together};

/// No rule is broken in any state of any run of the suite, and the runs are as large as intended.
#[test]
fn claims_with_a_mode_break_no_rule() {
    for together in together::SUITE {
        let (name, outcome) = (together.name, explore_together(together.clone()));
        assert!(outcome.broken.is_empty(), "{name}: {outcome:?}");
        assert!(outcome.unique > 1_000, "{name}: too small to prove anything: {outcome:?}");
    }
}

/// The model itself is tested: each seeded bug is found, by a rule that it should break.
#[test]
fn every_bug_of_claims_with_a_mode_is_found() {
    for bug in TogetherBug::ALL {
        let (together, rules) = together::trap(bug);
        let outcome = find_together(together, rules);
        assert!(!outcome.broken.is_empty(), "{bug:?}: {outcome:?}");
    }
}
