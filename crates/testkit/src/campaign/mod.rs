//! Processes that compete for a few keys under random faults, and the verdict on their histories.
//!
//! In: an [`Target`] (a server and the way to it), the [`Fault`]s to inject, and a [`Plan`]. Out: an
//! [`Outcome`] with every figure that is worth publishing.
//!
//! The contenders are programs (`campaign contend`), so that they can be stopped and killed. Each writes a
//! history, all on one clock. Two threads inject faults: one into server and network, one into the
//! contenders. A seed repeats the choices of a run, not its timing.
//!
//! Faults that keep the server's data and faults that destroy it never mix: after the first kind every
//! promise must hold, after the second kind two owners may have held a key at the same time ([`Promise`]).
//!
//! | file | contents |
//! |---|---|
//! | `target.rs` | what an engine must provide |
//! | `redis.rs` | one Redis server behind a proxy |
//! | `sentinel.rs` | a master, its replicas and their Sentinels |
//! | `quorum.rs` | five Redis servers, each behind a proxy |
//! | `cluster.rs` | a Redis Cluster of three masters and three replicas |
//! | `etcd.rs` | three etcd servers, each behind a proxy |
//! | `contenders.rs` | the contenders |
//! | `observer.rs` | keys as they are on a Redis server |
//! | `queue_leftovers.rs` | queue entries that a failover has left behind |
//! | `orphans.rs` | locks on the server that no process relies on; the order of service |
//! | `pauses.rs` | how long faults prevented the acquisition of a free key |
//! | `outcome.rs` | figures |

mod target;
mod observer;
mod cluster;
mod etcd;
mod contenders;
mod orphans;
mod outcome;
mod pauses;
mod queue_leftovers;
mod quorum;
mod redis;
mod sentinel;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_core::time::Clock;

use crate::history::{self, Event, History};
use crate::judge::{Judge, Reached};
use crate::rng::Rng;
use crate::wait::{DEADLINE, pass};

pub use cluster::ClusterTarget;
pub use etcd::EtcdTarget;
pub use orphans::Orphans;
pub use outcome::{Outcome, Promise};
pub use pauses::Pauses;
pub use quorum::QuorumTarget;
pub use redis::RedisTarget;
pub use sentinel::SentinelTarget;
pub use target::{Elsewhere, Fault, Injection, Target};

use contenders::{BELIEVED_MOST, Contestants};
use orphans::Watch;
use pauses::{Pause, pauses, sleeps};

/// The times that suit an engine.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The ttls that contenders pick from: short, so that many expire. The first is the default of a locker;
    /// the longest bounds how long a key may stay locked.
    pub ttls: Vec<Duration>,
    /// The time that may be needed beyond a ttl before a key is acquired again: for a new connection, a new
    /// leader, a slow machine.
    pub little: Duration,
    /// The shortest and the longest pause between two faults.
    pub pause: [Duration; 2],
    /// The same for a run with many hand-overs between two faults.
    pub pause_brisk: [Duration; 2],
    /// Whether the lock of a killed process may stay for longer than ttl and `little`.
    pub lingers: bool,
}

impl Pace {
    /// For an engine with millisecond ttls.
    pub fn fast() -> Self {
        Pace {
            ttls: [200, 500, 1_500].map(Duration::from_millis).into(),
            little: Duration::from_secs(4),
            pause: [20, 400].map(Duration::from_millis),
            pause_brisk: [200, 4_000].map(Duration::from_millis),
            lingers: false,
        }
    }

    /// For an engine that does not trust a server for a while after its start.
    pub fn quarantined() -> Self {
        Pace {
            little: Duration::from_secs(8),
            pause: [200, 4_000].map(Duration::from_millis),
            ..Self::fast()
        }
    }

    /// For an engine that counts in seconds and must elect a new leader. A new leader restarts every lease,
    /// so a killed process may keep a lock for as long as leaders change.
    pub fn slow() -> Self {
        Pace {
            ttls: [2, 3, 4].map(Duration::from_secs).into(),
            little: Duration::from_secs(8),
            pause: [100, 1_500].map(Duration::from_millis),
            pause_brisk: [1_000, 6_000].map(Duration::from_millis),
            lingers: true,
        }
    }

