//! Nodes and clients, and what they do.
//!
//! In: a state and a [`Step`]. Out: the state after it.

use super::{Quorum, QuorumBug, Step};

/// How far the clock of every node goes in a tick: further than all votes of a tick count.
const COUNTS_PER_TICK: u8 = 8;

/// Everything there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    nodes: Vec<Node>,
    pub(super) clients: Vec<Client>,
    pub(super) faults: u8,
    pub(super) ticks: u8,
    /// The fences that were reported, a bit each.
    reported: u64,
    /// One was reported that must not have been.
    pub(super) repeated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    lock: Option<Lock>,
    count: u8,
    /// For how many ticks its vote does not count, since it may have forgotten one.
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
    pub(super) phase: Phase,
    pub(super) round: u8,
    /// Ticks since the votes of this round were asked for.
    pub(super) age: u8,
    /// The highest fence that was reported before they were.
    floor: u8,
    pub(super) links: Vec<Link>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    Asking,
    /// The fence is being written back.
    Writing {
        fence: u8,
    },
    /// For so many ticks more.
    Holding(u8),
}

/// A client's connection to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    /// Carried out in this order.
    pub(super) requests: Vec<Request>,
    /// One that was left behind by a connection that was given up.
    pub(super) late: Option<Request>,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    /// With a number that would suit, or zero.
    Vote {
        round: u8,
        want: u8,
    },
    Write {
        round: u8,
        fence: u8,
    },
    /// Of these rounds, from the first to the last. What was released is another claim than what is
    /// asked for later.
    Free {
        first: u8,
        last: u8,
    },
}

/// What a node has answered to the round that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Voted(u8),
    /// The fence is written there.
    Written,
}

impl World {
    pub(super) fn new(quorum: &Quorum) -> Self {
        let node = |count: &u8| Node { lock: None, count: *count, young: 0 };
        let links = vec![Link::default(); usize::from(quorum.nodes())];
        let client = Client { links, ..Client::default() };
        World {
            nodes: quorum.counts.iter().map(node).collect(),
            clients: vec![client; usize::from(quorum.clients)],
            faults: quorum.faults,
            ticks: 0,
            reported: 0,
            repeated: false,
        }
    }

    /// How many clients believe to hold the lock.
    pub(super) fn believers(&self) -> usize {
        self.clients.iter().filter(|client| client.believes()).count()
    }

    /// Whether each of them has it on a majority of the nodes.
    pub(super) fn is_backed(&self, quorum: &Quorum) -> bool {
        (0..).zip(&self.clients).filter(|(_, client)| client.believes()).all(|(number, _)| {
            let owns = |node: &&Node| node.lock.is_some_and(|lock| lock.client == number);
            self.nodes.iter().filter(owns).count() > usize::from(quorum.nodes()) / 2
        })
    }

    fn client(&mut self, number: u8) -> &mut Client {
        &mut self.clients[usize::from(number)]
    }

    fn node(&mut self, number: u8) -> &mut Node {
        &mut self.nodes[usize::from(number)]
    }

    pub(super) fn step(&mut self, quorum: &Quorum, step: Step) {
        match step {
            Step::Tick => self.tick(quorum),
            Step::Start(client, wants) => self.start(client, wants),
            Step::Count(client, nodes) => self.count(quorum, client, nodes),
            Step::Grant(client) => {
                if let Phase::Writing { fence } = self.client(client).phase {
                    self.grant(quorum, client, fence);
                }
            }
            Step::Retreat(client) => {
                let round = self.client(client).round;
                let (first, last) = match quorum.has(QuorumBug::RetreatByToken) {
                    true => (0, u8::MAX),
                    false => (round, round),
                };
                self.client(client).end(Request::Free { first, last });
            }
            Step::Release(client) => {
                let last = self.client(client).round;
                self.client(client).end(Request::Free { first: 0, last });
            }
            Step::Execute(client, node) => {
                let request = self.client(client).link(node).requests.remove(0);
                let answer = self.execute(quorum, client, node, request);
                self.client(client).hear(node, request, answer);
            }
            Step::ExecuteLate(client, node) => {
                if let Some(request) = self.client(client).link(node).late.take() {
                    self.execute(quorum, client, node, request);
                }
            }
            fault => self.fail(quorum, fault),
        }
    }

    fn fail(&mut self, quorum: &Quorum, fault: Step) {
        self.faults -= 1;
        match fault {
            Step::Stray(client, node) => {
                let link = self.client(client).link(node);
                link.late = Some(link.requests.remove(0));
            }
            Step::Restart(node) => self.disconnect(node),
            Step::Forget(node) => {
                self.disconnect(node);
                *self.node(node) = Node { lock: None, count: 0, young: quorum.ttl };
            }
            Step::Jump(node) => self.node(node).lock = None,
            _ => {}
        }
    }

