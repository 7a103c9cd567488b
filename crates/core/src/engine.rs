//! What a `Locker` and its guards share, and the work done in the background.
//!
//! In: leases to give back, claims to abandon, losses to tell. Out: that it happens, whoever has
//! gone away meanwhile.
//!
//! The background is one thread with a runtime of its own, so that a starved or ended application
//! runtime can neither lose a lock nor leak one. It starts with the first claim.

use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{
    Backend, Capabilities, Fate, Fault, FaultKind, LockInfo, Loss, Query, Release, Renewal, Then,
};
use crate::claim::{Claim, Terms, Token, Tokens};
use crate::error::Error;
use crate::gate::{Gates, Lead};
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::observe::Observe;
use crate::options::Defaults;
use crate::renewal::{self, Listener, Schedule};
use crate::time::{Bounds, Clock, Time};

/// The longest that one call to a backend may take before it counts as unanswered. Backends have
/// shorter time-outs of their own; this one is for those that fail to keep them.
const CALL_BOUND: Duration = Duration::from_secs(10);
/// The same for a look at many locks, which a backend does page by page.
const LOOK_BOUND: Duration = Duration::from_secs(60);
/// The pause between attempts to give something back, and its growth limit.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Clock,
    pub(crate) can: Capabilities,
    pub(crate) defaults: Defaults,
    pub(crate) gates: Gates,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) closing: CancellationToken,
    pub(crate) observe: Observe,
    bounds: Bounds,
    tokens: Tokens,
    background: OnceLock<Background>,
    starting: Mutex<()>,
    pid: u32,
}

