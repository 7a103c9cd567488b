//! The scripts, each as one step.
//!
//! In: a request that has reached the server. Out: the state after it, and the reply.
//!
//! Absent on purpose: connections and beliefs (`asker.rs`), what is right (`judge.rs`).

use super::state::{AskerPhase, Member, Message, TogetherWorld, Waiter};
use super::{Kind, Together, TogetherBug as Bug};
use crate::state::How;

/// Why `serve` stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// At the end of the queue, or after as many waiters that cannot be notified as it may pass over.
    NobodyWaits,
    /// At a waiter that can be notified and does not fit.
    HeldBack,
    /// After as many grants as one script may make. The next waiter was asked to ask.
    Full,
    /// The script failed after it had added a member.
    HalfWay,
}

/// What `serve` needs to know of the script that it ends.
#[derive(Clone, Copy, Default)]
struct Script {
    /// The claim that asks. It learns of its grant by the reply.
    caller: Option<u8>,
    /// The kind of the claim that is released. Only a bug uses it.
    releaser: Option<Kind>,
}

/// What `serve` does with a waiter.
enum Turn {
    /// Removes its entry: it is dead, or holds the key already.
    Leaves,
    /// Passes it over: it cannot be notified, and keeps its entry.
    Passed,
    /// Stops: it can be notified and does not fit.
    HeldBack,
    /// Grants it the key.
    Next,
}

impl TogetherWorld {
    /// Executes a request. A script that fails has no reply.
    pub(super) fn execute(
        &mut self,
        model: &Together,
        claim: u8,
        request: Message,
    ) -> Option<Message> {
        match request {
            Message::Ask(age, how) => self.ask(model, claim, age, how),
            Message::End => {
                self.ended |= 1 << claim;
                self.revived &= !(1 << claim);
                self.end(model, claim)
            }
            Message::Renew(age) => {
                let ours = self.renew(model, claim);
                Some(if ours { Message::Renewed(age) } else { Message::Gone })
            }
            reply => Some(reply),
        }
    }

    /// Acquire, with and without queueing: they differ only if the claim is not granted.
    fn ask(&mut self, model: &Together, claim: u8, age: u8, how: How) -> Option<Message> {
        self.purge(model);
        if !self.holds(claim) {
            let stop = self.ask_anew(model, claim, how);
            if stop == Stop::HalfWay {
                return None;
            }
            if !self.holds(claim) && how != How::Try {
                self.enqueue(model, claim, how);
            }
            self.judge_batch(model, stop);
            self.judge_refusal(model, claim, stop);
        } else {
            self.regrant(model, claim);
        }
        Some(match (self.holds(claim), how) {
            (true, _) => Message::Granted(age, self.fence),
            (false, How::Try) => Message::Held,
            (false, _) => Message::Queued(age, self.fence),
        })
    }

    /// Serves the waiters first, and then grants the key to the caller if it fits and nobody holds it back.
    fn ask_anew(&mut self, model: &Together, claim: u8, how: How) -> Stop {
        let kind = model.kind(claim);
        let asks = Script { caller: Some(claim), ..Script::default() };
        // The other claims of the owner may depend on this one, so it does not wait behind others.
        let same_owner = kind == Kind::Owner && !model.has(Bug::SameOwnerQueued);
        let joins = kind == Kind::Reader && model.has(Bug::ReaderJoins);
        if (same_owner || joins) && !self.members.is_empty() && self.fits(model, kind, None) {
            self.take(model, claim);
            return self.serve(model, asks);
        }
        // Our last heartbeat may be too old. With a new one, `serve` does not remove our entry.
        if self.position(claim).is_some() {
            self.enqueue(model, claim, how);
        }
        let stop = self.serve(model, asks);
        let unserved = !self.queue.is_empty() && model.has(Bug::DeadHoldBack);
        let free = stop == Stop::NobodyWaits && !unserved;
        // The claim that `serve` has just granted the key may be of the same owner.
        let joined = same_owner && !self.members.is_empty();
        let passes = joined || how == How::Try && model.has(Bug::TryPasses);
        if !self.holds(claim) && (free || passes) && self.fits(model, kind, None) {
            self.take(model, claim);
        }
        stop
    }

    /// The caller is granted the key without a turn in the queue.
    fn take(&mut self, model: &Together, claim: u8) {
        self.judge_grant(model, claim);
        self.fence += 1;
        self.grant_to(model, claim, model.ttl);
        self.leave(claim);
        self.flag = !self.queue.is_empty();
    }

