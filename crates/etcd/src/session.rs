//! A session: a lease at the server, and its validity by our clock.
//!
//! In: the server's replies when the lease was granted or kept alive. Out: until when the locks on the
//! session can be relied on.
//!
//! - The validity counts from the *sending* of the last answered request, with the ttl *in its reply*.
//! - The reply to a keep-alive counts only together with a linearizable reply (one that the cluster agreed
//!   on) to a later request, in the same raft term. A leader that was replaced and has not noticed still
//!   answers keep-alives, and servers with etcd's bug 20547 answer them for a lease that is gone; neither can
//!   give the linearizable reply. If a server with known bugs is in use, the leader itself is asked too
//!   (`sessions.rs`).
//! - A session that has ended, by the server's reply or by our clock, never lives again. It is not kept alive
//!   any more, and it is revoked unless it belongs to another process.
//!
//! A request with a lost reply may run late, after we undid its claim. The lock would then be held for as long
//! as the session lives. So each request that creates a claim's key has the condition that the session's own
//! key is unchanged ([`session_revision`](Session::session_revision)), and undoing such a claim rewrites that
//! key. A shared session has the key from the start: with "no key yet" as a valid condition, deleting the key
//! by hand would let late requests in again. A session with one claim gets its key together with the claim's.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Loss, Validity};
use tenure_core::time::{self, Time};
use tokio_util::sync::CancellationToken;

use crate::keys::Keys;
use crate::proto::LeaseGrantResponse;

/// A session is kept alive after ttl / 5: well before its holders ask for a renewal, which is after ttl / 3.
/// So a lock that was just acquired is not due at once.
const KEEP_ALIVE_DIVISOR: u32 = 5;
/// For ttl / 10 a session counts as just kept alive.
const FRESH_DIVISOR: u32 = 10;
/// The pause after a failed keep-alive is ttl / 20, within these limits.
const RETRY_DIVISOR: u32 = 20;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// A keep-alive may take ttl / 6, so that another member can be tried in time.
const TIMEOUT_DIVISOR: u32 = 6;

/// Which locks are on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All locks with the default ttl.
    Shared,
    /// One lock; the session ends with it.
    Single,
    /// A session of another process, with locks of that process; we have adopted one of them. Only that
    /// process may revoke the session.
    Foreign,
}

#[derive(Debug)]
pub(crate) struct Session {
    lease: i64,
    /// The name of the session's own key.
    key: Bytes,
    kind: Kind,
    /// The requested ttl.
    ttl: Duration,
    state: Mutex<State>,
    session_revision: AtomicI64,
    /// Whether the background work keeps it alive: if it is shared, or while a claim on it waits.
    kept: AtomicBool,
    ended: CancellationToken,
    /// The server has confirmed that the lease is revoked.
    revoked: AtomicBool,
    /// A task watches for its end at the server.
    watched: AtomicBool,
}

#[derive(Debug)]
struct State {
    validity: SessionValidity,
    retry: Time,
    loss: Option<Loss>,
}

/// The validity of a session: from when, for how long, and in which raft term it was granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionValidity {
    pub(crate) from: Time,
    pub(crate) ttl: Duration,
    pub(crate) raft_term: u64,
}

impl SessionValidity {
    pub(crate) fn as_validity(self) -> Validity {
        Validity::Lease { from: self.from, ttl: self.ttl }
    }
}

impl Session {
    /// The session that was granted by `answer` to a request sent at `from`.
    pub(crate) fn new(
        keys: &Keys,
        kind: Kind,
        ttl: Duration,
        from: Time,
        answer: &LeaseGrantResponse,
    ) -> Self {
        let raft_term = answer.header.map_or(0, |header| header.raft_term);
        let validity = SessionValidity { from, ttl: seconds(answer.ttl), raft_term };
        Self::of(keys, answer.id, kind, ttl, validity)
    }

    /// A session with a known lease, also one that another process began.
    pub(crate) fn of(
        keys: &Keys,
        lease: i64,
        kind: Kind,
        ttl: Duration,
        validity: SessionValidity,
    ) -> Self {
        let state = State { validity, retry: validity.from, loss: None };
        let (state, session_revision) = (Mutex::new(state), AtomicI64::new(0));
        let (ended, revoked, watched) = Default::default();
        let kept = AtomicBool::new(kind == Kind::Shared);
        let key = keys.session(lease);
        Session { lease, key, kind, ttl, state, session_revision, kept, ended, revoked, watched }
    }

    pub(crate) fn lease(&self) -> i64 {
        self.lease
    }

    /// The name of the session's own key.
    pub(crate) fn key(&self) -> Bytes {
        self.key.clone()
    }

    pub(crate) fn is_single(&self) -> bool {
        self.kind == Kind::Single
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.kind == Kind::Foreign
    }

    /// The requested ttl.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The revision at which the session's own key was last changed. Zero for a session whose key does not
    /// exist yet because it is put together with the only claim.
    pub(crate) fn session_revision(&self) -> i64 {
        self.session_revision.load(Ordering::Acquire)
    }

    /// Records a change of the session's own key.
    pub(crate) fn record_revision(&self, revision: i64) {
        self.session_revision.fetch_max(revision, Ordering::AcqRel);
    }

