//! The state that a `Locker` and its guards share, and the background work.
//!
//! In: leases to release, claims to abandon, losses to report. Out: this work is done, even if the caller is
//! gone.
//!
//! The background is one thread with its own runtime, so that an application runtime that is starved or shut
//! down can neither lose nor leak a lock. The thread starts with the first claim.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::backend::{Backend, Operator};
use crate::claim::{Claim, ClaimOptions};
use crate::doctor::{self, Finding};
use crate::error::Error;
use crate::fault::{Fault, FaultKind, Loss};
use crate::gate::{Gates, Lead};
use crate::grant::{AfterRelease, Capabilities, Release, Renewal};
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::mode::Mode;
use crate::observe::Observe;
use crate::options::Defaults;
use crate::renewal::{self, Listener, Schedule};
use crate::report::{ClaimEnd, LockInfo, Query};
use crate::sync;
use crate::time::{Clock, Time, TimeoutWheel};
use crate::token::{Token, Tokens};

/// The longest time for one call to a backend before it counts as unanswered. If the backend's own time-outs
/// are longer, the limit is a quarter more than those. It protects against backends that do not keep their
/// time-outs.
const CALL_BOUND: Duration = Duration::from_secs(10);
/// The same for a query of many locks, which a backend does page by page.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// How many calls to a server that hangs the checks of an engine may wait for, one after the other.
const DOCTOR_CALLS: u32 = 6;
/// The pause between attempts to release or abandon, and the limit of its growth.
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
    /// The number of `Locker`s that share this engine.
    pub(crate) lockers: AtomicUsize,
    pub(crate) flush_deadline: Arc<FlushDeadline>,
    bounds: TimeoutWheel,
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

/// When the waits for the background work of an engine end. `None` if there is no work to wait for.
#[derive(Debug, Default)]
pub(crate) struct FlushDeadline(Mutex<Option<Time>>);

impl FlushDeadline {
    /// Sets the deadline, unless an earlier wait has set it. Returns the time that is left.
    pub(crate) fn start(&self, bound: Duration) -> Duration {
        // Real time, also if the locks are on a manual clock: a thread is blocked.
        let now = Clock::system().now();
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.get_or_insert(now.after(bound)).since(now)
    }

