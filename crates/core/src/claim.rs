//! A claim: one request of this process for a key at the engine.
//!
//! In: the options of `request.rs`. Out: what a backend needs to send the request, and what it reports while
//! it waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::fault::{Fault, FaultKind, Loss};
use crate::holder::{Holder, Process, WaitStatus};
use crate::key::Key;
use crate::mode::Mode;
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard};
use crate::time::{Time, UnixMillis};
use crate::token::Token;

/// The default pause between two attempts on engines that cannot notify a waiter: short for a person, and not
/// a load for a server.
pub const RETRY_INTERVAL_DEFAULT: Duration = Duration::from_millis(100);

impl Holder {
    /// This process as the holder of `claim` since `since`.
    pub fn of(claim: &Claim, since: UnixMillis) -> Self {
        Holder {
            process: Some(Process::this_process().clone()),
            since: Some(since),
            label: claim.present_label().as_deref().map(Into::into),
            reason: claim.reason().map(Into::into),
            mode: Some(claim.mode().clone()),
            ..Holder::unknown()
        }
    }
}

/// The fault of a request that is still under way.
pub(crate) fn no_answer_yet() -> Fault {
    Fault::new(FaultKind::Unknown, "the server has not answered yet")
}

/// A request to hold a key at the engine. It is made once, sent as often as needed, always with the same
/// token.
#[derive(Debug)]
pub struct Claim {
    key: Key,
    token: Token,
    options: ClaimOptions,
    process: u32,
    seen: Mutex<Seen>,
    /// Notified when the locker is shut down, when an error is reported, and by the first report if a task
    /// waits for it.
    changed: Notify,
    /// When it became known that another process waits; zero if none is known. It is stored on the claim, as
    /// is `lost`, because both notices may arrive before the grant.
    contended: AtomicU64,
    /// When that was last reported.
    contended_last: AtomicU64,
    /// Notified when another process is known to wait.
    contention: Notify,
    lost: OnceLock<Loss>,
    sent: AtomicBool,
    /// The label that replaces the one of the options. A mutex of std: engines read it under one of theirs, which must
    /// not be held across a point at which shuttle switches threads.
    new_label: std::sync::Mutex<Option<Arc<str>>>,
}

/// What a backend has reported for a claim.
#[derive(Debug, Default)]
struct Seen {
    /// Boxed: it is large, and most claims never wait.
    status: Option<Box<WaitStatus>>,
    /// Tasks of this process wait for the first report.
    awaited: bool,
    closed: bool,
}

/// The options of a claim. Made with [`ClaimOptions::new`] and its setters.
#[derive(Clone, Debug)]
pub struct ClaimOptions {
    mode: Mode,
    ttl: Duration,
    renewed: bool,
    fenced: bool,
    numbered: bool,
    lone: bool,
    label: Option<Arc<str>>,
    reason: Option<Arc<str>>,
    retry_interval: Duration,
}

impl ClaimOptions {
    /// An exclusive claim with a fence that is renewed; the grant is for `ttl`.
    pub fn new(ttl: Duration) -> Self {
        ClaimOptions {
            mode: Mode::Exclusive,
            ttl,
            renewed: true,
            fenced: true,
            numbered: false,
            lone: false,
            label: None,
            reason: None,
            retry_interval: RETRY_INTERVAL_DEFAULT,
        }
    }

    /// How the key is claimed.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether the holder will renew the lock. A claim without renewal must not share a session with renewed
    /// ones.
    pub fn renewed(mut self, renewed: bool) -> Self {
        self.renewed = renewed;
        self
    }

