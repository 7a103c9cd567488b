//! Processes that fight for a few keys while random faults strike, and the verdict on what they did.
//!
//! In: an [`Arena`] (a server and the way to it), the [`Fault`]s to strike with, and a [`Plan`]. Out:
//! an [`Outcome`] with every figure that is worth publishing.
//!
//! The contenders are programs (`campaign contend`), so that they can be stopped and killed; each
//! writes a history, all on one clock. Two threads strike: one at server and network, one at the
//! contenders. A seed repeats the choices of a run, not its timing.
//!
//! Faults that keep the server's data and faults that destroy it never mix: after the first kind
//! everything must hold, after the second two may have held at once ([`Promise`]).
//!
//! | file | what |
//! |---|---|
//! | `arena.rs` | what a backend brings |
//! | `redis.rs` | one Redis server behind a proxy |
//! | `sentinel.rs` | a master, its replicas and their Sentinels |
//! | `quorum.rs` | five Redis servers, each behind a proxy |
//! | `cluster.rs` | a Redis Cluster of three masters and three replicas |
//! | `etcd.rs` | three etcd servers, each behind a proxy |
//! | `trace.rs` | whether an overlap on etcd is the server's or ours |
//! | `field.rs` | the contenders |
//! | `places.rs` | places in a queue that a dead master left behind |
//! | `orphans.rs` | locks at the server that nobody relies on any more |
//! | `pauses.rs` | how long faults kept a free key from being had |
//! | `outcome.rs` | figures |

mod arena;
mod cluster;
mod etcd;
mod field;
mod orphans;
mod outcome;
mod pauses;
mod places;
mod quorum;
mod redis;
mod sentinel;
mod trace;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure_core::time::Clock;

use crate::dice::Dice;
use crate::history::{self, Event, History};
use crate::judge::{Judge, Offence, Reached, Verdict};
use crate::wait::{DEADLINE, pass};

pub use arena::{Arena, Elsewhere, Fault, Strike};
pub use cluster::ClusterArena;
pub use etcd::EtcdArena;
pub use orphans::Orphans;
pub use outcome::{Outcome, Promise};
pub use pauses::Pauses;
pub use quorum::QuorumArena;
pub use redis::RedisArena;
pub use sentinel::SentinelArena;
pub use trace::{Cause, Evidence, Trace};

use field::{BELIEVED_MOST, Field};
use orphans::Watch;
use pauses::{Blow, pauses, sleeps};

/// How fast an engine can go.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The ttls that contenders pick from: short, so that many run out. The first is a locker's
    /// default; the longest bounds how long a key may stay closed.
    pub ttls: Vec<Duration>,
    /// What may come on top of a ttl before a key is had again: finding a new connection, a new
    /// leader, a slow machine.
    pub little: Duration,
    /// The least and the most between two faults.
    pub pause: [Duration; 2],
    /// The same where many hand-overs are wanted in between.
    pub pause_brisk: [Duration; 2],
    /// Whether the lock of a killed process may stay for longer than that.
    pub lingers: bool,
}

impl Pace {
    /// For an engine that knows milliseconds.
    pub fn fast() -> Self {
        Pace {
            ttls: [200, 500, 1_500].map(Duration::from_millis).into(),
            little: Duration::from_secs(4),
            pause: [20, 400].map(Duration::from_millis),
            pause_brisk: [200, 4_000].map(Duration::from_millis),
            lingers: false,
        }
    }

    /// For one whose servers are not trusted for a while after a start.
    pub fn quarantined() -> Self {
        Pace {
            little: Duration::from_secs(8),
            pause: [200, 4_000].map(Duration::from_millis),
            ..Self::fast()
        }
    }

    /// For one that counts in seconds, and has a leader that must be found again. A new leader starts
    /// every lease anew, so that whoever is killed may keep a lock for as long as leaders change.
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

    /// How long after the last fault, or after it was given up, a key may stay closed.
    fn patience(&self) -> Duration {
        self.longest() + self.little
    }
}

/// Whether contenders are struck too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contenders {
    /// They are left alone.
    Spared,
    /// They are stopped, continued and killed.
    Struck,
}

/// How a campaign is fought.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all choices follow from.
    pub seed: u64,
    /// How long faults go on.
    pub time: Duration,
    /// How many processes fight at a time.
    pub processes: usize,
    /// How many tasks each of them has.
    pub tasks: usize,
    /// What they fight for.
    pub keys: Vec<String>,
    /// Whether they are struck too.
    pub contenders: Contenders,
    /// What must hold.
    pub promise: Promise,
    /// The program that can `contend`.
    pub program: PathBuf,
    /// Whether contenders hold for no time, and faults leave them more of it.
    pub brisk: bool,
    /// How fast the engine can go.
    pub pace: Pace,
    /// Where to keep the histories and what the servers knew, if overlaps are traced.
    pub keep: Option<PathBuf>,
}

impl Plan {
    /// Four processes of three tasks on three keys.
    pub fn new(seed: u64, time: Duration, promise: Promise, program: impl Into<PathBuf>) -> Self {
        // Who is stopped hears late of a loss: where that latency is measured, nobody is.
        let contenders = match promise {
            Promise::Everything => Contenders::Struck,
            Promise::Order | Promise::Traced => Contenders::Spared,
        };
        let keys = ["x", "y", "z"].map(String::from).into();
        let program = program.into();
        let (processes, tasks, brisk, pace) = (4, 3, false, Pace::fast());
        let keep = None;
        Plan { seed, time, processes, tasks, keys, contenders, promise, program, brisk, pace, keep }
    }

