//! The cost of keeping 10,000 leases of 30 s over three renewal periods.

use std::time::Instant;

use tenure::{Guard, Locker};
use tokio::task::JoinSet;

use crate::bench::Run;
use crate::error::Error;
use crate::report::Measure;
use crate::rounds::micros;
use crate::usage::cpu_time;

pub(crate) const LEASES: usize = 10_000;
/// The largest part of a core that keeping them may use.
pub(crate) const BAR: f64 = 0.03;
/// How many locks are requested or released at once.
const AT_ONCE: usize = 500;

/// Acquires all locks.
pub(crate) async fn take(run: &Run<'_>, locker: &Locker) -> Result<Vec<Guard>, Error> {
    let mut guards = Vec::with_capacity(LEASES);
    while guards.len() < LEASES {
        run.must_go_on()?;
        let mut tasks = JoinSet::new();
        for number in guards.len()..guards.len() + AT_ONCE {
            let locker = locker.clone();
            tasks.spawn(async move { locker.lock(format!("held:{number}")).await });
        }
        for guard in tasks.join_all().await {
            guards.push(guard?);
        }
    }
    Ok(guards)
}

/// The part of a core that keeping the locks uses.
pub(crate) async fn keep(run: &Run<'_>, guards: &[Guard]) -> Result<Measure, Error> {
    let (started, before) = (Instant::now(), cpu_time());
    run.sleep(run.size().hold()).await?;
    let (elapsed, used) = (started.elapsed(), cpu_time() - before);
    let (alive, all) = (guards.iter().filter(|guard| guard.is_held()).count(), guards.len());
    if alive != all {
        return Err(Error::surprise(format!("only {alive} of {all} leases were kept")));
    }
    Ok(Measure::Cpu { ours: micros(used) / elapsed.as_secs_f64() })
}

/// Releases all locks.
pub(crate) async fn give_back(guards: Vec<Guard>) -> Result<(), Error> {
    let mut guards = guards.into_iter();
    loop {
        let mut tasks = JoinSet::new();
        for guard in guards.by_ref().take(AT_ONCE) {
            tasks.spawn(guard.release());
        }
        if tasks.is_empty() {
            return Ok(());
        }
        for released in tasks.join_all().await {
            released?;
        }
    }
}
