//! The real gate and the real `memory:` engine under random schedules.
//!
//! A few tasks of two lockers lock one key in every way. Here the test is the executor: it polls one task that was
//! woken, drops a task at its present await, takes the lock away at the server, or runs the background work, in an
//! order that depends only on a seed. The state of a gate changes only in short critical sections, so these orders are
//! what matters. Only tasks that were woken are polled: a wake-up that is missing leaves its task behind, and that is
//! found.
//!
//! `threads.rs` has the same tasks on threads, which `cargo xtask shuttle` interleaves within the critical sections
//! too.

#[cfg(shuttle)]
mod threads;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use tenure_testkit::rng::Rng;
use tokio::runtime::{Builder, Runtime};

use crate::backend::{
    AfterRelease, Answers, Attempt, Backend, BoxFuture, Capabilities, Fault, Grant, Loss, Notices,
    Operator, Query, Release,
};
use crate::builder::{LockRequest, RequestBuilder};
use crate::engine::Engine;
use crate::lease::Ended;
use crate::options::Defaults;
use crate::sync::{Mutex, MutexGuard};
use crate::time::Clock;
use crate::{
    Claim, Error, Exclusive, Fence, Guard, Held, HeldMode, Key, Lease, Memory, Mode, Owner,
    Permits, Renew, Shared, admits,
};

/// How many schedules one test runs.
const SCHEDULES: u64 = 2_000;
const TASKS: u64 = 4;
/// Far more steps than any schedule needs.
const STEPS_MAX: u32 = 10_000;

/// Lets other tasks run.
async fn pause() {
    let mut paused = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// `memory:` behind a network: a request arrives later, and so does its reply. Both can be lost with their task.
struct Remote(Memory);

impl Remote {
    fn call<'a, T: Send + 'a>(&'a self, call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        Box::pin(async move {
            pause().await;
            let reply = call.await;
            pause().await;
            reply
        })
    }
}

#[async_trait]
impl Backend for Remote {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.call(self.0.try_acquire(claim)).await
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.call(self.0.acquire(claim)).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        self.call(self.0.renew(leases, answers)).await
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        self.call(self.0.release(lease, then)).await
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.call(self.0.abandon(claim)).await
    }

    fn subscribe(&self, default_ttl: Duration) -> Notices {
        self.0.subscribe(default_ttl)
    }

    async fn close(&self) {
        self.0.close().await
    }
}

/// A server, two processes, and the runtime of their background work, which this thread drives.
struct World {
    server: Memory,
    engines: [Arc<Engine>; 2],
    background: Runtime,
}

/// The key of one schedule, and who holds it.
struct Scene {
    key: Key,
    /// Tasks read and take permits too.
    together: bool,
    /// An owner for several tasks of one process.
    owner: Owner,
    record: Mutex<Record>,
}

/// Who holds the key now, and with which fences it was held.
struct Record {
    /// The highest fence that a task got, and the highest one of an exclusive holder.
    last_fence: (Fence, Fence),
    holders: Vec<(Name, Mode, Held)>,
}

/// Who may hold the lock together with others of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Task(u64),
    /// The owner of several tasks, in the process of this number.
    Owner(usize),
    Shared,
}

/// A task that the test polls.
struct Task {
    woken: Arc<Flag>,
    work: Pin<Box<dyn Future<Output = ()>>>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Task {
    fn new(work: impl Future<Output = ()> + 'static) -> Self {
        Task { woken: Arc::new(Flag(AtomicBool::new(true))), work: Box::pin(work) }
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Acquire)
    }

    /// Whether it has ended.
    fn poll(&mut self) -> bool {
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(self.woken.clone());
        self.work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    }
}

/// One of several numbers, as an index.
fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).unwrap()
}