    /// No background work is left: the next wait has the full time.
    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("engine", &self.can.engine).finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>, defaults: Defaults) -> Arc<Self> {
        let can = backend.capabilities();
        Arc::new(Engine {
            bounds: TimeoutWheel::new(backend.clock()),
            tokens: Tokens::default(),
            clock: backend.clock(),
            defaults: defaults.fit(&can),
            can,
            backend,
            gates: Gates::default(),
            schedule: Arc::default(),
            closing: CancellationToken::new(),
            observe: Observe::default(),
            lockers: AtomicUsize::new(0),
            flush_deadline: Arc::default(),
            background: OnceLock::new(),
            starting: Mutex::default(),
            pid: std::process::id(),
        })
    }

    /// Whether this process was forked from the one that created the engine. Such a child owns none of the
    /// parent's locks: it must neither renew nor release them.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    /// To be called before any mutex of the gates is locked: a thread of the parent may have held the mutex
    /// at the fork.
    pub(crate) fn must_not_be_forked(&self, key: &Key) -> Result<(), Error> {
        match self.is_forked() {
            true => Err(Error::forked(key)),
            false => Ok(()),
        }
    }

    /// Starts the background thread, once. No claim is made before it runs.
    pub(crate) fn start(self: &Arc<Self>, key: &Key) -> Result<(), Error> {
        if self.background.get().is_some() {
            return Ok(());
        }
        // One at a time: a second thread would call `Backend::run` a second time.
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.background.get().is_none() {
            let started = Background::start(self).map_err(|error| no_thread(key, error))?;
            let _ = self.background.set(started);
        }
        Ok(())
    }

    /// The runtime of the background thread, for callers without a runtime.
    pub(crate) fn handle(self: &Arc<Self>, key: &Key) -> Result<Handle, Error> {
        self.start(key)?;
        let background = self.background.get().map(|background| background.handle.clone());
        background.ok_or_else(|| Error::closed(Some(key)))
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(background) = self.background.get() {
            sync::spawn_on(background.tasks.track_future(work), &background.handle);
        }
    }

    /// Waits until no background work is left, at most until `until`.
    pub(crate) async fn drained(&self, until: Time) {
        let Some(background) = self.background.get() else { return };
        background.tasks.close();
        tokio::select! {
            () = background.tasks.wait() => {}
            () = self.sleep_until(until) => {}
        }
        background.tasks.reopen();
    }

    /// Sleeps until `at` on the background thread, whose time is never paused, if that thread runs.
    pub(crate) async fn sleep_until(&self, at: Time) {
        // A sleep that is over ends at the first poll.
        let sleeps = !self.is_forked() && self.clock.now() < at;
        let Some(background) = self.background.get().filter(|_| sleeps) else {
            return self.clock.sleep_until(at).await;
        };
        let clock = self.clock.clone();
        let sleep = background.handle.spawn(async move { clock.sleep_until(at).await });
        let _ = AbortOnDropHandle::new(sleep).await;
    }

    /// Returns a channel that disconnects when no background work is left; `None` if there is none now.
    pub(crate) fn when_idle(&self) -> Option<Receiver<()>> {
        let background = self.background.get().filter(|background| !background.tasks.is_empty())?;
        let (done, when_done) = channel();
        let (tasks, deadline) = (background.tasks.clone(), self.flush_deadline.clone());
        tasks.close();
        background.handle.spawn(async move {
            tasks.wait().await;
            deadline.clear();
            drop(done);
        });
        Some(when_done)
    }

    pub(crate) fn new_claim(&self, key: &Key, terms: ClaimOptions) -> Result<Claim, Error> {
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

    /// Refuses operations that need a lease that another process can adopt.
    pub(crate) fn must_be_adoptable(&self, key: &Key) -> Result<(), Error> {
        match self.can.adoptable {
            true => Ok(()),
            false => Err(Error::backend(Some(key), self.can.not_adoptable())),
        }
    }

    /// Schedules the lease for the time at which it is next due.
    pub(crate) fn reschedule(&self, lease: &Arc<Lease>) {
        self.schedule.set(lease, lease.next_due());
    }

    /// The same after a hand-over, because the new holder's options may make the lease due sooner. A due time
    /// that is too early is harmless, so the mutex of the schedule is locked only if the new time is sooner.
    pub(crate) fn reschedule_if_sooner(&self, lease: &Arc<Lease>) {
        if lease.next_due().as_nanos() < lease.due.load(Ordering::Relaxed) {
            self.reschedule(lease);
        }
    }

    /// Declares a lease lost: its holder is notified, the gate is free for the next waiter, and the rest of
    /// the lease at the server is released.
    pub(crate) fn lose(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        lease.finish(Ended::Lost(loss));
        self.handle_loss(lease);
    }

    /// Handles a loss, if the lease is lost and its loss has not been handled yet.
    pub(crate) fn handle_loss(self: &Arc<Self>, lease: &Arc<Lease>) {
        let Some(Ended::Lost(loss)) = lease.ended() else { return };
        // Also if another thread already handles the loss: the caller must find the gate free afterwards.
        self.gates.evict(self, lease, &loss);
        if !lease.begin_loss_handling() {
            return;
        }
        self.schedule.remove(lease);
        match &loss {
            Loss::Expired | Loss::MaxHold => self.release_lost(lease.clone()),
            // The shutdown itself releases, and reports.
            Loss::Shutdown => {}
            Loss::Gone | Loss::Forced(_) | Loss::Session => self.abandon(lease.claim().clone()),
        }
        self.observe.lost(lease, &loss);
    }

    /// Applies a loss that the server reported for the claim at this gate. If the claim is not granted yet,
    /// the loss is applied when it is.
    pub(crate) fn apply_pending_loss(self: &Arc<Self>, key: &Key) {
        for lease in self.gates.leases_of(key) {
            if let Some(loss) = lease.claim().loss() {
                self.lose(&lease, loss.clone());
            }
        }
    }

    /// Abandons a claim in the background. Retries until the server has answered or the claim's ttl has
    /// passed.
    pub(crate) fn abandon(self: &Arc<Self>, claim: Arc<Claim>) {
        let engine = self.clone();
        self.spawn(async move {
            let until = engine.clock.now().after(claim.ttl());
            engine.after_renewals(claim.ttl()).await;
            let once = || async { engine.bounded(engine.backend.abandon(&claim)).await.is_ok() };
            engine.repeat(until, once).await;
        });
    }

    /// Releases a lease in the background. After the first attempt, `lead` is passed on.
    pub(crate) fn release_in_background(
        self: Arc<Self>,
        lease: Arc<Lease>,
        then: AfterRelease,
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

    /// Releases in the background what may be left of a lost lease at the server.
    fn release_lost(self: &Arc<Self>, lease: Arc<Lease>) {
        let engine = self.clone();
        self.spawn(async move {
            let until = engine.clock.now().after(lease.ttl()).max(lease.kept_until());
            engine.after_renewals(lease.ttl()).await;
            let once = || async { engine.release(&lease, AfterRelease::Free).await.is_ok() };
            engine.repeat(until, once).await;
        });
    }

    /// Waits until no renewal is pending, at most for `longest`: this work can wait.
    async fn after_renewals(&self, longest: Duration) {
        self.bounds.within(longest, std::pin::pin!(self.schedule.spare_time())).await;
    }

    /// Releases a lease: one attempt, limited in time.
    pub(crate) async fn release(
        &self,
        lease: &Arc<Lease>,
        then: AfterRelease,
    ) -> Result<Release, Fault> {
        self.schedule.remove(lease);
        let answer = self.bounded(self.backend.release(lease, then)).await;
        self.observe.released(lease, &answer);
        answer
    }

    /// Renews a lease now; the caller waits for it.
    pub(crate) async fn renew_now(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<(), Error> {
        let (key, sent) = (lease.claim().key(), self.clock.now());
        if self.is_forked() {
            return Err(Error::forked(key));
        }
        self.clock.must_run()?;
        let trouble = Mutex::new(Some(Fault::new(FaultKind::Unknown, "no answer")));
        let answer = |_, answer: Renewal| {
            let fault = match &answer {
                Renewal::Unknown(fault) => Some(fault.clone()),
                Renewal::Renewed { .. } | Renewal::Lost(_) => None,
            };
            *trouble.lock().unwrap_or_else(PoisonError::into_inner) = fault;
            self.apply_renewal(lease, answer, sent);
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

    /// Applies the reply to a renewal.
    pub(crate) fn apply_renewal(self: &Arc<Self>, lease: &Arc<Lease>, answer: Renewal, sent: Time) {
        self.observe.renewed(lease, &answer, self.clock.now().since(sent));
        lease.renewing.store(false, Ordering::Release);
        match answer {
            Renewal::Renewed { validity, contended } => {
                match (contended, lease.claim().mode()) {
                    (true, _) => lease.claim().set_contended(self.clock.now()),
                    // New readers of this process may share the lease again, until the next writer waits.
                    (false, Mode::Read) if lease.claim().clear_contended(sent) => {
                        self.backend.watch_contention(lease);
                    }
                    (false, _) => {}
                }
                match lease.extend(validity) {
                    // The reply is from before a reconnect.
                    true if lease.is_doubted() => self.schedule.set(lease, lease.next_retry()),
                    true => self.reschedule(lease),
                    false => self.handle_loss(lease),
                }
            }
            Renewal::Lost(loss) => self.lose(lease, loss),
            Renewal::Unknown(_) => self.schedule.set(lease, lease.next_retry()),
        }
    }

    /// Closes the backend's connections, limited in time. Connections that are still open then end with the
    /// process.
    pub(crate) async fn close(&self) {
        self.bounds.within(self.call_bound(), self.backend.close()).await;
    }

    /// Queries locks, limited in time.
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        let bound = match query {
            Query::Key(_) => self.call_bound(),
            Query::Keys(_) | Query::Glob(_) => QUERY_TIMEOUT,
        };
        self.within(bound, self.operator()?.inspect(query)).await
    }

    /// Asks how claims ended, limited in time.
    pub(crate) async fn end_reasons(
        &self,
        ended: &[(Key, Token)],
    ) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        self.within(QUERY_TIMEOUT, self.operator()?.end_reasons(ended)).await
    }

    /// Checks the engine, limited in time: a minute, or longer if the engine has long time-outs.
    pub(crate) async fn diagnose(&self) -> Result<Vec<Finding>, Fault> {
        let ttl = self.defaults.plain.ttl;
        let findings = async {
            Ok(match self.backend.operator() {
                Some(operator) => operator.diagnose(ttl).await,
                None => vec![doctor::self_test(&*self.backend, ttl).await],
            })
        };
        self.within(self.call_bound() * DOCTOR_CALLS, std::pin::pin!(findings)).await
    }

    /// The engine's part for operators, or the fault that it has none. Refused while tokio's time is paused,
    /// like a lock.
    pub(crate) fn operator(&self) -> Result<&dyn Operator, Fault> {
        if let Err(paused) = self.clock.must_run() {
            return Err(Fault::new(FaultKind::Invalid, paused.to_string()));
        }
        self.backend.operator().ok_or_else(|| {
            let engine = self.backend.capabilities().engine;
            let why =
                format!("the engine `{engine}:` cannot show its locks or release them by force");
            Fault::new(FaultKind::Unsupported, why)
        })
    }

    /// Runs one call to the backend. If the backend hangs, the caller gets an `Unknown` fault instead of
    /// hanging.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, Fault>> + Unpin,
    ) -> Result<T, Fault> {
        self.within(self.call_bound(), call).await
    }

    fn call_bound(&self) -> Duration {
        CALL_BOUND.max(self.can.call_time * 5 / 4)
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

    /// Repeats `attempt` with growing pauses until it succeeds or `until` has passed.
    async fn repeat<F: Future<Output = bool>>(&self, until: Time, mut attempt: impl FnMut() -> F) {
        let mut pause = BACKOFF_MIN;
        while !attempt().await && self.clock.now() < until {
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
        }
    }
}

#[cfg(test)]
impl Engine {
    /// Runs the background work on the runtime of a test, instead of a thread, and renews nothing.
    pub(crate) fn run_background_on(&self, handle: Handle) {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let _ = self.background.set(Background { handle, tasks, stop });
    }

    /// Whether no background work is left.
    pub(crate) fn is_background_idle(&self) -> bool {
        self.background.get().is_none_or(|background| background.tasks.is_empty())
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
        // Subscribe now, so that no notice about the first claim is missed.
        let listener = Listener::new(engine);
        let work = move || runtime.block_on(renewal::supervise(weak, until, listener));
        std::thread::Builder::new().name("tenure".into()).spawn(work)?;
        let backend = engine.backend.clone();
        handle.spawn(async move { backend.run().await });
        Ok(Background { handle, tasks: TaskTracker::new(), stop })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // No holder or waiter is left, since background tasks keep the engine alive too.
        if let Some(background) = self.background.get() {
            background.stop.cancel();
        }
    }
}