#[derive(Debug)]
struct Background {
    handle: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("engine", &self.can.engine).finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>, defaults: Defaults) -> Arc<Self> {
        let can = backend.capabilities();
        backend.expect_ttl(defaults.plain.ttl);
        Arc::new(Engine {
            bounds: Bounds::new(backend.clock()),
            tokens: Tokens::default(),
            clock: backend.clock(),
            defaults: defaults.fit(&can),
            can,
            backend,
            gates: Gates::default(),
            schedule: Arc::default(),
            closing: CancellationToken::new(),
            observe: Observe::default(),
            background: OnceLock::new(),
            starting: Mutex::default(),
            pid: std::process::id(),
        })
    }

    /// Whether this process was forked from the one that made the engine. Such a child has none of
    /// its locks: it must neither renew nor release.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Before any mutex of the gates is taken, which a thread of the parent may have held at the fork.
    pub(crate) fn must_not_be_forked(&self, key: &Key) -> Result<(), Error> {
        match self.is_forked() {
            true => Err(Error::forked(key)),
            false => Ok(()),
        }
    }

    /// Starts the background, once. Nothing is claimed before it runs.
    pub(crate) fn start(self: &Arc<Self>, key: &Key) -> Result<(), Error> {
        if self.background.get().is_some() {
            return Ok(());
        }
        // One at a time: a spare thread would run a `tend` of its own.
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.background.get().is_none() {
            let started = Background::start(self).map_err(|error| no_thread(key, error))?;
            let _ = self.background.set(started);
        }
        Ok(())
    }

    /// The runtime of the background thread, for callers that have none.
    pub(crate) fn handle(self: &Arc<Self>, key: &Key) -> Result<Handle, Error> {
        self.start(key)?;
        let background = self.background.get().map(|background| background.handle.clone());
        background.ok_or_else(|| Error::closed(Some(key)))
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(background) = self.background.get() {
            background.tasks.spawn_on(work, &background.handle);
        }
    }

    /// Waits until nothing is left to do in the background, at most until `until`.
    pub(crate) async fn drained(&self, until: Time) {
        let Some(background) = self.background.get() else { return };
        background.tasks.close();
        tokio::select! {
            () = background.tasks.wait() => {}
            () = self.clock.sleep_until(until) => {}
        }
        background.tasks.reopen();
    }

    pub(crate) fn new_claim(&self, key: &Key, terms: Terms) -> Result<Claim, Error> {
        let process = std::process::id();
        if process != self.pid {
            return Err(Error::forked(key));
        }
        let token = self.tokens.next().map_err(|error| {
            let fault = Fault::new(FaultKind::Unavailable, "the system gives no random numbers");
            Error::backend(Some(key), fault.caused_by(error))
        })?;
        Ok(Claim::made_by(process, key.clone(), token, terms))
    }

    /// Refuses what needs a lease that another process can carry on.
    pub(crate) fn must_be_adoptable(&self, key: &Key) -> Result<(), Error> {
        match self.can.adoptable {
            true => Ok(()),
            false => Err(Error::backend(Some(key), self.can.not_adoptable())),
        }
    }

    /// Has the lease looked at when it is next due.
    pub(crate) fn reschedule(&self, lease: &Arc<Lease>) {
        self.schedule.set(lease, lease.next_look());
    }

    /// The same where a new holder's options may have changed that. A look that comes too early
    /// does no harm, so the mutex of the schedule is spared.
    pub(crate) fn reschedule_if_sooner(&self, lease: &Arc<Lease>) {
        if lease.next_look().as_nanos() < lease.due.load(Ordering::Relaxed) {
            self.reschedule(lease);
        }
    }

    /// Declares a lease lost: its holder hears it, the gate is free for the next, and what may be
    /// left of it at the server is given back.
    pub(crate) fn lose(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        lease.finish(Ended::Lost(loss));
        self.deal_with_loss(lease);
    }

    /// Does what a loss asks for, if the lease is lost and nobody has done so.
    pub(crate) fn deal_with_loss(self: &Arc<Self>, lease: &Arc<Lease>) {
        let Some(Ended::Lost(loss)) = lease.ended() else { return };
        // Also if another thread is at it already: who calls must find the gate free afterwards.
        self.gates.evict(self, lease, &loss);
        if !lease.mark_dealt_with() {
            return;
        }
        self.schedule.remove(lease);
        match &loss {
            Loss::Expired | Loss::MaxHold => self.release_lost(lease.clone()),
            // Whoever shuts down releases, and reports.
            Loss::Shutdown => {}
            Loss::Gone | Loss::Forced(_) | Loss::Session => self.abandon(lease.claim().clone()),
        }
        self.observe.lost(lease, &loss);
    }

    /// The server has said that the claim at this gate is lost. If it is not held yet, that is
    /// found when it is.
    pub(crate) fn take_note_of_loss(self: &Arc<Self>, key: &Key) {
        let Some((_, lease)) = self.gates.held(key) else { return };
        if let Some(loss) = lease.claim().loss() {
            self.lose(&lease, loss.clone());
        }
    }

    /// Undoes a claim in the background: until the server has answered, or its ttl has passed.
    pub(crate) fn abandon(self: &Arc<Self>, claim: Arc<Claim>) {
        let engine = self.clone();
        self.spawn(async move {
            let until = engine.clock.now().after(claim.ttl());
            engine.after_renewals(claim.ttl()).await;
            let once = || async { engine.bounded(engine.backend.abandon(&claim)).await.is_ok() };
            engine.repeat(until, once).await;
        });
    }

    /// Gives a lease back in the background, then lets `lead` go on.
    pub(crate) fn release_in_background(
        self: Arc<Self>,
        lease: Arc<Lease>,
        then: Then,
        lead: Option<Lead>,
    ) {
        let engine = self.clone();
        self.spawn(async move {
            let until = engine.clock.now().after(lease.ttl()).max(lease.kept_until());
            let first = engine.release(&lease, then).await;
            lead.into_iter().for_each(|lead| lead.after_release(first.is_ok()));
            if first.is_err() {
                let again = || async { engine.release(&lease, then).await.is_ok() };
                engine.repeat(until, again).await;
            }
        });
    }

    /// Gives back in the background what may be left of a lost lease.
    fn release_lost(self: &Arc<Self>, lease: Arc<Lease>) {
        let engine = self.clone();
        self.spawn(async move {
            let until = engine.clock.now().after(lease.ttl()).max(lease.kept_until());
            engine.after_renewals(lease.ttl()).await;
            let once = || async { engine.release(&lease, Then::Free).await.is_ok() };
            engine.repeat(until, once).await;
        });
    }

    /// Waits until renewals leave time for what can wait, at most for `longest`.
    async fn after_renewals(&self, longest: Duration) {
        self.bounds.within(longest, std::pin::pin!(self.schedule.spare_time())).await;
    }

    /// Gives a lease back, once, within a bound.
    pub(crate) async fn release(&self, lease: &Arc<Lease>, then: Then) -> Result<Release, Fault> {
        self.schedule.remove(lease);
        let answer = self.bounded(self.backend.release(lease, then)).await;
        self.observe.released(lease, &answer);
        answer
    }

    /// Renews a lease now, on the caller's time.
    pub(crate) async fn renew_now(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<(), Error> {
        let (key, sent) = (lease.claim().key(), self.clock.now());
        if self.is_forked() {
            return Err(Error::forked(key));
        }
        let trouble = Mutex::new(Some(Fault::new(FaultKind::Unknown, "no answer")));
        let answer = |_, answer: Renewal| {
            let fault = match &answer {
                Renewal::Unknown(fault) => Some(fault.clone()),
                Renewal::Renewed { .. } | Renewal::Lost(_) => None,
            };
            *trouble.lock().unwrap_or_else(PoisonError::into_inner) = fault;
            self.take_answer(lease, answer, sent);
        };
        let asked = self.backend.renew(std::slice::from_ref(lease), &answer);
        let unanswered = self
            .bounded(std::pin::pin!(async {
                tokio::select! {
                    biased;
                    () = asked => {}
                    () = lease.changed() => {}
                }
                Ok(())
            }))
            .await
            .err();
        let trouble = trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (lease.ended(), unanswered.or(trouble)) {
            (Some(Ended::Lost(loss)), _) => Err(Error::lost(key, loss)),
            (_, Some(fault)) => Err(Error::backend(Some(key), fault)),
            (_, None) => Ok(()),
        }
    }

    /// Takes a renewal's answer in.
    pub(crate) fn take_answer(self: &Arc<Self>, lease: &Arc<Lease>, answer: Renewal, sent: Time) {
        self.observe.renewed(lease, &answer, self.clock.now().since(sent));
        lease.renewing.store(false, Ordering::Release);
        match answer {
            Renewal::Renewed { term, contended } => {
                if contended {
                    lease.claim().set_contended(self.clock.now());
                }
                match lease.extend(term) {
                    true => self.reschedule(lease),
                    false => self.deal_with_loss(lease),
                }
            }
            Renewal::Lost(loss) => self.lose(lease, loss),
            Renewal::Unknown(_) => self.schedule.set(lease, lease.next_retry()),
        }
    }

    /// Closes the backend's connections, within a bound: what is left then goes with the process.
    pub(crate) async fn close(&self) {
        self.bounds.within(CALL_BOUND, self.backend.close()).await;
    }

    /// Looks at locks, within a bound.
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        let bound = match query {
            Query::Key(_) => CALL_BOUND,
            Query::Keys(_) | Query::Glob(_) => LOOK_BOUND,
        };
        self.within(bound, self.backend.inspect(query)).await
    }

    /// How claims ended, within a bound.
    pub(crate) async fn fates(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<Fate>>, Fault> {
        self.within(LOOK_BOUND, self.backend.fates(ended)).await
    }

    /// Runs one call to the backend. A backend that hangs must not hang the caller: then the answer is
    /// unknown.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, Fault>> + Unpin,
    ) -> Result<T, Fault> {
        self.within(CALL_BOUND, call).await
    }

    async fn within<T>(
        &self,
        bound: Duration,
        call: impl Future<Output = Result<T, Fault>> + Unpin,
    ) -> Result<T, Fault> {
        let answer = self.bounds.within(bound, call).await;
        let unknown = || Fault::new(FaultKind::Unknown, format!("no answer within {bound:?}"));
        answer.unwrap_or_else(|| Err(unknown()))
    }

    /// Repeats `attempt` with growing pauses until it succeeds or `until` has come.
    async fn repeat<F: Future<Output = bool>>(&self, until: Time, mut attempt: impl FnMut() -> F) {
        let mut pause = BACKOFF_MIN;
        while !attempt().await && self.clock.now() < until {
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }
}

fn no_thread(key: &Key, error: std::io::Error) -> Error {
    let fault = Fault::new(FaultKind::Unavailable, "cannot start the background thread");
    Error::backend(Some(key), fault.caused_by(error))
}

impl Background {
    fn start(engine: &Arc<Engine>) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let (weak, until) = (Arc::downgrade(engine), stop.clone());
        // Listening starts here and now: what is said of the first claim must not be missed.
        let listener = Listener::new(engine);
        let work = move || runtime.block_on(renewal::supervise(weak, until, listener));
        std::thread::Builder::new().name("tenure".into()).spawn(work)?;
        let backend = engine.backend.clone();
        handle.spawn(async move { backend.tend().await });
        Ok(Background { handle, tasks: TaskTracker::new(), stop })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nobody is left who could hold or wait: tasks in the background hold the engine too.
        if let Some(background) = self.background.get() {
            background.stop.cancel();
        }
    }
}