/// What one task does: it locks a few times, holds for a while, and ends each hold in some way.
async fn act(scene: Arc<Scene>, engine: Arc<Engine>, process: usize, number: u64, mut rng: Rng) {
    for _ in 0..=rng.below(3) {
        let request = || RequestBuilder::new(&engine, scene.key.as_str());
        let by = (process, number);
        match rng.below(if scene.together { 6 } else { 1 }) {
            0 => {
                let request = LockRequest::<Exclusive>::new(request());
                if let Some((guard, holding)) = lock(&scene, request, by, &mut rng).await {
                    drop(holding);
                    let detached = rng.one_in(4).then(|| engine.clone());
                    end(&scene, detached, guard, &mut rng).await;
                }
            }
            1..4 => {
                let request = LockRequest::<Shared>::new(request().mode(Mode::Read));
                hold(&scene, request, by, &mut rng).await;
            }
            other => {
                let permits = if other == 4 { 1 } else { 1 + u32::from(rng.one_in(3)) };
                let request = request().mode(Mode::Permits { permits, capacity: 2 });
                let numbered = permits == 1 && rng.one_in(2);
                let request = RequestBuilder { numbered, separate: rng.one_in(2), ..request };
                hold(&scene, LockRequest::<Permits>::new(request), by, &mut rng).await;
            }
        }
    }
}

/// Locks with random options. Returns the guard after a while, with the record of the hold.
async fn lock<M: HeldMode>(
    scene: &Arc<Scene>,
    request: LockRequest<M>,
    (process, number): (usize, u64),
    rng: &mut Rng,
) -> Option<(Guard<M>, impl Drop + use<M>)> {
    let (name, request) = match rng.below(4) {
        // Permits that are counted one by one are not re-entered.
        0 if !request.0.separate => (Name::Owner(process), request.owner(scene.owner.clone())),
        1 if request.0.mode == Mode::Exclusive => (Name::Shared, request.owner(Owner::shared("s"))),
        _ => (Name::Task(number), request),
    };
    let request = match rng.below(4) {
        0 => request.ttl(Duration::from_secs(10)),
        1 => request.renew(Renew::Off),
        2 => request.wait(Duration::ZERO),
        _ => request,
    };
    let (mode, (last, last_exclusive)) = (request.0.mode.clone(), scene.record().last_fence);
    match request.await {
        Ok(guard) => {
            let floor = if mode == Mode::Exclusive { last } else { last_exclusive };
            assert!(guard.depth() > 1 || guard.fence() > floor, "a fence that does not rise");
            let holding = scene.enter(name, mode, &guard);
            for _ in 0..rng.below(4) {
                pause().await;
            }
            Some((guard, holding))
        }
        Err(error) => {
            assert!(error.is_lost() || error.is_busy() || error.is_already_held(), "{error:?}");
            None
        }
    }
}

async fn hold<M: HeldMode>(
    scene: &Arc<Scene>,
    request: LockRequest<M>,
    by: (usize, u64),
    rng: &mut Rng,
) {
    if let Some((guard, holding)) = lock(scene, request, by, rng).await {
        drop(holding);
        match rng.one_in(4) {
            true => drop(guard),
            false => ends(guard.release().await.map(drop)),
        }
    }
}

/// Ends an exclusive hold, by its key if `detached` is set.
async fn end(scene: &Arc<Scene>, detached: Option<Arc<Engine>>, guard: Guard, rng: &mut Rng) {
    match detached {
        Some(engine) => {
            drop(guard.detach());
            ends(release_by_key(&engine, &scene.key).await);
        }
        None if rng.one_in(3) => drop(guard),
        None => ends(guard.release().await.map(drop)),
    }
}

async fn release_by_key(engine: &Arc<Engine>, key: &Key) -> Result<(), Error> {
    let hold = engine.gates.attach(engine, key)?;
    crate::guard::release(hold).await.map(drop)
}

/// A release may find the lock lost. Another task of the same owner may have released a detached lock by its key.
fn ends(released: Result<(), Error>) {
    let fine = released.as_ref().err().is_none_or(|e| e.is_lost() || e.is_not_held());
    assert!(fine, "{released:?}");
}