    /// The same at another pace.
    #[must_use]
    pub fn at(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// The same for many hand-overs between processes: eight of one task each on two keys.
    #[must_use]
    pub fn brisk(mut self) -> Self {
        (self.processes, self.tasks, self.brisk) = (8, 1, true);
        self.keys.truncate(2);
        self
    }

    fn pause(&self, dice: &mut Dice) -> Duration {
        let [least, most] = if self.brisk { self.pace.pause_brisk } else { self.pace.pause };
        dice.between(least, most)
    }
}

/// How often each fault struck.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// Fights, and judges.
///
/// # Panics
///
/// If a contender ends by itself, or what they wrote cannot be read.
pub fn run<A: Arena>(arena: &A, faults: &[Fault<A>], plan: &Plan) -> Outcome {
    let mut dice = Dice::new(plan.seed);
    let mut field = Field::new(&arena.url(), plan, &mut dice);
    let recorder = field.recorder().clone();
    let watch = Watch::new(&plan.keys);
    let over = AtomicBool::new(false);
    let end = Instant::now() + plan.time;
    let mut server_dice = Dice::new(dice.roll());
    let (strikes, reached, leftovers) = std::thread::scope(|scope| {
        let ending = Ending(&over);
        let sleeping = scope.spawn(|| sleeps(&over));
        scope.spawn(|| watch.until(&over, || arena.holders(&plan.keys)));
        let striking = scope.spawn(|| {
            let mut strike = Strike::new(&mut server_dice, &plan.keys, &recorder);
            strike_until(end, faults, arena, plan, &mut strike)
        });
        let mut counts = field.strike_until(end, plan.contenders, &mut dice);
        let blows = striking.join().expect("the faults can be made");
        blows.iter().for_each(|blow| *counts.entry(blow.name).or_default() += 1);
        arena.heal();
        let reached = field.all_move_again(plan.pace.patience());
        field.outlive_the_killed();
        field.end();
        let leftovers = leftovers(arena, plan);
        drop(ending);
        let sleeps = sleeping.join().expect("a clock can be read");
        (Strikes { blows, counts, sleeps }, reached, leftovers)
    });
    let mut outcome = outcome(plan, &field, strikes, (reached, leftovers), &watch);
    if plan.promise == Promise::Traced {
        let evidence = arena.evidence();
        outcome.traces = traces(&evidence, &outcome.verdict);
        plan.keep.iter().for_each(|dir| keep(dir, &field, &evidence));
    }
    outcome
}

/// Ends the watch, also when something unexpected ends the campaign.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What was done to everybody.
struct Strikes {
    blows: Vec<Blow>,
    /// With those at contenders.
    counts: Counts,
    /// When nobody was awake.
    sleeps: Vec<(u64, u64)>,
}

fn outcome(
    plan: &Plan,
    field: &Field,
    strikes: Strikes,
    (reached, leftovers): (Vec<Reached>, Vec<String>),
    watch: &Watch,
) -> Outcome {
    let history = history::read_dir(&field.histories()).expect("the histories can be read");
    let (orphans, hand_overs) = (watch.orphans(&history), hand_overs(&history));
    let pauses = pauses(&strikes.blows, &strikes.sleeps, &history);
    let recovered = reached.iter().filter_map(|fact| fact.after).max();
    let verdict = Judge::new(history).register(field.tally()).reached(reached).verdict();
    Outcome {
        seed: plan.seed,
        time: plan.time,
        promise: plan.promise,
        pace: plan.pace.clone(),
        faults: strikes.counts,
        pauses,
        verdict,
        traces: Vec::new(),
        hand_overs,
        recovered,
        orphans,
        leftovers,
    }
}

/// Where each overlap came from.
fn traces(evidence: &Evidence, verdict: &Verdict) -> Vec<Trace> {
    let trace = |offence: &Offence| match offence {
        Offence::Overlap { first, second } => Some(evidence.trace(first, second)),
        _ => None,
    };
    verdict.offences.iter().filter_map(trace).collect()
}

/// Writes down what the verdict rests on.
fn keep(dir: &Path, field: &Field, evidence: &Evidence) {
    std::fs::create_dir_all(dir).expect("a directory");
    for entry in std::fs::read_dir(field.histories()).expect("the histories") {
        let entry = entry.expect("a history");
        std::fs::copy(entry.path(), dir.join(entry.file_name())).expect("a copy");
    }
    std::fs::write(dir.join("evidence"), format!("{evidence:#?}\n")).expect("a file");
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

fn strike_until<A: Arena>(
    end: Instant,
    faults: &[Fault<A>],
    arena: &A,
    plan: &Plan,
    strike: &mut Strike<'_>,
) -> Vec<Blow> {
    let (clock, mut blows) = (Clock::system(), Vec::new());
    while Instant::now() < end && !faults.is_empty() {
        pass(plan.pause(strike.dice));
        let fault = strike.dice.pick(faults);
        blows.push(Blow { name: fault.name(), at: clock.now().as_nanos() });
        fault.strike(arena, strike);
    }
    blows
}

/// What the server still keeps after the longest ttl, with everybody gone. A place whose removal was lost with
/// its master is believed for longer than that, and whoever clears it then needs a while too.
fn leftovers<A: Arena>(arena: &A, plan: &Plan) -> Vec<String> {
    let patience = Instant::now() + (plan.pace.patience() + BELIEVED_MOST).min(DEADLINE);
    loop {
        let left = arena.leftovers();
        if left.is_empty() || Instant::now() > patience {
            return left;
        }
        pass(plan.pace.pause[0]);
    }
}
