//! Each check on histories written by hand; `seeded_bugs` has the histories of broken engines.

mod leaders;
mod seeded_bugs;
mod several;

use std::time::Duration;

use tenure_core::Mode;

use super::{Claimed, Judge, Offence, Passed, Reached, Turns, Verdict};
use crate::history::{Event, History, Record};
use crate::register::Tally;

const NEVER: u64 = u64::MAX;
const ASKED: Event = Event::Asked { mode: Mode::Exclusive };

fn granted(fence: u64, valid_until: u64) -> Event {
    Event::Granted { fence, valid_until, slot: None }
}

/// A history of one key, written record by record.
#[derive(Default)]
struct Script(Vec<Record>);

impl Script {
    fn at(mut self, at: u64, owner: &str, event: Event) -> Self {
        self.0.push(Record { at, owner: owner.into(), claim: 0, key: "k".into(), event });
        self
    }

    fn asks(self, at: u64, owner: &str) -> Self {
        self.asks_for(at, owner, Mode::Exclusive)
    }

    fn asks_for(self, at: u64, owner: &str, mode: Mode) -> Self {
        self.at(at, owner, Event::Asked { mode })
    }

    fn gets(self, at: u64, owner: &str, fence: u64, valid_until: u64) -> Self {
        self.at(at, owner, Event::Granted { fence, valid_until, slot: None })
    }

    /// Requests the key in `mode` and gets it one tick later, without an end.
    fn holds(self, at: u64, owner: &str, mode: Mode, fence: u64) -> Self {
        self.asks_for(at, owner, mode).gets(at + 1, owner, fence, NEVER)
    }

    /// The same, for a numbered permit out of two.
    fn holds_slot(self, at: u64, owner: &str, slot: u32, fence: u64) -> Self {
        let granted = Event::Granted { fence, valid_until: NEVER, slot: Some(slot) };
        self.asks_for(at, owner, permits(1, 2)).at(at + 1, owner, granted)
    }