    fn longest(&self) -> Duration {
        self.ttls.iter().max().copied().unwrap_or_default()
    }

    /// How long a key may stay locked after the last fault, or after its holder stopped relying on it.
    fn patience(&self) -> Duration {
        self.longest() + self.little
    }
}

/// Whether contenders get faults too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contenders {
    /// They get no faults.
    Spared,
    /// They are stopped, continued and killed.
    Struck,
}

/// The key of the election.
const ELECTED: &str = "leader";

/// The parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random choices.
    pub seed: u64,
    /// How long faults are injected.
    pub time: Duration,
    /// The number of processes that compete at the same time.
    pub processes: usize,
    /// The number of tasks in each process.
    pub tasks: usize,
    /// The keys that they compete for.
    pub keys: Vec<String>,
    /// Whether contenders get faults too.
    pub contenders: Contenders,
    /// The promise that must hold.
    pub promise: Promise,
    /// The program with the subcommand `contend`.
    pub program: PathBuf,
    /// Whether contenders hold for no time, with longer pauses between faults.
    pub brisk: bool,
    /// Whether contenders also read and take permits, if the engine has them, lock several keys with one request, and
    /// campaign. The first key is only locked, and the last one only elected.
    pub mixed: bool,
    /// The times that suit the engine.
    pub pace: Pace,
}

impl Plan {
    /// Four processes of three tasks on three keys.
    pub fn new(seed: u64, time: Duration, promise: Promise, program: impl Into<PathBuf>) -> Self {
        // A stopped contender learns of a loss late. So contenders are not stopped where that latency is
        // measured.
        let contenders = match promise {
            Promise::Everything => Contenders::Struck,
            Promise::Order => Contenders::Spared,
        };
        let keys = ["x", "y", "z"].map(String::from).into();
        let program = program.into();
        let (processes, tasks, pace) = (4, 3, Pace::fast());
        let (brisk, mixed) = (false, false);
        Plan {
            seed,
            time,
            processes,
            tasks,
            keys,
            contenders,
            promise,
            program,
            brisk,
            mixed,
            pace,
        }
    }

