//! The contract between the engine and what keeps the locks.
//!
//! In: claims and leases. Out: typed answers, never a guess.
//!
//! # Contract
//!
//! - **Atomic.** Each call takes effect at one moment at the server, or not at all.
//! - **By token.** A claim is granted, renewed, released or abandoned under its token and no other;
//!   nothing a backend does can touch a newer claim.
//! - **Idempotent.** Any call may be repeated. A claim that was granted is granted again, with the
//!   same fence or a higher one, never a lower; if the first grant has ended meanwhile, it is a new
//!   one. A release that was answered answers [`Release::NotHeld`] the second time; a second
//!   `abandon` does nothing.
//! - **Never shorter.** After a renewal or a second grant the server keeps the lock at least as long
//!   as it would have before, whatever ttl was asked for: the holder relies on the longer one.
//! - **Unknown is an answer.** When the server may or may not have done it, the fault says
//!   [`FaultKind::Unknown`]; the engine then repeats the call, abandons the claim, or waits for its
//!   clock. It repeats a `release` with the same [`Then`].
//! - **Bounded.** Every call but `acquire` and `tend` ends by itself within the backend's response
//!   time-out; `examine`, which asks for many things, within as many of them. The engine does not rely
//!   on it: a call that takes 10 s (60 s for a look at many locks) is given up as unknown. Only
//!   `examine` has no such bound.
//! - **Dropped means nothing.** A dropped future has no effect at the server; what it started is
//!   undone by `abandon` or `release`. Every claim that was ever sent ends in one of the two, lost
//!   ones included, and its token is never used again. What the server would keep for longer than a
//!   ttl after that, the backend goes on undoing by itself.
//! - **One future each.** At most one `acquire` of a claim is alive at a time. Between two, nobody
//!   speaks for the claim; the engine calls again, or abandons, at once.
//! - **Times are honest.** [`Term::Lease::from`] is read from [`clock`](Backend::clock) *before* the
//!   request leaves. It may lie before the call that is answered.
//!
//! Absent on purpose: deadlines, re-entry, hand-off between tasks, renewal, loss. Those are the
//! engine's, so that they are the same everywhere.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::claim::{Claim, Holder, Mode, Token};
use crate::doctor::{self, Finding};
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::Lease;
use crate::time::{Clock, Time, UnixMillis};

pub use crate::hints::{Hint, Hinter, Hints, hints};

/// A future that can be sent between threads, boxed so that [`Backend`] is object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An engine that keeps locks: see the [module](self) for what it must promise.
pub trait Backend: Send + Sync + 'static {
    /// What this engine can and cannot do.
    fn capabilities(&self) -> Capabilities;

    /// The clock that its answers are dated with.
    fn clock(&self) -> Clock;

    /// The ttl that most claims will have, told before the first of them. Engines that keep several
    /// locks alive together can prepare for it. Must not block.
    fn expect_ttl(&self, ttl: Duration) {
        let _ = ttl;
    }

    /// Asks once. "Held by another" is an answer.
    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>>;

    /// Waits until the claim is granted, telling [`Claim::saw`] what is in the way: a holder, or
    /// trouble with the server that may pass. The first of these is told within the response time-out:
    /// other tasks of the process wait for it. Called again with a claim that already waits, it goes
    /// on in the same place. An error means that waiting on is of no use.
    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>>;

    /// Extends each lease to its current [`Lease::ttl`], all together, and answers for each as soon
    /// as it is known, so that one slow shard costs the others nothing. No answer means unknown.
    /// Never brings back one that has ended. The ttl may change meanwhile: read it once.
    fn renew<'a>(&'a self, leases: &'a [Arc<Lease>], answers: &'a Answers<'a>)
    -> BoxFuture<'a, ()>;

    /// Gives the lock back, or keeps it closed to everyone for a while longer.
    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>>;

    /// Undoes whatever this claim has won or queued, also what a request still under way will yet
    /// win. An error means: not known to be undone, ask again.
    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>>;

    /// Carries on what another process has let go of, under the same token: the term that it now
    /// has, or `None` if it is not held under that token any more.
    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        let _ = claim;
        Box::pin(async move { Err(self.capabilities().not_adoptable()) })
    }

    /// Makes a lease independent of this process, so that another can [`adopt`](Self::adopt) it
    /// within its ttl. Nothing is done for it here afterwards.
    fn let_go<'a>(&'a self, lease: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        let _ = lease;
        Box::pin(async move { Err(self.capabilities().not_adoptable()) })
    }

    /// Tasks of this process wait behind `lease`: from now until it ends, tell with
    /// [`Notice::Contended`] when another process waits for it too. Engines that always tell need
    /// do nothing. Must not block, nor call back.
    fn heed(&self, lease: &Arc<Lease>) {
        let _ = lease;
    }

    /// The backend's own life: keeping sessions and connections up, independent of any caller. Run
    /// on the engine's thread from before the first claim until the engine ends.
    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// What the engine has to say unasked, from now on. Each call gives a stream of its own.
    fn notices(&self) -> Notices;

    /// Who holds and who waits.
    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>>;

    /// Tells from now on which locks have changed, until what it gave is dropped: one stream for each
    /// watch. `None` if this engine cannot tell, or is not allowed to; everything is then looked at
    /// again and again.
    fn hints(&self) -> BoxFuture<'_, Result<Option<Hints>, Fault>> {
        Box::pin(async { Ok(None) })
    }

    /// How claims ended that held a lock and do not any more, each where the engine knows it: elsewhere
    /// it is told by the clock. What an operator took away is known for as long as its lease would have
    /// lasted.
    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        Box::pin(async { Ok(vec![None; ended.len()]) })
    }

    /// Takes the lock from whoever holds it under the token that the operator saw, and tells the
    /// former holder with a [`Notice::Lost`].
    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>>;

    /// Looks for what makes locks of `ttl` unsafe here, and says what to do about it. Nothing is left
    /// behind. A server that cannot be reached is a finding too.
    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(async move { vec![doctor::trial(self, ttl).await] })
    }

    /// Lets go of connections that this backend made itself.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Takes the answer to the renewal of the lease with this index.
