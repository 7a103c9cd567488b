//! The contract, kept by an etcd cluster.
//!
//! In: claims and leases from the engine. Out: what the cluster answered, as the contract says it.
//! Waiting is in `wait.rs`, renewing in `renew.rs`, giving back in `give.rs`, looking in `look.rs`,
//! watching in `watch.rs`, what goes on by itself in `tend.rs`.
//!
//! Requests travel on one connection of the runtime that asks; what keeps locks alive on another that
//! lives on the engine's thread, so that a blocked application does not lose a lock.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, FaultKind, Grant, Hints,
    LockInfo, Loss, Notice, Notices, Query, Release, Term, Then,
};
use tenure_core::doctor::Finding;
use tenure_core::time::Clock;
use tenure_core::{Claim, Error, Key, Lease, Mode, TTL_DEFAULT, Token};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::builder::Builder;
use crate::ears::Ears;
use crate::epoch::Epoch;
use crate::keys::Keys;
use crate::link::{Cluster, Link};
use crate::seat::{Seat, Seats, Wanted};
use crate::sessions::Sessions;
use crate::trouble::{Cause, Trouble};
use crate::value::Author;
use crate::watch::Departed;

/// How many notices a slow listener may be behind before it is told that it missed some.
const NOTICES_KEPT: usize = 1024;
/// The shortest ttl: a server with the usual settings grants none below it.
pub(crate) const TTL_MIN: Duration = Duration::from_secs(2);
/// How many debts are paid by one that closes: the server's clock pays the others.
const PAID_AT_CLOSE: usize = 16;
/// What a ttl is counted in.
const TTL_UNIT: Duration = Duration::from_secs(1);
/// Why a forked child cannot use what its parent opened.
const FORKED: &str = "the client was made by the process that forked this one";
/// Why owners cannot be shared between processes.
const SHARED: &str = "`etcd:` cannot share an owner between processes: a lock hangs on the session of \
                      one process, and ends with it";

/// Locks on an etcd cluster.
///
/// Every grant was agreed on by a majority of the cluster, so a lock survives the loss of a member,
/// and whoever waits is served first come, first served. A ttl is in whole seconds, at least two.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use std::time::Duration;
/// use tenure_core::Locker;
/// use tenure_etcd::Etcd;
///
/// let etcd = Etcd::builder("etcds://app:secret@etcd-1:2379,etcd-2:2379,etcd-3:2379")
///     .ca_file("/etc/etcd/ca.pem")
///     .prefix("billing")
///     .response_timeout(Duration::from_secs(1));
/// let locker = Locker::new(etcd.connect().await?);
/// let guard = locker.lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Debug)]
pub struct Etcd {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Keys,
    pub(crate) author: Author,
    pub(crate) clock: Clock,
    pub(crate) calls: Link,
    pub(crate) renewals: Link,
    pub(crate) sessions: Sessions,
    pub(crate) epoch: Epoch,
    pub(crate) seats: Seats,
    pub(crate) wanted: Wanted,
    pub(crate) ears: Ears,
    pub(crate) departed: Departed,
    /// Claims behind which tasks of this process wait.
    pub(crate) heeding: broadcast::Sender<Arc<Seat>>,
    pub(crate) closed: CancellationToken,
    notices: broadcast::Sender<Notice>,
    address: String,
    /// The process that made it.
    pid: u32,
}

impl Etcd {
    /// Connects to the cluster at `url`, with what the URL does not say taken from the variables that
    /// `etcdctl` reads (`ETCDCTL_ENDPOINTS`, `ETCDCTL_USER`, `ETCDCTL_CACERT` and their like).
    ///
    /// # Errors
    ///
    /// Those of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).environment()?.connect().await
    }

    /// Starts from `url`, to say more than a URL can.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A client of `cluster`, with a number that no other has.
    pub(crate) fn new(cluster: Cluster, prefix: &str, number: u64) -> Self {
        let address = format!("{cluster:?}");
        let cluster = Arc::new(cluster);
        let shared = Shared {
            keys: Keys::new(prefix, number),
            author: Author::new(),
            clock: cluster.clock().clone(),
            calls: Link::new(cluster.clone()),
            renewals: Link::new(cluster.clone()),
            sessions: Sessions::new(TTL_DEFAULT),
            epoch: Epoch::default(),
            seats: Seats::default(),
            wanted: Wanted::default(),
            ears: Ears::default(),
            departed: Departed::default(),
            heeding: broadcast::Sender::new(NOTICES_KEPT),
            closed: CancellationToken::new(),
            notices: broadcast::Sender::new(NOTICES_KEPT),
            address,
            pid: std::process::id(),
        };
        Etcd { shared: Arc::new(shared) }
    }

    /// Whether the cluster can be used.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let live = self.shared.calls.live().await;
        live.map(drop).map_err(|trouble| Fault::from(trouble).into())
    }
}

