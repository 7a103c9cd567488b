//! 7: what observers of an election are shown, on histories written by hand.

use std::time::Duration;

use super::{NEVER, Script};
use crate::history::{Event, History};
use crate::judge::{Judge, Misled, Offence, Verdict};

const WITHIN: Duration = Duration::from_nanos(50);

impl Script {
    fn proclaims(self, at: u64, owner: &str, value: &str) -> Self {
        self.at(at, owner, Event::Proclaimed { value: value.into() })
    }

    /// Campaigns with a value, and leads one tick later.
    fn leads(self, at: u64, owner: &str, value: &str, term: u64) -> Self {
        self.proclaims(at, owner, value).locks(at, owner, term, NEVER)
    }

    fn sees(self, at: u64, value: &str, term: u64) -> Self {
        self.at(at, "o", Event::Observed { value: Some(value.into()), term: Some(term) })
    }

    fn sees_nobody(self, at: u64) -> Self {
        self.at(at, "o", Event::Observed { value: None, term: None })
    }

    fn stops_to_look(self, at: u64) -> Self {
        self.at(at, "o", Event::GaveUp { error: "the end".into() })
    }

    fn judged(self) -> Verdict {
        Judge::new(History::new(self.0)).observed_within(Some(WITHIN)).verdict()
    }

    fn misled(self) -> Vec<Misled> {
        let offences = self.judged().offences.into_iter();
        let reasons = offences.map(|offence| match offence {
            Offence::Misled(reason, _) => reason,
            other => panic!("{other}"),
        });
        reasons.collect()
    }
}

/// 7: leaders in turn, each with a second value, and nobody in between, are clean, and counted.
#[test]
fn leaders_in_turn_are_clean() {
    let script = Script::default().sees_nobody(1).leads(2, "a", "one", 5).sees(4, "one", 5);
    let script = script.proclaims(5, "a", "uno").sees(6, "uno", 5).releases(7, "a");
    let script = script.sees_nobody(8).leads(9, "b", "two", 6).sees(11, "two", 6);
    let verdict = script.releases(90, "b").stops_to_look(140).judged();
    verdict.assert_clean();
    assert_eq!(verdict.observed, 5);
    assert!(verdict.to_string().contains("must not be seen: 0, in 5 changes seen"), "{verdict}");
}

/// 7: an older term after a newer one is found, and named, also in a run that destroys data.
#[test]
#[should_panic(expected = "an older term after a newer one: `o` saw `one` lead `k` in term 5 \
    from 0.000000007 until never")]
fn an_older_term_is_named() {
    let script = Script::default().leads(1, "a", "one", 5).releases(3, "a").leads(4, "b", "two", 6);
    script.sees(6, "two", 6).sees(7, "one", 5).judged().assert_ordered();
}

/// 7, seeded bug 27: a leadership that is handed on in memory shows the value of the leader before.
#[test]
fn an_old_value_in_a_new_term_is_found() {
    let handed = |value| {
        let script = Script::default().leads(1, "a", "one", 5).sees(3, "one", 5).releases(4, "a");
        script.leads(4, "b", "two", 6).sees(6, value, 6).misled()
    };
    assert_eq!((handed("two"), handed("one")), (vec![], vec![Misled::NotProclaimed]));
}

/// 7, seeded bug 28: an observer that does not see that nobody leads still sees the leader that has ended, however it
/// ended.
#[test]
fn a_leader_that_has_ended_is_found() {
    let ends = [
        Event::Killed,
        Event::Lost { loss: "gone".into() },
        Event::ReleaseCalled { valid_until: NEVER },
    ];
    for end in ends {
        let led = || Script::default().leads(1, "a", "one", 5).sees(3, "one", 5);
        let led = || led().at(10, "a", end.clone());
        assert_eq!(led().stops_to_look(61).misled(), [Misled::Ended], "{end:?}");
        assert_eq!(led().leads(30, "b", "two", 6).sees(61, "two", 6).misled(), [Misled::Ended]);
        assert_eq!(led().sees_nobody(60).stops_to_look(99).misled(), []);
        assert_eq!(led().stops_to_look(60).misled(), [], "it did not look any longer");
        Judge::new(History::new(led().stops_to_look(99).0)).verdict().assert_clean();
    }
}

/// 7, seeded bug 29: a term that is the time of the campaign, and not the fence, is found. A grant that its claim did
/// not learn of is not: the next one has a higher fence, or after a failover the same claim is granted again.
#[test]
fn a_term_that_is_no_fence_is_found() {
    let led = |term| {
        let script = Script::default().leads(1, "a", "one", 5).releases(3, "a");
        let script = script.leads(4, "b", "two", 9).sees(6, "two", term);
        script.releases(7, "b").leads(8, "c", "three", 11).misled()
    };
    for term in [4, 5, 11] {
        assert_eq!(led(term), [Misled::NotProclaimed], "{term}");
    }
    for term in [7, 9, 10] {
        assert_eq!(led(term), [], "{term}");
    }
}

/// 7: a leader without value and term is somebody who is not known yet.
#[test]
fn a_leader_without_a_name_is_nobody_known() {
    let unnamed = Event::Observed { value: Some(String::new()), term: None };
    let script = Script::default().leads(1, "a", "one", 5).at(2, "o", unnamed);
    assert_eq!(script.sees(3, "one", 5).misled(), []);
}

/// 7: a value of a claim whose grant was never reported has any term; a value that nobody proclaimed, or only later,
/// is found.
#[test]
fn a_value_of_nobody_is_found() {
    let asks = || Script::default().locks(1, "z", 1, 2).asks(3, "a").proclaims(3, "a", "one");
    assert_eq!(asks().sees(4, "one", 7).misled(), []);
    assert_eq!(asks().sees(4, "two", 7).misled(), [Misled::NotProclaimed]);
    let early = asks().sees(4, "two", 7).proclaims(5, "a", "two").misled();
    assert_eq!(early, [Misled::NotProclaimed]);
}

/// 1: two leaders at the same time are two holders at once.
#[test]
fn two_leaders_are_two_holders() {
    let script = Script::default().leads(1, "a", "one", 5).leads(3, "b", "two", 6);
    assert_eq!(script.judged().overlaps(), 1);
}
