//! Where callers start: the `Locker`.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Capabilities, LockInfo, Loss, Query, Release};
use crate::claim::{Claim, Token};
use crate::doctor::Finding;
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::gate::{Entry, Lead, Patience};
use crate::guard::{self, Guard, Released, WrittenLease};
use crate::key::Key;
use crate::lease::Lease;
use crate::options::{Defaults, Options, Renew, Wait};
use crate::owner::Owner;
use crate::request::{Ask, Lock, Request, TryLock};
use crate::time::Clock;
use crate::watch::Watch;

/// The least time that a shutdown gives to what is under way in the background.
const SHUTDOWN_LEAST: Duration = Duration::from_secs(2);

/// Locks keys on one engine. Cheap to clone; clones share everything.
///
/// Tasks of the same `Locker` that want the same key queue here first and cost the engine one claim.
/// The first claim starts one background thread, which renews what is held and gives back what was
/// dropped; it ends with the last clone and guard. It also ends with the process: [`shutdown`](Self::shutdown)
/// before the end of `main`, or what was dropped last stays locked for its ttl.
///
/// Use a `Locker` on one runtime. Its connection to a server lives on the runtime that asks first: if that one
/// stands still (a current-thread runtime outside of `block_on`), tasks of another runtime wait until their
/// requests time out. Two runtimes want two lockers.
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
    engine: Arc<Engine>,
}

impl Locker {
    /// A locker on `backend`, with the default options.
    pub fn new(backend: impl Backend) -> Self {
        Locker { engine: Engine::new(Arc::new(backend), Defaults::default()) }
    }

    /// A locker on `backend` with defaults of its own.
    pub fn builder(backend: impl Backend) -> LockerBuilder {
        LockerBuilder { backend: Arc::new(backend), defaults: Defaults::default() }
    }

    /// Asks for `key`: set options on what this returns, then `.await` it.
    pub fn lock(&self, key: impl AsRef<str>) -> Lock {
        Lock(Request::new(&self.engine, key.as_ref()))
    }

    /// Asks for `key` once: `.await` gives `None` if another holds it.
    pub fn try_lock(&self, key: impl AsRef<str>) -> TryLock {
        TryLock(Request::new(&self.engine, key.as_ref()))
    }

    /// Releases what a [detached](Guard::detach) guard left behind.
    ///
    /// # Errors
    ///
    /// [`is_not_held`](Error::is_not_held) if nothing was left here under that key,
    /// [`is_lost`](Error::is_lost) if it was and has been lost since.
    pub async fn release(&self, key: &str) -> Result<Released, Error> {
        let key = Key::new(key)?;
        self.must_be_open(&key)?;
        self.engine.must_not_be_forked(&key)?;
        let hold = self.engine.gates.attach(&self.engine, &key)?;
        guard::release(hold).await
    }

    /// Carries on a lease that another process has [written down](crate::Detached::write_down).
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if its ttl has passed meanwhile, [`is_busy`](Error::is_busy) if this
    /// process is asking for the key itself, [`is_unsupported`](Error::is_unsupported) where a lock ends
    /// with its process.
    pub async fn adopt(&self, written: &WrittenLease) -> Result<Guard, Error> {
        let ask = self.ask_for(written)?;
        self.engine.start(&ask.key)?;
        self.engine.must_be_adoptable(&ask.key)?;
        let lead = loop {
            match self.engine.gates.enter(&self.engine, &ask, Patience::Try)? {
                Entry::Lead(lead) => break lead,
                Entry::Stale(lease) => self.engine.deal_with_loss(&lease),
                Entry::Busy(holder) => return Err(Error::busy(&ask.key, Waited::Not, holder)),
                _ => return Err(Error::busy(&ask.key, Waited::Not, None)),
            }
        };
        self.carry_on(lead, &ask, written).await
    }

