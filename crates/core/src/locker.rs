//! The `Locker`: where callers start.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::builder::{LockRequest, RequestBuilder, TryLockRequest};
use crate::claim::Claim;
use crate::doctor::Finding;
use crate::election::Election;
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::fault::Loss;
use crate::flush::CountedEngine;
use crate::gate::{Entry, Lead, Queueing};
use crate::grant::{Capabilities, Release};
use crate::guard::{self, ExportedLease, Guard, Released};
use crate::key::Key;
use crate::lease::Lease;
use crate::mode::{Mode, Shared};
use crate::multi::{KeySet, LockAll, TryLockAll};
use crate::options::{Defaults, Options, Renew, Wait, WithinProcess};
use crate::owner::Owner;
use crate::report::{LockInfo, Query};
use crate::request::Request;
use crate::semaphore::Semaphore;
use crate::time::Clock;
use crate::token::Token;
use crate::watch::Watch;

/// The least time that a shutdown allows for releases and other work in the background.
const SHUTDOWN_LEAST: Duration = Duration::from_secs(2);

/// Locks keys on one engine. Cheap to clone; clones share everything.
///
/// Tasks that ask the same `Locker` for the same key queue in this process first; together they have at most
/// one claim that waits at the engine. The first request starts one background thread. It renews held locks
/// and releases the locks of dropped guards. The thread ends with the last clone and the last guard.
///
/// # The end of the program
///
/// The drop of the last clone blocks until the background thread has released the locks of all guards that
/// were dropped before, at most for [`flush_timeout`](LockerBuilder::flush_timeout) (0.5 s by default). The
/// drop of a guard that outlives the last clone blocks in the same way. In a task, and on a current-thread
/// runtime, the drop does not block; the thread blocks when it ends. The time counts from the first of these
/// waits: a thousand guards on a server that hangs block no longer than one.
///
/// Where no drop runs there is no wait, and a lock that is still held stays for its ttl: `std::process::exit`
/// with a locker alive, a locker in a `static` (except by [`install`](crate::install), which blocks when the
/// thread that installed it ends), a killed process, `panic = "abort"`. With a current-thread runtime in
/// `main` the system decides whether the main thread runs code at its end: with glibc and on macOS it does,
/// with musl it does not. [`shutdown`](Self::shutdown) works everywhere, and reports which locks could not be
/// released.
///
/// # Runtimes
///
/// Use a `Locker` on one runtime. Its connection to a server belongs to the runtime that sends the first
/// request. If that runtime is not driven (a current-thread runtime outside of `block_on`), requests of tasks
/// on another runtime time out. Use one locker per runtime.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("lockers"));
/// let guard = locker.lock("order:42").await?; // waits its turn
/// let Some(other) = locker.try_lock("order:43").await? else { return Ok(()) };
/// # drop((guard, other));
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    engine: CountedEngine,
}

impl Locker {
    /// Makes a locker on `backend` with the default options.
    pub fn new(backend: impl Backend) -> Self {
        Locker { engine: CountedEngine::new(Engine::new(Arc::new(backend), Defaults::default())) }
    }

    /// Starts to build a locker on `backend` with other defaults.
    pub fn builder(backend: impl Backend) -> LockerBuilder {
        LockerBuilder { backend: Arc::new(backend), defaults: Defaults::default() }
    }

    /// Returns a request for `key`: set its options, then `.await` it for a [`Guard`]. Nothing is sent
    /// before.
    pub fn lock(&self, key: impl AsRef<str>) -> LockRequest {
        LockRequest::new(RequestBuilder::new(&self.engine, key.as_ref()))
    }

    /// Returns a request for `key` that does not fail if the lock is busy: `.await` it for `Some` [`Guard`],
    /// or `None` if another holder has the lock. It tries once, unless [`wait`](TryLockRequest::wait) is set.
    pub fn try_lock(&self, key: impl AsRef<str>) -> TryLockRequest {
        TryLockRequest::new(RequestBuilder::once(&self.engine, Key::new(key.as_ref())))
    }