    /// Requests the lock and gets it one tick later.
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

fn permits(permits: u32, capacity: u32) -> Mode {
    Mode::Permits { permits, capacity }
}

/// Holders one after another are clean, and counted.
#[test]
fn turns_are_clean() {
    let verdict =
        Script::default().locks(1, "a", 1, 100).releases(5, "a").locks(5, "b", 2, 100).verdict();
    verdict.assert_clean();
    assert_eq!((verdict.claims, verdict.grants, verdict.keys, verdict.owners), (2, 2, 1, 2));
}

/// A run without any grant is not clean.
#[test]
#[should_panic(expected = "nothing was ever granted")]
fn an_empty_run_is_not_clean() {
    Script::default().asks(1, "a").verdict().assert_clean();
}

/// 1: two owners at the same time are found, and the message names both.
#[test]
#[should_panic(expected = "two holders at once:\n  `a` claim 0 on `k` fence 1: \
    asked 0.000000001, held from 0.000000002 until 0.000000009 (release called)\n  `b` claim 0 \
    on `k` fence 2: asked 0.000000007, held from 0.000000008 until 0.000000100 (valid_until)")]
fn an_overlap_is_named() {
    let run = Script::default().locks(1, "a", 1, 100).locks(7, "b", 2, 100).releases(9, "a");
    run.verdict().assert_clean();
}

/// 1: a hold ends with its release, its loss, its validity or its process, whichever comes first.
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

/// 1: a lease counts until its latest known end, also if that is only known at the release.
#[test]
fn an_extended_lease_counts_until_its_new_end() {
    let extended =
        Script::default().locks(1, "a", 1, 50).at(40, "a", Event::Extended { valid_until: 90 });
    assert_eq!(extended.locks(60, "b", 2, 99).verdict().overlaps(), 1);
    let read_at_release = Script::default().locks(1, "a", 1, 50).releases(70, "a");
    assert_eq!(read_at_release.locks(60, "b", 2, 99).verdict().overlaps(), 1);
}

/// 1: killing a process ends the holds of all its tasks, and of no other process.
#[test]
fn a_kill_ends_the_process() {
    let run = |killed| {
        let script = Script::default().locks(1, "p1/0", 1, NEVER).at(5, killed, Event::Killed);
        script.locks(6, "p2/0", 2, NEVER).verdict().overlaps()
    };
    assert_eq!((run("p1"), run("p10"), run("p")), (0, 1, 1));
}

/// 1: one owner may hold a key several times.
#[test]
fn an_owner_does_not_overlap_itself() {
    let mut script = Script::default().locks(1, "a", 1, 100);
    for (at, event) in [(3, ASKED), (4, granted(1, 100))] {
        script.0.push(Record { at, owner: "a".into(), claim: 1, key: "k".into(), event });
    }
    script.verdict().assert_clean();
}

/// 2: a later grant with a lower fence is found.
#[test]
#[should_panic(expected = "a fence that does not rise:\n  `a` claim 0 on `k` fence 9")]
fn a_falling_fence_is_named() {
    let run = Script::default().locks(1, "a", 9, 100).releases(5, "a").locks(6, "b", 8, 100);
    run.verdict().assert_clean();
}

/// 2: an owner may get the fence of a grant that it still holds, but not of a grant that has ended.
#[test]
fn an_ended_grant_is_not_reentered() {
    let again = |at| {
        let mut script = Script::default().locks(1, "a", 5, 100).releases(20, "a");
        for (at, event) in [(at, ASKED), (at + 1, granted(5, 99))] {
            script.0.push(Record { at, owner: "a".into(), claim: 1, key: "k".into(), event });
        }
        script.verdict().regressions()
    };
    assert_eq!((again(10), again(30)), (0, 1));
}

/// 2: claims that were pending at the same time may be granted in any order.
#[test]
fn concurrent_claims_have_no_order() {
    let script = Script::default().asks(1, "a").asks(2, "b").gets(3, "b", 9, 100).releases(4, "b");
    script.gets(5, "a", 8, 100).releases(6, "a").verdict().assert_clean();
}

/// 2: a fence must be higher than the highest earlier one, not only than the last one.
#[test]
fn order_is_kept_over_several_grants() {
    let script = Script::default().locks(1, "a", 9, 100).releases(3, "a");
    let script = script.asks(2, "b").gets(5, "b", 4, 100).releases(6, "b");
    assert_eq!(script.locks(8, "c", 7, 100).verdict().regressions(), 1);
}

/// 2: one fence for two owners is found even where the order is not defined.
#[test]
#[should_panic(expected = "one fence twice")]
fn a_repeated_fence_is_named() {
    let script = Script::default().asks(1, "a").asks(1, "b").gets(2, "a", 5, 100).releases(3, "a");
    script.gets(4, "b", 5, 100).verdict().assert_clean();
}

/// 2: a local hand-over of a lease that the server had ended without a signal is exempt from the order, and
/// counted.
#[test]
fn a_silently_ended_lease_is_exempt() {
    let local = |number: u64| (7 << 13) + number;
    let script = Script::default().locks(1, "a", local(0), 100).at(3, "fault", Event::TakenAway);
    let script = script.locks(4, "rival", 8 << 13, 7).releases(6, "a");
    let verdict = script.locks(8, "b", local(1), 100).verdict();
    assert_eq!((verdict.regressions(), verdict.exempt, verdict.overlaps()), (0, 1, 1));
    verdict.assert_ordered();
}

/// 2: a grant that a claimant requested itself is not exempt, even if the lock was deleted meanwhile; a grant
/// from the claim of a task of the same process that gave up is.
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

/// 3: a fenced value that lost an update is found; the losses of the unfenced twin are only counted.
#[test]
#[should_panic(expected = "a fenced value lost updates: 3 writes, but it stands at 2")]
fn a_lost_update_is_named() {
    let good = Tally { fenced_writes: 3, fenced_value: 3, plain_writes: 4, ..Tally::default() };
    let run = || Judge::new(History::new(Script::default().locks(1, "a", 1, 9).0));
    run().register(good).verdict().assert_clean();
    run().register(Tally { fenced_value: 2, ..good }).verdict().assert_clean();
}

/// 3: a value that changed under a reader is found; changes of the unfenced twin are only counted.
#[test]
#[should_panic(expected = "a fenced value changed under its readers: 1 of 9 reads")]
fn a_torn_read_is_named() {
    let good = Tally { reads: 9, plain_torn: 2, ..Tally::default() };
    let run = || Judge::new(History::new(Script::default().locks(1, "a", 1, 9).0));
    run().register(good).verdict().assert_clean();
    run().register(Tally { fenced_torn: 1, ..good }).verdict().assert_clean();
}

/// 4: a key that cannot be acquired, or only too late, is found.
#[test]
fn a_key_out_of_reach_is_named() {
    let within = Duration::from_secs(2);
    let with = |after: Option<u64>| {
        let fact = Reached { key: "k".into(), after: after.map(Duration::from_secs), within };
        let run = Judge::new(History::new(Script::default().locks(1, "a", 1, 9).0));
        run.reached([fact]).verdict().offences.first().map(Offence::to_string)
    };
    assert_eq!(with(Some(2)), None);
    assert_eq!(
        with(Some(3)).unwrap(),
        "`k` could be acquired only 3s after the last fault, not 2s"
    );
    assert_eq!(with(None).unwrap(), "`k` could not be acquired within 2s of the last fault");
}

/// 6: a waiter that was passed is named, also in a run that destroys data.
#[test]
#[should_panic(expected = "claim `p1/t0/3` got `k` before `p0/t1/7`, which came earlier")]
fn a_waiter_that_was_passed_is_named() {
    let claim = |label: &str| Claimed { token: String::new(), label: label.into() };
    let passed = Passed { key: "k".into(), granted: claim("p1/t0/3"), waiter: claim("p0/t1/7") };
    let run = |passed| {
        let history = History::new(Script::default().locks(1, "a", 1, 9).0);
        Judge::new(history).turns(Turns { seen: 1, passed }).verdict()
    };
    run(vec![]).assert_clean();
    run(vec![passed]).assert_ordered();
}

/// 5: the time from a fault to the signal is measured for the holder of the lock.
#[test]
fn loss_latency_is_measured() {
    let script = Script::default().locks(1, "a", 1, 1_000).at(10, "fault", Event::TakenAway);
    let verdict = script.loses(45, "a").verdict();
    assert_eq!(verdict.latencies.percentile(99), Some(Duration::from_nanos(35)));
    assert_eq!(verdict.latencies.count(), 1);
}

/// The verdict as text.
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
keys acquired at the end: 1 of 1";
    assert_eq!(verdict.to_string(), expected);
}

