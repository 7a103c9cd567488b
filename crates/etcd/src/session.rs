//! A session: a lease at the server, and our clock.
//!
//! In: what the server said when the lease was granted or kept alive. Out: until when the locks that
//! hang on it may be relied on.
//!
//! - It counts from the *sending* of what was last answered, with the ttl *in that answer*.
//! - What a keep-alive said counts only together with an answer that the cluster agreed on, that was
//!   asked for later, and that was given in the same term of the same leader. A leader that has been
//!   replaced and has not noticed answers keep-alives all the same, and so do servers with etcd's
//!   bug 20547 for a lease that is gone; neither can give the other answer. On servers whose bugs are known
//!   the leader itself is asked besides (`sessions.rs`).
//! - Once ended, by the server's word or by our clock, it stays so: it is revoked, and never kept alive
//!   again.
//!
//! A claim that asks with a request whose answer never comes could be granted late, by a request that
//! is carried out after the claim was undone, and would be held for as long as the session lives. So each
//! such request is bound to the revision of the session's own key, which undoing such a claim changes: the
//! [`guard`](Session::guard). The key is there from the start: were it not, its deletion by an operator
//! would let in again what was shut out.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Loss, Term};
use tenure_core::time::{self, Time};
use tokio_util::sync::CancellationToken;

use crate::keys::Keys;
use crate::proto::LeaseGrantResponse;

/// It is kept alive when so much of its ttl has passed: well before those who hold a lock on it want
/// it renewed, which is at a third, so that a lock that is taken is not due at once.
const KEEP_AFTER: u32 = 5;
/// For this share of its ttl it counts as just kept alive.
const FRESH: u32 = 10;
/// The pause after a keep-alive that was not answered, as a share of the ttl, within these bounds.
const RETRY_AFTER: u32 = 20;
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// A keep-alive may take this share of the ttl, so that another member can be tried in time.
const SHARE: u32 = 6;

/// Whose locks hang on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All of the default ttl.
    Shared,
    /// One lock, with which it ends.
    Own,
    /// Another process's, with other locks of it, of which we have adopted one: only that process may revoke it.
    Foreign,
}

#[derive(Debug)]
pub(crate) struct Session {
    lease: i64,
    /// The name of its own key.
    key: Bytes,
    kind: Kind,
    /// What was asked for.
    ttl: Duration,
    state: Mutex<State>,
    guard: AtomicI64,
    /// Whether we keep it alive by ourselves: while somebody waits on it, or if it is shared.
    kept: AtomicBool,
    ended: CancellationToken,
    /// The server has been told that it ended, and has said so.
    revoked: AtomicBool,
    /// Somebody watches for its end at the server.
    watched: AtomicBool,
}

#[derive(Debug)]
struct State {
    from: Time,
    ttl: Duration,
    term: u64,
    retry: Time,
    loss: Option<Loss>,
}

/// Until when a session lasts, and whose word that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lasts {
    pub(crate) from: Time,
    pub(crate) ttl: Duration,
    pub(crate) term: u64,
}

impl Lasts {
    pub(crate) fn as_term(self) -> Term {
        Term::Lease { from: self.from, ttl: self.ttl }
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
        let term = answer.header.map_or(0, |header| header.raft_term);
        let lasts = Lasts { from, ttl: seconds(answer.ttl), term };
        Self::of(keys, answer.id, kind, ttl, lasts)
    }

    /// One that another process began.
    pub(crate) fn of(keys: &Keys, lease: i64, kind: Kind, ttl: Duration, lasts: Lasts) -> Self {
        let Lasts { from, ttl: granted, term } = lasts;
        let state = State { from, ttl: granted, term, retry: from, loss: None };
        let (state, guard) = (Mutex::new(state), AtomicI64::new(0));
        let (ended, revoked, watched) = Default::default();
        let kept = AtomicBool::new(kind == Kind::Shared);
        let key = keys.session(lease);
        Session { lease, key, kind, ttl, state, guard, kept, ended, revoked, watched }
    }

    pub(crate) fn lease(&self) -> i64 {
        self.lease
    }

    /// The name of its own key.
    pub(crate) fn key(&self) -> Bytes {
        self.key.clone()
    }

