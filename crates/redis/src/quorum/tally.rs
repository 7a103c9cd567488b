//! Counts votes, and decides what it means when they are not enough.
//!
//! In: the answers of nodes. Out: whether a majority has voted for us, and with which fence; or who or what
//! prevented it.

use std::time::Duration;

use tenure_core::Holder;
use tenure_core::backend::{Fault, FaultKind};

use crate::error::{Cause, EngineError};
use crate::wire::value::LockValue;

/// The smallest majority of `nodes`.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The answer of a node.
pub(super) enum Vote {
    /// Its vote is ours, with this number.
    Yes { number: u64, contended: bool },
    /// Its vote belongs to another claim.
    Held { value: LockValue, left: Duration },
    /// No vote was received. The node may have voted all the same.
    Error(EngineError),
}

impl From<Result<Vote, EngineError>> for Vote {
    fn from(vote: Result<Vote, EngineError>) -> Self {
        vote.unwrap_or_else(Vote::Error)
    }
}

/// The votes of one round.
pub(super) struct Count {
    nodes: usize,
    value: Vec<(usize, Vote)>,
}

/// A round that was not won.
pub(super) struct RoundLost {
    pub(super) why: Why,
    pub(super) count: Count,
}

/// Why a round was not won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No majority voted for us.
    Denied,
    /// A majority voted for us, but no longer did when the fence was written.
    Overtaken,
    /// A majority voted for us, when too much of the ttl had passed.
    TooLate,
}

/// What the result means for the caller.
pub(super) enum RoundVerdict {
    /// Another claim has the lock, or may have it; with the time until enough nodes for a majority are free.
    Held(Box<Holder>, Duration),
    /// No claim has a majority: several asked at a time, and shared the votes.
    Split,
    /// Too few nodes can be relied on.
    Error(Fault, Patience),
}

/// Whether a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It cannot.
    No,
    /// For a limited time: the servers cannot be reached.
    Absent,
    /// For as long as the caller waits.
    Yes,
}

impl Count {
    pub(super) fn new(nodes: usize) -> Self {
        Count { nodes, value: Vec::with_capacity(nodes) }
    }

    pub(super) fn add(&mut self, node: usize, vote: Result<Vote, EngineError>) {
        self.value.push((node, vote.into()));
    }

    fn yes(&self) -> impl Iterator<Item = (usize, u64)> {
        self.value.iter().filter_map(|(node, value)| match value {
            Vote::Yes { number, .. } => Some((*node, *number)),
            _ => None,
        })
    }

    pub(super) fn is_won(&self) -> bool {
        self.yes().count() >= majority(self.nodes)
    }

    /// Whether further answers cannot change the result. A denial needs answers of a majority: a node that is
    /// down fails fast, and must not hide a holder.
    pub(super) fn is_decided(&self) -> bool {
        let (yes, spare) = (self.yes().count(), self.nodes - majority(self.nodes));
        let (held, errors) = (self.held().count(), self.errors().count());
        let denied = held + errors > spare && yes + held >= majority(self.nodes);
        self.is_won() || denied || errors > spare
    }

    pub(super) fn fence(&self) -> u64 {
        self.yes().map(|(_, number)| number).max().unwrap_or(0)
    }

    /// The nodes whose vote has a lower number than the fence.
    pub(super) fn below_the_fence(&self) -> impl Iterator<Item = usize> {
        let fence = self.fence();
        self.yes().filter(move |(_, number)| *number < fence).map(|(node, _)| node)
    }

    pub(super) fn is_contended(&self) -> bool {
        let waits = |(_, value): &(usize, Vote)| matches!(value, Vote::Yes { contended: true, .. });
        self.value.iter().any(waits)
    }

    /// The nodes that may have stored a vote of this round.
    pub(super) fn to_give_back(&self) -> impl Iterator<Item = usize> {
        self.value.iter().filter_map(|(node, value)| match value {
            Vote::Yes { .. } => Some(*node),
            Vote::Error(error) if may_have_voted(error) => Some(*node),
            _ => None,
        })
    }