/// 1: readers hold a key together, and permits up to the largest capacity among them; the last one that is granted
/// need not have asked with it.
#[test]
fn b2_b3_what_is_held_together_is_clean() {
    let readers = Script::default().holds(1, "a", Mode::Read, 1).holds(3, "b", Mode::Read, 2);
    let verdict = readers.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.modes.into_iter().collect::<Vec<_>>(), [("shared", 2)]);
    let permits_of_two = [permits(2, 3), permits(1, 4), permits(1, 3)];
    let script = (1..).step_by(2).zip(["a", "b", "c"]).zip(permits_of_two);
    let script = script
        .fold(Script::default(), |script, ((at, owner), mode)| script.holds(at, owner, mode, at));
    script.verdict().assert_clean();
}

/// 1: two kinds never hold a key together: alone means alone, and readers are not beside permits.
#[test]
fn b2_kinds_do_not_meet() {
    let kinds = [Mode::Exclusive, Mode::Read, permits(1, 4)];
    for first in &kinds {
        for second in &kinds {
            let script = Script::default().holds(1, "a", first.clone(), 1);
            let overlaps = script.holds(3, "b", second.clone(), 2).verdict().overlaps();
            let together = first == second && *first != Mode::Exclusive;
            assert_eq!(overlaps, usize::from(!together), "{second} beside {first}");
        }
    }
}

/// 1: a writer that meets readers is found once for each.
#[test]
fn a_writer_meets_every_reader() {
    let readers = Script::default().holds(1, "a", Mode::Read, 1).holds(3, "b", Mode::Read, 2);
    assert_eq!(readers.locks(5, "c", 3, 9).verdict().overlaps(), 2);
}

/// 1: more permits than the largest capacity are found, although each two of them fit.
#[test]
#[should_panic(expected = "more permits than the largest capacity:\n  `c` claim 0 on `k` \
    (permits 1/2) fence 3")]
fn t80_too_many_permits_are_named() {
    let script = Script::default().holds(1, "a", permits(1, 2), 1);
    let script = script.holds(3, "b", permits(1, 2), 2).holds(5, "c", permits(1, 2), 3);
    script.verdict().assert_clean();
}

