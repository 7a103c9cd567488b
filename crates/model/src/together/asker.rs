//! The effect of each step; the behaviour and beliefs of a process.
//!
//! In: a step. Out: the state after it. A process has one request under way at a time, and an inbox.

use super::state::{Asker, AskerPhase, Message, TogetherWorld};
use super::{Together, TogetherStep as Step};
use crate::state::{How, LastReply};

impl TogetherWorld {
    /// Takes a step. Returns whether it is different from another step that is possible.
    pub(super) fn step(&mut self, model: &Together, step: Step) -> bool {
        match step {
            Step::Tick => self.tick(model),
            Step::Ask(claim) => {
                let tries = model.tries && usize::from(claim) + 1 == model.claims.len();
                self.at(claim).ask(tries, !model.is_slow(claim));
            }
            Step::Cancel(claim) => {
                self.cancels -= 1;
                self.at(claim).phase = AskerPhase::Ending;
            }
            Step::Release(claim) => self.at(claim).phase = AskerPhase::Ending,
            Step::Renew(claim) => self.at(claim).wire = Some(Message::Renew(0)),
            Step::End(claim) => self.at(claim).wire = Some(Message::End),
            Step::Execute(claim) => self.execute_oldest(model, claim),
            Step::ExecuteHalf(claim) => return self.execute_half(model, claim),
            Step::ExecuteLate(claim) => self.execute_late(model, claim),
            Step::Read(claim) => {
                let reply = self.at(claim).wire.take();
                reply.into_iter().for_each(|reply| self.read(model, claim, reply));
            }
            Step::ReceivePush(claim) => {
                let fence = self.at(claim).inbox.remove(0);
                self.receive_push(model, claim, fence);
            }
            Step::NoticeInbox(claim) => self.at(claim).confirmed = false,
            Step::Subscribe(claim) => {
                let asker = self.at(claim);
                (asker.heard, asker.confirmed) = (true, true);
            }
            fault => self.fail(model, fault),
        }
        true
    }

    fn execute_oldest(&mut self, model: &Together, claim: u8) {
        let Some(request) = self.at(claim).wire.take() else { return };
        let reply = self.execute(model, claim, request);
        let dead = self.at(claim).phase == AskerPhase::Dead;
        self.at(claim).wire = reply.filter(|_| !dead);
        // The last request of a dead process may come at any time, so the count starts again.
        self.idle = if dead { 0 } else { self.idle };
    }

    /// A half-way stop differs from a whole script only if there was a waiter to grant.
    fn execute_half(&mut self, model: &Together, claim: u8) -> bool {
        (self.faults, self.idle) = (self.faults - 1, 0);
        self.halts = true;
        self.execute_oldest(model, claim);
        self.halts = false;
        self.at(claim).beaten = false;
        self.at(claim).wire.is_none()
    }

    fn execute_late(&mut self, model: &Together, claim: u8) {
        self.idle = 0;
        let Some(request) = self.at(claim).late.take() else { return };
        if matches!(request, Message::Ask(..)) {
            self.revived |= self.ended & 1 << claim;
        }
        self.execute(model, claim, request);
    }

    fn fail(&mut self, model: &Together, fault: Step) {
        (self.faults, self.idle) = (self.faults - 1, 0);
        match fault {
            Step::GiveUp(claim) => {
                let asker = self.at(claim);
                let lost = asker.wire.take();
                asker.late = lost.filter(|message| message.is_request() && !model.kill);
                asker.beaten = false;
            }
            Step::LoseInbox(claim) => {
                self.at(claim).heard = false;
                self.at(claim).inbox.clear();
            }
            Step::LosePush(claim) => _ = self.at(claim).inbox.remove(0),
            Step::Crash(claim, unseen) => {
                let asker = self.at(claim);
                asker.phase = AskerPhase::Dead;
                asker.wire.take_if(|message| !message.is_request());
                (asker.heard, asker.confirmed) = (asker.heard && unseen, true);
                (asker.last_reply, asker.beaten) = (None, false);
            }
            _ => {}
        }
    }

    /// A reply is read.
    fn read(&mut self, model: &Together, claim: u8, reply: Message) {
        let asker = self.at(claim);
        let waits = asker.phase == AskerPhase::Asking;
        match reply {
            Message::Granted(age, fence) => self.granted(model, claim, fence, model.ttl - age),
            Message::Queued(age, stamp) if waits && age < model.ttl => {
                asker.last_reply = Some(LastReply { age, stamp });
            }
            Message::Held if waits => asker.phase = AskerPhase::Done,
            Message::Renewed(age) => asker.extend(model.ttl - age),
            Message::Gone if asker.believes() => asker.phase = AskerPhase::Ending,
            Message::Ended => asker.phase = AskerPhase::Done,
            _ => {}
        }
    }

    /// A push is read. A grant is accepted if its fence is higher than the last stamp; otherwise the waiter asks at
    /// once. A grant for a claim that has ended is released.
    fn receive_push(&mut self, model: &Together, claim: u8, fence: u8) {
        let asker = self.at(claim);
        match asker.phase {
            AskerPhase::Asking => match asker
                .last_reply
                .filter(|last_reply| fence > last_reply.stamp)
            {
                Some(last_reply) => self.granted(model, claim, fence, model.ttl - last_reply.age),
                None => asker.beaten = false,
            },
            AskerPhase::Done if fence > 0 => asker.phase = AskerPhase::Ending,
            _ => {}
        }
    }

    /// A grant for the claim, valid for `left` ticks by our clock. One that expired on its way is ignored.
    fn granted(&mut self, model: &Together, claim: u8, fence: u8, left: u8) {
        match self.at(claim).phase {
            AskerPhase::Asking if left > 0 => {
                self.judge_fence(model, claim, fence);
                self.at(claim).phase = AskerPhase::Holding(left);
                self.at(claim).reported = fence;
                self.idle = 0;
            }
            AskerPhase::Asking => self.at(claim).beaten = false,
            _ => self.at(claim).extend(left),
        }
    }
}

impl Asker {
    /// Sends the first request, or a heartbeat.
    fn ask(&mut self, tries: bool, prompt: bool) {
        let how = match (tries, self.confirmed) {
            (true, _) => How::Try,
            (false, true) => How::Pushed,
            (false, false) => How::Polled,
        };
        (self.phase, self.beaten) = (AskerPhase::Asking, prompt);
        self.wire = Some(Message::Ask(0, how));
    }

    /// Extends a lease, never shortens it; an ended lease stays ended.
    fn extend(&mut self, left: u8) {
        if let AskerPhase::Holding(held) = &mut self.phase {
            *held = if *held > 0 { left.max(*held) } else { 0 };
        }
    }
}
