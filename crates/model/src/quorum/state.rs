//! Nodes and clients, and the effect of each step.
//!
//! In: a state and a [`QuorumStep`]. Out: the state after it.

use super::{Quorum, QuorumBug, QuorumStep};

/// How far the clock of every node advances in a tick: more than all votes of a tick add to a counter.
const COUNTS_PER_TICK: u8 = 8;

/// The complete state at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumWorld {
    nodes: Vec<Node>,
    pub(super) clients: Vec<Client>,
    pub(super) faults: u8,
    pub(super) ticks: u8,
    /// The reported fences, a bit each.
    reported: u64,
    /// Those of writers.
    written: u64,
    /// A fence was reported that breaks the rule.
    pub(super) repeated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// One of a writer, or any number of readers', by client.
    votes: Vec<Lock>,
    count: u8,
    /// For how many ticks its vote does not count, since it may have lost one.
    young: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lock {
    client: u8,
    round: u8,
    left: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: QuorumPhase,
    pub(super) round: u8,
    /// Ticks since the votes of this round were requested.
    pub(super) age: u8,
    /// The highest fence that was reported before the votes were requested; for a reader, to a writer.
    floor: u8,
    pub(super) links: Vec<Link>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum QuorumPhase {
    #[default]
    Idle,
    Asking,
    /// The fence is being written back.
    Writing {
        fence: u8,
    },
    /// The remaining ticks.
    Holding(u8),
}

/// A client's connection to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    /// Executed in this order.
    pub(super) requests: Vec<QuorumRequest>,
    /// A request left over from a connection that was given up.
    pub(super) late: Option<QuorumRequest>,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum QuorumRequest {
    /// With a proposed number, or zero.
    Vote {
        round: u8,
        want: u8,
    },
    Write {
        round: u8,
        fence: u8,
    },
    /// Frees votes of these rounds, `first` to `last`. A release does not cover later rounds: they belong to
    /// another claim.
    Free {
        first: u8,
        last: u8,
    },
}

/// The reply of a node to the current round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Voted(u8),
    /// The fence is written on the node.
    Written,
}

impl QuorumWorld {
    pub(super) fn new(quorum: &Quorum) -> Self {
        let node = |count: &u8| Node { votes: Vec::new(), count: *count, young: 0 };
        let links = vec![Link::default(); usize::from(quorum.nodes())];
        let client = Client { links, ..Client::default() };
        QuorumWorld {
            nodes: quorum.counts.iter().map(node).collect(),
            clients: vec![client; usize::from(quorum.clients)],
            faults: quorum.faults,
            ticks: 0,
            reported: 0,
            written: 0,
            repeated: false,
        }
    }

    /// Whether at most one client believes to hold the lock, or only readers do.
    pub(super) fn excludes(&self, quorum: &Quorum) -> bool {
        let believers = (0..).zip(&self.clients).filter(|(_, client)| client.believes());
        let (readers, writers): (Vec<u8>, Vec<u8>) =
            believers.map(|(number, _)| number).partition(|number| quorum.reads(*number));
        writers.len() + usize::from(!readers.is_empty()) <= 1
    }

    /// Whether each client that believes to hold the lock has it on a majority of the nodes.
    pub(super) fn is_backed(&self, quorum: &Quorum) -> bool {
        (0..).zip(&self.clients).filter(|(_, client)| client.believes()).all(|(number, _)| {
            let owns = |node: &&Node| node.vote_of(number).is_some();
            self.nodes.iter().filter(owns).count() > usize::from(quorum.nodes()) / 2
        })
    }

    fn client(&mut self, number: u8) -> &mut Client {
        &mut self.clients[usize::from(number)]
    }

    fn node(&mut self, number: u8) -> &mut Node {
        &mut self.nodes[usize::from(number)]
    }

