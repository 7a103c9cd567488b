//! Short campaigns on a quorum of five servers, with fixed seeds. `cargo xtask torture --backend quorum`
//! fights longer ones.

#![allow(clippy::print_stdout, reason = "test code; the figures are worth reading")]

use std::time::Duration;

use tenure_testkit::campaign::{self, Outcome, Pace, Plan, Promise, QuorumArena};

const PROGRAM: &str = env!("CARGO_BIN_EXE_campaign");
/// How long faults go on.
const TIME: Duration = Duration::from_secs(8);

fn is_kept(outcome: &Outcome) {
    println!("{outcome}");
    outcome.assert_kept();
    assert!(outcome.verdict.grants > 30, "too little happened to prove anything");
}

/// t15, C4, A1, A22: under faults of clients, network and nodes, also such as restart empty, nobody
/// overlaps, fences rise, no fenced update is lost, and every key is had again.
#[test]
fn a_campaign_that_keeps_data_is_clean() {
    let plan = Plan::new(13, TIME, Promise::Everything, PROGRAM).at(Pace::quarantined());
    is_kept(&campaign::run(&QuorumArena::persistent(), &QuorumArena::KEEP, &plan));
}

/// t09, t15: where nodes forget and count all the same, two may hold a key; fences still rise, and no
/// fenced update is lost.
#[test]
fn a_campaign_that_destroys_data_is_ordered() {
    let plan = Plan::new(14, TIME, Promise::Order, PROGRAM);
    is_kept(&campaign::run(&QuorumArena::trusted(), &QuorumArena::DESTROY, &plan));
}
