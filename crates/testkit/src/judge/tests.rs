//! Each check on histories written by hand.

use std::time::Duration;

use super::{Judge, Offence, Reached, Verdict};
use crate::history::{Event, History, Record};
use crate::register::Tally;

const NEVER: u64 = u64::MAX;

/// A history of one key, written record by record.
#[derive(Default)]
struct Script(Vec<Record>);

impl Script {
    fn at(mut self, at: u64, owner: &str, event: Event) -> Self {
        self.0.push(Record { at, owner: owner.into(), claim: 0, key: "k".into(), event });
        self
    }

    fn asks(self, at: u64, owner: &str) -> Self {
        self.at(at, owner, Event::Asked)
    }

    fn gets(self, at: u64, owner: &str, fence: u64, valid_until: u64) -> Self {
        self.at(at, owner, Event::Granted { fence, valid_until })
    }

    /// Asks and gets it one tick later.
    fn locks(self, at: u64, owner: &str, fence: u64, valid_until: u64) -> Self {
        self.asks(at, owner).gets(at + 1, owner, fence, valid_until)
    }

    fn releases(self, at: u64, owner: &str) -> Self {
        self.at(at, owner, Event::ReleaseCalled { valid_until: NEVER })
    }

    fn loses(self, at: u64, owner: &str) -> Self {
        self.at(at, owner, Event::Lost { loss: "gone".into() })
    }

    fn verdict(self) -> Verdict {
        Judge::new(History::new(self.0)).verdict()
    }
}

/// Holders that take turns are clean, and counted.
#[test]
fn turns_are_clean() {
    let verdict =
        Script::default().locks(1, "a", 1, 100).releases(5, "a").locks(5, "b", 2, 100).verdict();
    verdict.assert_clean();
    assert_eq!((verdict.claims, verdict.grants, verdict.keys, verdict.owners), (2, 2, 1, 2));
}

/// A run in which nothing was granted proves nothing.
#[test]
#[should_panic(expected = "nothing was ever granted")]
fn an_empty_run_is_not_clean() {
    Script::default().asks(1, "a").verdict().assert_clean();
}

/// 1: two owners at once are found, and the message names both.
#[test]
#[should_panic(expected = "two holders at once:\n  `a` claim 0 on `k` fence 1: \
    asked 0.000000001, held from 0.000000002 until 0.000000009 (release called)\n  `b` claim 0 \
    on `k` fence 2: asked 0.000000007, held from 0.000000008 until 0.000000100 (valid_until)")]
fn an_overlap_is_named() {
    let run = Script::default().locks(1, "a", 1, 100).locks(7, "b", 2, 100).releases(9, "a");
    run.verdict().assert_clean();
}

/// 1: a hold ends with its release, its loss, its validity or its process, whichever is first.
#[test]
fn a_hold_ends_at_the_first_end() {
    let first = || Script::default().locks(1, "a", 1, 50);
    let then = |script: Script, at| script.locks(at, "b", 2, 90).verdict().overlaps();
    assert_eq!(then(first(), 60), 0, "validity passed");
    assert_eq!(then(first(), 40), 1, "still valid");
    assert_eq!(then(first().releases(20, "a"), 20), 0, "released");
    assert_eq!(then(first().loses(20, "a"), 20), 0, "lost");
    assert_eq!(then(first().at(20, "a", Event::Killed), 20), 0, "killed");
    let late = Event::ReleaseCalled { valid_until: 50 };
    assert_eq!(then(first().at(70, "a", late), 60), 0, "released after its validity");
}

/// 1: a release that comes late does not hide how long the lease was believed in.
#[test]
fn an_extended_lease_counts_until_its_new_end() {
    let extended =
        Script::default().locks(1, "a", 1, 50).at(40, "a", Event::Extended { valid_until: 90 });
    assert_eq!(extended.locks(60, "b", 2, 99).verdict().overlaps(), 1);
    let read_at_release = Script::default().locks(1, "a", 1, 50).releases(70, "a");
    assert_eq!(read_at_release.locks(60, "b", 2, 99).verdict().overlaps(), 1);
}

/// 1: killing a process ends what all of its tasks held, and nobody else's.
#[test]
fn a_kill_ends_the_process() {
    let run = |killed| {
        let script = Script::default().locks(1, "p1/0", 1, NEVER).at(5, killed, Event::Killed);
        script.locks(6, "p2/0", 2, NEVER).verdict().overlaps()
    };
    assert_eq!((run("p1"), run("p10"), run("p")), (0, 1, 1));
}

/// 1: one owner may hold a key as often as it likes.
#[test]
fn an_owner_does_not_overlap_itself() {
    let mut script = Script::default().locks(1, "a", 1, 100);
    for (at, event) in [(3, Event::Asked), (4, Event::Granted { fence: 1, valid_until: 100 })] {
        script.0.push(Record { at, owner: "a".into(), claim: 1, key: "k".into(), event });
    }
    script.verdict().assert_clean();
}

/// 2: a later grant with a lower fence is found, also when both fences are new.
#[test]
#[should_panic(expected = "a fence that does not rise:\n  `a` claim 0 on `k` fence 9")]
fn a_falling_fence_is_named() {
    let run = Script::default().locks(1, "a", 9, 100).releases(5, "a").locks(6, "b", 8, 100);
    run.verdict().assert_clean();
}

