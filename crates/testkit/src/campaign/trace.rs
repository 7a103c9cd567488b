//! Where an overlap came from: the lease of whoever had the key first, and who ended it.
//!
//! In: two holds that met, and what etcd's members know ([`Evidence`]). Out: a [`Trace`].
//!
//! An overlap is the server's, by etcd issue 15247, if all of this is so:
//!
//! - the claim of whoever had the key first went together with the own key of its session, so with its lease;
//! - it was had to end, by the log that all agree on, by a member that had stood still and been replaced;
//! - that was when the member went on and ended leases, more than clients asked it to; or when it gave up, by its own
//!   words, what it had asked for when it went on: it asks for sixteen at a time, and what else it had found
//!   old is next, seven seconds later, also if it leads again by then;
//! - the other came to hold the key after that claim went.
//!
//! Every other overlap is ours. The log does not tell what a member does of its own accord from what it does
//! for a client; where clients had it end leases meanwhile, the trace says how many.
//!
//! Absent on purpose: servers. `etcd.rs` asks them.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;

use tenure_core::Fence;

use crate::judge::Hold;
use crate::servers::{Asker, Ending, Gone};

/// What claims are called at the server: `tenure/lock/<name>/<client>`.
pub(super) const LOCK: &str = "tenure/lock/";
/// What sessions' own keys are called: `tenure/session/<lease>`.
const SESSION: &str = "tenure/session/";

/// How long a member waits for what it has asked for, in nanoseconds: five seconds and two elections.
const PATIENCE: u64 = 7_000_000_000;
/// How long after it went on it asks for all that it will.
const AT_ONCE: u64 = 700_000_000;
/// How many ends of leases it asks for at a time. One that gave up fewer had asked for all.
const AT_A_TIME: usize = 16;
/// How soon it asks for the next, and has them.
const NEXT_WITHIN: u64 = 300_000_000;
/// How exactly its own log tells the time.
const TICK: u64 = 100_000_000;

/// What the members know of the end of leases.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Every key that went.
    pub(super) gone: Vec<Gone>,
    /// Members that did not know that they had been replaced.
    pub(super) usurpers: Vec<Usurper>,
    /// How each lease ended.
    pub(super) endings: HashMap<i64, Ending>,
    /// Ends that members asked for in vain.
    pub(super) given_up: Vec<GivenUp>,
    /// What time it was at which revision.
    pub(super) seen: Vec<Seen>,
}

/// A member that went on after it had stood still, and did not lead any more.
#[derive(Clone, Debug)]
pub(super) struct Usurper {
    pub(super) name: String,
    pub(super) asker: Asker,
    /// When it went on, in nanoseconds of the host's clock.
    pub(super) went_on: u64,
    /// What was written from then on, until it had long heard of its successor.
    pub(super) revisions: RangeInclusive<u64>,
    /// What was agreed on meanwhile.
    pub(super) entries: RangeInclusive<u64>,
    /// How many leases it ended by itself, by its own count.
    pub(super) ended: u64,
    /// How many its clients asked it to end meanwhile.
    pub(super) asked: u64,
}

/// A member gave up asking for a lease to be ended.
#[derive(Clone, Debug)]
pub(super) struct GivenUp {
    pub(super) at: u64,
    pub(super) by: Asker,
}

/// A revision that was the last at some time between these.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) revision: u64,
}

/// What an overlap was found to come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// What two held.
    pub key: String,
    /// Their fences, the lower one first.
    pub fences: [u64; 2],
    /// How the first one's claim ended.
    pub cause: Cause,
}

/// How a claim ended whose holder relied on it still.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A member that did not lead ended its lease (etcd issue 15247).
    Usurped {
        /// Its lease.
        lease: i64,
        /// When it and all that hung on it went.
        revision: u64,
        /// Who did it.
        member: String,
        /// How many leases it ended by itself then, by its own count and by the log.
        by_itself: u64,
        /// How many more went by its asking, for clients: if there are any, it may be one of them.
        for_clients: u64,
    },
    /// A member ended its lease late that had found it old when it did not lead (etcd issue 15247).
    UsurpedLate {
        /// Its lease.
        lease: i64,
        /// When it and all that hung on it went.
        revision: u64,
        /// Who did it.
        member: String,
        /// How many others it gave up just then.
        given_up: usize,
    },
    /// In some other way: we are to blame until something else is known.
    Ours(String),
}

