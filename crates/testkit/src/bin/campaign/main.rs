//! `campaign`: processes that compete for locks under random faults, with a verdict.
//!
//! `campaign run` starts a server, the faults and the contenders, prints the figures, and exits with 1 if a
//! promise was broken. `campaign contend` is one contender; `run` starts it.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program: it prints its figures, and what is unexpected ends it"
)]

mod contend;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tenure_core::time::UnixMillis;
use tenure_testkit::campaign::{
    self, ClusterTarget, Elsewhere, EtcdTarget, Fault, Outcome, Pace, Plan, Promise, QuorumTarget,
    RedisTarget, SentinelTarget, Target,
};

/// Processes that compete for locks under random faults, with a verdict.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a campaign and judge it.
    Run(Run),
    /// Run one contender.
    Contend(contend::Options),
}

#[derive(Args)]
struct Run {
    /// The seed of all random choices; by default the current time.
    #[arg(long)]
    seed: Option<u64>,
    /// How long faults are injected, in seconds.
    #[arg(long, default_value_t = 60)]
    secs: u64,
    /// The number of processes that compete at the same time.
    #[arg(long)]
    processes: Option<usize>,
    /// The number of tasks in each process.
    #[arg(long)]
    tasks: Option<usize>,
    /// Hold for no time and inject faults less often, for as many hand-overs as possible. Unless set
    /// otherwise: eight processes with one task each, on two keys.
    #[arg(long)]
    brisk: bool,
    /// Also read and take permits, if the engine has them, on all keys but the first; lock several keys with one
    /// request; and elect a leader for one more key.
    #[arg(long)]
    mixed: bool,
    /// The engine whose servers are started and get the faults.
    #[arg(long, default_value = "redis", conflicts_with = "url")]
    backend: Engine,
    /// Use this server, of any engine, instead of starting one. Then only contenders get faults.
    #[arg(long, conflicts_with = "kind")]
    url: Option<String>,
    /// The kind of faults; by default all kinds, one after another.
    kind: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// One server.
    Redis,
    /// A master, its replicas and their Sentinels. The faults are failovers, which can destroy data.
    Sentinel,
    /// Five servers that vote.
    Quorum,
    /// Three masters with a replica each. The faults are failovers and moving slots.
    Cluster,
    /// Three members.
    Etcd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Faults that keep the server's data.
    Keep,
    /// A leader that is paused for longer than the ttl of leases (etcd only). Versions with a known bug then
    /// lose leases: two owners may hold one key, and the order of fences must hold.
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

/// Returns whether every promise was kept.
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
            is_kept(&RedisTarget::persistent(), &RedisTarget::KEEP, &plan)
        }
        Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&RedisTarget::forgetful(), &RedisTarget::DESTROY, &plan(Promise::Order))
        }
    }
}

fn on_sentinel(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep | Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&SentinelTarget::start(), &SentinelTarget::FAULTS, &plan(Promise::Order))
        }
    }
}

fn on_quorum(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep => {
            let plan = plan(Promise::Everything).at(Pace::quarantined());
            is_kept(&QuorumTarget::persistent(), &QuorumTarget::KEEP, &plan)
        }
        Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&QuorumTarget::trusted(), &QuorumTarget::DESTROY, &plan(Promise::Order))
        }
    }
}

fn on_cluster(options: &Run, kind: Kind) -> bool {
    let plan = |promise| plan(options, promise);
    match kind {
        Kind::Keep => {
            is_kept(&ClusterTarget::start(), &ClusterTarget::KEEP, &plan(Promise::Everything))
        }
        Kind::Stall => has_none(options),
        Kind::Destroy => {
            is_kept(&ClusterTarget::start(), &ClusterTarget::DESTROY, &plan(Promise::Order))
        }
    }
}

fn on_etcd(options: &Run, kind: Kind) -> bool {
    let target = EtcdTarget::start();
    let plan = |promise| plan(options, promise).at(Pace::slow());
    match kind {
        Kind::Keep => is_kept(&target, &EtcdTarget::KEEP, &plan(Promise::Everything)),
        Kind::Stall => {
            let kept = is_kept(&target, &EtcdTarget::STALL, &plan(target.stalled()));
            let revoked = target.wrongly_revoked();
            println!("{revoked} leases revoked by members that did not lead (etcd issue 15247)");
            kept
        }
        Kind::Destroy => is_kept(&target, &EtcdTarget::DESTROY, &plan(Promise::Order)),
    }
}

/// This engine has no faults of this kind. That is a failure if the user asked for the kind.
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
    if options.mixed {
        plan = plan.mixed();
    }
    plan.processes = options.processes.unwrap_or(plan.processes);
    plan.tasks = options.tasks.unwrap_or(plan.tasks);
    plan
}

fn is_kept<A: Target>(target: &A, faults: &[Fault<A>], plan: &Plan) -> bool {
    let outcome: Outcome = campaign::run(target, faults, plan);
    println!("{outcome}");
    if !outcome.is_kept() {
        println!("BROKEN: {}", outcome.complaint());
    }
    outcome.is_kept()
}
