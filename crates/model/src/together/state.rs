//! The complete state at one moment: the server and the claims.
//!
//! In: nothing. Out: [`TogetherWorld`], small and comparable. Times are remaining or elapsed ticks, and fences are
//! renumbered without gaps, as in the model of exclusive locks.

use super::judge::Breach;
use super::{Kind, Together};
use crate::state::{How, LastReply};

/// The idle counter stops here, above every limit.
const IDLE_MAX: u8 = 12;

/// A member of the key: a claim, or one permit of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Member {
    /// The claim: the identity by which it is found.
    pub(super) claim: u8,
    /// The slot of a permit; 0 in the other kinds.
    pub(super) slot: u8,
    /// Ticks until it ends. An ended member stays until a script purges it.
    pub(super) left: u8,
}

/// A waiter in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    /// Its claim.
    pub(super) claim: u8,
    /// Ticks until its heartbeat expires.
    pub(super) beat: u8,
    /// It polls: it is granted the key without a push.
    pub(super) polled: bool,
}

/// A message on the connection of a process: a request, or the reply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    /// Request: acquire the key, or queue. With the ticks since it was sent, as all that have an age.
    Ask(u8, How),
    /// Request: extend the members of the claim.
    Renew(u8),
    /// Request: release the key and leave the queue.
    End,
    /// Reply: granted, with this fence.
    Granted(u8, u8),
    /// Reply: queued; the last fence granted until then.
    Queued(u8, u8),
    /// Reply: held by others, and this claim is not queued.
    Held,
    /// Reply: extended.
    Renewed(u8),
    /// Reply: the claim holds nothing.
    Gone,
    /// Reply: the claim has ended.
    Ended,
}

impl Message {
    pub(super) fn is_request(self) -> bool {
        matches!(self, Message::Ask(..) | Message::Renew(_) | Message::End)
    }

    /// Whether its script serves the queue.
    pub(super) fn serves(self) -> bool {
        matches!(self, Message::Ask(..) | Message::End)
    }

    fn age(&mut self) -> Option<&mut u8> {
        match self {
            Message::Ask(age, _) | Message::Renew(age) | Message::Renewed(age) => Some(age),
            Message::Granted(age, _) | Message::Queued(age, _) => Some(age),
            _ => None,
        }
    }
}

/// The phase of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum AskerPhase {
    /// It is not made yet.
    #[default]
    Idle,
    /// It waits.
    Asking,
    /// It holds the key, for this many more ticks by the clock of its process.
    Holding(u8),
    /// Its end must be sent, and answered.
    Ending,
    /// Its end is answered.
    Done,
    /// Its process died.
    Dead,
}

/// A claim and its process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asker {
    /// Its phase.
    pub(super) phase: AskerPhase,
    /// The message under way.
    pub(super) wire: Option<Message>,
    /// A request of a given-up connection that may still execute.
    pub(super) late: Option<Message>,
    /// The last heartbeat that was answered "queued".
    pub(super) last_reply: Option<LastReply>,
    /// Unread pushes, oldest first: the fence of a grant, or 0 to make it ask.
    pub(super) inbox: Vec<u8>,
    /// Whether the server counts its inbox as subscribed.
    pub(super) heard: bool,
    /// Whether it believes that its inbox is subscribed.
    pub(super) confirmed: bool,
    /// Whether it sent its heartbeat in this tick.
    pub(super) beaten: bool,
    /// The fence that it reported; 0 for none.
    pub(super) reported: u8,
}

impl Asker {
    /// Whether the process relies on the key.
    pub(super) fn believes(&self) -> bool {
        matches!(self.phase, AskerPhase::Holding(left) if left > 0)
    }

    /// Whether it has done everything that is due in this tick, and all its messages have arrived.
    pub(super) fn is_quiet(&self) -> bool {
        let done = match self.phase {
            AskerPhase::Idle | AskerPhase::Done => true,
            AskerPhase::Asking => self.beaten,
            AskerPhase::Holding(left) => left > 0,
            AskerPhase::Ending => false,
            AskerPhase::Dead => return true,
        };
        done && self.wire.is_none() && self.inbox.is_empty() && self.heard
    }

    fn tick(&mut self, ttl: u8) {
        if let AskerPhase::Holding(left) = &mut self.phase {
            *left = left.saturating_sub(1);
        }
        self.last_reply =
            self.last_reply.map(|last_reply| LastReply { age: last_reply.age + 1, ..last_reply });
        self.last_reply.take_if(|last_reply| last_reply.age >= ttl);
        self.beaten = false;
        // All ages beyond the ttl are equivalent.
        let messages = self.wire.iter_mut().chain(&mut self.late);
        messages.filter_map(Message::age).for_each(|age| *age = (*age + 1).min(ttl));
    }
}