    pub(super) fn step(&mut self, quorum: &Quorum, step: QuorumStep) {
        match step {
            QuorumStep::Tick => self.tick(quorum),
            QuorumStep::Start(client, wants) => self.start(quorum, client, wants),
            QuorumStep::Count(client, nodes) => self.count(quorum, client, nodes),
            QuorumStep::Grant(client) => {
                if let QuorumPhase::Writing { fence } = self.client(client).phase {
                    self.grant(quorum, client, fence);
                }
            }
            QuorumStep::Retreat(client) => {
                let round = self.client(client).round;
                let (first, last) = match quorum.has(QuorumBug::RetreatByToken) {
                    true => (0, u8::MAX),
                    false => (round, round),
                };
                self.client(client).end(QuorumRequest::Free { first, last });
            }
            QuorumStep::Release(client) => {
                let last = self.client(client).round;
                self.client(client).end(QuorumRequest::Free { first: 0, last });
            }
            QuorumStep::Execute(client, node) => {
                let request = self.client(client).link(node).requests.remove(0);
                let answer = self.execute(quorum, client, node, request);
                self.client(client).hear(node, request, answer);
            }
            QuorumStep::ExecuteLate(client, node) => {
                if let Some(request) = self.client(client).link(node).late.take() {
                    self.execute(quorum, client, node, request);
                }
            }
            fault => self.fail(quorum, fault),
        }
    }

    fn fail(&mut self, quorum: &Quorum, fault: QuorumStep) {
        self.faults -= 1;
        match fault {
            QuorumStep::Stray(client, node) => {
                let link = self.client(client).link(node);
                link.late = Some(link.requests.remove(0));
            }
            QuorumStep::Restart(node) => self.disconnect(node),
            QuorumStep::Forget(node) => {
                self.disconnect(node);
                *self.node(node) = Node { votes: Vec::new(), count: 0, young: quorum.ttl };
            }
            QuorumStep::Jump(node) => self.node(node).votes.clear(),
            _ => {}
        }
    }

    /// Requests under way to the node are lost.
    fn disconnect(&mut self, node: u8) {
        for client in &mut self.clients {
            let link = client.link(node);
            link.requests.clear();
            link.late = None;
        }
    }

    fn tick(&mut self, quorum: &Quorum) {
        self.ticks += 1;
        for node in &mut self.nodes {
            node.young = node.young.saturating_sub(1);
            node.votes.iter_mut().for_each(|vote| vote.left -= 1);
            node.votes.retain(|vote| vote.left > 0);
        }
        for client in &mut self.clients {
            match &mut client.phase {
                QuorumPhase::Idle => {}
                QuorumPhase::Asking | QuorumPhase::Writing { .. } => {
                    client.age = (client.age + 1).min(quorum.ttl);
                }
                QuorumPhase::Holding(left) => *left = left.saturating_sub(1),
            }
        }
    }

    fn start(&mut self, quorum: &Quorum, number: u8, wants: bool) {
        let highest = self.nodes.iter().map(|node| node.count).max().unwrap_or(0);
        let before = if quorum.reads(number) { self.written } else { self.reported };
        let floor = 63 - u8::try_from((before | 1).leading_zeros()).unwrap_or(63);
        let client = self.client(number);
        client.round += 1;
        (client.phase, client.age, client.floor) = (QuorumPhase::Asking, 0, floor);
        let want = if wants { highest + 1 } else { 0 };
        let vote = QuorumRequest::Vote { round: client.round, want };
        for link in &mut client.links {
            link.requests.push(vote);
            link.answer = None;
        }
    }

    /// Makes the highest number of the votes the fence, and writes it back to the counted nodes that do not
    /// have it yet.
    fn count(&mut self, quorum: &Quorum, number: u8, nodes: u8) {
        let client = self.client(number);
        let voted = client.links.iter().map(|link| match link.answer {
            Some(Answer::Voted(count)) => count,
            _ => 0,
        });
        let counted: Vec<u8> =
            (0..).zip(voted).map(|(node, count)| count * (nodes >> node & 1)).collect();
        let fence = counted.iter().copied().max().unwrap_or(0);
        if quorum.has(QuorumBug::NotWritten) {
            return self.grant(quorum, number, fence);
        }
        let round = client.round;
        client.phase = QuorumPhase::Writing { fence };
        for (link, count) in client.links.iter_mut().zip(counted) {
            // The vote itself has written the number there.
            link.answer = (count == fence).then_some(Answer::Written);
            if count < fence && (count > 0 || quorum.has(QuorumBug::WrittenByLateVoters)) {
                link.requests.push(QuorumRequest::Write { round, fence });
            }
        }
        if self.client(number).written().count_ones() >= quorum.majority() {
            self.grant(quorum, number, fence);
        }
    }

