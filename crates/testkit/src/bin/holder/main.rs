//! `holder`: a program that takes locks, for tests that stop, continue and kill it.
//!
//! `holder hold` locks, holds and releases in a loop, and writes its history; `holder fork` proves
//! that a forked child has no say; `holder exit` leaves without releasing. Each prints one line per
//! state, so that a test can wait for it.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program: it talks to its test on stdout, and what is unexpected ends it"
)]

mod fork;
mod hold;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// A program that takes locks, for tests that stop, continue and kill it.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lock, hold, release, again and again.
    Hold(hold::Options),
    /// Lock, fork, and show that the child cannot release.
    Fork(Target),
    /// Lock, and exit without releasing.
    Exit(Exit),
}

/// What to lock where.
#[derive(Args, Clone)]
struct Target {
    /// The engine: `file:DIR`, `memory:` …
    #[arg(long)]
    url: String,
    /// What to lock; several to pick from by chance.
    #[arg(long = "key", required = true)]
    keys: Vec<String>,
}

#[derive(Args)]
struct Exit {
    #[command(flatten)]
    target: Target,
    /// The ttl of the lock that is left behind.
    #[arg(long, value_parser = duration, default_value = "30s")]
    ttl: Duration,
}

fn main() {
    match Cli::parse().command {
        Command::Hold(options) => runtime().block_on(hold::run(options)),
        Command::Fork(target) => fork::run(&target),
        Command::Exit(options) => runtime().block_on(exit(options)),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

async fn exit(options: Exit) {
    let Exit { target, ttl } = options;
    let locker = tenure::connect(&target.url).await.expect("the engine can be used");
    let guard = locker.lock(&target.keys[0]).ttl(ttl).await.expect("the lock is free");
    println!("held {}", guard.fence());
    // No destructor runs: whatever is freed now is freed by somebody else.
    std::process::exit(0);
}

/// Reads a duration such as `250ms`.
fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}
