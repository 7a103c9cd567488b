//! Short campaigns, with fixed seeds. `cargo xtask torture` fights longer ones.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code; the figures are worth reading"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_testkit::campaign::{
    self, ClusterArena, Elsewhere, EtcdArena, Outcome, Pace, Plan, Promise, RedisArena,
    SentinelArena,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_campaign");
/// How long faults go on.
const TIME: Duration = Duration::from_secs(6);

/// Two campaigns run at a time, however many tests do: each needs a processor, or too little happens in its
/// time to prove anything.
fn turn() -> MutexGuard<'static, ()> {
    static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let turn = &TURNS[NEXT.fetch_add(1, Ordering::Relaxed) % TURNS.len()];
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_kept(outcome: &Outcome) {
    println!("{outcome}");
    outcome.assert_kept();
    assert!(outcome.verdict.grants > 50, "too little happened to prove anything");
    // At a slow pace each takes seconds.
    let least = if outcome.pace.lingers { 5 } else { 10 };
    let faults = outcome.faults.values().sum::<u64>();
    assert!(faults > least, "too little went wrong to prove anything");
}

/// A1, A5, A19, A22: under faults of clients, network and a server that keeps its data, nobody
/// overlaps, fences rise, no fenced update is lost, and every key is had again.
#[test]
fn a_campaign_that_keeps_data_is_clean() {
    let _turn = turn();
    let plan = Plan::new(3, TIME, Promise::Everything, PROGRAM);
    is_kept(&campaign::run(&RedisArena::persistent(), &RedisArena::KEEP, &plan));
}

/// t09, t11, t15: under faults that destroy the server's data, fences still rise, no fenced update
/// is lost, and holders hear of their loss.
#[test]
fn a_campaign_that_destroys_data_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(4, TIME, Promise::Order, PROGRAM);
    let outcome = campaign::run(&RedisArena::forgetful(), &RedisArena::DESTROY, &plan);
    is_kept(&outcome);
    assert!(outcome.verdict.latencies.count() > 0, "somebody heard of a loss");
}

/// t07, t38: under failovers by hand and by death fences still rise, no fenced update is lost, and every
/// key is had again; nothing is had from a former master that comes back.
#[test]
fn a_campaign_of_failovers_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(7, TIME * 2, Promise::Order, PROGRAM);
    let outcome = campaign::run(&SentinelArena::start(), &SentinelArena::FAULTS, &plan);
    println!("{outcome}");
    outcome.assert_kept();
    assert!(outcome.verdict.grants > 50, "too little happened to prove anything");
}

/// t36, t37, A1, A22: in a cluster whose masters change by hand, whose slots move and whose nodes stand
/// still, with clients that are struck too, nobody overlaps, fences rise, and every key is had again.
#[test]
fn a_campaign_on_a_cluster_is_clean() {
    let _turn = turn();
    let plan = Plan::new(9, TIME * 2, Promise::Everything, PROGRAM);
    let outcome = campaign::run(&ClusterArena::start(), &ClusterArena::KEEP, &plan);
    println!("{outcome}");
    outcome.assert_kept();
    assert!(outcome.verdict.grants > 50, "too little happened to prove anything");
}

/// t07, t37: where masters of a cluster die, fences still rise, no fenced update is lost, and every key is
/// had again.
#[test]
fn a_campaign_of_deaths_in_a_cluster_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(10, TIME * 2, Promise::Order, PROGRAM);
    let outcome = campaign::run(&ClusterArena::start(), &ClusterArena::DESTROY, &plan);
    println!("{outcome}");
    outcome.assert_kept();
    assert!(outcome.verdict.grants > 50, "too little happened to prove anything");
}

/// t29, A1, A22: a cluster of etcd whose members are killed, cut off, stopped and replaced, with
/// clients that are too: nobody overlaps, fences rise, and every key is had again.
#[test]
fn a_campaign_on_etcd_is_clean() {
    let _turn = turn();
    let plan = Plan::new(7, TIME * 3, Promise::Everything, PROGRAM).at(Pace::slow());
    is_kept(&campaign::run(&EtcdArena::start(), &EtcdArena::KEEP, &plan));
}

/// Operators who delete keys and revoke leases take locks away: fences rise all the same, no fenced
/// update is lost, and holders hear of their loss.
#[test]
fn a_campaign_of_operators_on_etcd_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(8, TIME * 2, Promise::Order, PROGRAM).at(Pace::slow());
    let outcome = campaign::run(&EtcdArena::start(), &EtcdArena::DESTROY, &plan);
    is_kept(&outcome);
    assert!(outcome.verdict.latencies.count() > 0, "somebody heard of a loss");
}

/// A campaign can be fought on any engine: here with stops and kills on `file:`.
#[test]
fn a_campaign_elsewhere_is_clean() {
    let _turn = turn();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let arena = Elsewhere::at(format!("file:{}", dir.path().join("locks").display()));
    let plan = Plan::new(6, TIME / 2, Promise::Everything, PROGRAM);
    let outcome = campaign::run(&arena, &[], &plan);
    println!("{outcome}");
    outcome.assert_kept();
}

/// The judge is not blind: the same faults under the promise that they break make it complain.
#[test]
fn a_broken_promise_is_found() {
    let _turn = turn();
    let mut plan = Plan::new(5, TIME / 2, Promise::Order, PROGRAM);
    plan.promise = Promise::Everything;
    let outcome = campaign::run(&RedisArena::forgetful(), &RedisArena::DESTROY, &plan);
    assert!(!outcome.is_kept(), "{outcome}");
    assert!(outcome.complaint().starts_with("two holders at once"), "{}", outcome.complaint());
}