    /// Returns a request to hold `key` together with other readers: `.await` it for a
    /// [`ReadGuard`](crate::ReadGuard). It waits behind every writer that came before it, and keeps out writers
    /// while it reads.
    ///
    /// A writer is a request by [`write`](Self::write) or [`lock`](Self::lock). Readers and writers are served in
    /// the order of their arrival, so neither starves the other; the readers between two writers hold the key
    /// together. The readers of one process share one lease until another process is known to wait.
    ///
    /// The same [`Owner`] may read again while it reads, also if a writer waits, and read while it writes. An
    /// owner that reads and asks to write gets an error that [is already held](Error::is_already_held): it would
    /// wait for itself.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point: no hold and no queue entry is left behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("readers"));
    /// let (one, two) = (locker.read("catalog").await?, locker.read("catalog").await?);
    /// assert!(locker.try_write("catalog").await?.is_none());
    /// drop((one, two));
    /// let writer = locker.write("catalog").await?;
    /// assert!(locker.try_read("catalog").await?.is_none());
    /// # drop(writer);
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(&self, key: impl AsRef<str>) -> LockRequest<Shared> {
        LockRequest::new(RequestBuilder::new(&self.engine, key.as_ref()).mode(Mode::Read))
    }

    /// The same as [`lock`](Self::lock), beside [`read`](Self::read), whose example and cancel safety apply here too.
    pub fn write(&self, key: impl AsRef<str>) -> LockRequest {
        self.lock(key)
    }

    /// As [`read`](Self::read), for a request that does not fail if the key is busy: `None` if a writer holds it
    /// or waits for it. The example and the cancel safety of `read` apply here too.
    pub fn try_read(&self, key: impl AsRef<str>) -> TryLockRequest<Shared> {
        TryLockRequest::new(
            RequestBuilder::once(&self.engine, Key::new(key.as_ref())).mode(Mode::Read),
        )
    }

    /// The same as [`try_lock`](Self::try_lock), beside [`try_read`](Self::try_read): `None` if anybody holds the key
    /// or waits for it. The example and the cancel safety of [`read`](Self::read) apply here too.
    pub fn try_write(&self, key: impl AsRef<str>) -> TryLockRequest {
        self.try_lock(key)
    }

    /// Returns `key` as a semaphore with `capacity` permits. Sends no request and keeps nothing: the capacity
    /// travels with each request for a permit.
    pub fn semaphore(&self, key: impl AsRef<str>, capacity: u32) -> Semaphore {
        Semaphore::new(self.clone(), key.as_ref(), capacity)
    }