    /// Whether the grant needs a fence. If not, an engine may skip the counter.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.fenced = fenced;
        self
    }

    /// The id of an owner that several processes share. Its claims are counted and do not exclude each other.
    pub fn shared_owner(mut self, owner: Option<Arc<str>>) -> Self {
        if let Some(owner) = owner {
            self.mode = Mode::SharedOwner(owner);
        }
        self
    }

    /// Whether a permit gets a slot of its own.
    pub fn numbered(mut self, numbered: bool) -> Self {
        self.numbered = numbered;
        self
    }

    /// Whether the claim belongs to one task only: neither it nor its lease is handed to another task of the process.
    /// So the server shows the label of the task that holds the lock.
    pub fn lone(mut self, lone: bool) -> Self {
        self.lone = lone;
        self
    }

    /// A text to show with the lock.
    pub fn label(mut self, label: Option<Arc<str>>) -> Self {
        self.label = label;
        self
    }

    /// Why the lock is held, to show to waiters.
    pub fn reason(mut self, reason: Option<Arc<str>>) -> Self {
        self.reason = reason;
        self
    }

    /// The pause between two attempts, for engines that must poll.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.retry_interval = interval;
        self
    }
}

impl Claim {
    /// A claim on `key` with the identity `token`.
    pub fn new(key: Key, token: Token, options: ClaimOptions) -> Self {
        Self::made_by(std::process::id(), key, token, options)
    }

    /// As [`new`](Self::new), for a caller that has read the process id already: reading it is a system call.
    pub(crate) fn made_by(process: u32, key: Key, token: Token, options: ClaimOptions) -> Self {
        let (seen, changed, contended, contended_last, contention) = Default::default();
        let (lost, sent, new_label) = Default::default();
        Claim {
            key,
            token,
            options,
            process,
            seen,
            changed,
            contended,
            contended_last,
            contention,
            lost,
            sent,
            new_label,
        }
    }

    /// The key that is claimed.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The identity of the claim at the server.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The id of the process that made the claim. A process forked from it must not use its connections.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// How the key is claimed.
    pub fn mode(&self) -> &Mode {
        &self.options.mode
    }

    /// Whether the claim is for a permit with a slot of its own.
    pub fn numbered(&self) -> bool {
        self.options.numbered
    }

    /// How long the grant is to be valid, unless it is renewed.
    pub fn ttl(&self) -> Duration {
        self.options.ttl
    }

    /// Whether the holder will renew the lock.
    pub fn renewed(&self) -> bool {
        self.options.renewed
    }

    /// Whether the grant needs a fence.
    pub fn fenced(&self) -> bool {
        self.options.fenced
    }

    /// The id of the shared owner, if the claim has one.
    pub fn shared_owner(&self) -> Option<&str> {
        match &self.options.mode {
            Mode::SharedOwner(owner) => Some(owner),
            _ => None,
        }
    }

    /// Whether neither the claim nor its lease may be handed to another task of the process.
    pub fn lone(&self) -> bool {
        self.options.lone
    }

    /// The text to show with the lock, as it was requested.
    pub fn label(&self) -> Option<&str> {
        self.options.label.as_deref()
    }