    fn held(&self) -> impl Iterator<Item = (&LockValue, Duration)> {
        self.value.iter().filter_map(|(_, value)| match value {
            Vote::Held { value, left } => Some((value, *left)),
            _ => None,
        })
    }

    fn errors(&self) -> impl Iterator<Item = &EngineError> {
        self.value.iter().filter_map(|(_, value)| match value {
            Vote::Error(error) => Some(error),
            _ => None,
        })
    }

    /// Why the round was not won.
    fn verdict(&self) -> RoundVerdict {
        let (needed, yes) = (majority(self.nodes), self.yes().count());
        let held: Vec<(&LockValue, Duration)> = self.held().collect();
        let unheard = self.nodes - yes - held.len();
        let alike = |(value, _): &(&LockValue, Duration)| {
            held.iter().filter(|(other, _)| is_same(value, other)).count()
        };
        let Some(first) = held.iter().max_by_key(|one| alike(one)) else {
            return if yes >= needed { RoundVerdict::Split } else { self.error() };
        };
        if yes + held.len() < needed {
            return self.error();
        }
        if alike(first) + unheard < needed {
            return RoundVerdict::Split;
        }
        let mut lefts: Vec<Duration> = held.iter().map(|(_, left)| *left).collect();
        lefts.sort_unstable();
        let more = needed.saturating_sub(yes).clamp(1, lefts.len());
        let holder = first.0.clone().holder(Some(first.1));
        RoundVerdict::Held(Box::new(holder), lefts[more - 1])
    }

    fn error(&self) -> RoundVerdict {
        let (fault, patience) = fault(self.nodes, self.errors());
        RoundVerdict::Error(fault, patience)
    }
}

impl RoundLost {
    pub(super) fn verdict(&self) -> RoundVerdict {
        match self.why {
            Why::Denied => self.count.verdict(),
            Why::Overtaken => RoundVerdict::Split,
            Why::TooLate => RoundVerdict::Error(too_late(), Patience::Yes),
        }
    }
}

/// The fault for a grant with too little of its ttl left.
pub(super) fn too_late() -> Fault {
    let what = "the votes of the quorum took longer than the ttl allows";
    Fault::new(FaultKind::Unavailable, what)
}

/// The fault for too many of `nodes` that fail: the first error, and how many are needed. Also whether to
/// retry.
pub(super) fn fault<'a>(
    nodes: usize,
    errors: impl Iterator<Item = &'a EngineError>,
) -> (Fault, Patience) {
    let errors: Vec<&EngineError> = errors.collect();
    let many = |is: &dyn Fn(&EngineError) -> bool| {
        errors.iter().filter(|error| is(error)).count() > nodes - majority(nodes)
    };
    let (hopeless, absent) = (many(&EngineError::is_permanent), many(&EngineError::is_unreachable));
    let patience = match (hopeless, absent) {
        (true, _) => Patience::No,
        (false, true) => Patience::Absent,
        (false, false) => Patience::Yes,
    };
    // If too many nodes fail permanently, report a permanent error.
    let first = errors.iter().find(|error| !hopeless || error.is_permanent());
    let (kind, notified) = match first {
        None => (FaultKind::Unknown, "no answer in time".to_owned()),
        Some(first) if hopeless => (Fault::from((*first).clone()).kind(), first.to_string()),
        Some(first) if errors.iter().any(|error| may_have_voted(error)) => {
            (FaultKind::Unknown, first.to_string())
        }
        Some(first) => (FaultKind::Unavailable, first.to_string()),
    };
    let what =
        format!("fewer than {} of {nodes} nodes can be counted on: {notified}", majority(nodes));
    (Fault::new(kind, what), patience)
}

/// Whether the node may have carried the request out.
fn may_have_voted(error: &EngineError) -> bool {
    matches!(error.cause(), Cause::TimedOut | Cause::Disconnected)
}