/// 1: the permits that an owner takes one by one are added up.
#[test]
fn permits_of_one_owner_are_added_up() {
    let again = |fence| {
        let mut script = Script::default().holds(1, "a", permits(2, 3), 1);
        for (at, event) in [(3, Event::Asked { mode: permits(2, 3) }), (4, granted(fence, 99))] {
            script.0.push(Record { at, owner: "a".into(), claim: 1, key: "k".into(), event });
        }
        script.verdict().overlaps()
    };
    assert_eq!((again(1), again(2)), (0, 1), "entered again, and taken again");
}

/// 1: one slot for two permits, and a slot that is not below the capacity.
#[test]
fn b3_slots_do_not_meet() {
    let run = |slot| Script::default().holds_slot(1, "a", 0, 1).holds_slot(3, "b", slot, 2);
    let verdict = |slot| run(slot).verdict();
    assert_eq!((verdict(0).overlaps(), verdict(1).overlaps()), (1, 0));
    let found = verdict(2).offences.first().unwrap().to_string();
    let expected = "a slot that is too high:\n  `b` claim 0 on `k` (permits 1/2) slot 2 fence 2";
    assert!(found.starts_with(expected), "{found}");
    verdict(1).assert_clean();
}

/// 2: the fences of readers rise over a writer before them, and a writer's over every reader before it; the fences
/// of readers among each other have no order, nor have those of permits that fit.
#[test]
fn fences_rise_between_kinds() {
    let run = |first: Mode, second: Mode, fence| {
        let script = Script::default().holds(1, "a", first, 5).releases(3, "a");
        script.holds(4, "b", second, fence).verdict().regressions()
    };
    let one = || permits(1, 2);
    for (first, second) in [
        (Mode::Exclusive, Mode::Read),
        (Mode::Read, Mode::Exclusive),
        (Mode::Read, one()),
        (one(), Mode::Exclusive),
        (permits(2, 2), one()),
    ] {
        let run = |fence| run(first.clone(), second.clone(), fence);
        assert_eq!((run(4), run(6)), (1, 0), "{second} after {first}");
    }
    assert_eq!((run(Mode::Read, Mode::Read, 4), run(one(), one(), 4)), (0, 0));
}

/// 2: the highest fence of each mode counts, not only that of the last hold.
#[test]
fn a_writer_is_above_every_reader() {
    let script = Script::default().holds(1, "a", Mode::Read, 9).releases(3, "a");
    let script = script.holds(4, "b", Mode::Read, 3).releases(6, "b");
    assert_eq!(script.holds(7, "c", Mode::Exclusive, 7).verdict().regressions(), 1);
}

/// 2: the fences of a slot rise; those of different slots have no order.
#[test]
fn t73_the_fences_of_a_slot_rise() {
    let run = |slot| {
        let script = Script::default().holds_slot(1, "a", 0, 5).releases(3, "a");
        script.holds_slot(4, "b", slot, 4).verdict().regressions()
    };
    assert_eq!((run(0), run(1)), (1, 0));
}

/// 2: readers may share a fence; no others may, also a reader and a writer.
#[test]
fn only_readers_share_a_fence() {
    let run = |first: Mode, second: Mode| {
        let script = Script::default().asks_for(1, "a", first).asks_for(1, "b", second);
        let script = script.gets(2, "a", 5, NEVER).releases(3, "a").gets(4, "b", 5, NEVER);
        script.verdict().repeated()
    };
    assert_eq!(run(Mode::Read, Mode::Read), 0);
    assert_eq!(run(permits(1, 2), permits(1, 2)), 1);
    assert_eq!(run(Mode::Read, Mode::Exclusive), 1);
}

/// The modes of the grants, the reads and the turns are figures too.
#[test]
fn the_figures_of_a_mixed_run() {
    let script = Script::default().locks(1, "a", 1, 3).holds(5, "b", Mode::Read, 2);
    let tally = Tally { reads: 4, plain_torn: 1, ..Tally::default() };
    let turns = Turns { seen: 3, passed: vec![] };
    let verdict = Judge::new(History::new(script.0)).register(tally).turns(turns).verdict();
    let expected = "\
2 grants of 2 claims on 1 keys to 2 owners; exclusive 1; shared 1; 0 losses signalled, 0 killed
overlaps 0, fence regressions 0 (and 0 exempt), repeated fences 0
fenced register: 0 of 0 updates lost, 0 refused; unfenced twin: 0 of 0 lost
readers: 0 of 4 saw the fenced value change; unfenced twin: 1
waiters passed by a later claim: 0, in 3 grants seen";
    assert_eq!(verdict.to_string(), expected);
}