    async fn carry_on(
        &self,
        lead: Lead,
        ask: &Arc<Ask>,
        written: &WrittenLease,
    ) -> Result<Guard, Error> {
        let engine = &self.engine;
        let claim = Arc::new(Claim::new(ask.key.clone(), written.token, ask.terms()));
        let adopted = engine.bounded(engine.backend.adopt(&claim)).await;
        let term = adopted.map_err(|fault| Error::backend(Some(&ask.key), fault))?;
        let term = term.ok_or_else(|| Error::lost(&ask.key, Loss::Gone))?;
        let lease = Lease::adopted(claim, written.fence, term, engine.clock.clone());
        let hold = lead.settle(ask, Arc::new(lease), written.fence, engine.clock.now())?;
        engine.reschedule(&hold.lease);
        Ok(Guard::new(hold, ask))
    }

    fn ask_for(&self, written: &WrittenLease) -> Result<Arc<Ask>, Error> {
        let options = Options { ttl: written.ttl, ..self.engine.defaults.plain };
        options.validate(&self.engine.can)?;
        let (key, owner) = (Key::new(&written.key)?, Owner::current());
        let (alone, label, reason, name) = Default::default();
        Ok(Arc::new(Ask { key, options, owner, alone, label, reason, name }))
    }

    /// Who holds `key` and who waits for it, as the engine sees it; `None` if nobody does.
    ///
    /// # Errors
    ///
    /// What kept the engine from answering.
    pub async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, Error> {
        let key = Key::new(key)?;
        let found = self.look(Some(&key), &Query::Key(key.clone())).await?;
        Ok(found.into_iter().next())
    }

    /// All locks whose name matches a [glob](crate::glob), by name.
    ///
    /// # Errors
    ///
    /// What kept the engine from answering.
    pub async fn list(&self, glob: &str) -> Result<Vec<LockInfo>, Error> {
        self.look(None, &Query::Glob(glob.into())).await
    }

    /// Watches all locks whose name matches a [glob](crate::glob): what happens to them from now on is
    /// told by [`Watch::next`].
    ///
    /// # Errors
    ///
    /// What kept the engine from answering.
    pub async fn watch(&self, glob: &str) -> Result<Watch, Error> {
        if self.engine.closing.is_cancelled() {
            return Err(Error::closed(None));
        }
        Watch::new(&self.engine, glob).await
    }

    /// Looks for what makes locks unsafe on this engine, and says what to do about it. A server that
    /// cannot be reached is a finding too. Takes a lock of a random name for a moment.
    ///
    /// # Errors
    ///
    /// [`is_closed`](Error::is_closed) after a [shutdown](Self::shutdown).
    pub async fn examine(&self) -> Result<Vec<Finding>, Error> {
        match self.engine.closing.is_cancelled() {
            true => Err(Error::closed(None)),
            false => Ok(self.engine.backend.examine(self.engine.defaults.plain.ttl).await),
        }
    }

    /// Whether anybody holds `key`.
    ///
    /// # Errors
    ///
    /// What kept the engine from answering.
    pub async fn is_locked(&self, key: &str) -> Result<bool, Error> {
        let found = self.inspect(key).await?;
        Ok(found.is_some_and(|lock| !lock.holders.is_empty()))
    }

    /// How many times this `Locker`'s present owner of `key` holds it; zero if nobody here does.
    /// Asks nobody.
    pub fn hold_count(&self, key: &str) -> u32 {
        let key = Key::new(key).ok().filter(|_| !self.engine.is_forked());
        let held = key.and_then(|key| self.engine.gates.held(&key));
        held.filter(|(_, lease)| lease.is_valid()).map_or(0, |(depth, _)| depth)
    }

    async fn look(&self, key: Option<&Key>, query: &Query) -> Result<Vec<LockInfo>, Error> {
        if self.engine.closing.is_cancelled() {
            return Err(Error::closed(key));
        }
        let found = self.engine.inspect(query).await;
        found.map_err(|fault| Error::backend(key, fault))
    }