    /// What was under way to the node is lost.
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
            if let Some(lock) = &mut node.lock {
                lock.left -= 1;
            }
            node.lock = node.lock.filter(|lock| lock.left > 0);
        }
        for client in &mut self.clients {
            match &mut client.phase {
                Phase::Idle => {}
                Phase::Asking | Phase::Writing { .. } => {
                    client.age = (client.age + 1).min(quorum.ttl);
                }
                Phase::Holding(left) => *left = left.saturating_sub(1),
            }
        }
    }

    fn start(&mut self, number: u8, wants: bool) {
        let highest = self.nodes.iter().map(|node| node.count).max().unwrap_or(0);
        let floor = 63 - u8::try_from((self.reported | 1).leading_zeros()).unwrap_or(63);
        let client = self.client(number);
        client.round += 1;
        (client.phase, client.age, client.floor) = (Phase::Asking, 0, floor);
        let want = if wants { highest + 1 } else { 0 };
        let vote = Request::Vote { round: client.round, want };
        for link in &mut client.links {
            link.requests.push(vote);
            link.answer = None;
        }
    }

    /// Takes the highest number of the votes for the fence, and writes it back where it is not yet.
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
        client.phase = Phase::Writing { fence };
        for (link, count) in client.links.iter_mut().zip(counted) {
            // The vote itself has written it there.
            link.answer = (count == fence).then_some(Answer::Written);
            if count < fence && (count > 0 || quorum.has(QuorumBug::WrittenByLateVoters)) {
                link.requests.push(Request::Write { round, fence });
            }
        }
        if self.client(number).written().count_ones() >= quorum.majority() {
            self.grant(quorum, number, fence);
        }
    }

    fn grant(&mut self, quorum: &Quorum, number: u8, fence: u8) {
        let reported = self.reported;
        let client = self.client(number);
        let left = match quorum.has(QuorumBug::ElapsedForgotten) {
            true => quorum.ttl,
            false => quorum.ttl - client.age,
        };
        client.phase = Phase::Holding(left);
        self.repeated = fence <= client.floor || reported >> fence & 1 == 1;
        self.reported |= 1 << fence;
    }

    /// What a node makes of a request.
    fn execute(
        &mut self,
        quorum: &Quorum,
        client: u8,
        number: u8,
        request: Request,
    ) -> Option<Answer> {
        let clock = match quorum.kinds.contains(&super::NodeFault::Forget) {
            true => self.ticks * COUNTS_PER_TICK,
            // Where no count is lost it need not follow any clock.
            false => 0,
        };
        let node = self.node(number);
        let lock = node.lock.filter(|lock| lock.client == client);
        match request {
            Request::Vote { round, want } => {
                let young = node.young > 0 && !quorum.has(QuorumBug::YoungCounted);
                if young || node.lock.is_some() && lock.is_none() {
                    return None;
                }
                let left = quorum.ttl.max(lock.map_or(0, |lock| lock.left));
                node.lock = Some(Lock { client, round, left });
                node.count = (node.count + 1).max(clock).max(want);
                Some(Answer::Voted(node.count))
            }
            Request::Write { round, fence } => {
                let ours = lock.is_some_and(|lock| lock.round == round);
                if !ours && !quorum.has(QuorumBug::WrittenBlindly) {
                    return None;
                }
                node.count = node.count.max(fence);
                Some(Answer::Written)
            }
            Request::Free { first, last } => {
                let ours =
                    |lock: &Lock| lock.client == client && (first..=last).contains(&lock.round);
                node.lock = node.lock.filter(|lock| !ours(lock));
                None
            }
        }
    }
}

impl Client {
    fn link(&mut self, node: u8) -> &mut Link {
        &mut self.links[usize::from(node)]
    }

    fn believes(&self) -> bool {
        matches!(self.phase, Phase::Holding(left) if left > 0)
    }

    /// The nodes whose vote is known, a bit each.
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

    /// Gives up what it has, or may yet get.
    fn end(&mut self, free: Request) {
        self.phase = Phase::Idle;
        for link in &mut self.links {
            link.requests.push(free);
            link.answer = None;
        }
    }

    /// Takes an answer in, if the round that it is about is still under way.
    fn hear(&mut self, node: u8, request: Request, answer: Option<Answer>) {
        let asked = match (request, self.phase) {
            (Request::Vote { round, .. }, Phase::Asking) => round == self.round,
            (Request::Write { round, .. }, Phase::Writing { .. }) => round == self.round,
            _ => false,
        };
        if asked {
            self.link(node).answer = answer;
        }
    }
}