    /// Returns a request for all of `keys`, or none of them: `.await` it for a [`GuardAll`](crate::GuardAll). Each key
    /// counts once, and their order has no effect. [`LockAll::read`] adds keys to hold together with other readers.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point: no lock and no queue entry is left behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("several"));
    /// let both = locker.lock_all(["account:7", "account:3"]).await?;
    /// assert!(locker.try_lock("account:3").await?.is_none());
    /// both.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> LockAll {
        let keys = KeySet::exclusive(keys);
        LockAll(RequestBuilder::with(&self.engine, keys.first(), self.engine.defaults.plain), keys)
    }

    /// As [`lock_all`](Self::lock_all), for a request that does not fail if a key is busy: `None` if another holder has
    /// one of them. Of two requests for the same keys at the same moment, both may get `None`; see [`TryLockAll`].
    pub fn try_lock_all(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> TryLockAll {
        let keys = KeySet::exclusive(keys);
        TryLockAll(RequestBuilder::once(&self.engine, keys.first()), keys)
    }

    /// Returns `key` as an election: one process at a time leads. Sends no request.
    pub fn election(&self, key: impl AsRef<str>) -> Election {
        Election::new(self.clone(), key.as_ref())
    }

    /// Releases a lock whose guard was [detached](Guard::detach).
    ///
    /// # Errors
    ///
    /// [`is_not_held`](Error::is_not_held) if this locker has no detached guard of that key,
    /// [`is_lost`](Error::is_lost) if the lock has been lost since it was detached,
    /// [`is_closed`](Error::is_closed) after a [shutdown](Self::shutdown), and the errors of
    /// [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the release: it continues in the background.
    pub async fn release(&self, key: &str) -> Result<Released, Error> {
        let key = Key::new(key)?;
        self.must_be_open(&key)?;
        self.engine.must_not_be_forked(&key)?;
        let hold = self.engine.gates.attach(&self.engine, &key)?;
        guard::release(hold).await
    }

    /// Takes over a lock that another process has [exported](crate::Detached::export). The guard has the
    /// fence of the exported lock. Readers and permits cannot be adopted.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if the engine no longer knows the lock (its ttl has passed, it was
    /// released, or the token is that of a reader or a permit), [`is_busy`](Error::is_busy) if this process
    /// holds the key or is asking for it, [`is_unsupported`](Error::is_unsupported) on an engine where
    /// a lock ends with its process, and errors of the engine.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock stays at the engine until its ttl passes, and can be adopted again.
    pub async fn adopt(&self, written: &ExportedLease) -> Result<Guard, Error> {
        let ask = self.ask_for(written)?;
        self.engine.start(&ask.key)?;
        self.engine.must_be_adoptable(&ask.key)?;
        let lead = loop {
            match self.engine.gates.enter(&self.engine, &ask, Queueing::Try)? {
                Entry::Lead(lead) => break lead,
                Entry::Stale(lease) => self.engine.handle_loss(&lease),
                Entry::Busy(holder) => return Err(Error::busy(&ask.key, Waited::Not, holder)),
                _ => return Err(Error::busy(&ask.key, Waited::Not, None)),
            }
        };
        self.resume(lead, &ask, written).await
    }

    async fn resume(
        &self,
        lead: Lead,
        ask: &Arc<Request>,
        written: &ExportedLease,
    ) -> Result<Guard, Error> {
        let engine = &self.engine;
        let claim = Arc::new(Claim::new(ask.key.clone(), written.token, ask.claim_options()));
        let adopted = engine.bounded(engine.backend.adopt(&claim)).await;
        let validity = adopted.map_err(|fault| Error::backend(Some(&ask.key), fault))?;
        let validity = validity.ok_or_else(|| Error::lost(&ask.key, Loss::Gone))?;
        let lease = Lease::adopted(claim, written.fence, validity, engine.clock.clone());
        let hold = lead.settle(ask, Arc::new(lease), written.fence, engine.clock.now())?;
        engine.reschedule(&hold.lease);
        Ok(Guard::new(hold, ask))
    }

    fn ask_for(&self, written: &ExportedLease) -> Result<Arc<Request>, Error> {
        // `adopt` returns "busy" for a key that this process uses, even if the locker's default is to fail.
        let (ttl, within_process) = (written.ttl, WithinProcess::Queue);
        let options = Options { ttl, within_process, ..self.engine.defaults.plain };
        let request = RequestBuilder::new(&self.engine, &written.key);
        let (_, ask) = RequestBuilder { options, ..request }.check()?;
        Ok(ask)
    }

    /// Returns who holds `key` and who waits for it, as the engine sees it; `None` if there is neither.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a bad key, [`is_closed`](Error::is_closed) after a
    /// [shutdown](Self::shutdown), and errors of the engine. Dropping the future has no effect.
    pub async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, Error> {
        let key = Key::new(key)?;
        let found = self.look(Some(&key), &Query::Key(key.clone())).await?;
        Ok(found.into_iter().next())
    }

    /// Returns all locks whose key matches a [glob](crate::glob), sorted by key.
    ///
    /// # Errors
    ///
    /// [`is_closed`](Error::is_closed) after a [shutdown](Self::shutdown), and errors of the engine. Dropping
    /// the future has no effect.
    pub async fn list(&self, glob: &str) -> Result<Vec<LockInfo>, Error> {
        self.look(None, &Query::Glob(glob.into())).await
    }

    /// Watches all locks whose key matches a [glob](crate::glob). [`Watch::next`] returns what happens to
    /// them from now on.
    ///
    /// # Errors
    ///
    /// [`is_closed`](Error::is_closed) after a [shutdown](Self::shutdown), and errors of the engine.
    pub async fn watch(&self, glob: &str) -> Result<Watch, Error> {
        self.watch_query(Query::Glob(glob.into())).await
    }

    pub(crate) async fn watch_query(&self, query: Query) -> Result<Watch, Error> {
        if self.engine.closing.is_cancelled() {
            return Err(Error::closed(None));
        }
        Watch::new(&self.engine, query).await
    }

    /// Checks what makes locks unsafe on this engine; each [`Finding`] has advice. A server that cannot be
    /// reached is a finding, not an error. One check acquires and releases a lock with a random name.
    ///
    /// # Errors
    ///
    /// [`is_closed`](Error::is_closed) after a [shutdown](Self::shutdown); [`is_invalid`](Error::is_invalid)
    /// while tokio's time is paused; [`is_unknown`](Error::is_unknown) if the checks do not end.
    pub async fn diagnose(&self) -> Result<Vec<Finding>, Error> {
        self.engine.clock.must_run()?;
        match self.engine.closing.is_cancelled() {
            true => Err(Error::closed(None)),
            false => self.engine.diagnose().await.map_err(|fault| Error::backend(None, fault)),
        }
    }

    /// Whether `key` has a holder, in this or another process. A lock that is kept closed by `min_hold`
    /// counts as held.
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect).
    pub async fn is_locked(&self, key: &str) -> Result<bool, Error> {
        let found = self.inspect(key).await?;
        Ok(found.is_some_and(|lock| !lock.holders.is_empty()))
    }

    /// How many times the owner that holds `key` through this `Locker` has acquired it; zero if it is not
    /// held here. Sends no request.
    pub fn hold_count(&self, key: &str) -> u32 {
        let key = Key::new(key).ok().filter(|_| !self.engine.is_forked());
        key.map_or(0, |key| self.engine.gates.hold_count(&key))
    }

    /// Whether this `Locker` holds `key`, for any owner. Sends no request. For one owner, use
    /// [`Owner::holds`].
    pub fn holds(&self, key: &str) -> bool {
        self.hold_count(key) > 0
    }

    /// Whether `owner` holds `key` through this locker.
    pub(crate) fn is_held_by(&self, key: &str, owner: &Owner) -> bool {
        let key = Key::new(key).ok().filter(|_| !self.engine.is_forked());
        key.is_some_and(|key| self.engine.gates.is_held_by(&key, owner))
    }

    async fn look(&self, key: Option<&Key>, query: &Query) -> Result<Vec<LockInfo>, Error> {
        if self.engine.closing.is_cancelled() {
            return Err(Error::closed(key));
        }
        let found = self.engine.inspect(query).await;
        found.map_err(|fault| Error::backend(key, fault))
    }

    /// Releases `key` in place of its holder, if that is still the claim with the token `seen` (see
    /// [`inspect`](Self::inspect)). A newer holder is never affected: the result is then
    /// [`Release::NotHeld`]. The former holder loses the lock with
    /// [`Loss::Forced`](crate::backend::Loss::Forced), which contains `by`: who did it, and why.
    ///
    /// # Errors
    ///
    /// [`is_unsupported`](Error::is_unsupported) on an engine that cannot do it, with a message that names
    /// the alternative; [`is_closed`](Error::is_closed) after a [shutdown](Self::shutdown); errors of the
    /// engine.
    pub async fn force_release(&self, key: &str, seen: Token, by: &str) -> Result<Release, Error> {
        let key = Key::new(key)?;
        self.must_be_open(&key)?;
        let operator = self.engine.operator().map_err(|fault| Error::backend(Some(&key), fault))?;
        let answer = self.engine.bounded(operator.force_release(&key, seen, by)).await;
        tracing::warn!(component = "tenure", %key, by, result = ?answer, "lock released by force");
        answer.map_err(|fault| Error::backend(Some(&key), fault))
    }

    fn must_be_open(&self, key: &Key) -> Result<(), Error> {
        match self.engine.closing.is_cancelled() {
            true => Err(Error::closed(Some(key))),
            false => Ok(()),
        }
    }

    /// Shuts down this locker and all its clones. New requests and waits fail with an error that [is
    /// closed](Error::is_closed). Holders have `drain` to finish; then the remaining locks are lost
    /// ([`Loss::Shutdown`](crate::backend::Loss::Shutdown)) and released. Returns what had to be released.
    /// Idempotent.
    ///
    /// Release your own guards first, or the call waits `drain` for them.
    ///
    /// While tokio's time is paused, `drain` passes by the machine's clock.
    ///
    /// # Cancel safety
    ///
    /// A locker stays closed once this future was polled. If it is dropped while holders finish, they keep
    /// their locks; call `shutdown` again to take the locks away.
    pub async fn shutdown(&self, drain: Duration) -> Shutdown {
        let engine = &self.engine;
        // A thread of the parent may have held a mutex of the gates at the fork.
        if engine.is_forked() {
            return Shutdown::default();
        }
        let until = engine.clock.now().after(drain);
        engine.gates.close();
        engine.closing.cancel();
        tokio::select! {
            () = engine.gates.emptied() => {}
            () = engine.sleep_until(until) => {}
        }
        let report = self.revoke_all().await;
        let least = until.max(engine.clock.now().after(SHUTDOWN_LEAST));
        // Tasks whose wait has just ended still have claims to abandon.
        tokio::select! {
            () = engine.gates.emptied() => {}
            () = engine.sleep_until(least) => {}
        }
        engine.drained(least).await;
        engine.close().await;
        report
    }

    async fn revoke_all(&self) -> Shutdown {
        let mut report = Shutdown::default();
        // Spawned in the background, so that dropping this future does not stop the releases.
        let mut releases = Vec::new();
        for (lease, then) in self.engine.gates.leases(self.engine.clock.now()) {
            let engine = self.engine().clone();
            // The holder is notified before another holder can acquire the lock.
            engine.lose(&lease, Loss::Shutdown);
            let key = lease.claim().key().clone();
            let (sender, answer) = tokio::sync::oneshot::channel();
            self.engine.spawn(async move {
                let _ = sender.send(engine.release(&lease, then).await.is_ok());
            });
            releases.push((key, answer));
        }
        for (key, answer) in releases {
            match answer.await {
                Ok(true) => report.released += 1,
                _ => report.unreleased.push(key),
            }
        }
        report
    }

    /// What the engine can and cannot do.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.can
    }

    /// The clock that leases are measured with.
    pub fn clock(&self) -> Clock {
        self.engine.clock.clone()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }
}

