//! The real gate on threads: `cargo xtask shuttle` runs this.
//!
//! Three threads of one locker and one of another do what the tasks of `tests.rs` do. One of them drops its future
//! after a while, and a further thread takes the lock away once. shuttle switches from thread to thread at every lock
//! of a mutex and every access to an atomic that comes from `sync.rs`: also between two critical sections, and between
//! a decision and its wake-up, where `tests.rs` runs on. If nobody wakes a task, shuttle reports a dead-lock.
//!
//! Background work is a task of shuttle, and so is the part of the background thread that reads notices. Time stands
//! still: nothing is renewed, and no time limit ends a wait. All atomics count as `SeqCst`, and `OnceLock`, the engine
//! `memory:` and tokio's channels are no points of a switch: each of their calls is one step.
//!
//! Bugs that were seeded to check this test; each was found within 2,000 schedules:
//! - `Gates::hand_to_next` unlocks the mutex after it has taken the next waiter from the queue, and locks it again to
//!   make it the leader. A second leader appears, and a waiter gets the error `closed`. `tests.rs` does not find it.
//! - `Gates::release_into` does the same between the last reader's leave and the release of the lease. A reader joins
//!   in between, and gets a lease that is released. `tests.rs` does not find it.
//! - `Gate::hand_over` hands a permit to the leader, without `claim.wake()`. shuttle reports the dead-lock.

use shuttle::rand::RngCore;
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::claim::ClaimOptions;
use crate::renewal::apply_notice;
use crate::sync::thread;
use crate::time::Time;
use crate::token::Token;

/// How many schedules one test runs, unless `TENURE_ITERATIONS` says otherwise.
const ITERATIONS: usize = 2_000;
/// Futures are large in a build without optimisation.
const STACK: usize = 1 << 20;
/// About as many steps as a thread takes.
const STEPS: u64 = 64;

/// Runs `work`, and drops it if it takes more than `steps`.
async fn drop_after(steps: u64, work: impl Future<Output = ()>) {
    let later = async {
        for _ in 0..steps {
            pause().await;
        }
    };
    tokio::select! {
        biased;
        () = work => {}
        () = later => {}
    }
}

/// Applies the notices of the server, until `stop` and no notice is left.
async fn listen(engine: Arc<Engine>, mut notices: Notices, stop: CancellationToken) {
    loop {
        let notice = tokio::select! {
            biased;
            notice = notices.next() => notice,
            () = stop.cancelled() => None,
        };
        let Some(notice) = notice else { return };
        apply_notice(&engine, notice);
    }
}

/// One schedule: the threads begin, and all end. Then nothing is left.
fn play_threads(together: bool) {
    let (world, scene) = (Arc::new(World::new()), Scene::new("k", together));
    let (mut rng, stop) =
        (Rng::new(shuttle::rand::thread_rng().next_u64()), CancellationToken::new());
    let listeners = world.engines.clone().map(|engine| {
        let notices = engine.backend.subscribe(engine.defaults.plain.ttl);
        shuttle::future::spawn(listen(engine, notices, stop.clone()))
    });
    let dropped = rng.below(TASKS);
    let start = |number| {
        let (mut rng, scene) = (Rng::new(rng.roll()), scene.clone());
        let process = usize::from(number == TASKS - 1);
        let engine = world.engines[process].clone();
        thread::spawn(move || {
            let steps = if number == dropped { rng.below(STEPS) } else { u64::MAX };
            let work = act(scene, engine, process, number, rng);
            shuttle::future::block_on(async move {
                match number == dropped {
                    true => drop_after(steps, work).await,
                    false => work.await,
                }
            });
        })
    };
    let threads: Vec<_> = (0..TASKS).map(start).collect();
    for _ in 0..rng.below(STEPS) {
        thread::yield_now();
    }
    world.take_away(&scene, rng.one_in(2));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    stop.cancel();
    for listener in listeners {
        shuttle::future::block_on(listener).unwrap();
    }
    for engine in &world.engines {
        shuttle::future::block_on(engine.drained(Time::NEVER));
    }
    world.nothing_is_left(&scene.key);
}

fn play_many(together: bool) {
    let iterations = std::env::var("TENURE_ITERATIONS").map(|many| many.parse().unwrap());
    let scheduler = RandomScheduler::new(iterations.unwrap_or(ITERATIONS));
    let mut config = Config::new();
    config.stack_size = STACK;
    Runner::new(scheduler, config).run(move || play_threads(together));
}

/// B2: a notice of contention that arrives while a renewal clears an older one is kept.
#[test]
fn no_interleaving_wipes_a_notice() {
    let play = || {
        let (key, token) = (Key::new("k").unwrap(), Token::random().unwrap());
        let claim = Arc::new(Claim::new(key, token, ClaimOptions::new(Duration::from_secs(30))));
        claim.set_contended(Time::from_nanos(1));
        let renewed = claim.clone();
        let renewal = thread::spawn(move || renewed.clear_contended(Time::from_nanos(2)));
        claim.set_contended(Time::from_nanos(3));
        renewal.join().unwrap();
        assert!(claim.is_contended());
    };
    shuttle::check_random(play, ITERATIONS);
}

/// A1, A10: however threads that lock, are dropped, lose and release are interleaved, there is never a second holder,
/// fences rise, no thread is left waiting for a free lock, and nothing is left in the gates or at the server.
#[test]
fn no_interleaving_breaks_the_gate() {
    play_many(false);
}

/// B2, B3: the same with readers and permits: only claims that fit hold the key together.
#[test]
fn no_interleaving_of_readers_and_permits_breaks_the_gate() {
    play_many(true);
}
