//! The model of claims with a mode step by step, for a test that does the same on a real server.
//!
//! In: the steps of users and the ends of leases and processes. Out: who holds the key and who waits, at the server and
//! in the processes. After each step all messages are delivered. Time stands still, but a lease can end.

use stateright::Model;

use super::state::{AskerPhase, TogetherWorld};
use super::{Kind, Together, TogetherStep as Step};
use crate::setup::Fault;

/// What happens to a claim; each has a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TogetherEvent {
    /// It is made, and asks.
    Ask(u8),
    /// It stops to wait.
    Cancel(u8),
    /// It is released.
    Release(u8),
    /// It is renewed.
    Renew(u8),
    /// Its lease ends at the server. Its process learns of it by a request.
    Expire(u8),
    /// Its process dies, and the server notices that nobody subscribes to its inbox.
    Die(u8),
}

/// The model at one moment.
#[derive(Debug)]
pub struct TogetherReplay {
    model: Together,
    world: TogetherWorld,
}

impl TogetherReplay {
    /// Nobody holds the key or waits. The last of the claims only tries.
    pub fn new(claims: &'static [Kind]) -> Self {
        let model = Together {
            name: "together: replay",
            claims,
            tries: true,
            ttl: 3,
            beat: 3,
            cancels: u8::MAX,
            faults: u8::MAX,
            kinds: &[Fault::Crash],
            kill: true,
            slow: 0,
            counted: true,
            looks: 32,
            batch: 32,
            bug: None,
        };
        let world = TogetherWorld::new(&model);
        TogetherReplay { model, world }
    }

    /// What can happen next.
    pub fn events(&self) -> Vec<TogetherEvent> {
        let phases = (0..).zip(self.world.askers.iter().map(|asker| asker.phase));
        phases.flat_map(|(claim, phase)| self.events_of(claim, phase)).collect()
    }

    fn events_of(&self, claim: u8, phase: AskerPhase) -> Vec<TogetherEvent> {
        let mut events = match phase {
            AskerPhase::Idle => vec![TogetherEvent::Ask(claim)],
            AskerPhase::Asking => vec![TogetherEvent::Cancel(claim), TogetherEvent::Die(claim)],
            AskerPhase::Holding(_) => {
                vec![
                    TogetherEvent::Release(claim),
                    TogetherEvent::Renew(claim),
                    TogetherEvent::Die(claim),
                ]
            }
            _ => vec![],
        };
        events.extend(self.world.holds(claim).then_some(TogetherEvent::Expire(claim)));
        events
    }

    /// Lets it happen, and delivers all messages that follow from it.
    pub fn step(&mut self, event: TogetherEvent) {
        match event {
            TogetherEvent::Ask(claim) => self.act(Step::Ask(claim)),
            TogetherEvent::Cancel(claim) => self.act(Step::Cancel(claim)),
            TogetherEvent::Release(claim) => self.act(Step::Release(claim)),
            TogetherEvent::Renew(claim) => self.act(Step::Renew(claim)),
            TogetherEvent::Expire(claim) => self.expire(claim),
            TogetherEvent::Die(claim) => self.act(Step::Crash(claim, false)),
        }
        self.settle();
        // The heartbeats of the waiters.
        self.world.askers.iter_mut().for_each(|asker| asker.beaten = false);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(delivery) = self.actions().into_iter().find(|step| self.follows(*step)) {
            self.act(delivery);
        }
    }

    /// Whether a step is a message under way, or what a process sends by itself.
    fn follows(&self, step: Step) -> bool {
        match step {
            Step::Execute(_) | Step::Read(_) | Step::ReceivePush(_) | Step::End(_) => true,
            Step::Ask(claim) => self.world.askers[usize::from(claim)].phase == AskerPhase::Asking,
            _ => false,
        }
    }

    fn actions(&self) -> Vec<Step> {
        let mut actions = Vec::new();
        self.model.actions(&self.world, &mut actions);
        actions
    }

    fn act(&mut self, step: Step) {
        if let Some(next) = self.model.next_state(&self.world, step) {
            self.world = next;
        }
    }

    fn expire(&mut self, claim: u8) {
        let members = &mut self.world.members;
        members.iter_mut().filter(|member| member.claim == claim).for_each(|it| it.left = 0);
        // The key expires with the last of its members.
        if members.iter().all(|member| member.left == 0) {
            members.clear();
        }
        let asker = self.world.at(claim);
        if let AskerPhase::Holding(left) = &mut asker.phase {
            *left = 0;
        }
    }

    /// The claims that hold the key at the server, each once for each of its members.
    pub fn holders(&self) -> Vec<u8> {
        let members = self.world.members.iter().filter(|member| member.left > 0);
        let mut claims: Vec<u8> = members.map(|member| member.claim).collect();
        claims.sort_unstable();
        claims
    }

    /// The claims that wait at the server, in order. The heartbeats of the dead do not expire.
    pub fn queue(&self) -> Vec<u8> {
        self.world.queue.iter().map(|waiter| waiter.claim).collect()
    }

    /// Whether the process of the claim lives.
    pub fn lives(&self, claim: u8) -> bool {
        self.world.askers[usize::from(claim)].phase != AskerPhase::Dead
    }

    /// Whether the claim relies on the key.
    pub fn believes(&self, claim: u8) -> bool {
        self.world.askers[usize::from(claim)].believes()
    }

    /// The rule of the protocol that is broken, if one is.
    pub fn broken(&self) -> Option<String> {
        self.world.broken.map(|breach| format!("{breach:?}"))
    }
}