/// Builds a [`Locker`] with other defaults, for `lock`, `try_lock` and `#[lock]`.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::builder(Memory::space("")).ttl(Duration::from_secs(10)).build()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct LockerBuilder {
    backend: Arc<dyn Backend>,
    defaults: Defaults,
}

impl LockerBuilder {
    /// The default ttl: how long a dead holder keeps others out. Default 30 s; 10 s for `#[lock]`. See
    /// [`LockRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.set(|options| options.ttl = ttl);
        self
    }

    /// The pause between two attempts on engines that cannot notify a waiter. Default 100 ms; 50 ms for
    /// `#[lock]`.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.defaults.set(|options| options.retry_interval = interval);
        self
    }

    /// When leases are renewed. Default: at a third of the ttl.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.defaults.set(|options| options.renew = renew);
        self
    }

    /// The longest time to hold a lock; then it is lost. Default: no limit. See [`LockRequest::max_hold`].
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.defaults.set(|options| options.max_hold = Some(longest));
        self
    }

    /// Whether grants carry a fence. Default: yes. See [`LockRequest::fencing`].
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.defaults.set(|options| options.fencing = fencing);
        self
    }

    /// The longest time to wait for a lock. Default: as [`LockRequest::wait`] describes; `#[lock]` does not
    /// wait. `try_lock` ignores this value and does not wait.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.defaults.set(|options| options.wait = Wait::For(longest));
        self
    }

    /// How long a wait continues while the engine does not answer. See [`LockRequest::unavailable_after`],
    /// also for the default.
    pub fn unavailable_after(mut self, longest: Duration) -> Self {
        self.defaults.set(|options| options.unavailable_after = Some(longest));
        self
    }

    /// Waits without a limit, also for a server that cannot be reached, and also with `#[lock]`.
    pub fn wait_forever(mut self) -> Self {
        self.defaults.set(|options| options.wait = Wait::Forever);
        self
    }

    /// What happens if another owner in this process holds the lock. Default: wait in the queue.
    pub fn within_process(mut self, within: WithinProcess) -> Self {
        self.defaults.set(|options| options.within_process = within);
        self
    }

    /// How long the drop of the last [`Locker`], or of a guard that outlives it, blocks for releases that are
    /// still under way. Default 0.5 s; zero does not block. See [`Locker`].
    pub fn flush_timeout(mut self, longest: Duration) -> Self {
        self.defaults.flush_timeout = longest;
        self
    }

    /// Builds the locker. Sends no request.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for values that are out of range, do not fit together, or do not fit
    /// the engine.
    pub fn build(self) -> Result<Locker, Error> {
        self.defaults.plain.validate(&self.backend.capabilities())?;
        Ok(Locker { engine: CountedEngine::new(Engine::new(self.backend, self.defaults)) })
    }
}

/// The locks that were still held at the end of a [shutdown](Locker::shutdown).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// How many of them were released.
    pub released: usize,
    /// Those that could not be released; they end with their ttl.
    pub unreleased: Vec<Key>,
}

impl Owner {
    /// Whether this owner holds `key` through `locker`, so that a re-entry would succeed at once. Sends no
    /// request.
    ///
    /// For a shared owner, only locks that are held by this process count.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory, Owner};
    ///
    /// let (locker, ann, ben) = (Locker::new(Memory::space("holds")), Owner::new(), Owner::new());
    /// let _guard = locker.lock("order:42").owner(ann.clone()).await?;
    /// assert!(locker.holds("order:42"));
    /// assert!(ann.holds(&locker, "order:42") && !ben.holds(&locker, "order:42"));
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn holds(&self, locker: &Locker, key: &str) -> bool {
        locker.is_held_by(key, self)
    }
}
