//! Waiting for a lock that another process holds.
//!
//! In: a claim. Out: the kernel's lock, stored under the claim's token.
//!
//! A wait in the kernel cannot be cancelled, so it happens on a detached thread, **one per key** and kind of lock.
//! The thread belongs to no claim: it hands the lock to the first claim in its queue. If all claims have left by
//! then, it releases the lock and ends. A claim that arrives before that uses the thread that is already
//! waiting. So cancelled waits never pile up, and a runtime never has to wait for one.
//!
//! A waiting claim also has a [`Mark`], so that the holder sees it; the thread has none. When the last claim
//! leaves, the holder sees no waiter and removes the lock file on release. The thread then gets a lock on a
//! file without a name, which excludes no one.
//!
//! There is no second lock that admits waiters one by one: a process stopped while holding it would block all
//! others.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::files::{Files, LockKind, Locked};
use super::record::{Found, Record};
use super::state::{FileEngine, FileWaiter, KernelHold, State};
use super::waiter_mark::Mark;
use super::writer_mark::{REFRESH, WriterMark, WritersAhead};
use crate::claim::Claim;
use crate::fault::{Fault, FaultKind};
use crate::holder::WaitStatus;
use crate::key::Key;
use crate::token::Token;

/// The longest interval at which a waiter reads the record of the holder.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The interval at which a reader looks whether writers still wait before it.
const READER_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// The thread opens, locks and removes files; it needs little stack.
const STACK: usize = 128 * 1024;

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Again,
    Done,
}

impl FileEngine {
    /// Waits until this claim has the kernel's lock. A claim that is already queued keeps its position.
    pub(super) async fn in_turn(self: &Arc<Self>, claim: &Claim) -> Result<(), Fault> {
        let (token, files) = (claim.token(), self.files(claim.key()));
        let kind = LockKind::of(claim.mode());
        let wake = self.queue_up(claim.key(), kind, token)?;
        let longest = if kind == LockKind::Exclusive { REFRESH } else { POLL_INTERVAL };
        let mut pause = claim.retry_interval().min(longest);
        loop {
            if let Some(end) = self.collect(token) {
                return end;
            }
            self.look(claim, &files);
            // Nothing notifies us when the holder changes. The status is for people and need not be quick.
            let _ = tokio::time::timeout(pause, wake.notified()).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Waits as long as a reader must wait for the writers that came before it.
    pub(super) async fn wait_behind_writers(&self, claim: &Claim) {
        let files = self.files(claim.key());
        let Some(ahead) = WritersAhead::of(&files.want) else { return };
        while ahead.wait() {
            claim.report_wait(WaitStatus::of(Record::read(&files).holder(&self.clock), None));
            tokio::time::sleep(READER_POLL_INTERVAL).await;
        }
    }

    fn queue_up(
        self: &Arc<Self>,
        key: &Key,
        kind: LockKind,
        token: Token,
    ) -> Result<Arc<Notify>, Fault> {
        let (mut state, key) = (self.state(), (key.clone(), kind));
        if let Some(ticket) = state.tickets.get(&token) {
            return Ok(ticket.wake.clone());
        }
        if !state.queues.contains_key(&key) {
            self.spawn(&key)?;
        }
        Ok(state.queue(key, token))
    }

    fn spawn(self: &Arc<Self>, key: &(Key, LockKind)) -> Result<(), Fault> {
        let (shared, files, key) = (Arc::downgrade(self), self.files(&key.0), key.clone());
        let thread = std::thread::Builder::new().name("tenure-wait".into()).stack_size(STACK);
        let spawned = thread.spawn(move || wait_in_kernel(&shared, &key, &files));
        spawned.map(drop).map_err(|error| {
            Fault::new(FaultKind::Unavailable, "cannot start a thread to wait on").caused_by(error)
        })
    }

    /// The result of the wait, if it has ended.
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

    /// Reports the present holder, and makes sure that our mark is set.
    fn look(&self, claim: &Claim, files: &Files) {
        match Record::read(files) {
            Found::Nothing if claim.wait_status().holder.is_some() => {}
            record => claim.report_wait(WaitStatus::of(record.holder(&self.clock), None)),
        }
        let is_writer = LockKind::of(claim.mode()) == LockKind::Exclusive;
        if let Some(ticket) = self.state().tickets.get_mut(&claim.token()) {
            ticket.mark = ticket.mark.take().or_else(|| Mark::take(&files.wait));
            let mark = ticket.writer_mark.take().filter(|_| is_writer);
            ticket.writer_mark =
                mark.or_else(|| is_writer.then(|| WriterMark::take(&files.want)).flatten());
            ticket.writer_mark.iter().for_each(WriterMark::refresh);
        }
    }

    /// Removes the claim from all queues. The caller must release the lock if it had been acquired.
    pub(super) fn withdraw(&self, claim: &Claim) -> Option<KernelHold> {
        let mut state = self.state();
        let queue = state.queues.get_mut(&(claim.key().clone(), LockKind::of(claim.mode())));
        queue.into_iter().for_each(|queue| queue.retain(|token| *token != claim.token()));
        state.leave(claim.token());
        state.held.remove(&claim.token())
    }

    fn deliver(&self, key: &(Key, LockKind), got: Result<Option<Locked>, Fault>) -> Next {
        let (next, unwanted) = self.state().deliver(key, got);
        // Outside the mutex, and with the full release: other processes may wait for this lock.
        unwanted.map(Locked::give_back);
        next
    }
}

pub(super) fn abandoned() -> Fault {
    Fault::new(FaultKind::Invalid, "the claim was abandoned while it was asked for")
}

/// The thread. It must not keep `Shared` alive: dropping the last handle frees the held locks.
fn wait_in_kernel(shared: &Weak<FileEngine>, key: &(Key, LockKind), files: &Files) {
    loop {
        let got = files.wait_lock(key.1);
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
    fn queue(&mut self, key: (Key, LockKind), token: Token) -> Arc<Notify> {
        let ticket = FileWaiter::default();
        let wake = ticket.wake.clone();
        self.tickets.insert(token, ticket);
        self.queues.entry(key).or_default().push_back(token);
        wake
    }

    /// Ends the claim's wait and removes its marks.
    pub(super) fn leave(&mut self, token: Token) {
        let Some(ticket) = self.tickets.remove(&token) else { return };
        ticket.mark.map(Mark::leave);
        ticket.writer_mark.into_iter().for_each(WriterMark::leave);
    }

    /// Ends the wait of a claim that has the lock.
    pub(super) fn served(&mut self, token: Token) {
        let mark = self.tickets.get_mut(&token).and_then(|ticket| ticket.writer_mark.take());
        mark.into_iter().for_each(WriterMark::served);
        self.leave(token);
    }

    /// Hands the thread's result to the waiting claims. Returns the lock if no claim needs it.
    fn deliver(
        &mut self,
        key: &(Key, LockKind),
        got: Result<Option<Locked>, Fault>,
    ) -> (Next, Option<Locked>) {
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

    fn deliver_lock(&mut self, key: &(Key, LockKind), locked: Locked) -> Option<Locked> {
        let Some(token) = self.queues.get_mut(key).and_then(VecDeque::pop_front) else {
            return Some(locked);
        };
        self.won(&key.0, token, locked);
        self.wake(token);
        None
    }

    fn deliver_fault(&mut self, key: &(Key, LockKind), fault: &Fault) -> Option<Locked> {
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
