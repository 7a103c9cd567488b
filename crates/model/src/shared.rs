//! Shared owners: one owner in several processes, counted at the server.
//!
//! In: a seeded bug, if any. Out: a separate model, since there is no queue here: processes 0 and 1 share an
//! owner, process 2 has its own. A claim that is refused asks again.

use stateright::{Model, Property};

/// Owners: the one that processes 0 and 1 share, that of process 2, and that of a task of process 0 with an
/// owner of its own.
const TOGETHER: u8 = 0;
const APART: u8 = 1;
const LOCAL_TASK: u8 = 2;
/// The duration of a grant in ticks.
const TTL: u8 = 2;

/// Guards of two owners are never valid at the same time.
pub const OWNERS: &str = "one owner at a time";
/// A process that believes to hold the lock has its share at the server.
pub const SHARE: &str = "share kept by the server";
/// A claim that has ended leaves nothing behind; the lock is freed with the last share.
pub const LAST: &str = "last one out frees";

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBug {
    /// The lease of a shared owner is handed to a task of another owner.
    HandedOver,
    /// The first release frees the lock.
    FirstOutFrees,
    /// A repeated request is counted again.
    CountedTwice,
}

impl SharedBug {
    /// All bugs.
    pub const ALL: [SharedBug; 3] =
        [SharedBug::HandedOver, SharedBug::FirstOutFrees, SharedBug::CountedTwice];
}

/// The model of shared owners.
#[derive(Clone, Debug)]
pub struct SharedOwners {
    /// How many claims each process makes, one after the other.
    pub claims: u8,
    /// How many replies may be lost and processes may die, in total.
    pub faults: u8,
    /// The seeded bug.
    pub bug: Option<SharedBug>,
}

/// The complete state at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    owner: Option<u8>,
    left: u8,
    holders: Vec<(u8, u8)>,
    members: [Member; 3],
    faults: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    phase: Phase,
    owner: u8,
    claims: u8,
    wire: Option<Wire>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Holding(u8),
    Ending,
    Dead,
}

/// A message to or from the server, with the age of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wire {
    Ask(u8),
    Renew(u8),
    Release,
    Yes(u8),
    No,
    Released,
}

/// One step. A number is a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A tick passes.
    Tick,
    /// A process asks for the lock.
    Ask(u8),
    /// A renewal is sent.
    Renew(u8),
    /// A release is sent.
    Release(u8),
    /// The server executes a request.
    Execute(u8),
    /// A reply is read.
    Read(u8),
    /// A reply is lost.
    Lose(u8),
    /// A process dies.
    Crash(u8),
    /// A lease is handed to a local task of another owner.
    HandOver(u8),
}

impl Model for SharedOwners {
    type State = Shares;
    type Action = Step;

    fn init_states(&self) -> Vec<Shares> {
        let mut members = [Member { owner: TOGETHER, ..Member::default() }; 3];
        members[2].owner = APART;
        let (owner, left, holders) = (None, 0, Vec::new());
        vec![Shares { owner, left, holders, members, faults: self.faults }]
    }

    fn actions(&self, shares: &Shares, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for (number, member) in (0..).zip(&shares.members) {
            match member.wire {
                Some(Wire::Ask(_) | Wire::Renew(_) | Wire::Release) => {
                    steps.push(Step::Execute(number));
                }
                Some(_) => {
                    steps.push(Step::Read(number));
                    steps.extend((shares.faults > 0).then_some(Step::Lose(number)));
                }
                None => self.moves(*member, number, steps),
            }
            let alive = member.phase != Phase::Dead;
            steps.extend((shares.faults > 0 && alive).then_some(Step::Crash(number)));
        }
    }

    fn next_state(&self, before: &Shares, step: Step) -> Option<Shares> {
        let mut shares = before.clone();
        match step {
            Step::Tick => shares.tick(),
            Step::Ask(number) => shares.at(number).ask(),
            Step::Renew(number) => shares.at(number).wire = Some(Wire::Renew(0)),
            Step::Release(number) => {
                let member = shares.at(number);
                (member.phase, member.wire) = (Phase::Ending, Some(Wire::Release));
            }
            Step::Execute(number) => self.execute(&mut shares, number),
            Step::Read(number) => shares.at(number).read(),
            Step::Lose(number) => {
                shares.faults -= 1;
                shares.at(number).wire = None;
            }
            Step::Crash(number) => {
                shares.faults -= 1;
                let wire = shares.at(number).wire.filter(|wire| *wire != Wire::Released);
                *shares.at(number) = Member { phase: Phase::Dead, wire, ..*shares.at(number) };
            }
            Step::HandOver(number) => shares.at(number).owner = LOCAL_TASK,
        }
        Some(shares)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OWNERS, |_, shares: &Shares| {
                let mut believers = shares.members.iter().filter(|member| member.believes());
                let first = believers.next();
                first.is_none_or(|first| believers.all(|other| other.owner == first.owner))
            }),
            Property::always(SHARE, |_, shares: &Shares| {
                let shared = |number| shares.holders.iter().any(|(holder, _)| *holder == number);
                let mut members = (0..).zip(&shares.members);
                members.all(|(number, member)| !member.believes() || shared(number))
            }),
            Property::always(LAST, |_, shares: &Shares| {
                let ended = |(holder, _): &(u8, u8)| {
                    let member = shares.members[usize::from(*holder)];
                    member.phase == Phase::Idle
                };
                shares.owner.is_some() != shares.holders.is_empty()
                    && !shares.holders.iter().any(ended)
            }),
        ]
    }
}