impl Trace {
    /// Whether the server is to blame.
    pub fn is_the_servers(&self) -> bool {
        !matches!(self.cause, Cause::Ours(_))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trace { key, fences: [first, second], cause } = self;
        write!(f, "`{key}` fences {first} and {second}: ")?;
        match cause {
            Cause::Usurped { lease, revision, member, by_itself, for_clients } => {
                write!(f, "lease {lease:016x} was ended at revision {revision} by member ")?;
                write!(f, "`{member}`, which did not lead and ended {by_itself} by itself, ")?;
                write!(f, "{for_clients} for clients")
            }
            Cause::UsurpedLate { lease, revision, member, given_up } => {
                write!(f, "lease {lease:016x} was ended at revision {revision} by member ")?;
                write!(
                    f,
                    "`{member}`, which had found it old when it did not lead and then gave up "
                )?;
                write!(f, "{given_up} others")
            }
            Cause::Ours(why) => write!(f, "NOT TRACED: {why}"),
        }
    }
}

impl Evidence {
    /// Where the overlap of these two came from.
    pub(super) fn trace(&self, one: &Hold, other: &Hold) -> Trace {
        // Which of them was reported first does not matter: the server had the lower one first.
        let (first, second) = if one.fence <= other.fence { (one, other) } else { (other, one) };
        let cause = self.cause(first, second).unwrap_or_else(Cause::Ours);
        Trace { key: first.key.clone(), fences: [first.fence, second.fence], cause }
    }

    /// Who ended the first one's lease; else what speaks against that anybody did.
    fn cause(&self, first: &Hold, second: &Hold) -> Result<Cause, String> {
        let Gone { revision, lease, .. } = *self.claim(first, second)?;
        if !self.went_whole(revision, lease) {
            return Err(format!("its claim went alone, at revision {revision}"));
        }
        let when = self.when(revision);
        if second.reported < *when.start() {
            return Err(format!("the second had it before its claim went, at revision {revision}"));
        }
        let cause = self.at_once(revision, lease).or_else(|| self.late(revision, lease, &when));
        cause.ok_or_else(|| {
            let by = self.endings.get(&lease);
            format!("its lease {lease:016x} ended at revision {revision} in no known way: {by:?}")
        })
    }

    /// The end of the first one's claim.
    fn claim(&self, first: &Hold, second: &Hold) -> Result<&Gone, String> {
        let [number, other] = [first, second].map(|hold| Fence::from_raw(hold.fence).server());
        if number == other {
            return Err(format!("both have the claim of number {number}"));
        }
        let queue = format!("{LOCK}{}/", first.key);
        let is_it = |gone: &&Gone| gone.number == number && gone.key.starts_with(&queue);
        let found = self.gone.iter().find(is_it);
        found.ok_or_else(|| format!("its claim of number {number} has not gone"))
    }

    /// Whether the session's own key went at that revision too.
    fn went_whole(&self, revision: u64, lease: i64) -> bool {
        let session = format!("{SESSION}{lease:016x}");
        self.gone.iter().any(|gone| gone.revision == revision && gone.key == session)
    }

    /// Between which moments this revision came to be.
    fn when(&self, revision: u64) -> RangeInclusive<u64> {
        let (before, after): (Vec<&Seen>, _) =
            self.seen.iter().partition(|seen| seen.revision < revision);
        let start = before.iter().map(|seen| seen.from).max().unwrap_or(0);
        start..=after.iter().map(|seen| seen.until).min().unwrap_or(u64::MAX)
    }

    /// A member ended it as soon as it went on.
    fn at_once(&self, revision: u64, lease: i64) -> Option<Cause> {
        let by = self.endings.get(&lease)?.by;
        let is_it =
            |usurper: &&Usurper| usurper.asker == by && usurper.revisions.contains(&revision);
        let usurper = self.usurpers.iter().find(is_it)?;
        let [by_itself, for_clients] = self.had_end(usurper);
        let member = usurper.name.clone();
        let cause = Cause::Usurped { lease, revision, member, by_itself, for_clients };
        (by_itself > 0).then_some(cause)
    }

    /// A member ended it once it had given up those that were in its way.
    fn late(&self, revision: u64, lease: i64, when: &RangeInclusive<u64>) -> Option<Cause> {
        let by = self.endings.get(&lease)?.by;
        let mut usurpers = self.usurpers.iter().filter(|usurper| usurper.asker == by);
        usurpers.find_map(|usurper| {
            let given_up = self.given_up_then(usurper, when);
            let member = usurper.name.clone();
            (given_up >= AT_A_TIME).then_some(Cause::UsurpedLate {
                lease,
                revision,
                member,
                given_up,
            })
        })
    }

