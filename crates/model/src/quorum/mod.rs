//! The fence of a quorum: the highest number among the votes of a majority, written back.
//!
//! In: bounds ([`Quorum`]) and a seeded bug ([`QuorumBug`]). Out: stateright's `Model`; each step is a
//! [`QuorumStep`]. What is modelled and what is not: `docs/design/0009-quorum.md`.
//!
//! For an uncontended lock, the engine first sends a fast script to vote, and to free a vote. That refines
//! this model: the fast script does what the full script would do, or nothing, and a full script that follows
//! is a delayed request. The full vote is sent only during its round, so its order is kept: after earlier
//! requests, before the request that undoes it. A request that executes between the two scripts, or after the
//! next claim's vote, frees only votes of its own round or claim.
//!
//! Reading order: this file (the bounds, the possible steps, the rules), `state.rs` (nodes and clients, and
//! the effect of each step).

mod state;

use stateright::{Model, Property};

pub use state::QuorumWorld;
use state::{QuorumPhase, QuorumRequest};

/// Two clients never believe to hold the lock at the same time, unless both read.
pub const EXCLUSION: &str = "quorum: exclusion";
/// A client that believes to hold the lock has it on a majority of the nodes.
pub const BACKED: &str = "quorum: backed by a majority";
/// Reported fences are all different, and higher than each that was reported before their votes were
/// requested. Two readers may have equal fences, in any order.
pub const FENCES: &str = "quorum: fences rise";

/// A bug in one part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuorumBug {
    /// The highest number of the votes is the fence, and is not written back.
    NotWritten,
    /// The fence is written back even on a node where the client no longer holds the lock.
    WrittenBlindly,
    /// The fence is also written on nodes whose vote was not counted, and these writes count.
    WrittenByLateVoters,
    /// A retreat frees every vote of the claim, not only those of its round.
    RetreatByToken,
    /// The vote of a node that has just restarted without data counts.
    YoungCounted,
    /// The time that the votes took is not subtracted.
    ElapsedForgotten,
    /// Half of the nodes are enough.
    HalfIsEnough,
    /// A node votes for a reader beside a writer.
    ReaderBesideWriter,
}

impl QuorumBug {
    /// All bugs.
    pub const ALL: [QuorumBug; 8] = [
        QuorumBug::NotWritten,
        QuorumBug::WrittenBlindly,
        QuorumBug::WrittenByLateVoters,
        QuorumBug::RetreatByToken,
        QuorumBug::YoungCounted,
        QuorumBug::ElapsedForgotten,
        QuorumBug::HalfIsEnough,
        QuorumBug::ReaderBesideWriter,
    ];
}

/// A fault. Each uses up one of [`Quorum::faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeFault {
    /// A connection is given up, and its oldest request executes later than the requests after it.
    Stray,
    /// A node restarts with its data; requests under way to it are lost.
    Restart,
    /// A node restarts without its data.
    Forget,
    /// The clock of a node jumps: its lock expires early.
    Jump,
}

/// The bounds and switches of one run.
#[derive(Clone, Debug)]
pub struct Quorum {
    /// The name of the run.
    pub name: &'static str,
    /// The fence counter of each node at the start; the length is the number of nodes.
    pub counts: &'static [u8],
    /// The number of clients.
    pub clients: u8,
    /// How many of the clients read, the first ones; the others write.
    pub readers: u8,
    /// How many rounds each client has.
    pub rounds: u8,
    /// The duration of a vote in ticks.
    pub ttl: u8,
    /// How many ticks pass in total.
    pub ticks: u8,
    /// Whether clients propose a number that the counter of a node may jump to.
    pub wants: bool,
    /// How many faults may happen, in total.
    pub faults: u8,
    /// The kinds of faults.
    pub kinds: &'static [NodeFault],
    /// The seeded bug.
    pub bug: Option<QuorumBug>,
}