impl SharedOwners {
    /// The steps of a process that has no message under way.
    fn moves(&self, member: Member, number: u8, steps: &mut Vec<Step>) {
        match member.phase {
            Phase::Idle if member.claims < self.claims => steps.push(Step::Ask(number)),
            Phase::Asking => steps.push(Step::Ask(number)),
            Phase::Ending => steps.push(Step::Release(number)),
            Phase::Holding(left) => {
                steps.push(Step::Release(number));
                steps.extend((left == 1).then_some(Step::Renew(number)));
                let handed = self.bug == Some(SharedBug::HandedOver) && number == 0 && left > 0;
                steps
                    .extend((handed && member.owner == TOGETHER).then_some(Step::HandOver(number)));
            }
            Phase::Idle | Phase::Dead => {}
        }
    }

    fn execute(&self, shares: &mut Shares, number: u8) {
        let member = *shares.at(number);
        let answer = match member.wire {
            Some(Wire::Ask(age)) => Some(self.ask(shares, number, member.owner, age)),
            Some(Wire::Renew(age)) => {
                Some(if shares.renew(number) { Wire::Yes(age) } else { Wire::No })
            }
            Some(Wire::Release) => {
                self.release(shares, number);
                Some(Wire::Released)
            }
            other => other,
        };
        shares.at(number).wire = answer.filter(|_| member.phase != Phase::Dead);
    }

    fn ask(&self, shares: &mut Shares, number: u8, owner: u8, age: u8) -> Wire {
        if shares.owner.is_some_and(|held| held != owner) {
            return Wire::No;
        }
        if self.bug != Some(SharedBug::CountedTwice) {
            shares.holders.retain(|(holder, _)| *holder != number);
        }
        shares.holders.push((number, TTL));
        shares.holders.sort_unstable();
        (shares.owner, shares.left) = (Some(owner), TTL);
        Wire::Yes(age)
    }

    fn release(&self, shares: &mut Shares, number: u8) {
        let Some(place) = shares.holders.iter().position(|(holder, _)| *holder == number) else {
            return;
        };
        shares.holders.remove(place);
        if self.bug == Some(SharedBug::FirstOutFrees) {
            shares.holders.clear();
        }
        shares.free_if_empty();
    }
}

impl Shares {
    fn at(&mut self, number: u8) -> &mut Member {
        &mut self.members[usize::from(number)]
    }

    fn renew(&mut self, number: u8) -> bool {
        let share = self.holders.iter_mut().find(|(holder, _)| *holder == number);
        let ours = share.map(|(_, left)| *left = TTL).is_some();
        self.left = if ours { TTL } else { self.left };
        ours
    }

    fn tick(&mut self) {
        self.members.iter_mut().for_each(Member::tick);
        self.holders.iter_mut().for_each(|(_, left)| *left -= 1);
        self.holders.retain(|(_, left)| *left > 0);
        self.left = self.left.saturating_sub(1);
        self.free_if_empty();
    }

    fn free_if_empty(&mut self) {
        if self.holders.is_empty() {
            (self.owner, self.left) = (None, 0);
        }
    }
}

impl Member {
    fn believes(&self) -> bool {
        matches!(self.phase, Phase::Holding(left) if left > 0)
    }

    fn ask(&mut self) {
        self.claims += u8::from(self.phase == Phase::Idle);
        (self.phase, self.wire) = (Phase::Asking, Some(Wire::Ask(0)));
    }

    fn read(&mut self) {
        self.phase = match (self.phase, self.wire.take()) {
            (Phase::Asking, Some(Wire::Yes(age))) if age < TTL => Phase::Holding(TTL - age),
            (Phase::Holding(left), Some(Wire::Yes(age))) if left > 0 => {
                Phase::Holding(left.max(TTL - age))
            }
            (Phase::Holding(_), Some(Wire::No)) => Phase::Holding(0),
            (Phase::Ending, Some(Wire::Released)) => {
                self.owner = if self.owner == LOCAL_TASK { TOGETHER } else { self.owner };
                Phase::Idle
            }
            (phase, _) => phase,
        };
    }

    fn tick(&mut self) {
        if let Phase::Holding(left) = &mut self.phase {
            *left = left.saturating_sub(1);
        }
        if let Some(Wire::Ask(age) | Wire::Renew(age) | Wire::Yes(age)) = &mut self.wire {
            *age = (*age + 1).min(TTL);
        }
    }
}