    fn grant(&mut self, quorum: &Quorum, number: u8, fence: u8) {
        let reads = quorum.reads(number);
        let others = if reads { self.written } else { self.reported };
        let client = self.client(number);
        let left = match quorum.has(QuorumBug::ElapsedForgotten) {
            true => quorum.ttl,
            false => quorum.ttl - client.age,
        };
        client.phase = QuorumPhase::Holding(left);
        self.repeated = fence <= client.floor || others >> fence & 1 == 1;
        self.reported |= 1 << fence;
        self.written |= u64::from(!reads) << fence;
    }

    /// Executes a request on a node.
    fn execute(
        &mut self,
        quorum: &Quorum,
        client: u8,
        number: u8,
        request: QuorumRequest,
    ) -> Option<Answer> {
        let clock = match quorum.kinds.contains(&super::NodeFault::Forget) {
            true => self.ticks * COUNTS_PER_TICK,
            // If no counter is lost, it need not follow the clock.
            false => 0,
        };
        let node = self.node(number);
        let lock = node.vote_of(client);
        match request {
            QuorumRequest::Vote { round, want } => {
                let young = node.young > 0 && !quorum.has(QuorumBug::YoungCounted);
                if young || !node.admits(quorum, client) {
                    return None;
                }
                let left = quorum.ttl.max(lock.map_or(0, |lock| lock.left));
                node.votes.retain(|vote| vote.client != client);
                node.votes.push(Lock { client, round, left });
                node.votes.sort_unstable_by_key(|vote| vote.client);
                node.count = (node.count + 1).max(clock).max(want);
                Some(Answer::Voted(node.count))
            }
            QuorumRequest::Write { round, fence } => {
                let ours = lock.is_some_and(|lock| lock.round == round);
                if !ours && !quorum.has(QuorumBug::WrittenBlindly) {
                    return None;
                }
                node.count = node.count.max(fence);
                Some(Answer::Written)
            }
            QuorumRequest::Free { first, last } => {
                let ours =
                    |lock: &Lock| lock.client == client && (first..=last).contains(&lock.round);
                node.votes.retain(|vote| !ours(vote));
                None
            }
        }
    }
}

impl Node {
    fn vote_of(&self, client: u8) -> Option<Lock> {
        self.votes.iter().find(|vote| vote.client == client).copied()
    }

    /// Whether it can vote for this client beside its votes for others: if all of them read.
    fn admits(&self, quorum: &Quorum, client: u8) -> bool {
        let beside = |other: u8| {
            quorum.reads(client)
                && (quorum.reads(other) || quorum.has(QuorumBug::ReaderBesideWriter))
        };
        self.votes.iter().all(|vote| vote.client == client || beside(vote.client))
    }
}

impl Client {
    fn link(&mut self, node: u8) -> &mut Link {
        &mut self.links[usize::from(node)]
    }

    fn believes(&self) -> bool {
        matches!(self.phase, QuorumPhase::Holding(left) if left > 0)
    }

    /// The nodes whose vote has arrived, a bit each.
    pub(super) fn voters(&self) -> u8 {
        self.answered(|answer| matches!(answer, Answer::Voted(_)))
    }

    /// The nodes that have the fence, a bit each.
    pub(super) fn written(&self) -> u8 {
        self.answered(|answer| answer == Answer::Written)
    }

    fn answered(&self, is: impl Fn(Answer) -> bool) -> u8 {
        let bits = (0..).zip(&self.links).filter(|(_, link)| link.answer.is_some_and(&is));
        bits.map(|(node, _)| 1 << node).sum()
    }

    /// Ends the round or the hold, and frees the votes.
    fn end(&mut self, free: QuorumRequest) {
        self.phase = QuorumPhase::Idle;
        for link in &mut self.links {
            link.requests.push(free);
            link.answer = None;
        }
    }

    /// Stores a reply, if its round is still under way.
    fn hear(&mut self, node: u8, request: QuorumRequest, answer: Option<Answer>) {
        let asked = match (request, self.phase) {
            (QuorumRequest::Vote { round, .. }, QuorumPhase::Asking) => round == self.round,
            (QuorumRequest::Write { round, .. }, QuorumPhase::Writing { .. }) => {
                round == self.round
            }
            _ => false,
        };
        if asked {
            self.link(node).answer = answer;
        }
    }
}