impl Scene {
    fn new(key: &str, together: bool) -> Arc<Self> {
        let record = Record { last_fence: (Fence::NONE, Fence::NONE), holders: Vec::new() };
        let (key, owner) = (Key::new(key).unwrap(), Owner::new());
        Arc::new(Scene { key, together, owner, record: Mutex::new(record) })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a holder until the result is dropped. The other holders admit it.
    fn enter<M: HeldMode>(
        self: &Arc<Self>,
        name: Name,
        mode: Mode,
        guard: &Guard<M>,
    ) -> impl Drop + use<M> {
        let view = guard.held();
        let mut record = self.record();
        let Record { last_fence: (last, last_exclusive), holders } = &mut *record;
        // Guards of one owner on one lease count once.
        let is_first = |(at, it): &(usize, &(Name, Mode, Held))| {
            position(holders, it.0, &it.2.lease) == Some(*at)
        };
        let others = holders.iter().enumerate().filter(is_first);
        let others = others.filter(|(_, (other, _, held))| *other != name && is_held(held));
        // A grant that was taken away on its way is lost from the start.
        // A re-entry may have asked in another mode than its lease has.
        let held_as = view.lease.claim().mode().clone();
        let admitted = admits(others.map(|(_, (_, mode, _))| mode), &held_as);
        assert!(!is_held(&view) || admitted, "{name:?} as {held_as} beside {holders:?}");
        assert!(is_held(&view) || is_lost(&view), "{name:?} got what another has released");
        *last = guard.fence().max(*last);
        if mode == Mode::Exclusive {
            *last_exclusive = guard.fence().max(*last_exclusive);
        }
        let leaves = Leaves { scene: self.clone(), name, lease: view.lease.clone() };
        holders.push((name, held_as, view));
        leaves
    }
}

/// The first guard of `name` on `lease`.
fn position(holders: &[(Name, Mode, Held)], name: Name, lease: &Arc<Lease>) -> Option<usize> {
    holders.iter().position(|(it, _, held)| *it == name && Arc::ptr_eq(&held.lease, lease))
}

/// Whether the lock is held. A loss that is recorded on the claim may not have reached the lease yet.
fn is_held(view: &Held) -> bool {
    view.is_held() && view.lease.claim().loss().is_none()
}

fn is_lost(view: &Held) -> bool {
    view.lease.claim().loss().is_some() || matches!(view.lease.ended(), Some(Ended::Lost(_)))
}

struct Leaves {
    scene: Arc<Scene>,
    name: Name,
    lease: Arc<Lease>,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        let holders = &mut self.scene.record().holders;
        let at = position(holders, self.name, &self.lease).unwrap();
        let (name, _, view) = holders.remove(at);
        let fine = std::thread::panicking() || is_held(&view) || is_lost(&view);
        assert!(fine, "another has released what {name:?} holds");
    }
}

impl World {
    fn new() -> Self {
        let background = Builder::new_current_thread().build().unwrap();
        let server = Memory::with_clock(Clock::manual());
        let engine = || {
            let engine = Engine::new(Arc::new(Remote(server.clone())), Defaults::default());
            engine.run_background_on(background.handle().clone());
            // As if a locker existed: its last one would wait for the background work.
            engine.lockers.fetch_add(1, Ordering::Relaxed);
            engine
        };
        World { engines: [engine(), engine()], server, background }
    }

    /// Runs the schedule of one seed to its end.
    fn play(&self, seed: u64, together: bool) {
        let (mut rng, scene) = (Rng::new(seed), Scene::new(&format!("k{seed}"), together));
        let start = |number| {
            let process = usize::from(number == TASKS - 1);
            let (engine, rng) = (self.engines[process].clone(), Rng::new(seed ^ (number << 40)));
            Task::new(act(scene.clone(), engine, process, number, rng))
        };
        let mut tasks: Vec<Task> = (0..TASKS).map(start).collect();
        for _ in 0..STEPS_MAX {
            if tasks.is_empty() && self.is_idle() {
                return self.nothing_is_left(&scene.key);
            }
            self.step(&scene, &mut tasks, &mut rng);
            self.holders_are_known(&scene.key);
        }
        panic!("it does not end");
    }