pub type Answers<'a> = dyn Fn(usize, Renewal) + Send + Sync + 'a;

/// What an engine can and cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Its name as in a URL: `memory`, `file`, `redis`, `etcd`.
    pub engine: &'static str,
    /// Hands the lock to waiters in the order in which they came.
    pub fifo: bool,
    /// Others may wait without the engine knowing (they poll), so a hot process must pause for them.
    pub unseen_waiters: bool,
    /// Leases end at the server by themselves. If not, a dead process's lock is freed by other means.
    pub expires: bool,
    /// Can count the claims of a shared owner.
    pub shared_owners: bool,
    /// Can grant permits of a capacity.
    pub permits: bool,
    /// A lease can be carried on by another process that knows its token.
    pub adoptable: bool,
    /// An operator can take a lock away.
    pub forcible: bool,
    /// The shortest ttl, and the unit that a ttl must be a multiple of.
    pub ttl_unit: Duration,
    /// The shortest ttl it grants.
    pub ttl_min: Duration,
}

impl Capabilities {
    /// An engine that can do everything the contract knows, to be cut down field by field.
    pub fn full(engine: &'static str) -> Self {
        Capabilities {
            engine,
            fifo: true,
            unseen_waiters: false,
            expires: true,
            shared_owners: true,
            permits: true,
            adoptable: true,
            forcible: true,
            ttl_unit: Duration::from_millis(1),
            ttl_min: crate::options::TTL_MIN,
        }
    }
}

impl Capabilities {
    pub(crate) fn not_adoptable(&self) -> Fault {
        let engine = self.engine;
        let why = format!(
            "a lock of `{engine}:` ends with its process and cannot be carried on by another"
        );
        Fault::new(FaultKind::Unsupported, why)
    }
}

/// The answer to one attempt.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// It is ours.
    Granted(Grant),
    /// It is another's.
    Held(Box<Holder>),
}

/// The server's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The server's fence number, at most [`SERVER_FENCE_MAX`](crate::fence::SERVER_FENCE_MAX); zero without fencing.
    pub fence: u64,
    /// How long it lasts.
    pub term: Term,
    /// Another process is known to wait already.
    pub contended: bool,
}

impl Grant {
    /// A grant that others are not known to wait for.
    pub fn new(fence: u64, term: Term) -> Self {
        Grant { fence, term, contended: false }
    }

    /// The same, with whether another process waits.
    pub fn contended(self, contended: bool) -> Self {
        Grant { contended, ..self }
    }
}

/// How long a grant or renewal lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// `ttl` from `from` on.
    Lease {
        /// Read before the request that was answered left.
        from: Time,
        /// What the server really gave.
        ttl: Duration,
    },
    /// Until it is released or the process ends.
    Endless,
}

/// The answer to one renewal.
#[derive(Debug)]
pub enum Renewal {
    /// Extended.
    Renewed {
        /// From when it counts, and how long.
        term: Term,
        /// Another process waits.
        contended: bool,
    },
    /// The server says it is not ours any more.
    Lost(Loss),
    /// No answer that can be relied on. The clock decides.
    Unknown(Fault),
}

/// What becomes of a lock on release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next one may have it.
    Free,
    /// Nobody may, for this long.
    Closed(Duration),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours and is free now, or another's.
    Freed,
    /// It was ours, and so many other claims of our shared owner hold on.
    StillHeld(u32),
    /// It was not ours (any more).
    NotHeld,
}

/// How a claim ended that held a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was given back.
    Released,
    /// It was taken away, or ran out.
    Lost(Loss),
}

