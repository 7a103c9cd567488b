//! One key, 64 tasks, one process: against `tokio::sync::Mutex` under the same contention.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::report::{Figure, Report, median};

const TASKS: usize = 64;
const CYCLES: usize = 500;
const ROUNDS: usize = 15;

pub async fn measure(report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    const NAME: &str = "local/64";
    if !report.wants(NAME) {
        return Ok(());
    }
    let locker = tenure::connect("memory:bench").await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(contend_bare().await);
        ours.push(contend_ours(&locker).await?);
    }
    report.add(Figure {
        name: NAME,
        ours: median(ours),
        bare: Some(median(bare)),
        unit: "µs/cycle",
        bar: 10.0,
    });
    Ok(())
}

async fn contend_ours(locker: &tenure::Locker) -> Result<f64, tenure::Error> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let locker = locker.clone();
        tasks.spawn(async move {
            for _ in 0..CYCLES {
                locker.lock("hot").await?.release().await?;
            }
            Ok::<(), tenure::Error>(())
        });
    }
    for done in tasks.join_all().await {
        done?;
    }
    Ok(per_cycle(started))
}

async fn contend_bare() -> f64 {
    let (mutex, started) = (Arc::new(Mutex::new(0_u64)), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let mutex = mutex.clone();
        tasks.spawn(async move {
            for _ in 0..CYCLES {
                *mutex.lock().await += 1;
            }
        });
    }
    tasks.join_all().await;
    per_cycle(started)
}

fn per_cycle(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / (TASKS * CYCLES) as f64
}
