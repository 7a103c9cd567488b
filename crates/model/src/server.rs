//! The scripts, each as one step.
//!
//! In: a request that has reached the server. Out: the state after it, and the reply.
//!
//! Absent on purpose: connections and their order (`model.rs`), beliefs (`client.rs`).

use crate::setup::{Bug, Setup};
use crate::state::{Broken, Entry, How, Lock, Phase, Push, Reply, Request, Side, Token, World};

/// How a claim is notified of its grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the reply to its own request.
    Answered,
    /// By a push.
    Pushed,
    /// By its next request, which is due within this many ticks.
    Unheard(u8),
}

impl Way {
    fn of(entry: &Entry, caller: bool) -> Self {
        match (caller, entry.polled) {
            (true, _) => Way::Answered,
            (false, false) => Way::Pushed,
            (false, true) => Way::Unheard(entry.beat),
        }
    }
}

impl World {
    /// Executes a request of a command connection.
    pub(crate) fn execute(
        &mut self,
        setup: &Setup,
        request: Request,
        process: u8,
    ) -> Option<Reply> {
        match request {
            Request::Ask { token, age, how } => Some(self.ask(setup, token, age, how)),
            Request::Release(token) => {
                self.undo(setup, token, !setup.has(Bug::ReleaseStays));
                Some(Reply::Ended(token))
            }
            // Always by `release.lua`, which leaves the queue first, also for a holder.
            Request::Abandon(token) => {
                self.server.leave(token);
                self.undo(setup, token, true);
                Some(Reply::Ended(token))
            }
            Request::Kill => {
                self.at(process).late.clear();
                None
            }
        }
    }

    /// Executes a request of the renewal connection.
    pub(crate) fn execute_side(&mut self, setup: &Setup, side: Side) -> Option<Side> {
        match side {
            Side::Renew { token, age, confirms } => {
                let renewed = self.renew(setup, token);
                Some(if renewed {
                    Side::Renewed { token, age, confirms }
                } else {
                    Side::Gone(token)
                })
            }
            // This does not end the claim: its end is under way on the command connection.
            Side::Release(token) => {
                self.give_back(setup, token, true);
                None
            }
            Side::Abandon(token) => {
                self.undo(setup, token, true);
                None
            }
            Side::Renewed { .. } | Side::Gone(_) => None,
        }
    }

    /// Acquire, with and without queueing: they differ only if another claim holds the lock.
    fn ask(&mut self, setup: &Setup, token: Token, age: u8, how: How) -> Reply {
        if self.server.holds(token) {
            self.regrant(setup, token);
        } else if self.server.lock.is_none() {
            self.take_or_hand_over(setup, token);
        }
        if self.server.holds(token) {
            return Reply::Granted { token, age, fence: self.server.fence };
        }
        if how == How::Try {
            return Reply::Held(token);
        }
        self.queue(setup, token, how == How::Polled);
        Reply::Queued { token, age, stamp: self.server.fence }
    }

    /// The claim already holds the lock: extends it, never shortens it, with a new fence.
    fn regrant(&mut self, setup: &Setup, token: Token) {
        self.server.fence += 1;
        self.server.leave(token);
        self.server.lock.iter_mut().for_each(|lock| lock.left = setup.ttl);
    }

    /// The lock is free: grants it to the first reachable waiter, or else to the caller.
    fn take_or_hand_over(&mut self, setup: &Setup, token: Token) {
        let first = self.first_reachable(setup, Some(token));
        let jumped = setup.has(Bug::QueueJumped);
        let taken = if jumped { None } else { self.hand_over(setup, Some(token)) };
        if taken.is_none() {
            self.grant(setup, token, Way::Answered);
        }
        self.judge_turn(first, taken);
    }

    /// Queues the claim, or refreshes its heartbeat.
    fn queue(&mut self, setup: &Setup, token: Token, polled: bool) {
        self.server.lock.iter_mut().for_each(|lock| lock.waited = true);
        match self.server.queue.iter_mut().find(|entry| entry.token == token) {
            Some(entry) => (entry.beat, entry.polled) = (setup.beat, polled),
            None => self.server.queue.push(Entry { token, beat: setup.beat, polled }),
        }
    }

    /// Release and abandon are the same: leave the queue, release the lock.
    fn undo(&mut self, setup: &Setup, token: Token, leave: bool) {
        self.server.ended |= token.bit();
        self.server.revived &= !token.bit();
        self.give_back(setup, token, leave);
    }