    fn step(&self, scene: &Scene, tasks: &mut Vec<Task>, rng: &mut Rng) {
        let woken: Vec<usize> = (0..tasks.len()).filter(|at| tasks[*at].is_woken()).collect();
        match rng.below(24) {
            0 if !tasks.is_empty() => drop(tasks.swap_remove(below(rng, tasks.len()))),
            1 => self.take_away(scene, rng.one_in(2)),
            2..8 => self.run_background(),
            _ if woken.is_empty() => {
                assert!(!self.is_idle(), "{} tasks wait, and nothing will wake them", tasks.len());
                self.run_background();
            }
            _ => {
                let at = *rng.pick(&woken);
                if tasks[at].poll() {
                    drop(tasks.swap_remove(at));
                }
            }
        }
    }

    fn run_background(&self) {
        self.background.block_on(tokio::task::yield_now());
    }

    fn is_idle(&self) -> bool {
        self.engines.iter().all(|engine| engine.is_background_idle())
    }

    /// The server ends the lock, and the processes know it.
    fn take_away(&self, scene: &Scene, silently: bool) {
        let key = &scene.key;
        // No task looks at the holders while the server and the processes disagree.
        let record = scene.record();
        let taken = self.at_the_server(key);
        self.server.expire(key.as_str()).unwrap();
        for engine in &self.engines {
            let claims: Vec<_> =
                taken.iter().filter_map(|token| engine.gates.claim(key, *token)).collect();
            claims.iter().for_each(|claim| claim.set_lost(Loss::Gone));
            for lease in engine.gates.leases_of(key) {
                // As an expired lease: it has ended, and nothing has acted on that yet.
                if silently && lease.claim().loss().is_some() {
                    lease.finish(Ended::Lost(Loss::Gone));
                }
            }
        }
        drop(record);
        if !silently {
            self.engines.iter().for_each(|engine| engine.apply_pending_loss(key));
        }
    }

    /// A lease that a process has is one that the server has granted, and has not ended.
    fn holders_are_known(&self, key: &Key) {
        let seen = self.at_the_server(key);
        for lease in self.engines.iter().flat_map(|engine| engine.gates.leases_of(key)) {
            let token = lease.claim().token();
            assert!(!lease.is_valid() || seen.contains(&token), "a lease without a lock");
        }
    }

    /// The tokens of the holders at the server.
    fn at_the_server(&self, key: &Key) -> Vec<crate::Token> {
        let locks = self.background.block_on(self.server.inspect(&Query::Key(key.clone())));
        let holders = locks.unwrap().into_iter().flat_map(|lock| lock.holders);
        holders.filter_map(|holding| holding.token).collect()
    }

    fn nothing_is_left(&self, key: &Key) {
        let locks = self.background.block_on(self.server.inspect(&Query::Key(key.clone())));
        assert!(locks.unwrap().is_empty(), "at the server");
        for table in self.engines.iter().flat_map(|engine| engine.gates.tables()) {
            assert!(table.gates.is_empty(), "{:?}", table.gates);
            assert!(table.lost.is_empty() && table.lost_detached.is_empty(), "{table:?}");
        }
    }
}

fn play_all(together: bool) {
    let (world, first) = (World::new(), Rng::from_environment().0);
    for seed in first..first + SCHEDULES {
        let play = || world.play(seed, together);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
        assert!(played.is_ok(), "TENURE_SEED={seed} repeats it");
    }
}

/// A1, A10: in every order of tasks that lock, are dropped, lose and release, there is never a second holder, fences
/// rise, no task is left waiting for a free lock, and nothing is left in the gates or at the server.
#[test]
fn no_order_of_events_breaks_the_gate() {
    play_all(false);
}

/// B2, B3, t81: the same with readers and permits: only claims that fit hold the key together.
#[test]
fn no_order_of_readers_and_permits_breaks_the_gate() {
    play_all(true);
}