impl Shared {
    pub(crate) fn tell(&self, notice: Notice) {
        // Nobody listens: nobody needs to know.
        let _ = self.notices.send(notice);
    }

    /// Trouble that no server has put into words, and what it said besides.
    pub(crate) fn trouble(&self, cause: Cause, what: &str, said: &str) -> Trouble {
        match said {
            "" => Trouble::new(cause, &self.address, what),
            said => Trouble::new(cause, &self.address, format_args!("{what}: {said}")),
        }
    }

    /// Refuses what this engine cannot do before anything is sent.
    pub(crate) fn refuse_unsupported(&self, claim: &Claim) -> Result<(), Fault> {
        self.refuse_forked()?;
        if claim.shared_owner().is_some() {
            return Err(Fault::new(FaultKind::Unsupported, SHARED));
        }
        match claim.mode() {
            Mode::Exclusive => Ok(()),
            Mode::Permits { .. } => {
                Err(Fault::new(FaultKind::Unsupported, "`etcd:` grants exclusive claims only"))
            }
        }
    }

    /// A forked child has its parent's sockets.
    pub(crate) fn refuse_forked(&self) -> Result<(), Fault> {
        match std::process::id() == self.pid {
            true => Ok(()),
            false => Err(Fault::new(FaultKind::Invalid, FORKED)),
        }
    }
}

impl Backend for Etcd {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("etcd");
        (can.shared_owners, can.permits) = (false, false);
        (can.ttl_unit, can.ttl_min) = (TTL_UNIT, TTL_MIN);
        can
    }

    fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    fn expect_ttl(&self, ttl: Duration) {
        self.shared.sessions.share(ttl);
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(self.shared.ask_once(claim))
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(self.shared.wait(claim))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.shared.renew(leases, answers))
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.release(lease, then))
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.shared.abandon(claim))
    }

    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        Box::pin(self.shared.adopt(claim))
    }

    fn let_go<'a>(&'a self, lease: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.shared.let_go(lease))
    }

    fn heed(&self, lease: &Arc<Lease>) {
        if let Some(seat) = self.shared.seats.get(lease.claim().token()) {
            // Nobody tends it: nobody needs to know.
            let _ = self.shared.heeding.send(seat);
        }
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.tend())
    }

    fn notices(&self) -> Notices {
        Notices::of(&self.shared.notices)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(async move {
            self.shared.refuse_forked()?;
            Ok(self.shared.inspect(query).await?)
        })
    }

    fn hints(&self) -> BoxFuture<'_, Result<Option<Hints>, Fault>> {
        Box::pin(async { Ok(self.shared.hints().await?) })
    }

    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        Box::pin(async move { Ok(self.shared.fates(ended).await?) })
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.force(key, seen, by))
    }

    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(self.look_for_flaws(ttl))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.close())
    }
}

impl Shared {
    /// Ends the session, and lets go of the connections.
    async fn close(&self) {
        self.closed.cancel();
        let left = self.sessions.all();
        for session in left.iter().filter(|session| !session.is_own()) {
            session.end(Loss::Shutdown);
            self.sessions.forget(session);
            // If it cannot be told, the server finds out when the ttl is over.
            let _ = self.revoke(session.lease(), &self.calls).await;
        }
        for debt in self.sessions.debts(self.clock.now()).iter().take(PAID_AT_CLOSE) {
            if self.pay_off(debt, &self.calls).await.is_err() {
                break;
            }
        }
        self.ears.close();
        self.calls.close();
        self.renewals.close();
    }
}
