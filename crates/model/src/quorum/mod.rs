//! The fence of a quorum: votes of a majority, the highest of their numbers, written back.
//!
//! In: bounds ([`Quorum`]) and what is broken on purpose ([`QuorumBug`]). Out: stateright's `Model`,
//! whose every step is one of [`Step`]. What is modelled and what is not: `docs/design/0009-quorum.md`.
//!
//! The engine asks for a vote, and frees it, by a short form first where nobody else is known to want
//! the lock. That refines this: a short form does what the full one would, or nothing, and the full one
//! that then follows is a request that was delayed. A full vote is sent while its round lasts and no
//! later, so it stays in its place: behind what was asked for before, ahead of what undoes it. What may
//! come between the two forms, or after the next claim's vote, frees votes of its own round or claim only.
//!
//! In reading order: this file (the bounds, what can happen next, what must hold), `state.rs`
//! (nodes, clients, and what they do).

mod state;

use stateright::{Model, Property};

pub use state::World;
use state::{Phase, Request};

/// Two clients never both believe to hold the lock.
pub const EXCLUSION: &str = "quorum: exclusion";
/// Who believes to hold the lock has it on a majority of the nodes.
pub const BACKED: &str = "quorum: backed by a majority";
/// Fences that were reported are all different, and above each that was reported before they were
/// asked for.
pub const FENCES: &str = "quorum: fences rise";

/// The protocol, broken in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuorumBug {
    /// The highest number of the votes is the fence, and is written nowhere.
    NotWritten,
    /// It is written back whether or not we still own the lock there.
    WrittenBlindly,
    /// It is also written on nodes whose vote is not in it, and they count.
    WrittenByLateVoters,
    /// A retreat undoes whatever the claim has by then, not the round that it is for.
    RetreatByToken,
    /// The vote of a node that has just restarted empty counts.
    YoungCounted,
    /// The time that the votes took is not counted.
    ElapsedForgotten,
    /// Half of the nodes are enough.
    HalfIsEnough,
}

impl QuorumBug {
    /// Every one of them.
    pub const ALL: [QuorumBug; 7] = [
        QuorumBug::NotWritten,
        QuorumBug::WrittenBlindly,
        QuorumBug::WrittenByLateVoters,
        QuorumBug::RetreatByToken,
        QuorumBug::YoungCounted,
        QuorumBug::ElapsedForgotten,
        QuorumBug::HalfIsEnough,
    ];
}

/// A fault. Each costs one of [`Quorum::faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeFault {
    /// A connection is given up and its oldest request is carried out later than what follows it.
    Stray,
    /// A node restarts with its data; what was under way to it is lost.
    Restart,
    /// A node restarts without its data.
    Forget,
    /// A node's clock jumps: what it holds ends early.
    Jump,
}

/// The bounds and switches of one run.
#[derive(Clone, Debug)]
pub struct Quorum {
    /// What to call it.
    pub name: &'static str,
    /// The number that each node has counted to at the start; there are as many nodes.
    pub counts: &'static [u8],
    /// How many clients there are.
    pub clients: u8,
    /// How many rounds each has.
    pub rounds: u8,
    /// How many ticks a vote lasts.
    pub ttl: u8,
    /// How many ticks pass in all.
    pub ticks: u8,
    /// Whether clients name a number that nodes may jump to.
    pub wants: bool,
    /// How many faults may happen, in all.
    pub faults: u8,
    /// Which.
    pub kinds: &'static [NodeFault],
    /// What is broken.
    pub bug: Option<QuorumBug>,
}

/// One step. The first number is a client, or the only one a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A tick passes.
    Tick,
    /// A round starts: votes are asked for, perhaps with a number that would suit.
    Start(u8, bool),
    /// The votes of these nodes (a bit each) are counted.
    Count(u8, u8),
    /// The write-backs are answered: it is granted.
    Grant(u8),
    /// The round is given up.
    Retreat(u8),
    /// The lock is given back, or a lost one given up.
    Release(u8),
    /// A node carries out the oldest request of a client.
    Execute(u8, u8),
    /// The same for a request of a connection that was given up.
    ExecuteLate(u8, u8),
    /// A client gives its connection to a node up.
    Stray(u8, u8),
    /// A node restarts with its data.
    Restart(u8),
    /// A node restarts without.
    Forget(u8),
    /// What a node holds ends early.
    Jump(u8),
}