/// 2: an owner gets the fence that it holds again, but not one that it held once.
#[test]
fn an_ended_grant_is_not_reentered() {
    let again = |at| {
        let mut script = Script::default().locks(1, "a", 5, 100).releases(20, "a");
        for (at, event) in
            [(at, Event::Asked), (at + 1, Event::Granted { fence: 5, valid_until: 99 })]
        {
            script.0.push(Record { at, owner: "a".into(), claim: 1, key: "k".into(), event });
        }
        script.verdict().regressions()
    };
    assert_eq!((again(10), again(30)), (0, 1));
}

/// 2: claims that were under way at the same time may be granted in any order.
#[test]
fn concurrent_claims_have_no_order() {
    let script = Script::default().asks(1, "a").asks(2, "b").gets(3, "b", 9, 100).releases(4, "b");
    script.gets(5, "a", 8, 100).releases(6, "a").verdict().assert_clean();
}

/// 2: the highest of several earlier fences counts, not the last.
#[test]
fn order_is_kept_over_several_grants() {
    let script = Script::default().locks(1, "a", 9, 100).releases(3, "a");
    let script = script.asks(2, "b").gets(5, "b", 4, 100).releases(6, "b");
    assert_eq!(script.locks(8, "c", 7, 100).verdict().regressions(), 1);
}

/// 2: one fence for two owners is found even where no order is due.
#[test]
#[should_panic(expected = "one fence twice")]
fn a_repeated_fence_is_named() {
    let script = Script::default().asks(1, "a").asks(1, "b").gets(2, "a", 5, 100).releases(3, "a");
    script.gets(4, "b", 5, 100).verdict().assert_clean();
}

/// 2: a local grant from a lease that the server ended silently is exempt from the order, and counted.
#[test]
fn a_silently_ended_lease_is_exempt() {
    let local = |number: u64| (7 << 13) + number;
    let script = Script::default().locks(1, "a", local(0), 100).at(3, "fault", Event::TakenAway);
    let script = script.locks(4, "rival", 8 << 13, 7).releases(6, "a");
    let verdict = script.locks(8, "b", local(1), 100).verdict();
    assert_eq!((verdict.regressions(), verdict.exempt, verdict.overlaps()), (0, 1, 1));
    verdict.assert_ordered();
}

/// 2: a grant that a claimant asked for itself is not exempt, whatever was taken away meanwhile; one
/// from the claim of a mate who gave up is.
#[test]
fn a_lease_of_ones_own_is_not_exempt() {
    let before = || Script::default().locks(1, "rival", 9 << 13, 5).releases(4, "rival");
    let taken = |script: Script| script.at(7, "fault", Event::TakenAway);
    let own = taken(before().asks(6, "p/b")).gets(8, "p/b", 7 << 13, 100).verdict();
    assert_eq!((own.regressions(), own.exempt), (1, 0));
    let mate = before().asks(3, "p/a").asks(6, "p/b");
    let mate = taken(mate).at(8, "p/a", Event::GaveUp { error: "late".into() });
    let mate = mate.gets(9, "p/b", 7 << 13, 100).verdict();
    assert_eq!((mate.regressions(), mate.exempt), (0, 1));
}

/// 3: a fenced value that lost an update is found; the twin's losses are only counted.
#[test]
#[should_panic(expected = "a fenced value lost updates: 3 writes, but it stands at 2")]
fn a_lost_update_is_named() {
    let good =
        Tally { fenced_writes: 3, fenced_value: 3, refused: 1, plain_writes: 4, plain_value: 2 };
    let run = || Judge::new(History::new(Script::default().locks(1, "a", 1, 9).0));
    run().register(good).verdict().assert_clean();
    run().register(Tally { fenced_value: 2, ..good }).verdict().assert_clean();
}

/// 4: a key that cannot be had, or only too late, is found.
#[test]
fn a_key_out_of_reach_is_named() {
    let within = Duration::from_secs(2);
    let with = |after: Option<u64>| {
        let fact = Reached { key: "k".into(), after: after.map(Duration::from_secs), within };
        let run = Judge::new(History::new(Script::default().locks(1, "a", 1, 9).0));
        run.reached([fact]).verdict().offences.first().map(Offence::to_string)
    };
    assert_eq!(with(Some(2)), None);
    assert_eq!(with(Some(3)).unwrap(), "`k` could be had only 3s after the last fault, not 2s");
    assert_eq!(with(None).unwrap(), "`k` could not be had within 2s of the last fault");
}

/// 5: the time from a fault to the signal is measured for whoever held the lock then.
#[test]
fn loss_latency_is_measured() {
    let script = Script::default().locks(1, "a", 1, 1_000).at(10, "fault", Event::TakenAway);
    let verdict = script.loses(45, "a").verdict();
    assert_eq!(verdict.latencies.percentile(99), Some(Duration::from_nanos(35)));
    assert_eq!(verdict.latencies.count(), 1);
}

/// The verdict reads as a few lines.
#[test]
fn the_verdict_reads_well() {
    let script = Script::default().locks(1, "a", 1, 100).at(10, "fault", Event::TakenAway);
    let fact =
        Reached { key: "k".into(), after: Some(Duration::ZERO), within: Duration::from_secs(1) };
    let verdict =
        Judge::new(History::new(script.loses(1_500_010, "a").0)).reached([fact]).verdict();
    let expected = "\
1 grants of 1 claims on 1 keys to 1 owners; 1 losses signalled, 0 killed
overlaps 0, fence regressions 0 (and 0 exempt), repeated fences 0
fenced register: 0 of 0 updates lost, 0 refused; unfenced twin: 0 of 0 lost
loss latency of 1: p50 1.5ms, p99 1.5ms
keys had at the end: 1 of 1";
    assert_eq!(verdict.to_string(), expected);
}
