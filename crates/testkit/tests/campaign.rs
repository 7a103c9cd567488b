//! Short campaigns, with fixed seeds. `cargo xtask torture` runs longer ones.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code; the figures are worth reading"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_testkit::campaign::{
    self, ClusterTarget, Elsewhere, EtcdTarget, Outcome, Pace, Plan, Promise, QuorumTarget,
    RedisTarget, SentinelTarget,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_campaign");
/// How long faults are injected.
const TIME: Duration = Duration::from_secs(6);
/// The same on a quorum, whose five servers are slower.
const QUORUM_TIME: Duration = Duration::from_secs(8);

/// Lets two campaigns run at a time, however many tests do: each needs a processor, or too little happens in
/// its time to prove anything.
fn turn() -> MutexGuard<'static, ()> {
    static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let turn = &TURNS[NEXT.fetch_add(1, Ordering::Relaxed) % TURNS.len()];
    turn.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the promise was kept, with more grants than `least`.
fn is_kept_after(least: usize, outcome: &Outcome) {
    println!("{outcome}");
    outcome.assert_kept();
    assert!(outcome.verdict.grants > least, "too little happened to prove anything");
}

fn is_kept(outcome: &Outcome) {
    is_kept_after(50, outcome);
    // At a slow pace each fault takes seconds.
    let least = if outcome.pace.lingers { 5 } else { 10 };
    let faults = outcome.faults.values().sum::<u64>();
    assert!(faults > least, "too little went wrong to prove anything");
}

/// Locks and the other modes of the engine were all granted.
fn has_modes(outcome: &Outcome, others: &[&str]) {
    let modes: Vec<_> = outcome.verdict.modes.keys().copied().collect();
    assert_eq!(modes, [&["exclusive"], others].concat());
}

/// Locks and the other modes of the engine were all granted, several keys at once too, and leaders were seen.
fn is_mixed(outcome: &Outcome, others: &[&str]) {
    has_modes(outcome, others);
    assert!(outcome.verdict.several > 0, "no request for several keys was granted");
    assert!(outcome.verdict.observed > 2, "no leader was seen, but nobody");
}

/// The same where the order of service can be read from the server: grants were seen while claims waited.
fn is_mixed_in_turn(outcome: &Outcome) {
    is_mixed(outcome, &["permits", "shared"]);
    assert!(outcome.verdict.turns > 0, "the order of service was not seen");
}

/// A1, A5, A19, A22, B2, B3, B4, B5, C1, t80, t81, t91, t93, t110: under faults of clients, network and a server that
/// keeps its data, no two holders overlap that cannot hold a key together, no more permits are held than the largest
/// capacity, fences rise, no fenced update is lost, no reader sees a value change, no waiter is passed, several keys
/// are held all or none, observers see leaders in the order of their terms and the end of each, and every key can be
/// acquired again.
#[test]
fn a_campaign_that_keeps_data_is_clean() {
    let _turn = turn();
    let plan = Plan::new(3, TIME, Promise::Everything, PROGRAM).mixed();
    let outcome = campaign::run(&RedisTarget::persistent(), &RedisTarget::KEEP, &plan);
    is_kept(&outcome);
    is_mixed_in_turn(&outcome);
}

/// t09, t11, t15, t84, t85: under faults that destroy the server's data, fences still rise, no fenced update is lost,
/// no reader sees a value change, and holders are notified of their loss.
#[test]
fn a_campaign_that_destroys_data_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(4, TIME, Promise::Order, PROGRAM).mixed();
    let outcome = campaign::run(&RedisTarget::forgetful(), &RedisTarget::DESTROY, &plan);
    is_kept(&outcome);
    is_mixed_in_turn(&outcome);
    assert!(outcome.verdict.latencies.count() > 0, "somebody heard of a loss");
}

/// t07, t38, t86: under manual failovers and failovers after a death, fences still rise, no fenced update is lost,
/// every key can be acquired again, and a former master that comes back grants nothing.
#[test]
fn a_campaign_of_failovers_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(7, TIME * 2, Promise::Order, PROGRAM).mixed();
    let outcome = campaign::run(&SentinelTarget::start(), &SentinelTarget::FAULTS, &plan);
    is_kept_after(50, &outcome);
    is_mixed_in_turn(&outcome);
}