impl Model for Quorum {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        // What comes after a broken rule proves nothing.
        if world.repeated {
            return;
        }
        if world.ticks < self.ticks {
            steps.push(Step::Tick);
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

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        world.step(self, step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut rules = vec![Property::always(FENCES, |_, world: &World| !world.repeated)];
        // Whose lock a node has dropped before its time shares it with the next: that is what fences
        // are for.
        if !self.kinds.contains(&NodeFault::Jump) {
            rules.push(Property::always(EXCLUSION, |_, world: &World| world.believers() <= 1));
        }
        // A node that forgets leaves its holder with less than a majority, and keeps others out for
        // a while.
        if !self.kinds.iter().any(|kind| matches!(kind, NodeFault::Jump | NodeFault::Forget)) {
            rules.push(Property::always(BACKED, |quorum: &Quorum, world: &World| {
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

    fn has(&self, bug: QuorumBug) -> bool {
        self.bug == Some(bug)
    }

    /// What a client may do of its own.
    fn doings(&self, world: &World, number: u8, steps: &mut Vec<Step>) {
        let client = &world.clients[usize::from(number)];
        match client.phase {
            Phase::Idle if client.round < self.rounds => {
                steps.push(Step::Start(number, false));
                steps.extend(self.wants.then_some(Step::Start(number, true)));
            }
            Phase::Asking => {
                // As soon as a majority has said yes; which of them is a matter of chance.
                let counted = (1..1 << self.nodes()).filter(|nodes: &u8| {
                    nodes.count_ones() == self.majority() && nodes & !client.voters() == 0
                });
                let valid = client.age < self.ttl || self.has(QuorumBug::ElapsedForgotten);
                steps.extend(counted.filter(|_| valid).map(|nodes| Step::Count(number, nodes)));
                steps.extend(self.retreat(client.round, number));
            }
            Phase::Writing { .. } => {
                let valid = client.age < self.ttl || self.has(QuorumBug::ElapsedForgotten);
                let written = client.written().count_ones() >= self.majority();
                steps.extend((valid && written).then_some(Step::Grant(number)));
                steps.extend(self.retreat(client.round, number));
            }
            Phase::Holding(_) => steps.push(Step::Release(number)),
            Phase::Idle => {}
        }
    }

    /// Who has no other round to go to might as well stand still.
    fn retreat(&self, round: u8, number: u8) -> Option<Step> {
        (round < self.rounds).then_some(Step::Retreat(number))
    }

    /// What the network and the nodes may do.
    fn deliveries(&self, world: &World, client: u8, node: u8, steps: &mut Vec<Step>) {
        let link = &world.clients[usize::from(client)].links[usize::from(node)];
        if !link.requests.is_empty() {
            steps.push(Step::Execute(client, node));
            // A write-back that comes late has nobody who waits for it.
            let matters = !matches!(link.requests[0], Request::Write { .. });
            let may_stray = world.faults > 0 && self.kinds.contains(&NodeFault::Stray);
            if may_stray && matters && link.late.is_none() {
                steps.push(Step::Stray(client, node));
            }
        }
        if link.late.is_some() {
            steps.push(Step::ExecuteLate(client, node));
        }
    }

    /// What may go wrong.
    fn failings(&self, node: u8, steps: &mut Vec<Step>) {
        for kind in self.kinds {
            match kind {
                NodeFault::Stray => {}
                NodeFault::Restart => steps.push(Step::Restart(node)),
                NodeFault::Forget => steps.push(Step::Forget(node)),
                NodeFault::Jump => steps.push(Step::Jump(node)),
            }
        }
    }
}

/// Three nodes that have counted differently far; two clients, one round each.
const PLAIN: Quorum = Quorum {
    name: "quorum: any delay",
    counts: &[2, 0, 2],
    clients: 2,
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
const FORGET: Quorum = one("quorum: a node restarts empty", &[NodeFault::Forget]);

/// What the test suite explores.
pub const SUITE: [Quorum; 7] = [
    PLAIN,
    RETREAT,
    Quorum { name: "quorum: a number is named", wants: true, ..PLAIN },
    STRAY,
    one("quorum: a node restarts", &[NodeFault::Restart]),
    JUMP,
    FORGET,
];

/// What is explored on demand, besides.
pub const LARGE: [Quorum; 1] =
    [Quorum { name: "quorum: ttl of two ticks", ttl: 2, ticks: 3, ..PLAIN }];

/// Where a bug is found, and the rules it is meant to break.
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
    };
    (Quorum { bug: Some(bug), ..quorum }, rules)
}