    /// The label that replaces the requested one: from now on, each renewal shows it. `None` if the label was never
    /// changed.
    pub fn new_label(&self) -> Option<Arc<str>> {
        self.new_label.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_label(&self, label: Arc<str>) {
        *self.new_label.lock().unwrap_or_else(PoisonError::into_inner) = Some(label);
    }

    /// The label to show now.
    pub(crate) fn present_label(&self) -> Option<Arc<str>> {
        self.new_label().or_else(|| self.options.label.clone())
    }

    /// Why the lock is held.
    pub fn reason(&self) -> Option<&str> {
        self.options.reason.as_deref()
    }

    /// The pause between two attempts, for engines that must poll.
    pub fn retry_interval(&self) -> Duration {
        self.options.retry_interval
    }

    /// Called by a backend before it sends a request for this claim. From then on there may be something to
    /// undo.
    pub fn set_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    /// Whether a request for the claim may have been sent. Only meaningful for a backend that calls
    /// [`set_sent`](Self::set_sent): it need not undo a claim that it never sent.
    pub fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Called by a backend while the claim waits, to report the holder or an error.
    pub fn report_wait(&self, status: WaitStatus) {
        let mut seen = self.seen();
        let status = match seen.status.as_deref() {
            Some(earlier) => status.after(earlier),
            None => status,
        };
        let notify = std::mem::take(&mut seen.awaited) || status.fault.is_some();
        seen.status = Some(Box::new(status));
        drop(seen);
        if notify {
            self.changed.notify_one();
        }
    }

    /// The last report of the backend; empty if there was none.
    pub fn wait_status(&self) -> WaitStatus {
        self.seen().status.as_deref().cloned().unwrap_or_default()
    }

    /// The last report. If there was none, [`news`](Self::news) is notified of the first one.
    pub(crate) fn await_status(&self) -> Option<WaitStatus> {
        let mut seen = self.seen();
        seen.awaited |= seen.status.is_none();
        seen.status.as_deref().cloned()
    }

    /// Whether the last report names a holder.
    pub(crate) fn sees_a_holder(&self) -> bool {
        self.seen().status.as_deref().is_some_and(|status| status.holder.is_some())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait of the task that leads with this claim, at once or as soon as it waits.
    pub(crate) fn close(&self) {
        self.seen().closed = true;
        self.changed.notify_one();
    }

    /// Wakes the task that waits with this claim: there is news for it in the gate.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits until the locker is shut down, the backend reports an error, or it makes the first report that a
    /// task waits for. Returns whether the locker is shut down.
    pub(crate) async fn news(&self) -> bool {
        self.changed.notified().await;
        self.seen().closed
    }

    /// Since when the server has not given a usable answer, if that is so. Before the first report that is
    /// `asked`, the time of the first request.
    pub(crate) fn unanswered_since(&self, asked: Time) -> Option<Time> {
        match self.seen().status.as_deref() {
            Some(status) => status.unanswered_since,
            None => Some(asked),
        }
    }

    /// Records that no answer has come since `asked`, unless the backend has made a report.
    pub(crate) fn report_silence(&self, asked: Time) {
        if self.seen().status.is_none() {
            self.report_wait(WaitStatus::unanswered(no_answer_yet(), asked));
        }
    }

    /// Whether another process is known to wait for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended_since().is_some()
    }

    /// Since when another process is known to wait.
    pub(crate) fn contended_since(&self) -> Option<Time> {
        let since = self.contended.load(Ordering::Acquire);
        (since != 0).then_some(Time::from_nanos(since))
    }

    /// Records that another process waits since `now`, unless an earlier time is recorded. A backend that has
    /// the claim at hand may call this; otherwise it sends [`Notice::Contended`](crate::backend::Notice).
    pub fn set_contended(&self, now: Time) {
        let now = now.as_nanos().max(1);
        // Before the mark: `clear_contended` reads the two in the opposite order, so one of us sees the other.
        self.contended_last.fetch_max(now, Ordering::SeqCst);
        if self.contended.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.contention.notify_waiters();
        }
    }

    /// A renewal that was sent at `sent` has reported that no other process waits any more. It knows nothing of a
    /// process that was reported since then. Returns whether one was known until now.
    pub(crate) fn clear_contended(&self, sent: Time) -> bool {
        let last = || self.contended_last.load(Ordering::SeqCst);
        if last() >= sent.as_nanos() {
            return false;
        }
        let known = self.contended.swap(0, Ordering::SeqCst) != 0;
        // A report that came in between found the mark still set, and left it to us.
        let late = last();
        if late >= sent.as_nanos() {
            self.set_contended(Time::from_nanos(late));
        }
        known
    }

    /// Waits until another process is known to wait.
    pub(crate) async fn contended(&self) {
        loop {
            let noticed = self.contention.notified();
            if self.is_contended() {
                return;
            }
            noticed.await;
        }
    }

    /// The loss that the server has reported, if any.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.lost.get()
    }

    pub(crate) fn set_lost(&self, loss: Loss) {
        let _ = self.lost.set(loss);
    }

    /// Whether a local waiter with `options` can take over this claim as it is stored at the server. Labels and
    /// reasons may differ, unless a claim is for one task only: to the server, the holder is the process.
    pub(crate) fn is_compatible(&self, options: &ClaimOptions) -> bool {
        !(self.options.lone || options.lone)
            && self.options.mode == options.mode
            && self.shared_owner().is_none()
            && self.options.ttl == options.ttl
            && self.options.renewed == options.renewed
            && self.options.fenced == options.fenced
            && self.options.numbered == options.numbered
    }
}