fn is_same(one: &LockValue, other: &LockValue) -> bool {
    match (one, other) {
        (LockValue::Held { token: one, .. }, LockValue::Held { token: other, .. }) => one == other,
        (LockValue::Closing { .. }, LockValue::Closing { .. }) => true,
        (LockValue::Newer, LockValue::Newer) | (LockValue::Foreign, LockValue::Foreign) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes(number: u64) -> Result<Vote, EngineError> {
        Ok(Vote::Yes { number, contended: false })
    }

    fn held(by: char, left: u64) -> Result<Vote, EngineError> {
        let value = format!("-t1:client:{}:1:host:1:u:p", by.to_string().repeat(32));
        let value = LockValue::parse(value.as_bytes());
        Ok(Vote::Held { value, left: Duration::from_secs(left) })
    }

    fn error(cause: Cause) -> Result<Vote, EngineError> {
        Err(EngineError::new(cause, &"h:1", "no"))
    }

    fn count(votes: Vec<Result<Vote, EngineError>>) -> Count {
        let mut count = Count::new(5);
        votes.into_iter().enumerate().for_each(|(node, vote)| count.add(node, vote));
        count
    }

    /// Three of five win; the fence is the highest of their numbers, and is written to the others.
    #[test]
    fn a_majority_wins() {
        let won = count(vec![yes(7), held('a', 1), yes(9), yes(9)]);
        assert!(won.is_won() && won.is_decided());
        assert_eq!((won.fence(), won.below_the_fence().collect::<Vec<_>>()), (9, vec![0]));
        assert!(!count(vec![yes(1), yes(2)]).is_decided());
    }

    /// A node that is down does not decide the round before a majority has answered.
    #[test]
    fn errors_do_not_hide_a_holder() {
        let down = || error(Cause::Unreachable);
        assert!(!count(vec![down(), held('a', 1), held('a', 1)]).is_decided());
        assert!(count(vec![down(), held('a', 1), held('a', 1), yes(1)]).is_decided());
        assert!(!count(vec![down(), down(), held('a', 1), yes(1)]).is_decided());
        let all = count(vec![down(), down(), held('a', 1), held('a', 1), held('a', 1)]);
        assert!(all.is_decided() && matches!(all.verdict(), RoundVerdict::Held(..)));
        assert!(count(vec![down(), down(), down()]).is_decided());
    }

    /// The result names the holder, and the time until enough nodes are free.
    #[test]
    fn the_holder_is_reported() {
        let lost = count(vec![held('a', 5), held('a', 3), yes(1), held('a', 4)]);
        assert!(lost.is_decided() && !lost.is_won());
        let RoundVerdict::Held(_, left) = lost.verdict() else { panic!("it is held") };
        assert_eq!(left, Duration::from_secs(4));
        assert_eq!(lost.to_give_back().collect::<Vec<_>>(), [2]);
    }

    /// If the votes are shared among several claims, none has the lock.
    #[test]
    fn shared_votes_are_a_split() {
        let split = count(vec![held('a', 5), held('a', 3), yes(1), yes(1), held('b', 4)]);
        assert!(matches!(split.verdict(), RoundVerdict::Split));
    }

    /// t17: without the answers of a majority the result is an error; votes that may exist are taken back.
    #[test]
    fn t17_too_few_nodes() {
        let few = count(vec![yes(1), error(Cause::Unreachable), error(Cause::TimedOut), yes(1)]);
        let RoundVerdict::Error(fault, patience) = few.verdict() else { panic!("too few") };
        assert_eq!((fault.kind(), patience), (FaultKind::Unknown, Patience::Yes));
        assert_eq!(fault.to_string(), "fewer than 3 of 5 nodes can be counted on: redis `h:1`: no");
        assert_eq!(few.to_give_back().collect::<Vec<_>>(), [0, 2, 3]);
        let down = count((0..3).map(|_| error(Cause::Unreachable)).collect());
        let RoundVerdict::Error(fault, patience) = down.verdict() else { panic!("too few") };
        assert_eq!((fault.kind(), patience), (FaultKind::Unavailable, Patience::Absent));
        let refused = count((0..3).map(|_| error(Cause::Refused)).collect());
        let RoundVerdict::Error(fault, patience) = refused.verdict() else { panic!("too few") };
        assert_eq!((fault.kind(), patience), (FaultKind::Refused, Patience::No));
    }
}