    fn give_back(&mut self, setup: &Setup, token: Token, leave: bool) {
        if self.beliefs().any(|held| held == token) {
            self.breaks(Broken::OwnLock);
        }
        // A holder has no queue entry, so the fast script does not look for one.
        if self.server.holds(token) {
            self.free(setup);
        } else if leave {
            self.server.leave(token);
        }
    }

    /// Grants the lock to the next waiter, if the flag says that there is one.
    fn free(&mut self, setup: &Setup) {
        let waited = self.server.lock.take().is_some_and(|lock| lock.waited);
        let first = self.first_reachable(setup, None);
        let taken = if waited { self.hand_over(setup, None) } else { None };
        self.judge_turn(first, taken);
    }

    /// Records a broken rule if the lock went to a claim behind the first reachable waiter.
    fn judge_turn(&mut self, first: Option<(usize, Token)>, taken: Option<usize>) {
        let Some((position, token)) = first else { return };
        if !self.server.holds(token) && taken.is_none_or(|taken| taken > position) {
            self.breaks(Broken::PassedOver);
        }
    }

    /// Walks the queue from the front and grants the lock to the first entry that can get it. Returns the
    /// position of that entry.
    fn hand_over(&mut self, setup: &Setup, caller: Option<Token>) -> Option<usize> {
        let mut position = 0;
        for looked in 0..setup.walk {
            let entry = self.server.queue.get(position).cloned()?;
            let caller = caller == Some(entry.token);
            let heard = self.processes[usize::from(entry.token.process)].heard;
            if caller || entry.beat > 0 && (entry.polled || heard) {
                self.grant(setup, entry.token, Way::of(&entry, caller));
                return Some(looked);
            }
            match entry.beat > 0 && !setup.has(Bug::UnheardDropped) {
                true => position += 1,
                false => _ = self.server.queue.remove(position),
            }
        }
        None
    }

    /// Writes the lock, removes the claim from the queue, and sends a push if needed.
    fn grant(&mut self, setup: &Setup, token: Token, way: Way) {
        self.server.fence += 1;
        let queued = self.server.queues(token);
        self.server.leave(token);
        let waited = !self.server.queue.is_empty() && (queued || !setup.has(Bug::FlagLost));
        let left = match way {
            Way::Unheard(beat) if setup.short_polled => beat,
            _ => setup.ttl,
        };
        self.server.lock = Some(Lock { token, left, waited });
        if way == Way::Pushed {
            self.publish(token);
        }
    }

    fn publish(&mut self, token: Token) {
        let fence = self.server.fence;
        let process = self.at(token.process);
        // A dead process, whose subscription the server may still count, reads no push.
        if process.phase != Phase::Dead {
            process.inbox.push(Push { token, fence });
        }
    }

    fn renew(&mut self, setup: &Setup, token: Token) -> bool {
        if self.server.lock.is_none() && setup.has(Bug::RenewRecreates) {
            self.server.lock = Some(Lock { token, left: setup.ttl, waited: false });
        }
        let ours = self.server.holds(token);
        self.server.lock.iter_mut().filter(|_| ours).for_each(|lock| lock.left = setup.ttl);
        ours
    }

    /// The claim that should get the lock: a live waiter that can be notified, among the entries that a
    /// hand-over checks.
    fn first_reachable(&self, setup: &Setup, caller: Option<Token>) -> Option<(usize, Token)> {
        let reachable = |(_, entry): &(usize, &Entry)| {
            let process = &self.processes[usize::from(entry.token.process)];
            let waits = self.is_current(entry.token) && process.phase == Phase::Asking;
            let fresh = entry.beat > 0 && (entry.polled || process.heard);
            caller == Some(entry.token) || waits && fresh
        };
        let mut queue = self.server.queue.iter().enumerate().take(setup.walk);
        queue.find(reachable).map(|(position, entry)| (position, entry.token))
    }

    /// The claim that a release would hand the lock to by a push, if any: such a release may stop in the
    /// middle.
    pub(crate) fn half_way(&self, setup: &Setup, token: Token) -> Option<Token> {
        let lock = self.server.lock.as_ref().filter(|lock| lock.token == token && lock.waited);
        let (_, next) = lock.and_then(|_| self.first_reachable(setup, None))?;
        let pushed = self.server.queue.iter().any(|entry| entry.token == next && !entry.polled);
        (pushed && next != token).then_some(next)
    }

    /// Does only the first of the script's writes.
    pub(crate) fn stop_half_way(&mut self, setup: &Setup, next: Token) {
        self.server.fence += 1;
        match setup.has(Bug::PublishFirst) {
            true => self.publish(next),
            false => self.server.lock = Some(Lock { token: next, left: setup.ttl, waited: true }),
        }
    }
}