/// The complete state at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TogetherWorld {
    /// The members of the key, sorted; none means that it is free.
    pub(super) members: Vec<Member>,
    /// A writer's flag that others wait.
    pub(super) flag: bool,
    /// Oldest ticket first.
    pub(super) queue: Vec<Waiter>,
    /// The last fence granted.
    pub(super) fence: u8,
    /// The script under way stops half-way.
    pub(super) halts: bool,
    /// Claims whose end has executed, a bit each; and those that a late request restored afterwards.
    pub(super) ended: u8,
    pub(super) revived: u8,
    /// The claims.
    pub(super) askers: Vec<Asker>,
    /// Cancelled waits left.
    pub(super) cancels: u8,
    /// Faults left.
    pub(super) faults: u8,
    /// Consecutive ticks at whose end the first waiter fitted those who rely on the key.
    pub(super) idle: u8,
    /// The first rule that a step broke.
    pub(super) broken: Option<Breach>,
}

impl TogetherWorld {
    /// The initial state.
    pub(super) fn new(model: &Together) -> Self {
        let asker = Asker {
            phase: AskerPhase::Idle,
            wire: None,
            late: None,
            last_reply: None,
            inbox: Vec::new(),
            heard: true,
            confirmed: true,
            beaten: false,
            reported: 0,
        };
        TogetherWorld {
            members: Vec::new(),
            flag: false,
            queue: Vec::new(),
            fence: 0,
            halts: false,
            ended: 0,
            revived: 0,
            askers: vec![asker; model.claims.len()],
            cancels: model.cancels,
            faults: model.faults,
            idle: 0,
            broken: None,
        }
    }

    pub(super) fn at(&mut self, claim: u8) -> &mut Asker {
        &mut self.askers[usize::from(claim)]
    }

    /// Whether the claim has a member that has not ended.
    pub(super) fn holds(&self, claim: u8) -> bool {
        self.members.iter().any(|member| member.claim == claim && member.left > 0)
    }

    /// The position of a claim in the queue.
    pub(super) fn position(&self, claim: u8) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.claim == claim)
    }

    /// The claims whose processes rely on the key.
    pub(super) fn believers(&self) -> impl Iterator<Item = u8> {
        (0..).zip(&self.askers).filter(|(_, asker)| asker.believes()).map(|(claim, _)| claim)
    }

    /// The kinds of the claims that hold the key at the server, without one of them.
    pub(super) fn others(&self, model: &Together, claim: u8) -> Vec<Kind> {
        let claims = (0..).zip(model.claims).filter(|(other, _)| *other != claim);
        claims.filter(|(other, _)| self.holds(*other)).map(|(_, kind)| *kind).collect()
    }

    /// One tick passes, for the server and all processes. The key expires with the last of its members.
    pub(super) fn tick(&mut self, model: &Together) {
        let idle = model.slow == 0 && self.first_waiter_fits(model);
        self.idle = if idle { (self.idle + 1).min(IDLE_MAX) } else { 0 };
        self.members.iter_mut().for_each(|member| member.left = member.left.saturating_sub(1));
        if self.members.iter().all(|member| member.left == 0) {
            self.members.clear();
        }
        self.queue.iter_mut().for_each(|waiter| waiter.beat = waiter.beat.saturating_sub(1));
        self.askers.iter_mut().for_each(|asker| asker.tick(model.ttl));
    }

    /// Removes data that can have no effect any more, so that states that differ only in it become equal.
    pub(super) fn simplify(&mut self, model: &Together) {
        self.members.sort_unstable();
        let first = self.members.first().map(|member| model.kind(member.claim));
        self.flag &= first == Some(Kind::Writer);
        for claim in 0..self.askers.len() as u8 {
            let at_server = self.holds(claim) || self.position(claim).is_some();
            let asker = self.at(claim);
            // Only a waiter reads its inbox, and a process that finds a grant of an ended claim.
            let reads = match asker.phase {
                AskerPhase::Asking => true,
                AskerPhase::Done => at_server || asker.late.is_some(),
                _ => false,
            };
            if !reads {
                asker.inbox.clear();
            }
            if !matches!(asker.phase, AskerPhase::Asking | AskerPhase::Dead) {
                (asker.last_reply, asker.beaten) = (None, false);
                (asker.heard, asker.confirmed) = (true, true);
            }
        }
        self.renumber();
    }

    /// Renumbers the fences under way without gaps, and rounds all others down to the next of these. Every
    /// comparison that can still happen has the same result.
    fn renumber(&mut self) {
        let mut flying = 1_u64;
        self.flying(|fence| flying |= 1 << *fence);
        let rank = |fence: u8| (flying & ((2 << fence) - 1)).count_ones() as u8 - 1;
        self.flying(|fence| *fence = rank(*fence));
        self.fence = rank(self.fence);
        for asker in &mut self.askers {
            asker.reported = rank(asker.reported);
            asker
                .last_reply
                .iter_mut()
                .for_each(|last_reply| last_reply.stamp = rank(last_reply.stamp));
            if let Some(Message::Queued(_, stamp)) = &mut asker.wire {
                *stamp = rank(*stamp);
            }
        }
    }

    /// The fences of grants in messages under way.
    fn flying(&mut self, mut each: impl FnMut(&mut u8)) {
        for asker in &mut self.askers {
            asker.inbox.iter_mut().for_each(&mut each);
            if let Some(Message::Granted(_, fence)) = &mut asker.wire {
                each(fence);
            }
        }
    }
}
