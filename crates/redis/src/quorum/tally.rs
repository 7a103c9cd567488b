//! Counting votes, and what it means when they are not enough.
//!
//! In: the answers of nodes. Out: whether a majority has said yes, with which fence; or who or what
//! stood in the way.

use std::time::Duration;

use tenure_core::Holder;
use tenure_core::backend::{Fault, FaultKind};

use crate::trouble::{Cause, Trouble};
use crate::value::Said;

/// How many of `nodes` are more than half.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What a node has said.
pub(super) enum Vote {
    /// Its vote is ours, with this number.
    Yes { number: u64, contended: bool },
    /// Another's.
    Held { said: Said, left: Duration },
    /// There is no vote to be had. It may have been given all the same.
    Trouble(Trouble),
}

impl From<Result<Vote, Trouble>> for Vote {
    fn from(vote: Result<Vote, Trouble>) -> Self {
        vote.unwrap_or_else(Vote::Trouble)
    }
}

/// The votes of one round.
pub(super) struct Count {
    nodes: usize,
    said: Vec<(usize, Vote)>,
}

/// A round that was not won.
pub(super) struct Miss {
    pub(super) why: Why,
    pub(super) count: Count,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No majority said yes.
    Denied,
    /// One did, and was gone before the fence was written.
    Outrun,
    /// One did, when too much of the ttl had passed.
    TooLate,
}

/// What that means for whoever asked.
pub(super) enum Verdict {
    /// Somebody has it, or may have it; when so many nodes would be free that we could.
    Held(Box<Holder>, Duration),
    /// Nobody has it: several asked at a time, and shared the votes.
    Split,
    /// Too few nodes can be counted on.
    Trouble(Fault, Patience),
}

/// Whether it is of use to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It is not.
    No,
    /// For a while: there are no servers to ask.
    Absent,
    /// For as long as the caller likes.
    Yes,
}

impl Count {
    pub(super) fn new(nodes: usize) -> Self {
        Count { nodes, said: Vec::with_capacity(nodes) }
    }

    pub(super) fn add(&mut self, node: usize, vote: Result<Vote, Trouble>) {
        self.said.push((node, vote.into()));
    }

    fn yes(&self) -> impl Iterator<Item = (usize, u64)> {
        self.said.iter().filter_map(|(node, said)| match said {
            Vote::Yes { number, .. } => Some((*node, *number)),
            _ => None,
        })
    }

    pub(super) fn is_won(&self) -> bool {
        self.yes().count() >= majority(self.nodes)
    }

    /// Whether the rest cannot change it any more. Who denied it is told only where a majority has
    /// answered: a node that is down is soon heard, and is not to hide a holder.
    pub(super) fn is_decided(&self) -> bool {
        let (yes, spare) = (self.yes().count(), self.nodes - majority(self.nodes));
        let (held, troubles) = (self.held().count(), self.troubles().count());
        let denied = held + troubles > spare && yes + held >= majority(self.nodes);
        self.is_won() || denied || troubles > spare
    }

    pub(super) fn fence(&self) -> u64 {
        self.yes().map(|(_, number)| number).max().unwrap_or(0)
    }

    /// The nodes that have not counted up to the fence with their vote.
    pub(super) fn below_the_fence(&self) -> impl Iterator<Item = usize> {
        let fence = self.fence();
        self.yes().filter(move |(_, number)| *number < fence).map(|(node, _)| node)
    }

    pub(super) fn is_contended(&self) -> bool {
        let waits = |(_, said): &(usize, Vote)| matches!(said, Vote::Yes { contended: true, .. });
        self.said.iter().any(waits)
    }

    /// The nodes on which something of the round may stand.
    pub(super) fn to_give_back(&self) -> impl Iterator<Item = usize> {
        self.said.iter().filter_map(|(node, said)| match said {
            Vote::Yes { .. } => Some(*node),
            Vote::Trouble(trouble) if may_have_voted(trouble) => Some(*node),
            _ => None,
        })
    }

