//! The rules that must always hold.
//!
//! In: a state, or a step of a script. Out: whether it is correct. The rules compare claims and their kinds. They use
//! neither `fits` of `server.rs` nor its walk through the queue, only whether a script has made all its grants.

use stateright::Property;

use super::server::Stop;
use super::state::{Asker, AskerPhase, TogetherWorld, Waiter};
use super::{Kind, Together};
use crate::setup::Fault;

/// Those who believe to hold the key are of one kind, alone if it is a writer; the permits of all are not more than
/// the largest of their capacities.
pub const COMPATIBLE: &str = "together: compatible";
/// A process that believes to hold the key has all its members at the server.
pub const BACKED: &str = "together: backed by the server";
/// A grant fits those who hold the key, by the capacity of the claim that is granted.
pub const FITS: &str = "together: a grant fits";
/// A waiter that the server can notify is never passed over.
pub const TURN: &str = "together: nobody passed over";
/// A reader is never granted while a writer that came before it, and can be notified, waits.
pub const PHASE: &str = "together: phase-fair";
/// After a script, the first waiter that can be notified does not fit. If the script has made all grants that it may,
/// this waiter was asked to ask.
pub const BATCH: &str = "together: front does not fit";
/// A claim is refused or queued only if it does not fit, or if a waiter that can be notified is before it. A claim of
/// a shared owner is not refused while its owner holds the key.
pub const REASON: &str = "together: refused for a reason";
/// A claim has as many members as its weight, and waits or holds, never both.
pub const ONCE: &str = "together: counted once";
/// The permits that are out have different slots, each below the capacity of its claim.
pub const SLOTS: &str = "together: slots differ";
/// No renewal extends a member that has ended.
pub const ENDED: &str = "together: ended stays ended";
/// A reported fence is above those that claims reported before which could not hold the key together with it.
pub const FENCES: &str = "together: fences rise";
/// A waiter that got the reply "queued" is in the queue, or holds the key, until its heartbeat expires.
pub const PLACE: &str = "together: place kept";
/// The first waiter is granted as soon as it fits those who rely on the key; after a fault, when what the fault left
/// behind has ended.
pub const SERVED: &str = "together: waiters are served";
/// A claim leaves nothing behind after its end has executed.
pub const ORPHAN: &str = "together: no orphan";

/// A rule that a single step can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Breach {
    /// See [`FITS`].
    Unfit,
    /// See [`TURN`].
    PassedOver,
    /// See [`PHASE`]; it is a case of [`TURN`].
    WriterPassedOver,
    /// See [`BATCH`].
    NotServed,
    /// See [`REASON`].
    RefusedForNothing,
    /// See [`ENDED`].
    Revived,
    /// See [`FENCES`].
    FenceFell,
}

/// All rules.
pub(super) fn all() -> Vec<Property<Together>> {
    vec![
        Property::always(COMPATIBLE, compatible),
        Property::always(BACKED, backed),
        Property::always(FITS, |_, world| !broke(world, &[Breach::Unfit])),
        Property::always(TURN, |_, world| {
            !broke(world, &[Breach::PassedOver, Breach::WriterPassedOver])
        }),
        Property::always(PHASE, |_, world| !broke(world, &[Breach::WriterPassedOver])),
        Property::always(BATCH, |_, world| !broke(world, &[Breach::NotServed])),
        Property::always(REASON, |_, world| !broke(world, &[Breach::RefusedForNothing])),
        Property::always(ONCE, once),
        Property::always(SLOTS, slots),
        Property::always(ENDED, |_, world| !broke(world, &[Breach::Revived])),
        Property::always(FENCES, |_, world| !broke(world, &[Breach::FenceFell])),
        Property::always(PLACE, place),
        Property::always(SERVED, |model: &Together, world: &TogetherWorld| {
            // A dead waiter in front holds others back for a heartbeat, and then the key for a ttl.
            world.idle <= if model.faults == 0 { 0 } else { model.beat + model.ttl }
        }),
        Property::always(ORPHAN, |_, world: &TogetherWorld| {
            let gone = |claim: u8| world.ended & !world.revived & 1 << claim != 0;
            let members = world.members.iter().map(|member| member.claim);
            !members.chain(world.queue.iter().map(|waiter| waiter.claim)).any(gone)
        }),
    ]
}

