//! Explores the models and prints their sizes.
//!
//! In: `--large` for the runs that are too long for the test suite. Out: a line per run; fails if a rule is
//! broken, or if a bug is not found.

#![allow(clippy::print_stdout)] // A command-line program.

use std::process::ExitCode;

use tenure_model::quorum::{self, QuorumBug};
use tenure_model::shared::{SharedBug, SharedOwners};
use tenure_model::together::{self, TogetherBug};
use tenure_model::{
    Bug, Outcome, explore, explore_quorum, explore_shared, explore_together, find, find_quorum,
    find_together, runs,
};

fn main() -> ExitCode {
    let large = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [arg] if arg == "--large" => true,
        _ => {
            println!("usage: tenure-model [--large]");
            return ExitCode::FAILURE;
        }
    };
    println!("{:44} {:>11} {:>10} {:>6} {:>8}", "run", "states", "unique", "depth", "seconds");
    let sound = correct(large) & bugs();
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Explores the correct protocol: no rule may be broken.
fn correct(large: bool) -> bool {
    let more = if large { &runs::LARGE[..] } else { &[] };
    let shared = SharedOwners { claims: if large { 2 } else { 1 }, faults: 1, bug: None };
    let mut sound = !line("shared owners", &explore_shared(shared));
    for setup in runs::SUITE.iter().chain(more) {
        sound &= !line(setup.name, &explore(setup.clone()));
    }
    let more = if large { together::LARGE } else { &[] };
    for together in together::SUITE.iter().chain(more) {
        sound &= !line(together.name, &explore_together(together.clone()));
    }
    let more = if large { &quorum::LARGE[..] } else { &[] };
    for quorum in quorum::SUITE.iter().chain(more) {
        sound &= !line(quorum.name, &explore_quorum(quorum.clone()));
    }
    sound
}

/// Explores the seeded bugs: each must break a rule.
fn bugs() -> bool {
    let mut sound = true;
    for bug in Bug::ALL {
        let (setup, rules) = runs::trap(bug);
        sound &= line(&format!("bug: {bug:?}"), &find(setup, rules));
    }
    for bug in TogetherBug::ALL {
        let (together, rules) = together::trap(bug);
        sound &= line(&format!("bug: together, {bug:?}"), &find_together(together, rules));
    }
    for bug in QuorumBug::ALL {
        let (quorum, rules) = quorum::trap(bug);
        sound &= line(&format!("bug: quorum, {bug:?}"), &find_quorum(quorum, rules));
    }
    for bug in SharedBug::ALL {
        let shared = SharedOwners { claims: 1, faults: 1, bug: Some(bug) };
        sound &= line(&format!("bug: shared, {bug:?}"), &explore_shared(shared));
    }
    sound
}

/// Prints a run, and returns whether a rule was broken in it.
fn line(name: &str, outcome: &Outcome) -> bool {
    let Outcome { states, unique, depth, took, broken } = outcome;
    println!("{name:44} {states:>11} {unique:>10} {depth:>6} {:>8.1}", took.as_secs_f64());
    for (rule, steps) in broken {
        println!("    {rule}: {steps}");
    }
    !broken.is_empty()
}