impl From<Loss> for Fate {
    fn from(loss: Loss) -> Fate {
        Fate::Lost(loss)
    }
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// Its time ran out before a renewal was confirmed.
    Expired,
    /// The engine no longer knows it, or knows another holder.
    Gone,
    /// An operator took it away; who, and why.
    Forced(String),
    /// It was held for as long as the caller allowed.
    MaxHold,
    /// The session with the server ended.
    Session,
    /// Our `Locker` was shut down.
    Shutdown,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Loss::Expired => f.write_str("no renewal was confirmed in time"),
            Loss::Gone => f.write_str("the engine no longer knows it as ours"),
            Loss::Forced(by) => write!(f, "released by force: {by}"),
            Loss::MaxHold => f.write_str("held for as long as allowed"),
            Loss::Session => f.write_str("the session with the server ended"),
            Loss::Shutdown => f.write_str("the locker was shut down"),
        }
    }
}

impl Loss {
    /// One word for a metric's label.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Gone => "gone",
            Loss::Forced(_) => "forced",
            Loss::MaxHold => "max_hold",
            Loss::Session => "session",
            Loss::Shutdown => "shutdown",
        }
    }
}

/// What an engine says unasked. Hints: nothing depends on one arriving, nor on its arriving after
/// the grant that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Another process waits for the lock that this claim holds.
    Contended {
        /// The lock.
        key: Key,
        /// The claim that holds it.
        token: Token,
    },
    /// This claim's lock was taken away.
    Lost {
        /// The lock.
        key: Key,
        /// The claim that held it.
        token: Token,
        /// By whom or what.
        loss: Loss,
    },
    /// The connection came back: renew everything at once.
    Reconnected,
}

/// A stream of [`Notice`]s.
#[derive(Debug)]
pub struct Notices(broadcast::Receiver<Notice>);

impl Notices {
    /// The stream of what is sent on `sender` from now on.
    pub fn of(sender: &broadcast::Sender<Notice>) -> Self {
        Notices(sender.subscribe())
    }

    /// The next one; `None` when the backend is gone.
    ///
    /// Where some were missed, anything may have happened: that reads as [`Notice::Reconnected`].
    pub async fn next(&mut self) -> Option<Notice> {
        match self.0.recv().await {
            Ok(notice) => Some(notice),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Notice::Reconnected),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Which locks to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// This one, literally.
    Key(Key),
    /// These, literally.
    Keys(Vec<Key>),
    /// Those whose name matches a [glob](crate::glob).
    Glob(String),
}

impl Query {
    /// Whether `name` is asked for.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Query::Key(key) => key.as_str() == name,
            Query::Keys(keys) => keys.iter().any(|key| key.as_str() == name),
            Query::Glob(pattern) => crate::glob::matches(pattern, name),
        }
    }
}

/// A lock that somebody holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub key: Key,
    /// How it is held.
    pub mode: Mode,
    /// Who holds it: nobody, one, or several where it can be shared.
    pub holders: Vec<Holding>,
    /// Who waits, first come first; `None` where the engine does not know.
    pub waiters: Option<Vec<Waiting>>,
}

impl LockInfo {
    /// An exclusive lock with its holders and waiters.
    pub fn exclusive(key: Key, holders: Vec<Holding>, waiters: Option<Vec<Waiting>>) -> Self {
        LockInfo { key, mode: Mode::Exclusive, holders, waiters }
    }
}

/// One holder of a lock, with what an operator needs to take it away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// Who.
    pub holder: Holder,
    /// The fence that its grant carried; `None` where the engine does not keep it.
    pub fence: Option<Fence>,
    /// Its token: a secret, to be handed to `force_release` and shown to nobody.
    pub token: Option<Token>,
}

impl Holding {
    /// A holder, its fence and its token.
    pub fn new(holder: Holder, fence: Option<Fence>, token: Option<Token>) -> Self {
        Holding { holder, fence, token }
    }
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// Who.
    pub holder: Holder,
    /// Since when.
    pub since: Option<UnixMillis>,
}

impl Waiting {
    /// A waiter that came at `since`.
    pub fn new(holder: Holder, since: Option<UnixMillis>) -> Self {
        Waiting { holder, since }
    }
}

/// What kept a backend from answering.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    kind: FaultKind,
    message: String,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// What to do about a [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// It could not be asked. Nothing was done; it may work later.
    Unavailable,
    /// It was asked and did not answer. It may have been done.
    Unknown,
    /// It said no for good: rights, a wrong type, a full disk, a corrupt count. Nothing was done.
    Refused,
    /// The request makes no sense to this engine.
    Invalid,
    /// This engine cannot do that.
    Unsupported,
}

impl Fault {
    /// A fault of `kind`. The message is lower case, has no full stop, and names the value at fault.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into(), source: None }
    }

    /// The fault with what caused it. The message must not repeat it.
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What to do about it.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }
}