/// One step. A first number is a client; a single number is a client or, for the faults of a node, a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuorumStep {
    /// A tick passes.
    Tick,
    /// A round starts: votes are requested, possibly with a proposed number.
    Start(u8, bool),
    /// The votes of these nodes (a bit each) are counted.
    Count(u8, u8),
    /// The write-backs are answered: the lock is granted.
    Grant(u8),
    /// The round is given up.
    Retreat(u8),
    /// The lock is released, or a lost one is given up.
    Release(u8),
    /// A node executes the oldest request of a client.
    Execute(u8, u8),
    /// The same for a request of a connection that was given up.
    ExecuteLate(u8, u8),
    /// A client gives up its connection to a node.
    Stray(u8, u8),
    /// A node restarts with its data.
    Restart(u8),
    /// A node restarts without its data.
    Forget(u8),
    /// The lock of a node expires early.
    Jump(u8),
}

impl Model for Quorum {
    type State = QuorumWorld;
    type Action = QuorumStep;

    fn init_states(&self) -> Vec<QuorumWorld> {
        vec![QuorumWorld::new(self)]
    }

    fn actions(&self, world: &QuorumWorld, steps: &mut Vec<QuorumStep>) {
        // States after a broken rule prove nothing.
        if world.repeated {
            return;
        }
        if world.ticks < self.ticks {
            steps.push(QuorumStep::Tick);
        }
        for client in 0..self.clients {
            self.doings(world, client, steps);
            for node in 0..self.nodes() {
                self.deliveries(world, client, node, steps);
            }
        }
        if world.faults > 0 {
            (0..self.nodes()).for_each(|node| self.failings(node, steps));
        }
    }

    fn next_state(&self, before: &QuorumWorld, step: QuorumStep) -> Option<QuorumWorld> {
        let mut world = before.clone();
        world.step(self, step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut rules = vec![Property::always(FENCES, |_, world: &QuorumWorld| !world.repeated)];
        // If a node drops a lock early, its holder may overlap with the next one; fences protect against
        // that. So exclusion is not checked.
        if !self.kinds.contains(&NodeFault::Jump) {
            rules.push(Property::always(EXCLUSION, |quorum: &Quorum, world: &QuorumWorld| {
                world.excludes(quorum)
            }));
        }
        // After a node lost its data, its holder may have less than a majority. The node does not vote for a
        // while, which keeps others out.
        if !self.kinds.iter().any(|kind| matches!(kind, NodeFault::Jump | NodeFault::Forget)) {
            rules.push(Property::always(BACKED, |quorum: &Quorum, world: &QuorumWorld| {
                world.is_backed(quorum)
            }));
        }
        rules
    }
}

impl Quorum {
    pub(crate) fn nodes(&self) -> u8 {
        u8::try_from(self.counts.len()).unwrap_or(u8::MAX)
    }

    fn majority(&self) -> u32 {
        let half = u32::from(self.nodes()) / 2;
        if self.has(QuorumBug::HalfIsEnough) { half } else { half + 1 }
    }

    /// Whether this client is a reader.
    fn reads(&self, client: u8) -> bool {
        client < self.readers
    }

    fn has(&self, bug: QuorumBug) -> bool {
        self.bug == Some(bug)
    }

    /// The steps of a client by itself.
    fn doings(&self, world: &QuorumWorld, number: u8, steps: &mut Vec<QuorumStep>) {
        let client = &world.clients[usize::from(number)];
        match client.phase {
            QuorumPhase::Idle if client.round < self.rounds => {
                steps.push(QuorumStep::Start(number, false));
                steps.extend(self.wants.then_some(QuorumStep::Start(number, true)));
            }
            QuorumPhase::Asking => {
                // As soon as a majority has voted; which nodes are counted is arbitrary.
                let counted = (1..1 << self.nodes()).filter(|nodes: &u8| {
                    nodes.count_ones() == self.majority() && nodes & !client.voters() == 0
                });
                let valid = client.age < self.ttl || self.has(QuorumBug::ElapsedForgotten);
                steps.extend(
                    counted.filter(|_| valid).map(|nodes| QuorumStep::Count(number, nodes)),
                );
                steps.extend(self.retreat(client.round, number));
            }
            QuorumPhase::Writing { .. } => {
                let valid = client.age < self.ttl || self.has(QuorumBug::ElapsedForgotten);
                let written = client.written().count_ones() >= self.majority();
                steps.extend((valid && written).then_some(QuorumStep::Grant(number)));
                steps.extend(self.retreat(client.round, number));
            }
            QuorumPhase::Holding(_) => steps.push(QuorumStep::Release(number)),
            QuorumPhase::Idle => {}
        }
    }