    /// Sets another pace.
    #[must_use]
    pub fn at(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Changes the plan for many hand-overs between processes: eight processes of one task each, on two keys.
    #[must_use]
    pub fn brisk(mut self) -> Self {
        (self.processes, self.tasks, self.brisk) = (8, 1, true);
        self.keys.truncate(2);
        self
    }

    /// Lets contenders read, take permits and lock several keys too, and adds a key to elect a leader for.
    #[must_use]
    pub fn mixed(mut self) -> Self {
        self.mixed = true;
        self.keys.push(ELECTED.into());
        self
    }

    /// The time within which an observer must see that a leadership has ended: as long as its lease may last, and a
    /// little for the faults that the observer gets too. While the campaign was asleep, so was the observer.
    fn observed_within(&self, asleep: Duration) -> Option<Duration> {
        (!self.pace.lingers).then(|| self.pace.patience() + asleep)
    }

    fn pause(&self, rng: &mut Rng) -> Duration {
        let [least, most] = if self.brisk { self.pace.pause_brisk } else { self.pace.pause };
        rng.between(least, most)
    }
}

/// How often each fault was injected.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// Runs a campaign and judges it.
///
/// # Panics
///
/// If a contender exits by itself, or a history cannot be read.
pub fn run<A: Target>(target: &A, faults: &[Fault<A>], plan: &Plan) -> Outcome {
    let mut rng = Rng::new(plan.seed);
    let mut field = Contestants::new(&target.url(), plan, &mut rng);
    let recorder = field.recorder().clone();
    let watch = Watch::new(&plan.keys);
    let over = AtomicBool::new(false);
    let end = Instant::now() + plan.time;
    let mut server_dice = Rng::new(rng.roll());
    let (strikes, reached, leftovers) = std::thread::scope(|scope| {
        let ending = Ending(&over);
        let sleeping = scope.spawn(|| sleeps(&over));
        scope.spawn(|| watch.until(&over, || target.look(&plan.keys)));
        let striking = scope.spawn(|| {
            let mut injection = Injection::new(&mut server_dice, &plan.keys, &recorder);
            strike_until(end, faults, target, plan, &mut injection)
        });
        let mut counts = field.strike_until(end, plan.contenders, &mut rng);
        let pauses_made = striking.join().expect("the faults can be made");
        pauses_made.iter().for_each(|pause_made| *counts.entry(pause_made.name).or_default() += 1);
        target.heal();
        let reached = field.all_move_again(plan.pace.patience());
        field.outlive_the_killed();
        field.end();
        let leftovers = leftovers(target, plan);
        drop(ending);
        let sleeps = sleeping.join().expect("a clock can be read");
        (Strikes { pauses_made, counts, sleeps }, reached, leftovers)
    });
    outcome(plan, &field, strikes, (reached, leftovers), &watch)
}

/// Ends the observer threads, also after a panic in the campaign.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The faults that were injected.
struct Strikes {
    pauses_made: Vec<Pause>,
    /// Includes the faults of contenders.
    counts: Counts,
    /// The periods in which the campaign itself did not run.
    sleeps: Vec<(u64, u64)>,
}

fn outcome(
    plan: &Plan,
    field: &Contestants,
    strikes: Strikes,
    (reached, leftovers): (Vec<Reached>, Vec<String>),
    watch: &Watch,
) -> Outcome {
    let history = history::read_dir(&field.histories()).expect("the histories can be read");
    let (orphans, hand_overs) = (watch.orphans(&history), hand_overs(&history));
    let pauses = pauses(&strikes.pauses_made, &strikes.sleeps, &history);
    let recovered = reached.iter().filter_map(|fact| fact.after).max();
    let judge = Judge::new(history).register(field.tally()).reached(reached);
    let asleep = strikes.sleeps.iter().map(|(from, to)| Duration::from_nanos(to - from)).sum();
    let judge = judge.turns(watch.turns().clone()).observed_within(plan.observed_within(asleep));
    let verdict = judge.verdict();
    Outcome {
        seed: plan.seed,
        time: plan.time,
        promise: plan.promise,
        pace: plan.pace.clone(),
        faults: strikes.counts,
        pauses,
        verdict,
        hand_overs,
        recovered,
        orphans,
        leftovers,
    }
}

/// How often a key went from one process to another.
fn hand_overs(history: &History) -> u64 {
    let mut last = BTreeMap::<&str, &str>::new();
    let grants =
        history.records().iter().filter(|record| matches!(record.event, Event::Granted { .. }));
    let changes = grants.filter(|record| {
        let process = record.owner.split('/').next().unwrap_or_default();
        last.insert(&record.key, process).is_some_and(|before| before != process)
    });
    changes.count() as u64
}

fn strike_until<A: Target>(
    end: Instant,
    faults: &[Fault<A>],
    target: &A,
    plan: &Plan,
    injection: &mut Injection<'_>,
) -> Vec<Pause> {
    let (clock, mut pauses_made) = (Clock::system(), Vec::new());
    while Instant::now() < end && !faults.is_empty() {
        pass(plan.pause(injection.rng));
        let fault = injection.rng.pick(faults);
        pauses_made.push(Pause { name: fault.name(), at: clock.now().as_nanos() });
        fault.inject(target, injection);
    }
    pauses_made
}

/// The data on the server after the longest ttl, when all contenders have exited. A queue entry whose removal
/// was lost in a failover counts as alive for longer than that, and a later request needs a while to remove
/// it.
fn leftovers<A: Target>(target: &A, plan: &Plan) -> Vec<String> {
    let patience = Instant::now() + (plan.pace.patience() + BELIEVED_MOST).min(DEADLINE);
    loop {
        let left = target.leftovers();
        if left.is_empty() || Instant::now() > patience {
            return left;
        }
        pass(plan.pace.pause[0]);
    }
}