fn broke(world: &TogetherWorld, breaches: &[Breach]) -> bool {
    world.broken.is_some_and(|broken| breaches.contains(&broken))
}

/// The rule: a claim fits those who hold the key if nobody does, or if all are of its kind and its capacity suffices.
fn fits(kind: Kind, holders: &[Kind]) -> bool {
    let used: u8 = holders.iter().map(|held| held.weight()).sum();
    let room = kind.capacity().is_none_or(|capacity| used + kind.weight() <= capacity);
    holders.is_empty() || room && holders.iter().all(|held| kind.mixes(*held))
}

/// Whether all of them may hold the key at the same time.
fn agree(holders: &[Kind]) -> bool {
    let used: u8 = holders.iter().map(|held| held.weight()).sum();
    let largest = holders.iter().filter_map(|held| held.capacity()).max();
    let pairs =
        |(place, kind): (usize, &Kind)| holders[place + 1..].iter().all(|other| kind.mixes(*other));
    holders.iter().enumerate().all(pairs) && largest.is_none_or(|largest| used <= largest)
}

fn compatible(model: &Together, world: &TogetherWorld) -> bool {
    agree(&world.believers().map(|claim| model.kind(claim)).collect::<Vec<_>>())
}

fn backed(model: &Together, world: &TogetherWorld) -> bool {
    let live = |claim: u8| {
        world.members.iter().filter(|member| member.claim == claim && member.left > 0).count()
    };
    world.believers().all(|claim| live(claim) >= model.kind(claim).weight().into())
}

fn once(model: &Together, world: &TogetherWorld) -> bool {
    let count = |claim| world.members.iter().filter(|member| member.claim == claim).count();
    let mut claims = (0..).zip(model.claims);
    // A script that stops half-way leaves an entry behind, until the next script.
    let stops = model.kinds.contains(&Fault::Half);
    let both = |waiter: &Waiter| world.holds(waiter.claim);
    claims.all(|(claim, kind)| count(claim) <= kind.weight().into())
        && (stops || !world.queue.iter().any(both))
}

fn slots(model: &Together, world: &TogetherWorld) -> bool {
    let permits: Vec<_> = world.members.iter().filter(|member| member.left > 0).collect();
    (0..permits.len()).all(|place| {
        let (claim, slot) = (permits[place].claim, permits[place].slot);
        let below = |capacity| slot < capacity;
        let differs = permits[place + 1..].iter().all(|other| other.slot != slot);
        model.kind(claim).capacity().is_none_or(|capacity| differs && below(capacity))
    })
}

fn place(model: &Together, world: &TogetherWorld) -> bool {
    let kept = |(claim, asker): (u8, &Asker)| {
        let last_reply = asker.last_reply.is_some_and(|last_reply| last_reply.age < model.beat);
        let waits = asker.phase == AskerPhase::Asking && last_reply;
        !waits || world.position(claim).is_some() || world.holds(claim)
    };
    (0..).zip(&world.askers).all(kept)
}

impl TogetherWorld {
    /// Judges a grant before its members are added.
    pub(super) fn judge_grant(&mut self, model: &Together, claim: u8) {
        let (kind, others) = (model.kind(claim), self.others(model, claim));
        if !fits(kind, &others) {
            self.breaks(Breach::Unfit);
        }
        // A claim of an owner that holds the key does not wait.
        if kind == Kind::Owner && others.contains(&Kind::Owner) {
            return;
        }
        let passed = self.before(model, claim).find(|waiter| self.reaches(*waiter));
        if let Some(passed) = passed {
            let phase = kind == Kind::Reader && model.kind(passed.claim) == Kind::Writer;
            self.breaks(if phase { Breach::WriterPassedOver } else { Breach::PassedOver });
        }
    }

