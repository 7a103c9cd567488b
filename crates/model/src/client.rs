//! The behaviour and beliefs of a process.
//!
//! In: calls of the user, timers, replies, pushes. Out: requests, and a lease by the clock of the process.

use crate::setup::{Bug, Fault, Setup};
use crate::state::{Broken, How, LastReply, Phase, Push, Reply, Request, Side, Token, World};

impl World {
    /// Makes a new claim. It is in the registry before its first request.
    pub(crate) fn start(&mut self, setup: &Setup, process: u8) {
        let top = self.top;
        let restarts = setup.kinds.contains(&Fault::Restart);
        let starting = self.at(process);
        starting.claim += 1;
        starting.phase = Phase::Asking;
        starting.last_reply = None;
        starting.floor = if restarts { top } else { 0 };
        self.ask_again(setup, process);
    }

    /// Sends a request: the first one, a heartbeat, or one to confirm a push.
    pub(crate) fn ask_again(&mut self, setup: &Setup, process: u8) {
        let token = self.token(process);
        let tries = setup.tries && process + 1 == setup.processes;
        let asking = self.at(process);
        let how = match (tries, asking.confirmed) {
            (true, _) => How::Try,
            (false, true) => How::Pushed,
            (false, false) => How::Polled,
        };
        (asking.known, asking.beaten) = (true, setup.prompt);
        asking.requests.push(Request::Ask { token, age: 0, how });
    }

    /// The leading task is cancelled. The next task continues with the claim, or the claim is abandoned.
    pub(crate) fn cancel(&mut self, setup: &Setup, process: u8) {
        let token = self.token(process);
        let leaving = self.at(process);
        if leaving.locals > 0 {
            leaving.locals -= 1;
            leaving.known = !setup.has(Bug::RegistryDropped);
            return;
        }
        if setup.has(Bug::AbandonOvertakes) && leaving.side.is_none() {
            leaving.side = Some(Side::Abandon(token));
            self.end(process);
            return;
        }
        if setup.has(Bug::ReleaseLeavesLate) {
            leaving.requests.push(Request::Kill);
        }
        leaving.requests.push(Request::Abandon(token));
        leaving.ending = Some(token);
        self.end(process);
    }

    /// The guard is released, or its lease was lost: the request to the server is the same.
    pub(crate) fn release(&mut self, process: u8) {
        let token = self.token(process);
        let holder = self.at(process);
        holder.requests.push(Request::Release(token));
        holder.ending = Some(token);
        self.end(process);
    }

    /// The next task of the process gets the lease, under the same token.
    pub(crate) fn hand_off(&mut self, setup: &Setup, process: u8) {
        let token = self.token(process);
        let holder = self.at(process);
        holder.locals -= 1;
        if setup.has(Bug::AbandonHitsNext) {
            holder.requests.push(Request::Abandon(token));
        }
    }

    /// The lease is exported, and another process adopts it under the same token.
    pub(crate) fn relinquish(&mut self, setup: &Setup, process: u8, adopter: u8) {
        let token = self.token(process);
        let Phase::Holding(left) = self.at(process).phase else { return };
        self.end(process);
        self.at(process).relinquished =
            Some(token).filter(|_| !setup.has(Bug::RelinquishForgotten));
        self.at(adopter).adopted = Some((token, left));
    }

    /// An adopted lease is released.
    pub(crate) fn release_adopted(&mut self, process: u8) {
        let adopter = self.at(process);
        let adopted = adopter.adopted.take();
        adopter.requests.extend(adopted.map(|(token, _)| Request::Release(token)));
    }

    /// The end of a claim was not answered: request it again.
    pub(crate) fn end_again(&mut self, process: u8) {
        let ending = self.at(process);
        ending.requests.extend(ending.ending.map(Request::Abandon));
    }

    fn end(&mut self, process: u8) {
        let ended = self.at(process);
        ended.phase = Phase::Idle;
        ended.known = false;
        ended.last_reply = None;
    }

    /// A renewal is sent.
    pub(crate) fn renew_lease(&mut self, process: u8) {
        let token = self.token(process);
        self.at(process).side = Some(Side::Renew { token, age: 0, confirms: 0 });
    }

