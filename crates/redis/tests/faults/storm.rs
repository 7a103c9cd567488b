//! Many processes on one server under random faults, judged by their history.
//!
//! Faults that keep the server's data and faults that destroy it run in separate campaigns: the second kind
//! lets two processes hold a lock at once for a while, and must still keep fences and fenced writes in order.
//! `TENURE_SEED` repeats the choices of a run.

#![allow(clippy::print_stdout, reason = "the verdict is worth reading")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{Guard, Locker};
use tenure_testkit::history::{Claimant, Event, Noted, Recorder};
use tenure_testkit::judge::{Judge, Reached, Verdict};
use tenure_testkit::register::Register;
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{DEADLINE, pass, within};

use crate::support::locker;

const PROCESSES: u64 = 3;
const TASKS: u64 = 4;
const KEYS: [&str; 2] = ["x", "y"];
/// The duration of a run.
const TIME: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Run {
    server: Arc<RedisServer>,
    recorder: Recorder,
    register: Arc<Register>,
    end: Instant,
}

struct Actor {
    run: Run,
    locker: Locker,
    claimant: Claimant,
    dice: Rng,
}

impl Run {
    fn new() -> Self {
        Run {
            server: Arc::new(RedisServer::start()),
            recorder: Recorder::new(),
            register: Arc::new(Register::new()),
            end: Instant::now() + TIME,
        }
    }

    /// Runs all actors while `fault` is injected at random moments, on a thread of its own.
    async fn play(&self, fault: fn(&Run, &mut Rng)) {
        let (_, mut dice) = Rng::from_environment();
        let mut actors = tokio::task::JoinSet::new();
        for process in 0..PROCESSES {
            let locker = locker(&self.server).await;
            for task in 0..TASKS {
                let claimant = self.recorder.claimant(format!("p{process}/t{task}"));
                let claimant = claimant.numbered(process << 32);
                let (run, locker, dice) = (self.clone(), locker.clone(), Rng::new(dice.roll()));
                actors.spawn(Actor { run, locker, claimant, dice }.play());
            }
        }
        let faults = self.clone();
        let faults = std::thread::spawn(move || faults.strike(dice, fault));
        while let Some(ended) = within("everybody to end", actors.join_next()).await {
            ended.unwrap();
        }
        faults.join().unwrap();
    }

    fn strike(&self, mut dice: Rng, fault: fn(&Run, &mut Rng)) {
        while Instant::now() < self.end {
            pass(dice.between(Duration::from_millis(5), Duration::from_millis(150)));
            fault(self, &mut dice);
        }
    }

    /// Checks that each key can be acquired again, and lets the judge decide about the rest.
    async fn verdict(&self) -> Verdict {
        let locker = locker(&self.server).await;
        let mut facts = Vec::new();
        for key in KEYS {
            let start = Instant::now();
            let after = locker.lock(key).wait(DEADLINE).await.ok().map(|_| start.elapsed());
            facts.push(Reached { key: key.into(), after, within: DEADLINE });
        }
        let tally = self.register.tally();
        let verdict = Judge::new(self.recorder.history()).register(tally).reached(facts).verdict();
        println!("{verdict}");
        assert!(verdict.grants > 50, "{verdict}");
        verdict
    }
}

/// Pauses the server, kills connections, flushes scripts, or delays writes.
fn keep_data(run: &Run, dice: &mut Rng) {
    match dice.below(4) {
        0 => {
            run.server.pause();
            pass(dice.between(Duration::from_millis(10), Duration::from_millis(700)));
            run.server.go_on();
        }
        1 => drop(run.server.client().command(&["CLIENT", "KILL", "TYPE", "normal"])),
        2 => drop(run.server.client().command(&["SCRIPT", "FLUSH"])),
        _ => drop(run.server.client().command(&["CLIENT", "PAUSE", "300", "WRITE"])),
    }
}

/// Destroys all data, by `FLUSHALL` or by a restart. The fault is recorded before and after, because a grant
/// in between may be destroyed too.
fn destroy_data(run: &Run, dice: &mut Rng) {
    let note = || KEYS.map(|key| run.recorder.note("fault", 0, key, Event::TakenAway));
    note();
    match dice.one_in(4) {
        true => run.server.restart(),
        false => drop(run.server.client().command(&["FLUSHALL"])),
    }
    note();
}

impl Actor {
    async fn play(mut self) {
        while Instant::now() < self.run.end {
            let key = *self.dice.pick(&KEYS);
            match self.dice.below(6) {
                0 => self.give_up(key).await,
                _ => self.lock(key).await,
            }
        }
    }

    /// A wait that is dropped after a while, unless it is granted before.
    async fn give_up(&mut self, key: &str) {
        let patience = Duration::from_micros(self.dice.below(5_000));
        let noted = self.claimant.asks(key);
        let request = self.locker.lock(key);
        match tokio::time::timeout(patience, request.into_future()).await {
            Ok(Ok(guard)) => self.hold(guard, noted, key).await,
            Ok(Err(error)) => noted.gave_up(error),
            Err(late) => noted.gave_up(late),
        }
    }

    async fn lock(&mut self, key: &str) {
        let ttl = Duration::from_millis(*self.dice.pick(&[200, 500, 1_500]));
        let noted = self.claimant.asks(key);
        let request = self.locker.lock(key).ttl(ttl).retry_interval(Duration::from_millis(10));
        match request.wait(Duration::from_secs(2)).await {
            Ok(guard) => self.hold(guard, noted, key).await,
            Err(error) => noted.gave_up(error),
        }
    }

    /// Reads, lets time pass, writes, and releases the lock.
    async fn hold(&mut self, guard: Guard, noted: Noted, key: &str) {
        noted.granted(guard.fence(), guard.valid_until());
        let seen = self.run.register.read(key, guard.fence());
        let time = Duration::from_micros(self.dice.below(3_000));
        let lost = tokio::time::timeout(time, guard.lost()).await;
        self.run.register.write(key, seen);
        match lost {
            Ok(loss) => noted.lost(loss),
            Err(_) => {
                noted.release_called(guard.valid_until());
                match self.dice.one_in(3) {
                    true => drop(guard),
                    false => drop(guard.release().await),
                }
            }
        }
    }
}

/// Under faults that keep the data no two holders overlap, fences rise, and every key can be acquired again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_that_keeps_data_is_clean() {
    let run = Run::new();
    run.play(keep_data).await;
    run.verdict().await.assert_clean();
}

/// t09, t15: under faults that destroy the data fences still rise, and no fenced update is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_that_destroys_data_is_ordered() {
    let run = Run::new();
    run.play(destroy_data).await;
    run.verdict().await.assert_ordered();
}