    /// Sets whether the background work keeps it alive from now on. A shared session always is.
    pub(crate) fn keep(&self, kept: bool) {
        self.kept.store(kept || self.kind == Kind::Shared, Ordering::Release);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    /// How it ended, if it has ended.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state().loss.clone()
    }

    /// Ends it. Returns whether it was alive until now. The first reason counts.
    pub(crate) fn end(&self, loss: Loss) -> bool {
        let mut state = self.state();
        if state.loss.is_some() {
            return false;
        }
        state.loss = Some(loss);
        drop(state);
        self.ended.cancel();
        true
    }

    /// Records that a task watches for its end at the server. Returns whether one did before.
    pub(crate) fn set_watched(&self) -> bool {
        self.watched.swap(true, Ordering::AcqRel)
    }

    /// Records that the server has revoked the lease and deleted all keys on it.
    pub(crate) fn set_revoked(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Its validity; `None` if it has ended, by a reply or by the clock.
    pub(crate) fn validity(&self, now: Time) -> Option<SessionValidity> {
        let state = self.state();
        let alive = state.loss.is_none() && now < state.valid_until();
        alive.then_some(state.validity)
    }

    /// Whether it has expired by our clock, and is not marked as ended yet.
    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        let state = self.state();
        state.loss.is_none() && now >= state.valid_until()
    }

    /// Applies the reply to a keep-alive. `false` if the session had ended before the reply came.
    pub(crate) fn extend(&self, validity: SessionValidity, now: Time) -> bool {
        let mut state = self.state();
        if state.loss.is_some() || now >= state.valid_until() {
            return false;
        }
        // A reply that was overtaken by a later one is ignored.
        if validity.from > state.validity.from {
            state.validity = validity;
        }
        true
    }

    /// Whether it was kept alive a moment ago.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        let state = self.state();
        now < state.validity.from.after(state.validity.ttl / FRESH_DIVISOR)
    }

    /// Sets when to try again after a failed keep-alive.
    pub(crate) fn retry(&self, now: Time) {
        let pause = (self.ttl / RETRY_DIVISOR).clamp(RETRY_MIN, RETRY_MAX);
        self.state().retry = now.after(pause);
    }

    /// When it needs attention: a keep-alive, or its end by our clock.
    pub(crate) fn due(&self) -> Time {
        let state = self.state();
        let SessionValidity { from, ttl, .. } = state.validity;
        let keep = from.after(ttl / KEEP_ALIVE_DIVISOR).max(state.retry);
        if self.is_kept() { keep.min(state.valid_until()) } else { state.valid_until() }
    }

    /// How long a keep-alive may take.
    pub(crate) fn keep_alive_timeout(&self) -> Duration {
        self.ttl / TIMEOUT_DIVISOR
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn valid_until(&self) -> Time {
        time::valid_until(self.validity.from, self.validity.ttl)
    }
}

/// A number of seconds, the unit of the server.
pub(crate) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// The time in seconds, rounded up, as the server needs it.
pub(crate) fn whole_seconds(time: Duration) -> i64 {
    let up = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    i64::try_from(up).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(secs: u64) -> Time {
        Time::from_nanos(secs * 1_000_000_000)
    }

    fn validity(from: u64, ttl: u64) -> SessionValidity {
        SessionValidity { from: at(from), ttl: Duration::from_secs(ttl), raft_term: 1 }
    }

    fn session(granted: u64) -> Session {
        Session::of(&Keys::new("tenure", 0), 7, Kind::Shared, TTL, validity(100, granted))
    }

    /// C5, t67: the validity uses the ttl that the server granted, not the requested one.
    #[test]
    fn t67_the_granted_ttl_counts() {
        let session = session(10);
        assert!(session.validity(at(109)).is_some());
        assert!(session.validity(at(110)).is_none() && session.is_overdue(at(110)));
        assert!(session.extend(validity(105, 20), at(109)));
        assert!(session.validity(at(124)).is_some() && session.validity(at(125)).is_none());
    }

    /// A reply after the end does not revive a session, and an old reply does not shorten its validity.
    #[test]
    fn t31_an_ended_session_is_not_revived() {
        let session = session(30);
        assert!(session.extend(validity(110, 30), at(111)));
        assert!(session.extend(validity(105, 2), at(112)));
        assert_eq!(session.validity(at(113)).unwrap().from, at(110));
        assert!(!session.extend(validity(139, 30), at(140)));
        assert!(session.validity(at(140)).is_none());
        assert!(session.end(Loss::Session) && !session.end(Loss::Gone));
        assert_eq!(session.loss(), Some(Loss::Session));
    }

    /// It is kept alive early, retried soon, and only checked for expiry if no keep-alive is wanted.
    #[test]
    fn due() {
        let shared = session(30);
        assert_eq!(shared.due(), at(106));
        shared.retry(at(106));
        assert_eq!(shared.due(), at(107));
        let single = Session::of(&Keys::new("tenure", 0), 7, Kind::Single, TTL, validity(100, 30));
        assert_eq!(single.due(), time::valid_until(at(100), TTL));
        single.keep(true);
        assert_eq!(single.due(), at(106));
    }

    /// Rounds up to whole seconds.
    #[test]
    fn rounding_up() {
        let rounded = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!((rounded(1), rounded(1_000), rounded(1_001)), (1, 1, 2));
    }
}