    pub(crate) fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.kind == Kind::Foreign
    }

    /// What was asked for.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The revision at which the session's own key was last changed; zero for one that has none yet, since
    /// it comes with its only claim.
    pub(crate) fn guard(&self) -> i64 {
        self.guard.load(Ordering::Acquire)
    }

    /// Takes note of a change of the session's own key.
    pub(crate) fn guard_moved(&self, revision: i64) {
        self.guard.fetch_max(revision, Ordering::AcqRel);
    }

    /// Whether to keep it alive by ourselves from now on.
    pub(crate) fn keep(&self, kept: bool) {
        self.kept.store(kept || self.kind == Kind::Shared, Ordering::Release);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    /// How it ended, if it did.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.state().loss.clone()
    }

    /// Ends it, if it had not ended; whether it had not. The first reason counts.
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

    /// Whether somebody watches for its end at the server; from now on somebody does.
    pub(crate) fn set_watched(&self) -> bool {
        self.watched.swap(true, Ordering::AcqRel)
    }

    /// The server knows nothing of it any more, nor of what hung on it.
    pub(crate) fn set_revoked(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Until when it lasts; `None` if it has ended, by word or by the clock.
    pub(crate) fn lasts(&self, now: Time) -> Option<Lasts> {
        let state = self.state();
        let alive = state.loss.is_none() && now < state.valid_until();
        alive.then_some(Lasts { from: state.from, ttl: state.ttl, term: state.term })
    }

    /// Whether its time is over by our clock, and nobody has said so yet.
    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        let state = self.state();
        state.loss.is_none() && now >= state.valid_until()
    }

    /// Takes a keep-alive's answer in. Too late is too late: `false` if it had ended by then.
    pub(crate) fn extend(&self, lasts: Lasts, now: Time) -> bool {
        let mut state = self.state();
        if state.loss.is_some() || now >= state.valid_until() {
            return false;
        }
        // An answer that was overtaken by a later one says nothing new.
        if lasts.from > state.from {
            (state.from, state.ttl, state.term) = (lasts.from, lasts.ttl, lasts.term);
        }
        true
    }

    /// Whether it was kept alive a moment ago.
    pub(crate) fn is_fresh(&self, now: Time) -> bool {
        let state = self.state();
        now < state.from.after(state.ttl / FRESH)
    }

    /// A keep-alive was not answered: when to try again.
    pub(crate) fn retry(&self, now: Time) {
        let pause = (self.ttl / RETRY_AFTER).clamp(RETRY_MIN, RETRY_MAX);
        self.state().retry = now.after(pause);
    }

    /// When somebody has to see to it: to keep it alive, or to see it end.
    pub(crate) fn due(&self) -> Time {
        let state = self.state();
        let keep = state.from.after(state.ttl / KEEP_AFTER).max(state.retry);
        if self.is_kept() { keep.min(state.valid_until()) } else { state.valid_until() }
    }

    /// How long a keep-alive may take.
    pub(crate) fn patience(&self) -> Duration {
        self.ttl / SHARE
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn valid_until(&self) -> Time {
        time::valid_until(self.from, self.ttl)
    }
}

/// What the server counts in.
pub(crate) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// The least number of whole seconds that is not less, as the server wants it.
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

    fn lasts(from: u64, ttl: u64) -> Lasts {
        Lasts { from: at(from), ttl: Duration::from_secs(ttl), term: 1 }
    }

    fn session(granted: u64) -> Session {
        Session::of(&Keys::new("tenure", 0), 7, Kind::Shared, TTL, lasts(100, granted))
    }

    /// t67: it counts with what the server granted, not with what was asked for.
    #[test]
    fn t67_the_granted_ttl_counts() {
        let session = session(10);
        assert!(session.lasts(at(109)).is_some());
        assert!(session.lasts(at(110)).is_none() && session.is_overdue(at(110)));
        assert!(session.extend(lasts(105, 20), at(109)));
        assert!(session.lasts(at(124)).is_some() && session.lasts(at(125)).is_none());
    }

    /// An answer that comes after the end brings nothing back, and an old one shortens nothing.
    #[test]
    fn t31_too_late_is_too_late() {
        let session = session(30);
        assert!(session.extend(lasts(110, 30), at(111)));
        assert!(session.extend(lasts(105, 2), at(112)));
        assert_eq!(session.lasts(at(113)).unwrap().from, at(110));
        assert!(!session.extend(lasts(139, 30), at(140)));
        assert!(session.lasts(at(140)).is_none());
        assert!(session.end(Loss::Session) && !session.end(Loss::Gone));
        assert_eq!(session.loss(), Some(Loss::Session));
    }

    /// It is kept alive early, tried again soon, and only watched once nobody wants it kept.
    #[test]
    fn due() {
        let shared = session(30);
        assert_eq!(shared.due(), at(106));
        shared.retry(at(106));
        assert_eq!(shared.due(), at(107));
        let own = Session::of(&Keys::new("tenure", 0), 7, Kind::Own, TTL, lasts(100, 30));
        assert_eq!(own.due(), time::valid_until(at(100), TTL));
        own.keep(true);
        assert_eq!(own.due(), at(106));
    }

    /// Whole seconds, never fewer.
    #[test]
    fn rounding_up() {
        let rounded = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!((rounded(1), rounded(1_000), rounded(1_001)), (1, 1, 2));
    }
}