    /// Judges the queue after a script.
    pub(super) fn judge_batch(&mut self, model: &Together, stop: Stop) {
        let front = self.before(model, u8::MAX).find(|waiter| self.holds_back(model, *waiter));
        let Some(front) = front else { return };
        let asker = &self.askers[usize::from(front.claim)];
        // A dead process, whose subscription the server may still count, has no messages.
        let dead = asker.phase == AskerPhase::Dead;
        let asked = front.polled || dead || asker.inbox.last() == Some(&0);
        let served = stop == Stop::Full && asked;
        if !served && fits(model.kind(front.claim), &self.others(model, front.claim)) {
            self.breaks(Breach::NotServed);
        }
    }

    /// Judges the answer to a claim that is not granted.
    pub(super) fn judge_refusal(&mut self, model: &Together, claim: u8, stop: Stop) {
        if self.holds(claim) {
            return;
        }
        let (kind, others) = (model.kind(claim), self.others(model, claim));
        let same_owner = kind == Kind::Owner && others.contains(&Kind::Owner);
        let behind = self.before(model, claim).any(|waiter| self.holds_back(model, waiter));
        if same_owner || fits(kind, &others) && !behind && stop != Stop::Full {
            self.breaks(Breach::RefusedForNothing);
        }
    }

    pub(super) fn judge_renewal(&mut self, live: bool) {
        if !live {
            self.breaks(Breach::Revived);
        }
    }

    /// Judges a fence that is reported to a caller.
    pub(super) fn judge_fence(&mut self, model: &Together, claim: u8, fence: u8) {
        let kind = model.kind(claim);
        let mut reported = model.claims.iter().zip(&self.askers);
        if reported.any(|(other, asker)| asker.reported >= fence && !agree(&[kind, *other])) {
            self.breaks(Breach::FenceFell);
        }
    }

    /// Whether the first waiter fits those who rely on the key. A claim that was granted and does not know it yet is
    /// before all that are queued.
    pub(super) fn first_waiter_fits(&self, model: &Together) -> bool {
        let waits = |claim: &u8| self.askers[usize::from(*claim)].phase == AskerPhase::Asking;
        let mut granted = (0..self.askers.len() as u8).filter(|claim| self.holds(*claim));
        let queued = self.queue.iter().map(|waiter| waiter.claim).find(waits);
        let first = granted.find(waits).or(queued);
        let believers: Vec<_> = self.believers().map(|claim| model.kind(claim)).collect();
        first.is_some_and(|first| fits(model.kind(first), &believers))
    }

    /// The live waiters before a claim, as far as a script looks.
    fn before(&self, model: &Together, claim: u8) -> impl Iterator<Item = Waiter> {
        let place = self.position(claim).unwrap_or(usize::MAX).min(model.looks);
        let waiters = self.queue.iter().take(place).copied();
        waiters.filter(move |waiter| {
            waiter.claim != claim && waiter.beat > 0 && !self.holds(waiter.claim)
        })
    }

    /// Whether the server can notify a waiter.
    fn reaches(&self, waiter: Waiter) -> bool {
        waiter.polled || self.askers[usize::from(waiter.claim)].heard
    }

    /// Whether a waiter may hold back those behind it: it can be notified; or nobody can know, because subscribers
    /// are not counted and it does not fit.
    fn holds_back(&self, model: &Together, waiter: Waiter) -> bool {
        let unfit = || !fits(model.kind(waiter.claim), &self.others(model, waiter.claim));
        self.reaches(waiter) || !model.counted && unfit()
    }

    fn breaks(&mut self, breach: Breach) {
        self.broken = self.broken.or(Some(breach));
    }
}
