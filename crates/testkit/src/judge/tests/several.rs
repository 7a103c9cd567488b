//! 8: requests for several keys, on histories written by hand.

use std::time::Duration;

use super::{ASKED, NEVER, granted};
use crate::history::{Event, History, Record};
use crate::judge::{Judge, Reached, Verdict};

/// A history of several keys.
#[derive(Default)]
struct Script(Vec<Record>);

impl Script {
    fn at(mut self, at: u64, owner: &str, key: &str, event: Event) -> Self {
        self.0.push(Record { at, owner: owner.into(), claim: 0, key: key.into(), event });
        self
    }

    /// Asks for `x` and `y` with one request.
    fn asks_for_both(self, at: u64, owner: &str) -> Self {
        self.at(at, owner, "x", ASKED).at(at, owner, "y", ASKED)
    }

    fn gets(self, at: u64, owner: &str, key: &str, fence: u64, valid_until: u64) -> Self {
        self.at(at, owner, key, granted(fence, valid_until))
    }

    /// Holds one key from `from` to `until`.
    fn holds(self, owner: &str, key: &str, fence: u64, from: u64, until: u64) -> Self {
        let script = self.at(from, owner, key, ASKED).gets(from, owner, key, fence, NEVER);
        script.releases(until, owner, key)
    }

    fn releases(self, at: u64, owner: &str, key: &str) -> Self {
        self.at(at, owner, key, Event::ReleaseCalled { valid_until: NEVER })
    }

    fn gives_up(self, at: u64, owner: &str, key: &str) -> Self {
        self.at(at, owner, key, Event::GaveUp { error: "busy".into() })
    }

    fn verdict(self) -> Verdict {
        Judge::new(History::new(self.0)).verdict()
    }
}

/// 8: a request that gets all its keys after other holders, and one that gets none, are clean, and counted.
#[test]
fn all_or_none_is_clean() {
    let script = Script::default().holds("b", "y", 1, 1, 20).asks_for_both(5, "a");
    let script = script.gets(25, "a", "x", 2, 99).gets(25, "a", "y", 3, 99);
    let script = script.asks_for_both(26, "c").gives_up(27, "c", "x").gives_up(27, "c", "y");
    let verdict = script.verdict();
    verdict.assert_clean();
    assert_eq!(verdict.several, 1);
    assert!(verdict.to_string().contains("several keys, and not all of them: 0 of 1"), "{verdict}");
}

/// 8: a request that reports one key and not the other is found, and named.
#[test]
#[should_panic(
    expected = "several keys were reported, and not all of them were held:\n  `a` claim 0 on `x`"
)]
fn a_part_is_named() {
    let script = Script::default().asks_for_both(1, "a").gets(2, "a", "x", 1, NEVER);
    script.gives_up(2, "a", "y").verdict().assert_ordered();
}

/// 8: a process that is killed while it records its keys has not reported a part.
#[test]
fn a_kill_in_between_is_no_part() {
    let script = Script::default().asks_for_both(1, "a").gets(2, "a", "x", 1, NEVER);
    script.at(3, "a", "", Event::Killed).verdict().assert_clean();
}

/// 8, seeded bug 25: `x` ended while the request waited for `y`, and was reported all the same.
#[test]
fn a_key_that_ended_during_the_wait_is_found() {
    let waits = |valid_until| {
        let script = Script::default().asks_for_both(1, "a").holds("b", "y", 1, 1, 20);
        let script = script.gets(25, "a", "x", 2, valid_until).gets(25, "a", "y", 3, NEVER);
        script.verdict().not_all()
    };
    assert_eq!((waits(19), waits(20), waits(21), waits(NEVER)), (1, 1, 0, 0));
}

/// 8: a process that was stopped just before its report is not blamed: it held both keys before.
#[test]
fn a_late_report_is_clean() {
    let script = Script::default().holds("b", "y", 1, 1, 10).asks_for_both(5, "a");
    let script = script.gets(90, "a", "x", 2, 60).gets(90, "a", "y", 3, 60);
    script.holds("c", "y", 4, 70, 80).verdict().assert_clean();
}

/// 1, seeded bug 26: the loss of `x` is not reported by the guard of both keys, and another owner holds `x`.
#[test]
fn an_unnoticed_loss_of_one_key_is_found() {
    let script = Script::default().asks_for_both(1, "a");
    let script = script.gets(2, "a", "x", 1, 20).gets(2, "a", "y", 2, 20);
    let lost = |script: Script, key| script.at(15, "a", key, Event::Lost { loss: "gone".into() });
    let then = |script: Script| {
        let extended = Event::Extended { valid_until: 90 };
        let script = script.at(16, "a", "x", extended.clone()).at(16, "a", "y", extended);
        script.holds("b", "x", 3, 30, 40).verdict().overlaps()
    };
    let again = || Script(script.0.clone());
    assert_eq!((then(lost(again(), "x")), then(again())), (0, 1));
}

/// 4, seeded bug 24: two requests that take their keys in the order of the caller wait for each other for ever.
#[test]
fn a_dead_lock_is_found() {
    let script = Script::default().holds("z", "x", 1, 1, 2).asks_for_both(3, "a");
    let reached = ["x", "y"].map(|key| Reached {
        key: key.into(),
        after: None,
        within: Duration::from_secs(1),
    });
    let history = History::new(script.asks_for_both(3, "b").0);
    assert_eq!(Judge::new(history).reached(reached).verdict().not_had(), 2);
}