    /// A reply is read.
    pub(crate) fn read(&mut self, setup: &Setup, process: u8, reply: Reply) {
        match reply {
            Reply::Granted { token, age, fence } if self.is_current(token) => {
                let age = if setup.has(Bug::ValidFromReply) { 0 } else { age };
                self.granted(process, fence, setup.ttl - age);
            }
            Reply::Queued { token, age, stamp } if self.waits(token) && age < setup.ttl => {
                self.at(process).last_reply = Some(LastReply { age, stamp });
            }
            Reply::Held(token) if self.waits(token) => self.end(process),
            Reply::Ended(token) => _ = self.at(process).ending.take_if(|ending| *ending == token),
            _ => {}
        }
    }

    /// A push is read. It is accepted if its fence is higher than the last stamp: then the grant was made
    /// after that heartbeat had been sent. Otherwise it is only a reason to ask, which a waiter may do at any
    /// time.
    pub(crate) fn receive_push(&mut self, setup: &Setup, process: u8, push: Push) {
        let Push { token, fence } = push;
        if self.at(process).relinquished == Some(token) {
            return;
        }
        if !self.is_current(token) || !self.at(process).known {
            self.at(process).side = Some(Side::Release(token));
            return;
        }
        if !self.waits(token) {
            return;
        }
        match self.fresh(setup, process, fence) {
            Some(left) => self.granted(process, fence, left),
            None if setup.has(Bug::ConfirmByRenew) && self.at(process).side.is_none() => {
                self.at(process).side = Some(Side::Renew { token, age: 0, confirms: fence });
            }
            // A request is due at once.
            None => self.at(process).beaten &= setup.has(Bug::StalePushDropped),
        }
    }

    /// How long a push is valid by our clock, if it needs no confirmation.
    fn fresh(&mut self, setup: &Setup, process: u8, fence: u8) -> Option<u8> {
        let waiter = self.at(process);
        let last_reply = waiter.last_reply.filter(|_| setup.fenced)?;
        if fence <= last_reply.stamp && !setup.has(Bug::PushWithoutStamp) {
            return None;
        }
        let sent = waiter.requests.iter().find_map(|request| match request {
            Request::Ask { age, .. } => Some(*age),
            _ => None,
        });
        Some(setup.ttl - sent.filter(|_| setup.has(Bug::StampAtSend)).unwrap_or(last_reply.age))
    }

    /// The reply to a renewal is read.
    pub(crate) fn read_side(&mut self, setup: &Setup, process: u8, side: Side) {
        match side {
            Side::Renewed { token, age, confirms: 0 } if !self.waits(token) => {
                self.granted_again(token, setup.ttl - age);
            }
            Side::Renewed { token, age, confirms } if confirms > 0 && self.waits(token) => {
                self.granted(process, confirms, setup.ttl - age);
            }
            Side::Gone(token) if self.is_current(token) && !self.waits(token) => {
                self.release(process);
            }
            _ => {}
        }
    }

    /// A grant for the claim, valid for `left` ticks by our clock. A grant that expired on its way is
    /// ignored.
    fn granted(&mut self, process: u8, fence: u8, left: u8) {
        let token = self.token(process);
        match self.at(process).phase {
            Phase::Asking if left > 0 => self.report(process, fence, left),
            Phase::Holding(_) => self.granted_again(token, left),
            _ => {}
        }
    }

    /// Extends a lease, never shortens it; an ended lease stays ended.
    fn granted_again(&mut self, token: Token, left: u8) {
        if !self.is_current(token) {
            return;
        }
        if let Phase::Holding(held) = &mut self.at(token.process).phase {
            *held = if *held > 0 { left.max(*held) } else { 0 };
        }
    }

    /// The caller gets its guard.
    fn report(&mut self, process: u8, fence: u8, left: u8) {
        // After a loss of data, a fence must only be higher than those that had been reported before the
        // claim was made.
        let floor = if self.restarted { self.at(process).floor } else { self.top };
        if fence <= floor {
            self.breaks(Broken::Fence);
        }
        self.top = self.top.max(fence);
        self.idle = 0;
        let holder = self.at(process);
        holder.phase = Phase::Holding(left);
        holder.last_reply = None;
    }

    fn waits(&self, token: Token) -> bool {
        let phase = self.processes[usize::from(token.process)].phase;
        self.is_current(token) && phase == Phase::Asking
    }
}