    fn held(&self) -> impl Iterator<Item = (&Said, Duration)> {
        self.said.iter().filter_map(|(_, said)| match said {
            Vote::Held { said, left } => Some((said, *left)),
            _ => None,
        })
    }

    fn troubles(&self) -> impl Iterator<Item = &Trouble> {
        self.said.iter().filter_map(|(_, said)| match said {
            Vote::Trouble(trouble) => Some(trouble),
            _ => None,
        })
    }

    /// Why the round was not won.
    fn verdict(&self) -> Verdict {
        let (needed, yes) = (majority(self.nodes), self.yes().count());
        let held: Vec<(&Said, Duration)> = self.held().collect();
        let unheard = self.nodes - yes - held.len();
        let alike = |(said, _): &(&Said, Duration)| {
            held.iter().filter(|(other, _)| is_same(said, other)).count()
        };
        let Some(first) = held.iter().max_by_key(|one| alike(one)) else {
            return if yes >= needed { Verdict::Split } else { self.trouble() };
        };
        if yes + held.len() < needed {
            return self.trouble();
        }
        if alike(first) + unheard < needed {
            return Verdict::Split;
        }
        let mut lefts: Vec<Duration> = held.iter().map(|(_, left)| *left).collect();
        lefts.sort_unstable();
        let more = needed.saturating_sub(yes).clamp(1, lefts.len());
        let holder = first.0.clone().holder(Some(first.1));
        Verdict::Held(Box::new(holder), lefts[more - 1])
    }

    fn trouble(&self) -> Verdict {
        let (fault, patience) = fault(self.nodes, self.troubles());
        Verdict::Trouble(fault, patience)
    }
}

impl Miss {
    pub(super) fn verdict(&self) -> Verdict {
        match self.why {
            Why::Denied => self.count.verdict(),
            Why::Outrun => Verdict::Split,
            Why::TooLate => Verdict::Trouble(too_late(), Patience::Yes),
        }
    }
}

/// What a grant comes to of which too little is left.
pub(super) fn too_late() -> Fault {
    let what = "the votes of the quorum took longer than the ttl allows";
    Fault::new(FaultKind::Unavailable, what)
}

/// What keeps too many of `nodes` from answering, in one word: the first trouble, and how many have one.
pub(super) fn fault<'a>(
    nodes: usize,
    troubles: impl Iterator<Item = &'a Trouble>,
) -> (Fault, Patience) {
    let troubles: Vec<&Trouble> = troubles.collect();
    let many = |is: &dyn Fn(&Trouble) -> bool| {
        troubles.iter().filter(|trouble| is(trouble)).count() > nodes - majority(nodes)
    };
    let (hopeless, absent) = (many(&Trouble::is_final), many(&Trouble::is_absence));
    let patience = match (hopeless, absent) {
        (true, _) => Patience::No,
        (false, true) => Patience::Absent,
        (false, false) => Patience::Yes,
    };
    // Where many refuse for good, that is what is to be told.
    let first = troubles.iter().find(|trouble| !hopeless || trouble.is_final());
    let (kind, told) = match first {
        None => (FaultKind::Unknown, "no answer in time".to_owned()),
        Some(first) if hopeless => (Fault::from((*first).clone()).kind(), first.to_string()),
        Some(first) if troubles.iter().any(|trouble| may_have_voted(trouble)) => {
            (FaultKind::Unknown, first.to_string())
        }
        Some(first) => (FaultKind::Unavailable, first.to_string()),
    };
    let what = format!("fewer than {} of {nodes} nodes can be counted on: {told}", majority(nodes));
    (Fault::new(kind, what), patience)
}

/// Whether the node may have done what it was asked for.
fn may_have_voted(trouble: &Trouble) -> bool {
    matches!(trouble.cause(), Cause::Silent | Cause::Cut)
}

