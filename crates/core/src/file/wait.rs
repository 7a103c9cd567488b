//! Waiting for a lock that another has.
//!
//! In: a claim. Out: the kernel's lock, noted under the claim's token.
//!
//! A wait in the kernel cannot be cancelled, so it is done on a detached thread, **one per key**, that
//! belongs to no claim: it hands what it gets to the first claim in the key's queue. If all claims
//! have gone by then, it gives the lock back and ends; if a new one comes first, that one finds the
//! thread in the kernel already. So cancelled waits never pile up, and a runtime never waits for one.
//!
//! A claim that waits also has a [`Mark`], so that the holder knows of it; the thread has none. When
//! the last claim leaves, nobody seems to wait: the holder removes the lock file on release, and the
//! thread gets a lock on a file without a name, which is nothing to anybody.
//!
//! There is no turnstile that waiters pass one by one: one that is stopped in it would stop them all.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::files::{Files, Locked};
use super::mark::Mark;
use super::record::{Found, Record};
use super::state::{Held, Shared, State, Ticket};
use crate::backend::{Fault, FaultKind};
use crate::claim::{Claim, Sight, Token};
use crate::key::Key;

/// How often one who has waited for long looks at who is in the way.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// It opens, locks and removes files; it needs little.
const STACK: usize = 128 * 1024;

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Again,
    Done,
}

impl Shared {
    /// Waits until the kernel's lock is this claim's. Goes on in the same place if it waits already.
    pub(super) async fn in_turn(self: &Arc<Self>, claim: &Claim) -> Result<(), Fault> {
        let (token, files) = (claim.token(), self.files(claim.key()));
        let wake = self.queue_up(claim.key(), token)?;
        let mut pause = claim.retry_interval();
        loop {
            if let Some(end) = self.collect(token) {
                return end;
            }
            self.look(claim, &files);
            // Nobody tells when the holder changes; the look is for people and need not be quick.
            let _ = tokio::time::timeout(pause, wake.notified()).await;
            pause = (pause * 2).min(LOOK_EVERY);
        }
    }

    fn queue_up(self: &Arc<Self>, key: &Key, token: Token) -> Result<Arc<Notify>, Fault> {
        let mut state = self.state();
        if let Some(ticket) = state.tickets.get(&token) {
            return Ok(ticket.wake.clone());
        }
        if !state.queues.contains_key(key) {
            self.spawn(key)?;
        }
        Ok(state.queue(key, token))
    }

    fn spawn(self: &Arc<Self>, key: &Key) -> Result<(), Fault> {
        let (shared, files, key) = (Arc::downgrade(self), self.files(key), key.clone());
        let thread = std::thread::Builder::new().name("tenure-wait".into()).stack_size(STACK);
        let spawned = thread.spawn(move || wait_in_kernel(&shared, &key, &files));
        spawned.map(drop).map_err(|error| {
            Fault::new(FaultKind::Unavailable, "cannot start a thread to wait on").caused_by(error)
        })
    }

    /// How the wait ended, if it did.
    fn collect(&self, token: Token) -> Option<Result<(), Fault>> {
        let mut state = self.state();
        if state.held.contains_key(&token) {
            return Some(Ok(()));
        }
        let Some(ticket) = state.tickets.get_mut(&token) else { return Some(Err(abandoned())) };
        let fault = ticket.fault.take()?;
        state.leave(token);
        Some(Err(fault))
    }

    /// Sees who is in the way, and makes sure that we are seen.
    fn look(&self, claim: &Claim, files: &Files) {
        match Record::read(files) {
            Found::Nothing if claim.sight().holder.is_some() => {}
            record => claim.saw(Sight::of(record.holder(&self.clock), None)),
        }
        if let Some(ticket) = self.state().tickets.get_mut(&claim.token()) {
            ticket.mark = ticket.mark.take().or_else(|| Mark::take(&files.wait));
        }
    }

    /// Takes the claim out of everything; what it had won is the caller's to end.
    pub(super) fn withdraw(&self, claim: &Claim) -> Option<Held> {
        let mut state = self.state();
        let queue = state.queues.get_mut(claim.key());
        queue.into_iter().for_each(|queue| queue.retain(|token| *token != claim.token()));
        state.leave(claim.token());
        state.held.remove(&claim.token())
    }

    fn deliver(&self, key: &Key, got: Result<Option<Locked>, Fault>) -> Next {
        let (next, unwanted) = self.state().deliver(key, got);
        // Outside the mutex, and as thoroughly as any other release: others may be queued behind it.
        unwanted.map(Locked::give_back);
        next
    }
}

pub(super) fn abandoned() -> Fault {
    Fault::new(FaultKind::Invalid, "the claim was abandoned while it was asked for")
}

/// The thread. It must not keep alive what it serves: dropping the last handle frees what is held.
fn wait_in_kernel(shared: &Weak<Shared>, key: &Key, files: &Files) {
    loop {
        let got = files.wait_lock();
        let Some(shared) = shared.upgrade() else {
            got.ok().flatten().map(Locked::give_back);
            return;
        };
        if shared.deliver(key, got) == Next::Done {
            return;
        }
    }
}

impl State {
    fn queue(&mut self, key: &Key, token: Token) -> Arc<Notify> {
        let wake = Arc::new(Notify::new());
        self.tickets.insert(token, Ticket { mark: None, fault: None, wake: wake.clone() });
        self.queues.entry(key.clone()).or_default().push_back(token);
        wake
    }

    /// The claim waits no more; its mark goes.
    pub(super) fn leave(&mut self, token: Token) {
        self.tickets.remove(&token).and_then(|ticket| ticket.mark).map(Mark::leave);
    }

    /// Gives what the thread got to whom it belongs; returns what nobody wants.
    fn deliver(&mut self, key: &Key, got: Result<Option<Locked>, Fault>) -> (Next, Option<Locked>) {
        let unwanted = match got {
            Ok(None) => None,
            Ok(Some(locked)) => self.deliver_lock(key, locked),
            Err(fault) => self.deliver_fault(key, &fault),
        };
        if self.queues.get(key).is_some_and(|queue| !queue.is_empty()) {
            return (Next::Again, unwanted);
        }
        self.queues.remove(key);
        (Next::Done, unwanted)
    }

    fn deliver_lock(&mut self, key: &Key, locked: Locked) -> Option<Locked> {
        let Some(token) = self.queues.get_mut(key).and_then(VecDeque::pop_front) else {
            return Some(locked);
        };
        self.won(key, token, locked);
        self.wake(token);
        None
    }

    fn deliver_fault(&mut self, key: &Key, fault: &Fault) -> Option<Locked> {
        for token in self.queues.get_mut(key).map(std::mem::take).unwrap_or_default() {
            if let Some(ticket) = self.tickets.get_mut(&token) {
                ticket.fault = Some(fault.clone());
            }
            self.wake(token);
        }
        None
    }

    fn wake(&self, token: Token) {
        if let Some(ticket) = self.tickets.get(&token) {
            ticket.wake.notify_one();
        }
    }
}
