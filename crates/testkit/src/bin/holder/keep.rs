//! `holder keep`: acquires many locks, keeps them while threads of this process use the processors, and says how
//! many were lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tenure::{Guard, Locker};
use tenure_testkit::wait::lapse;

/// How many locks are requested at the same time.
const AT_ONCE: usize = 500;

#[derive(Args)]
pub(crate) struct Options {
    /// The URL of the engine.
    #[arg(long)]
    url: String,
    /// How many leases to keep.
    #[arg(long, default_value = "20000")]
    leases: usize,
    /// The ttl of each.
    #[arg(long, value_parser = super::duration, default_value = "5s")]
    ttl: Duration,
    /// How long to keep them.
    #[arg(long = "for", value_parser = super::duration, default_value = "60s")]
    period: Duration,
    /// How many threads compute all the time meanwhile.
    #[arg(long, default_value = "0")]
    busy: usize,
}

pub(crate) async fn run(options: Options) {
    let Options { url, leases, ttl, period, busy } = options;
    let locker = tenure::connect(&url).await.expect("the engine can be used");
    let guards = acquire(&locker, leases, ttl).await;
    report(&guards, "acquired");
    let load = Load::start(busy);
    let (start, step) = (Instant::now(), period / 6);
    while start.elapsed() < period {
        lapse(step).await;
        report(&guards, &format!("after {:.0?}", start.elapsed()));
    }
    drop((load, guards));
    locker.shutdown(Duration::from_secs(30)).await;
    println!("shut down, {} MB", resident());
}

async fn acquire(locker: &Locker, leases: usize, ttl: Duration) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(leases);
    while guards.len() < leases {
        let many = AT_ONCE.min(leases - guards.len());
        let ask =
            |number| tokio::spawn(locker.lock(format!("kept:{number}")).ttl(ttl).into_future());
        let tasks: Vec<_> = (guards.len()..guards.len() + many).map(ask).collect();
        for task in tasks {
            guards.push(task.await.expect("no panic").expect("the lock is free"));
        }
    }
    guards
}

fn report(guards: &[Guard], when: &str) {
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    println!("{when}: {lost} of {} lost, {} MB", guards.len(), resident());
}

/// Threads that compute until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start(threads: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let over = over.clone();
            std::thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        }
        Load(over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The resident memory of this process, in megabytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}
