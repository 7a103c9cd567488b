//! The protocol keeps its rules in every state; each bug breaks one.

use tenure_model::shared::{SharedBug, SharedOwners};
use tenure_model::{Bug, explore, explore_shared, find, runs};

/// No rule is broken in any state of any run of the suite, and the runs are as large as intended.
#[test]
fn correct_protocol_breaks_no_rule() {
    for setup in runs::SUITE {
        let outcome = explore(setup.clone());
        assert!(outcome.broken.is_empty(), "{setup}: {outcome:?}");
        assert!(outcome.unique > 1_000, "{setup}: too small to prove anything: {outcome:?}");
    }
}

/// The model of shared owners breaks no rule either.
#[test]
fn shared_owners_break_no_rule() {
    let outcome = explore_shared(SharedOwners { claims: 1, faults: 1, bug: None });
    assert!(outcome.broken.is_empty(), "{outcome:?}");
    assert!(outcome.unique > 1_000, "too small to prove anything: {outcome:?}");
}

/// The model itself is tested: each seeded bug is found, by a rule that it should break.
#[test]
fn every_seeded_bug_is_found() {
    for bug in Bug::ALL {
        let (setup, rules) = runs::trap(bug);
        let outcome = find(setup, rules);
        assert!(!outcome.broken.is_empty(), "{bug:?}: {outcome:?}");
    }
}

/// The model of shared owners is tested in the same way.
#[test]
fn every_bug_of_shared_owners_is_found() {
    for bug in SharedBug::ALL {
        let outcome = explore_shared(SharedOwners { claims: 1, faults: 1, bug: Some(bug) });
        assert!(!outcome.broken.is_empty(), "{bug:?}: {outcome:?}");
    }
}