    /// The claim holds the key already: extends its members, never shortens them, with a new fence.
    fn regrant(&mut self, model: &Together, claim: u8) {
        self.fence += 1;
        self.leave(claim);
        if model.has(Bug::CountedTwice) {
            self.grant_to(model, claim, model.ttl);
        }
        self.extend(model, claim);
    }

    /// Queues the claim, or refreshes its heartbeat.
    fn enqueue(&mut self, model: &Together, claim: u8, how: How) {
        self.flag = true;
        let waiter = Waiter { claim, beat: model.beat, polled: how == How::Polled };
        match self.position(claim) {
            Some(position) => self.queue[position] = waiter,
            None => self.queue.push(waiter),
        }
    }

    fn leave(&mut self, claim: u8) {
        self.queue.retain(|waiter| waiter.claim != claim);
    }

    /// Release and abandon are the same: remove the members of the claim and its entry, and serve the others.
    fn end(&mut self, model: &Together, claim: u8) -> Option<Message> {
        let kind = model.kind(claim);
        self.purge(model);
        let held = self.holds(claim);
        self.members.retain(|member| member.claim != claim);
        if !held && model.has(Bug::Counter) {
            let used = self.members.len();
            self.members.truncate(used.saturating_sub(kind.weight().into()));
        }
        if !(held && model.has(Bug::ReleaseStays)) {
            self.leave(claim);
        }
        // A writer whose flag says that nobody waits does not look at the queue.
        let alone = held && kind == Kind::Writer && !self.flag;
        let skips = alone || !held && model.has(Bug::AbandonServesNobody);
        let ends = Script { releaser: Some(kind), ..Script::default() };
        let stop = if skips { Stop::NobodyWaits } else { self.serve(model, ends) };
        if stop == Stop::HalfWay {
            return None;
        }
        self.judge_batch(model, stop);
        Some(Message::Ended)
    }

    /// Extends the members of a claim that has not ended.
    fn renew(&mut self, model: &Together, claim: u8) -> bool {
        let member = self.members.iter().find(|member| member.claim == claim);
        let live = member.is_some_and(|member| member.left > 0);
        let ours = live || member.is_some() && model.has(Bug::RenewRevives);
        if ours {
            self.judge_renewal(live);
            self.extend(model, claim);
        }
        ours
    }

    fn extend(&mut self, model: &Together, claim: u8) {
        let all = model.has(Bug::RenewsAll);
        let ours = self.members.iter_mut().filter(|member| all || member.claim == claim);
        let ours = ours.take(if model.has(Bug::RenewsFirst) { 1 } else { usize::MAX });
        ours.for_each(|member| member.left = model.ttl);
    }

    /// Grants the key to the waiters at the front, as long as they fit. This is the whole of fairness.
    fn serve(&mut self, model: &Together, script: Script) -> Stop {
        let (mut position, mut granted, mut last) = (0, 0, None);
        while position < model.looks {
            let Some(waiter) = self.queue.get(position).copied() else { break };
            let kind = model.kind(waiter.claim);
            let notified = match self.turn(model, script, waiter, last) {
                Turn::Leaves => {
                    self.queue.remove(position);
                    continue;
                }
                Turn::HeldBack => return Stop::HeldBack,
                Turn::Passed => false,
                Turn::Next if granted < model.batch => self.grant(model, script, waiter, last),
                Turn::Next if self.ask_to_ask(model, waiter) => return Stop::Full,
                Turn::Next => false,
            };
            if self.halts && self.holds(waiter.claim) {
                return Stop::HalfWay;
            }
            match notified {
                true => (granted, last) = (granted + 1, Some(kind)),
                false => position += 1,
            }
            if last == Some(Kind::Reader) && model.has(Bug::OneReaderOnly) {
                return Stop::HeldBack;
            }
        }
        Stop::NobodyWaits
    }

    /// What `serve` does with the waiter that it has reached.
    fn turn(&self, model: &Together, script: Script, waiter: Waiter, last: Option<Kind>) -> Turn {
        let kind = model.kind(waiter.claim);
        let called = script.caller == Some(waiter.claim);
        // A script that stopped half-way can leave the entry of a claim that holds the key.
        let again = self.holds(waiter.claim) && !model.has(Bug::GrantedTwice);
        if again || waiter.beat == 0 && !called {
            return Turn::Leaves;
        }
        let fits = self.fits(model, kind, script.releaser);
        // The caller reads its reply. But if it does not fit, it must be notified later, as all others.
        let answered = called && (fits || model.has(Bug::UnheardCallerBlocks));
        if !answered && !self.listens(model, waiter) {
            return match model.bug {
                Some(Bug::UnheardBlocks) => Turn::HeldBack,
                Some(Bug::UnheardDropped) => Turn::Leaves,
                _ => Turn::Passed,
            };
        }
        let passed = match model.bug {
            Some(Bug::UnfitPassed) => true,
            Some(Bug::HeavyPassed) => kind.capacity().is_some(),
            Some(Bug::BatchPastWriter) => last == Some(Kind::Reader),
            _ => false,
        };
        match (fits, passed) {
            (true, _) => Turn::Next,
            (false, true) => Turn::Passed,
            (false, false) => Turn::HeldBack,
        }
    }