/// t36, t37, A1, A22, B2, B3: in a cluster with manual failovers, moving slots and paused nodes, and with faults of
/// clients, no two holders overlap that cannot hold a key together, fences rise, and every key can be acquired again.
#[test]
fn a_campaign_on_a_cluster_is_clean() {
    let _turn = turn();
    let plan = Plan::new(9, TIME * 2, Promise::Everything, PROGRAM).mixed();
    let outcome = campaign::run(&ClusterTarget::start(), &ClusterTarget::KEEP, &plan);
    is_kept_after(50, &outcome);
    has_modes(&outcome, &["permits", "shared"]);
}

/// t07, t37: if masters of a cluster die, fences still rise, no fenced update is lost, and every key can be
/// acquired again.
#[test]
fn a_campaign_of_deaths_in_a_cluster_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(10, TIME * 2, Promise::Order, PROGRAM).mixed();
    let outcome = campaign::run(&ClusterTarget::start(), &ClusterTarget::DESTROY, &plan);
    is_kept_after(50, &outcome);
    has_modes(&outcome, &["permits", "shared"]);
}

/// A1, A22, B2, B3, B4, B5, C5, t29, t91, t93: in an etcd cluster whose members are killed, isolated, stopped and
/// replaced, and with the same faults of clients, no two holders overlap that cannot hold a key together, fences rise,
/// several keys are held all or none, observers see terms rise, and every key can be acquired again.
#[test]
fn a_campaign_on_etcd_is_clean() {
    let _turn = turn();
    let plan = Plan::new(7, TIME * 3, Promise::Everything, PROGRAM).at(Pace::slow()).mixed();
    let outcome = campaign::run(&EtcdTarget::start(), &EtcdTarget::KEEP, &plan);
    is_kept(&outcome);
    is_mixed(&outcome, &["permits", "shared"]);
}

/// If operators delete keys and revoke leases, locks are lost, but fences rise, no fenced update is lost, and
/// holders are notified of their loss.
#[test]
fn a_campaign_of_operators_on_etcd_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(8, TIME * 2, Promise::Order, PROGRAM).at(Pace::slow()).mixed();
    let outcome = campaign::run(&EtcdTarget::start(), &EtcdTarget::DESTROY, &plan);
    is_kept(&outcome);
    is_mixed(&outcome, &["permits", "shared"]);
    assert!(outcome.verdict.latencies.count() > 0, "somebody heard of a loss");
}

/// t15, C4, A1, A22, B2: under faults of clients, network and nodes, including nodes that restart empty, no two
/// holders overlap unless both read, fences rise, no fenced update is lost, and every key can be acquired again.
#[test]
fn a_campaign_on_a_quorum_that_keeps_data_is_clean() {
    let _turn = turn();
    let plan = Plan::new(13, QUORUM_TIME, Promise::Everything, PROGRAM).at(Pace::quarantined());
    let outcome = campaign::run(&QuorumTarget::persistent(), &QuorumTarget::KEEP, &plan.mixed());
    is_kept_after(30, &outcome);
    let modes: Vec<_> = outcome.verdict.modes.keys().copied().collect();
    assert_eq!(modes, ["exclusive", "shared"]);
}

/// t09, t15: if nodes that lose their data still vote, a key may have two holders; fences still rise, and no
/// fenced update is lost.
#[test]
fn a_campaign_on_a_quorum_that_destroys_data_is_ordered() {
    let _turn = turn();
    let plan = Plan::new(14, QUORUM_TIME, Promise::Order, PROGRAM).mixed();
    is_kept_after(30, &campaign::run(&QuorumTarget::trusted(), &QuorumTarget::DESTROY, &plan));
}

/// A campaign can run on any engine: here with stops and kills on `file:`, which has no permits.
#[test]
fn a_campaign_elsewhere_is_clean() {
    let _turn = turn();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let target = Elsewhere::at(format!("file:{}", dir.path().join("locks").display()));
    let plan = Plan::new(6, TIME, Promise::Everything, PROGRAM).mixed();
    let outcome = campaign::run(&target, &[], &plan);
    println!("{outcome}");
    outcome.assert_kept();
    is_mixed(&outcome, &["shared"]);
}

/// The judge detects a broken promise: it complains if faults that destroy data run under the promise of everything.
#[test]
fn a_broken_promise_is_found() {
    let _turn = turn();
    let mut plan = Plan::new(5, TIME / 2, Promise::Order, PROGRAM);
    plan.promise = Promise::Everything;
    let outcome = campaign::run(&RedisTarget::forgetful(), &RedisTarget::DESTROY, &plan);
    assert!(!outcome.is_kept(), "{outcome}");
    assert!(outcome.complaint().starts_with("two holders at once"), "{}", outcome.complaint());
}
