//! 10,000 held leases of 30 s over three renewal periods: what keeping them costs.

use std::time::{Duration, Instant};

use crate::report::{Figure, Report};

const LEASES: usize = 10_000;
/// Three renewals of a ttl of 30 s.
const SPAN: Duration = Duration::from_secs(30);

pub async fn measure(report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    const NAME: &str = "held/10000";
    if !report.wants(NAME) {
        return Ok(());
    }
    let locker = tenure::connect("memory:held").await?;
    let mut guards = Vec::with_capacity(LEASES);
    for number in 0..LEASES {
        guards.push(locker.lock(format!("held:{number}")).await?);
    }
    let (started, before) = (Instant::now(), cpu_time());
    tokio::time::sleep(SPAN).await;
    let busy = (cpu_time() - before).as_secs_f64() / started.elapsed().as_secs_f64();
    let alive = guards.iter().filter(|guard| guard.is_held()).count();
    if alive != LEASES {
        return Err(format!("only {alive} of {LEASES} leases were kept").into());
    }
    report.add(Figure {
        name: NAME,
        ours: busy * 100.0,
        bare: None,
        unit: "% of a core",
        bar: 3.0,
    });
    Ok(())
}

/// What this process has used of the processor.
pub fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec as u32)
}