    /// How much it gave up just before that of what it had asked for when it went on.
    fn given_up_then(&self, usurper: &Usurper, when: &RangeInclusive<u64>) -> usize {
        let first = usurper.went_on + PATIENCE;
        let its = self.given_up.iter().filter(|given_up| given_up.by == usurper.asker);
        let old = its.filter(|given_up| (first - TICK..=first + AT_ONCE).contains(&given_up.at));
        let then = |given_up: &&GivenUp| {
            *when.start() <= given_up.at + NEXT_WITHIN && *when.end() + TICK >= given_up.at
        };
        old.filter(then).count()
    }

    /// How many leases it had end when it went on, by itself and for clients.
    fn had_end(&self, usurper: &Usurper) -> [u64; 2] {
        let its = |ending: &&Ending| {
            ending.by == usurper.asker && usurper.entries.contains(&ending.index)
        };
        let all = self.endings.values().filter(its).count() as u64;
        // Its own count is behind for as long as it has not caught up with the others.
        let by_itself = usurper.ended.max(all.saturating_sub(usurper.asked));
        [by_itself, all.saturating_sub(by_itself)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: i64 = 0xab;
    const MEMBER: Asker = 7;

    fn gone(revision: u64, key: &str, number: u64) -> Gone {
        Gone { revision, key: key.into(), number, lease: LEASE }
    }

    /// A member that went on at nanosecond 1,000 and revision 20, and ended one lease, at revision 25.
    fn evidence() -> Evidence {
        let claim = gone(25, "tenure/lock/k/c1", 10);
        let session = gone(25, "tenure/session/00000000000000ab", 9);
        let usurper = Usurper {
            name: "two".into(),
            asker: MEMBER,
            went_on: 1_000,
            revisions: 20..=30,
            entries: 120..=130,
            ended: 1,
            asked: 0,
        };
        let endings = HashMap::from([(LEASE, Ending { index: 125, by: MEMBER })]);
        let seen = |from, revision| Seen { from, until: from + 5, revision };
        let seen = vec![seen(990, 20), seen(1_010, 24), seen(1_020, 25)];
        let (gone, usurpers, given_up) = (vec![claim, session], vec![usurper], vec![]);
        Evidence { gone, usurpers, endings, given_up, seen }
    }

    fn hold(number: u64, reported: u64) -> Hold {
        Hold {
            owner: format!("p{number}"),
            claim: 1,
            key: "k".into(),
            // With a few hand-offs to mates.
            fence: Fence::from_server(number).get() + 3,
            asked: reported - 1,
            reported,
            end: reported + 500,
            ended_by: "loss signalled",
            lost: None,
        }
    }

    fn trace(evidence: &Evidence) -> String {
        evidence.trace(&hold(10, 900), &hold(12, 1_100)).to_string()
    }

    const TRACED: &str = "`k` fences 81923 and 98307: lease 00000000000000ab was ended at revision 25 by \
                          member `two`, which did not lead and ended 1 by itself, 0 for clients";

    fn not_traced(why: &str) -> String {
        format!("`k` fences 81923 and 98307: NOT TRACED: {why}")
    }

    /// A lease that went as a whole, while a replaced member ended leases and by that member's asking, is
    /// that member's deed, in whichever order the two were reported.
    #[test]
    fn traced() {
        let (first, second) = (hold(10, 900), hold(12, 1_100));
        for trace in [evidence().trace(&first, &second), evidence().trace(&second, &first)] {
            assert_eq!(trace.to_string(), TRACED);
            assert!(trace.is_the_servers());
        }
        let late = evidence().trace(&hold(10, 1_200), &second);
        assert!(late.is_the_servers(), "{late}");
    }

    /// A claim that was released, or deleted by hand, goes without its session, even if that ends soon after.
    #[test]
    fn not_traced_if_the_claim_went_alone() {
        let mut evidence = evidence();
        evidence.gone[1].revision = 26;
        assert_eq!(trace(&evidence), not_traced("its claim went alone, at revision 25"));
        evidence.gone.truncate(1);
        assert_eq!(trace(&evidence), not_traced("its claim went alone, at revision 25"));
        evidence.gone.clear();
        assert_eq!(trace(&evidence), not_traced("its claim of number 10 has not gone"));
    }

    /// The session of another lease is none of its.
    #[test]
    fn not_traced_if_another_session_went() {
        let mut evidence = evidence();
        evidence.gone[1].key = "tenure/session/00000000000000ac".into();
        assert_eq!(trace(&evidence), not_traced("its claim went alone, at revision 25"));
    }

    /// A lease that ended while all was well was ended by us, or by its time.
    #[test]
    fn not_traced_outside_of_a_span() {
        let mut evidence = evidence();
        evidence.usurpers[0].revisions = 26..=30;
        assert_eq!(
            trace(&evidence),
            not_traced(&in_no_known_way("Some(Ending { index: 125, by: 7 })"))
        );
    }

    fn in_no_known_way(ending: &str) -> String {
        format!("its lease 00000000000000ab ended at revision 25 in no known way: {ending}")
    }

    /// Nor is a replaced member to blame for what another asked for: the leader, or a client there.
    #[test]
    fn not_traced_if_another_member_ended_it() {
        let mut other = evidence();
        other.endings.insert(LEASE, Ending { index: 125, by: 8 });
        assert_eq!(
            trace(&other),
            not_traced(&in_no_known_way("Some(Ending { index: 125, by: 8 })"))
        );
        other.endings.clear();
        assert_eq!(trace(&other), not_traced(&in_no_known_way("None")));
        let mut idle = evidence();
        (idle.usurpers[0].ended, idle.usurpers[0].asked) = (0, 1);
        assert_eq!(
            trace(&idle),
            not_traced(&in_no_known_way("Some(Ending { index: 125, by: 7 })"))
        );
    }

    /// What a replaced member finds old beyond the first sixteen it ends when it has given those up.
    #[test]
    fn traced_late() {
        let mut evidence = evidence();
        evidence.usurpers[0].revisions = 11..=19;
        evidence.usurpers[0].went_on = 1_000;
        let later = PATIENCE + 2_000;
        evidence.seen.iter_mut().for_each(|seen| seen.from += later);
        evidence.seen.iter_mut().for_each(|seen| seen.until += later);
        let trace = |evidence: &Evidence| {
            let second = hold(12, later + 1_100);
            evidence.trace(&hold(10, later), &second).to_string()
        };
        let ours = not_traced(&in_no_known_way("Some(Ending { index: 125, by: 7 })"));
        assert_eq!(trace(&evidence), ours, "it gave up nothing");
        let gave_up = |at, by| vec![GivenUp { at, by }; AT_A_TIME];
        evidence.given_up = gave_up(later, MEMBER);
        let late = "`k` fences 81923 and 98307: lease 00000000000000ab was ended at revision 25 by member \
                    `two`, which had found it old when it did not lead and then gave up 16 others";
        assert_eq!(trace(&evidence), late);
        evidence.given_up = gave_up(later, 8);
        assert_eq!(trace(&evidence), ours, "another did");
        evidence.given_up = gave_up(later - 2 * TICK, MEMBER);
        assert_eq!(trace(&evidence), ours, "what it asked for before it stood still");
        evidence.given_up = gave_up(later + AT_ONCE, MEMBER);
        assert_eq!(trace(&evidence), ours, "it gave up only after that");
        evidence.given_up = gave_up(later, MEMBER);
        evidence.given_up.pop();
        assert_eq!(trace(&evidence), ours, "it had nothing more to ask for");
    }

    /// What went by its asking besides what it counts itself may have gone for clients, if any asked for it.
    #[test]
    fn clients_are_told() {
        let mut evidence = evidence();
        let mut ends = |lease, index, by| evidence.endings.insert(lease, Ending { index, by });
        ends(0xac, 126, MEMBER);
        ends(0xad, 127, 8);
        ends(0xae, 131, MEMBER);
        let told = |own: u64, clients: u64| {
            let told = format!("ended {own} by itself, {clients} for clients");
            TRACED.replace("ended 1 by itself, 0 for clients", &told)
        };
        for (ended, asked, expected) in
            [(1, 0, told(2, 0)), (0, 1, told(1, 1)), (1, 2, told(1, 1)), (2, 2, told(2, 0))]
        {
            (evidence.usurpers[0].ended, evidence.usurpers[0].asked) = (ended, asked);
            assert_eq!(trace(&evidence), expected, "{ended} {asked}");
        }
    }

    /// Two who met while the first one's claim was still there met for another reason.
    #[test]
    fn not_traced_if_the_overlap_is_older() {
        let at = |reported| evidence().trace(&hold(10, 900), &hold(12, reported)).to_string();
        let why = "the second had it before its claim went, at revision 25";
        assert_eq!((at(1_009), at(1_010)), (not_traced(why), TRACED.into()));
    }

    /// Two on one grant of the server are not the server's doing.
    #[test]
    fn not_traced_within_one_claim() {
        let mut second = hold(10, 1_100);
        second.fence += 1;
        let trace = evidence().trace(&hold(10, 900), &second).to_string();
        let why = "`k` fences 81923 and 81924: NOT TRACED: both have the claim of number 10";
        assert_eq!(trace, why);
    }
}
