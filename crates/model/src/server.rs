//! The scripts, each one step.
//!
//! In: a request that has reached the server. Out: the world after it, and the reply.
//!
//! Absent on purpose: connections and their order (`model.rs`), belief (`client.rs`).

use crate::setup::{Bug, Setup};
use crate::state::{Broken, Entry, How, Lock, Phase, Push, Reply, Request, Side, Token, World};

/// How a claim learns of its grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the reply to its own question.
    Answered,
    /// By a push.
    Pushed,
    /// By its next question, which is due within so many ticks.
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
    /// Executes what came on a command connection.
    pub(crate) fn execute(
        &mut self,
        setup: &Setup,
        request: Request,
        process: u8,
    ) -> Option<Reply> {
        match request {
            Request::Ask { token, age, how } => Some(self.ask(setup, token, age, how)),
            Request::Release(token) | Request::Abandon(token) => {
                let leaves =
                    matches!(request, Request::Abandon(_)) || !setup.has(Bug::ReleaseStays);
                self.undo(setup, token, leaves);
                Some(Reply::Ended(token))
            }
            Request::Kill => {
                self.at(process).late.clear();
                None
            }
        }
    }

    /// Executes what came on the renewals' connection.
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
            // Not the end of the claim: that is on its way on the connection of its questions.
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

    /// Acquire and park: they differ in what happens when another has it.
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

    /// The lock is ours already: never shorter, and a new fence.
    fn regrant(&mut self, setup: &Setup, token: Token) {
        self.server.fence += 1;
        self.server.leave(token);
        self.server.lock.iter_mut().for_each(|lock| lock.left = setup.ttl);
    }

    /// The lock is free: it is the turn of the first in the queue that can be reached, else the
    /// caller's.
    fn take_or_hand_over(&mut self, setup: &Setup, token: Token) {
        let first = self.first_reachable(setup, Some(token));
        let jumped = setup.has(Bug::QueueJumped);
        let taken = if jumped { None } else { self.hand_over(setup, Some(token)) };
        if taken.is_none() {
            self.grant(setup, token, Way::Answered);
        }
        self.judge_turn(first, taken);
    }

    /// Enters the queue, or beats again.
    fn queue(&mut self, setup: &Setup, token: Token, polled: bool) {
        self.server.lock.iter_mut().for_each(|lock| lock.waited = true);
        match self.server.queue.iter_mut().find(|entry| entry.token == token) {
            Some(entry) => (entry.beat, entry.polled) = (setup.beat, polled),
            None => self.server.queue.push(Entry { token, beat: setup.beat, polled }),
        }
    }

    /// Release and abandon are one: leave the queue, give the lock back.
    fn undo(&mut self, setup: &Setup, token: Token, leave: bool) {
        self.server.ended |= token.bit();
        self.server.revived &= !token.bit();
        self.give_back(setup, token, leave);
    }

    fn give_back(&mut self, setup: &Setup, token: Token, leave: bool) {
        if self.beliefs().any(|held| held == token) {
            self.breaks(Broken::OwnLock);
        }
        // The short form does not look for a place of one that has the lock: there is none.
        if self.server.holds(token) {
            self.free(setup);
        } else if leave {
            self.server.leave(token);
        }
    }

    /// Gives the lock to the next, if the flag says that there is one.
    fn free(&mut self, setup: &Setup) {
        let waited = self.server.lock.take().is_some_and(|lock| lock.waited);
        let first = self.first_reachable(setup, None);
        let taken = if waited { self.hand_over(setup, None) } else { None };
        self.judge_turn(first, taken);
    }

    /// Nobody behind the first that could be reached may get the lock.
    fn judge_turn(&mut self, first: Option<(usize, Token)>, taken: Option<usize>) {
        let Some((place, token)) = first else { return };
        if !self.server.holds(token) && taken.is_none_or(|taken| taken > place) {
            self.breaks(Broken::PassedOver);
        }
    }

    /// Walks the queue from its front and gives the lock to the first that can be had. Says which
    /// one it was.
    fn hand_over(&mut self, setup: &Setup, caller: Option<Token>) -> Option<usize> {
        let mut place = 0;
        for looked in 0..setup.walk {
            let entry = self.server.queue.get(place).cloned()?;
            let caller = caller == Some(entry.token);
            let heard = self.processes[usize::from(entry.token.process)].heard;
            if caller || entry.beat > 0 && (entry.polled || heard) {
                self.grant(setup, entry.token, Way::of(&entry, caller));
                return Some(looked);
            }
            match entry.beat > 0 && !setup.has(Bug::UnheardDropped) {
                true => place += 1,
                false => _ = self.server.queue.remove(place),
            }
        }
        None
    }

    /// Writes the lock, takes the claim out of the queue, and tells it if it is to be told.
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
        // A dead process whose subscription the server still counts.
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

    /// Who the lock should go to: a live waiter that can be told, within the reach of a hand-over.
    fn first_reachable(&self, setup: &Setup, caller: Option<Token>) -> Option<(usize, Token)> {
        let reachable = |(_, entry): &(usize, &Entry)| {
            let process = &self.processes[usize::from(entry.token.process)];
            let waits = self.is_current(entry.token) && process.phase == Phase::Asking;
            let fresh = entry.beat > 0 && (entry.polled || process.heard);
            caller == Some(entry.token) || waits && fresh
        };
        let mut queue = self.server.queue.iter().enumerate().take(setup.walk);
        queue.find(reachable).map(|(place, entry)| (place, entry.token))
    }

    /// A release that stops half-way: whom it would hand the lock to by a push, if anybody.
    pub(crate) fn half_way(&self, setup: &Setup, token: Token) -> Option<Token> {
        let lock = self.server.lock.as_ref().filter(|lock| lock.token == token && lock.waited);
        let (_, next) = lock.and_then(|_| self.first_reachable(setup, None))?;
        let pushed = self.server.queue.iter().any(|entry| entry.token == next && !entry.polled);
        (pushed && next != token).then_some(next)
    }

    /// The first of its writes is done, the rest is not.
    pub(crate) fn stop_half_way(&mut self, setup: &Setup, next: Token) {
        self.server.fence += 1;
        match setup.has(Bug::PublishFirst) {
            true => self.publish(next),
            false => self.server.lock = Some(Lock { token: next, left: setup.ttl, waited: true }),
        }
    }
}