    /// Takes `key` away from the holder that was seen with `seen`; a newer one is never hit. `by` says
    /// who does so and why, and reaches the former holder.
    ///
    /// # Errors
    ///
    /// [`is_unsupported`](Error::is_unsupported) where that cannot be done, with what to do instead.
    pub async fn force_release(&self, key: &str, seen: Token, by: &str) -> Result<Release, Error> {
        let key = Key::new(key)?;
        self.must_be_open(&key)?;
        let answer = self.engine.bounded(self.engine.backend.force_release(&key, seen, by)).await;
        tracing::warn!(component = "tenure", %key, by, result = ?answer, "lock released by force");
        answer.map_err(|fault| Error::backend(Some(&key), fault))
    }

    fn must_be_open(&self, key: &Key) -> Result<(), Error> {
        match self.engine.closing.is_cancelled() {
            true => Err(Error::closed(Some(key))),
            false => Ok(()),
        }
    }

    /// Ends this locker and all its clones: no new claims; waits end as [closed](Error::is_closed);
    /// holders have `drain` to finish; what is still held then is taken from them
    /// ([`Loss::Shutdown`](crate::backend::Loss::Shutdown)) and given back. Idempotent.
    ///
    /// Release your own guards first, or it waits for them.
    pub async fn shutdown(&self, drain: Duration) -> Shutdown {
        let engine = &self.engine;
        let until = engine.clock.now().after(drain);
        engine.gates.close();
        engine.closing.cancel();
        tokio::select! {
            () = engine.gates.emptied() => {}
            () = engine.clock.sleep_until(until) => {}
        }
        let report = self.take_all_away().await;
        let least = until.max(engine.clock.now().after(SHUTDOWN_LEAST));
        // Those whose wait has just ended have claims to abandon.
        tokio::select! {
            () = engine.gates.emptied() => {}
            () = engine.clock.sleep_until(least) => {}
        }
        engine.drained(least).await;
        engine.close().await;
        report
    }

    async fn take_all_away(&self) -> Shutdown {
        let mut report = Shutdown::default();
        // On the background, and not aborted with this future: nobody else would release them.
        let mut releases = Vec::new();
        for (lease, then) in self.engine.gates.leases(self.engine.clock.now()) {
            let engine = self.engine.clone();
            // The holder hears of it before anybody else can have the lock.
            engine.lose(&lease, Loss::Shutdown);
            let key = lease.claim().key().clone();
            let (tell, told) = tokio::sync::oneshot::channel();
            self.engine.spawn(async move {
                let _ = tell.send(engine.release(&lease, then).await.is_ok());
            });
            releases.push((key, told));
        }
        for (key, told) in releases {
            match told.await {
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

/// Makes a [`Locker`] with defaults of its own, for `lock`, `try_lock` and `#[lock]` alike.
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
    /// How long a dead holder keeps others out. Default 30 s; 10 s for `#[lock]`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.defaults.set(|options| options.ttl = ttl);
        self
    }

    /// How long to pause between looks where nobody tells. Default 100 ms; 50 ms for `#[lock]`.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.defaults.set(|options| options.retry_interval = interval);
        self
    }

    /// When leases are renewed. Default: at a third of the ttl.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.defaults.set(|options| options.renew = renew);
        self
    }

    /// The longest time to hold a lock. Default: none.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.defaults.set(|options| options.max_hold = Some(longest));
        self
    }

    /// Whether grants carry a fence. Default: yes.
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.defaults.set(|options| options.fencing = fencing);
        self
    }

    /// The longest time to wait for one. Default: for ever; for `#[lock]` no time at all.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.defaults.set(|options| options.wait = Wait::For(longest));
        self
    }

    /// To wait for ever, also with `#[lock]`.
    pub fn wait_forever(mut self) -> Self {
        self.defaults.set(|options| options.wait = Wait::Forever);
        self
    }

    /// The locker.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for values that do not go together.
    pub fn build(self) -> Result<Locker, Error> {
        self.defaults.plain.validate(&self.backend.capabilities())?;
        Ok(Locker { engine: Engine::new(self.backend, self.defaults) })
    }
}

/// What a [shutdown](Locker::shutdown) had to take away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// How many locks were still held and have been given back.
    pub released: usize,
    /// Those that could not be given back; they end with their ttl.
    pub unreleased: Vec<Key>,
}