    /// Grants the key to a waiter and notifies it. Returns whether it is notified; if not, the grant is undone.
    fn grant(
        &mut self,
        model: &Together,
        script: Script,
        waiter: Waiter,
        last: Option<Kind>,
    ) -> bool {
        let claim = waiter.claim;
        self.judge_grant(model, claim);
        // The readers of one batch share a fence.
        let shared = model.kind(claim) == Kind::Reader && last == Some(Kind::Reader);
        self.fence += u8::from(!shared && !model.has(Bug::FenceKept));
        let called = script.caller == Some(claim) && !model.has(Bug::PolledCallerShort);
        let short = waiter.polled && !called;
        self.grant_to(model, claim, if short { waiter.beat } else { model.ttl });
        self.flag = self.queue.len() > 1 && !model.has(Bug::FlagForgotten);
        if self.halts {
            return false;
        }
        let informed = waiter.polled || script.caller == Some(claim);
        if informed || self.publish(claim, self.fence) {
            self.leave(claim);
            return true;
        }
        if !model.has(Bug::UnseatForgotten) {
            self.members.retain(|member| member.claim != claim);
        }
        false
    }

    /// The script has made all grants that it may: the request of the next waiter will go on.
    fn ask_to_ask(&mut self, model: &Together, waiter: Waiter) -> bool {
        waiter.polled || model.has(Bug::NextNotAsked) || self.publish(waiter.claim, 0)
    }

    /// Whether the waiter can be notified, as far as the server knows before it publishes.
    fn listens(&self, model: &Together, waiter: Waiter) -> bool {
        waiter.polled || !model.counted || self.askers[usize::from(waiter.claim)].heard
    }

    /// Sends a push: the fence of a grant, or 0 to make the waiter ask. Returns whether somebody is subscribed.
    fn publish(&mut self, claim: u8, fence: u8) -> bool {
        let asker = self.at(claim);
        // A dead process, whose subscription the server may still count, reads no push.
        if asker.heard && asker.phase != AskerPhase::Dead {
            asker.inbox.push(fence);
        }
        asker.heard
    }

    /// Whether a claim of this kind fits the members. A member counts as one permit.
    fn fits(&self, model: &Together, kind: Kind, releaser: Option<Kind>) -> bool {
        let Some(first) = self.members.first() else { return true };
        let same = |member: &Member| member.claim == first.claim;
        let extra = self.members.iter().filter(|member| same(member)).count() > 1;
        let held = match model.kind(first.claim) {
            Kind::Permit { .. } if extra && model.has(Bug::KindOfExtra) => Kind::Reader,
            held => held,
        };
        let theirs = releaser.filter(|_| model.has(Bug::ReleasersCapacity));
        let capacity = theirs.and_then(Kind::capacity).or(kind.capacity());
        let used = self.members.len() + usize::from(kind.weight());
        kind.mixes(held)
            && (kind.capacity().is_none() || capacity.is_some_and(|most| used <= most.into()))
    }

    /// Adds the members of a claim: one, or one for each permit, in the lowest free slots.
    fn grant_to(&mut self, model: &Together, claim: u8, left: u8) {
        for _ in 0..model.kind(claim).weight() {
            let slot = if model.kind(claim).capacity().is_some() { self.slot(model) } else { 0 };
            self.members.push(Member { claim, slot, left });
        }
        if model.has(Bug::ExpiryShortened) {
            self.members.iter_mut().for_each(|member| member.left = member.left.min(left));
        }
    }

    fn slot(&self, model: &Together) -> u8 {
        let used = |slot: u8| self.members.iter().any(|member| member.slot == slot);
        let highest = self.members.iter().map(|member| member.slot + 1).max();
        match model.bug {
            Some(Bug::SlotByCount) => self.members.len() as u8,
            Some(Bug::SlotAboveHighest) => highest.unwrap_or(0),
            _ => (0..).find(|slot| !used(*slot)).unwrap_or(u8::MAX),
        }
    }

    /// Removes the members that have ended.
    fn purge(&mut self, model: &Together) {
        if !model.has(Bug::NotPurged) {
            self.members.retain(|member| member.left > 0);
        }
    }
}
