//! `campaign`: processes that fight for locks under random faults, judged.
//!
//! `campaign run` starts a server, the faults and the contenders, prints the figures, and ends with 1
//! if a promise was broken. `campaign contend` is one contender: `run` starts it.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program: it prints its figures, and what is unexpected ends it"
)]

mod contend;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tenure_core::time::UnixMillis;
use tenure_testkit::campaign::{
    self, Arena, ClusterArena, Elsewhere, EtcdArena, Fault, Outcome, Pace, Plan, Promise,
    QuorumArena, RedisArena, SentinelArena,
};

/// Processes that fight for locks under random faults, judged.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fight, and judge.
    Run(Run),
    /// One contender.
    Contend(contend::Options),
}

#[derive(Args)]
struct Run {
    /// What all choices follow from; without it, the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// How long faults go on, in seconds.
    #[arg(long, default_value_t = 60)]
    secs: u64,
    /// How many processes fight at a time.
    #[arg(long)]
    processes: Option<usize>,
    /// How many tasks each of them has.
    #[arg(long)]
    tasks: Option<usize>,
    /// Hold for no time and strike less often, for as many hand-overs as can be; one task for each of
    /// eight processes on two keys, unless said otherwise.
    #[arg(long)]
    brisk: bool,
    /// Keep everybody's history, and what the servers knew, in this directory (`stall` only).
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Whose servers are started and struck.
    #[arg(long, default_value = "redis", conflicts_with = "url")]
    backend: Engine,
    /// Fight on this server, of any engine, instead of one of our own: only contenders are struck.
    #[arg(long, conflicts_with = "kind")]
    url: Option<String>,
    /// Which faults; without it, first those that keep data and then those that destroy it.
    kind: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// One server.
    Redis,
    /// A master, its replicas and their Sentinels: failovers, which can destroy data.
    Sentinel,
    /// Five servers that vote.
    Quorum,
    /// Three masters with a replica each: failovers, and slots that move.
    Cluster,
    /// Three members.
    Etcd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Faults that keep the server's data.
    Keep,
    /// A leader that stands still for longer than leases last (etcd only): versions with a known bug
    /// then lose leases, and each overlap must be traced to that.
    Stall,
    /// Faults that destroy the server's data.
    Destroy,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Contend(options) => {
            contend::run(options);
            ExitCode::SUCCESS
        }
        Command::Run(options) => match fight(&options) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    }
}

/// Whether every promise was kept.
fn fight(options: &Run) -> bool {
    if let Some(url) = &options.url {
        return is_kept(&Elsewhere::at(url), &[], &plan(options, Promise::Everything));
    }
    let wanted = |kind| options.kind.is_none_or(|only| only == kind);
    let mut kept = true;
    for kind in [Kind::Keep, Kind::Stall, Kind::Destroy].into_iter().filter(|kind| wanted(*kind)) {
        kept &= match options.backend {
            Engine::Redis => on_redis(options, kind),
            Engine::Sentinel => on_sentinel(options, kind),
            Engine::Quorum => on_quorum(options, kind),
            Engine::Cluster => on_cluster(options, kind),
            Engine::Etcd => on_etcd(options, kind),
        };
    }
    kept
}

fn on_redis(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep => {
            let plan = plan(Promise::Everything);
            is_kept(&RedisArena::persistent(), &RedisArena::KEEP, &plan)
        }
        Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&RedisArena::forgetful(), &RedisArena::DESTROY, &plan(Promise::Order))
        }
    }
}

fn on_sentinel(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep | Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&SentinelArena::start(), &SentinelArena::FAULTS, &plan(Promise::Order))
        }
    }
}

fn on_quorum(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep => {
            let plan = plan(Promise::Everything).at(Pace::quarantined());
            is_kept(&QuorumArena::persistent(), &QuorumArena::KEEP, &plan)
        }
        Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&QuorumArena::trusted(), &QuorumArena::DESTROY, &plan(Promise::Order))
        }
    }
}

fn on_cluster(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep => {
            is_kept(&ClusterArena::start(), &ClusterArena::KEEP, &plan(Promise::Everything))
        }
        Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&ClusterArena::start(), &ClusterArena::DESTROY, &plan(Promise::Order))
        }
    }
}

fn on_etcd(options: &Run, kind: Kind) -> bool {
    let arena = EtcdArena::start();
    let plan = |promise| plan(options, promise).at(Pace::slow());
    match kind {
        Kind::Keep => is_kept(&arena, &EtcdArena::KEEP, &plan(Promise::Everything)),
        Kind::Stall => {
            let kept = is_kept(&arena, &EtcdArena::STALL, &plan(arena.stalled()));
            let usurped = arena.usurped();
            println!("{usurped} leases ended by members that did not lead (etcd issue 15247)");
            kept
        }
        Kind::Destroy => is_kept(&arena, &EtcdArena::DESTROY, &plan(Promise::Order)),
    }
}

/// The engine has no faults of a kind, which is no success for who asked for it.
fn has_none(options: &Run) -> bool {
    if options.kind.is_some() {
        println!("BROKEN: there are no faults of this kind for this engine");
    }
    options.kind.is_none()
}

fn plan(options: &Run, promise: Promise) -> Plan {
    let seed = options.seed.unwrap_or_else(|| UnixMillis::now().0);
    println!("--seed {seed} repeats the choices of this run, not its timing");
    let program = std::env::current_exe().expect("a program knows where it is");
    let mut plan = Plan::new(seed, Duration::from_secs(options.secs), promise, program);
    if options.brisk {
        plan = plan.brisk();
    }
    plan.processes = options.processes.unwrap_or(plan.processes);
    plan.tasks = options.tasks.unwrap_or(plan.tasks);
    plan.keep = options.keep.clone();
    plan
}

fn is_kept<A: Arena>(arena: &A, faults: &[Fault<A>], plan: &Plan) -> bool {
    let outcome: Outcome = campaign::run(arena, faults, plan);
    println!("{outcome}");
    if !outcome.is_kept() {
        println!("BROKEN: {}", outcome.complaint());
    }
    outcome.is_kept()
}