fn is_same(one: &Said, other: &Said) -> bool {
    match (one, other) {
        (Said::Held { token: one, .. }, Said::Held { token: other, .. }) => one == other,
        (Said::Closing(_), Said::Closing(_)) => true,
        (Said::Newer, Said::Newer) | (Said::Foreign, Said::Foreign) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes(number: u64) -> Result<Vote, Trouble> {
        Ok(Vote::Yes { number, contended: false })
    }

    fn held(by: char, left: u64) -> Result<Vote, Trouble> {
        let value = format!("-t1:client:{}:1:host:1:u:p", by.to_string().repeat(32));
        let said = Said::parse(value.as_bytes());
        Ok(Vote::Held { said, left: Duration::from_secs(left) })
    }

    fn trouble(cause: Cause) -> Result<Vote, Trouble> {
        Err(Trouble::new(cause, &"h:1", "no"))
    }

    fn count(votes: Vec<Result<Vote, Trouble>>) -> Count {
        let mut count = Count::new(5);
        votes.into_iter().enumerate().for_each(|(node, vote)| count.add(node, vote));
        count
    }

    /// Three of five win; the fence is the highest of their numbers, to be written to the others.
    #[test]
    fn a_majority_wins() {
        let won = count(vec![yes(7), held('a', 1), yes(9), yes(9)]);
        assert!(won.is_won() && won.is_decided());
        assert_eq!((won.fence(), won.below_the_fence().collect::<Vec<_>>()), (9, vec![0]));
        assert!(!count(vec![yes(1), yes(2)]).is_decided());
    }

    /// A node that is down does not decide before a majority has answered.
    #[test]
    fn trouble_does_not_hide_a_holder() {
        let down = || trouble(Cause::Down);
        assert!(!count(vec![down(), held('a', 1), held('a', 1)]).is_decided());
        assert!(count(vec![down(), held('a', 1), held('a', 1), yes(1)]).is_decided());
        assert!(!count(vec![down(), down(), held('a', 1), yes(1)]).is_decided());
        let all = count(vec![down(), down(), held('a', 1), held('a', 1), held('a', 1)]);
        assert!(all.is_decided() && matches!(all.verdict(), Verdict::Held(..)));
        assert!(count(vec![down(), down(), down()]).is_decided());
    }

    /// Who holds it is told, and when enough nodes will be free.
    #[test]
    fn a_holder_is_told() {
        let lost = count(vec![held('a', 5), held('a', 3), yes(1), held('a', 4)]);
        assert!(lost.is_decided() && !lost.is_won());
        let Verdict::Held(_, left) = lost.verdict() else { panic!("it is held") };
        assert_eq!(left, Duration::from_secs(4));
        assert_eq!(lost.to_give_back().collect::<Vec<_>>(), [2]);
    }

    /// Votes that are shared among several are nobody's lock.
    #[test]
    fn shared_votes_are_a_split() {
        let split = count(vec![held('a', 5), held('a', 3), yes(1), yes(1), held('b', 4)]);
        assert!(matches!(split.verdict(), Verdict::Split));
    }

    /// t17: without a majority that answers there is no answer; what may have voted is given back.
    #[test]
    fn t17_too_few_nodes() {
        let few = count(vec![yes(1), trouble(Cause::Down), trouble(Cause::Silent), yes(1)]);
        let Verdict::Trouble(fault, patience) = few.verdict() else { panic!("too few") };
        assert_eq!((fault.kind(), patience), (FaultKind::Unknown, Patience::Yes));
        assert_eq!(fault.to_string(), "fewer than 3 of 5 nodes can be counted on: redis `h:1`: no");
        assert_eq!(few.to_give_back().collect::<Vec<_>>(), [0, 2, 3]);
        let down = count((0..3).map(|_| trouble(Cause::Down)).collect());
        let Verdict::Trouble(fault, patience) = down.verdict() else { panic!("too few") };
        assert_eq!((fault.kind(), patience), (FaultKind::Unavailable, Patience::Absent));
        let refused = count((0..3).map(|_| trouble(Cause::Refused)).collect());
        let Verdict::Trouble(fault, patience) = refused.verdict() else { panic!("too few") };
        assert_eq!((fault.kind(), patience), (FaultKind::Refused, Patience::No));
    }
}