    /// Without another round, a retreat is no different from doing nothing.
    fn retreat(&self, round: u8, number: u8) -> Option<QuorumStep> {
        (round < self.rounds).then_some(QuorumStep::Retreat(number))
    }

    /// The steps of the network and the nodes.
    fn deliveries(&self, world: &QuorumWorld, client: u8, node: u8, steps: &mut Vec<QuorumStep>) {
        let link = &world.clients[usize::from(client)].links[usize::from(node)];
        if !link.requests.is_empty() {
            steps.push(QuorumStep::Execute(client, node));
            // No client waits for a late write-back.
            let matters = !matches!(link.requests[0], QuorumRequest::Write { .. });
            let may_stray = world.faults > 0 && self.kinds.contains(&NodeFault::Stray);
            if may_stray && matters && link.late.is_none() {
                steps.push(QuorumStep::Stray(client, node));
            }
        }
        if link.late.is_some() {
            steps.push(QuorumStep::ExecuteLate(client, node));
        }
    }

    /// The possible faults.
    fn failings(&self, node: u8, steps: &mut Vec<QuorumStep>) {
        for kind in self.kinds {
            match kind {
                NodeFault::Stray => {}
                NodeFault::Restart => steps.push(QuorumStep::Restart(node)),
                NodeFault::Forget => steps.push(QuorumStep::Forget(node)),
                NodeFault::Jump => steps.push(QuorumStep::Jump(node)),
            }
        }
    }
}

/// Three nodes with different counters; two clients, one round each.
const PLAIN: Quorum = Quorum {
    name: "quorum: any delay",
    counts: &[2, 0, 2],
    clients: 2,
    readers: 0,
    rounds: 1,
    ttl: 1,
    ticks: 1,
    wants: false,
    faults: 0,
    kinds: &[],
    bug: None,
};

const fn one(name: &'static str, kinds: &'static [NodeFault]) -> Quorum {
    Quorum { name, faults: 1, kinds, ..PLAIN }
}

const STRAY: Quorum = one("quorum: a request comes late", &[NodeFault::Stray]);
const RETREAT: Quorum =
    Quorum { name: "quorum: a retreat comes late", clients: 1, rounds: 2, ..STRAY };
const JUMP: Quorum = one("quorum: a node's clock jumps", &[NodeFault::Jump]);
/// Two readers and a writer. A reader and a writer alone are no different from two writers.
const READ: Quorum = Quorum { name: "quorum: readers", clients: 3, readers: 2, ticks: 0, ..PLAIN };
const FORGET: Quorum = one("quorum: a node restarts empty", &[NodeFault::Forget]);

/// The runs of the test suite.
pub const SUITE: [Quorum; 7] = [
    PLAIN,
    RETREAT,
    Quorum { name: "quorum: a number is named", wants: true, ..PLAIN },
    STRAY,
    one("quorum: a node restarts", &[NodeFault::Restart]),
    JUMP,
    FORGET,
];

/// Additional runs on demand.
pub const LARGE: [Quorum; 2] =
    [Quorum { name: "quorum: ttl of two ticks", ttl: 2, ticks: 3, ..PLAIN }, READ];

/// The run that finds a bug, and the rules that the bug should break.
pub fn trap(bug: QuorumBug) -> (Quorum, &'static [&'static str]) {
    const HOLDS: &[&str] = &[EXCLUSION, BACKED];
    let (quorum, rules): (Quorum, &[&str]) = match bug {
        QuorumBug::NotWritten => (PLAIN, &[FENCES]),
        QuorumBug::WrittenBlindly => (JUMP, &[FENCES]),
        QuorumBug::WrittenByLateVoters => (JUMP, &[FENCES]),
        QuorumBug::RetreatByToken => (RETREAT, HOLDS),
        QuorumBug::YoungCounted => (FORGET, &[EXCLUSION]),
        QuorumBug::ElapsedForgotten => (PLAIN, HOLDS),
        QuorumBug::HalfIsEnough => (PLAIN, &[EXCLUSION]),
        QuorumBug::ReaderBesideWriter => (READ, &[EXCLUSION]),
    };
    (Quorum { bug: Some(bug), ..quorum }, rules)
}
