//! `holder`: a program that acquires locks, for tests that stop, continue and kill it.
//!
//! `holder hold` locks, holds and releases in a loop, and writes its history; `holder fork` shows that a
//! forked child cannot free the parent's locks; `holder exit` exits without releasing; `holder keep` measures
//! how many leases one process can keep. Each prints one line per state, so that a test can wait for it.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program: it talks to its test on stdout, and what is unexpected ends it"
)]

mod fork;
mod hold;
mod keep;

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// A program that acquires locks, for tests that stop, continue and kill it.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lock, hold and release in a loop.
    Hold(hold::Options),
    /// Lock, fork, and show that the child cannot release.
    Fork(Target),
    /// Lock, and exit without releasing.
    Exit(Exit),
    /// Acquire many locks, keep them, and count the losses.
    Keep(keep::Options),
}

/// The keys to lock, and the engine.
#[derive(Args, Clone)]
struct Target {
    /// The URL of the engine: `file:DIR`, `memory:` …
    #[arg(long)]
    url: String,
    /// A key to lock; with several keys, each round picks one at random.
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
        Command::Keep(options) => runtime().block_on(keep::run(options)),
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
    // `exit` runs no destructor, so this process releases nothing.
    std::process::exit(0);
}

/// Reads a duration such as `250ms`.
fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}
