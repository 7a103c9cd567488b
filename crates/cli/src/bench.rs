//! `tenure bench`: what a lock costs on this server, from this machine.
//!
//! In: the arguments. Out: one line per workload on stdout, or JSON. `one request` is what the network and the
//! server cost alone; the other figures are to be read beside it.

use std::pin::pin;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::Locker;
use tenure::time::UnixMillis;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::args::{BenchArgs, GlobalArgs};
use crate::error::CliError;
use crate::json::{SCHEMA, json};
use crate::target::{Target, runtime};
use crate::ui::{self, Ui};

/// How many tasks the workload of many tasks has.
const TASKS: usize = 64;
/// How long a waiter has to join the queue before the lock is released.
const QUEUED_WITHIN: Duration = Duration::from_millis(5);

/// The result of one workload.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    samples: usize,
    p50_us: u64,
    p99_us: u64,
    /// `None` where the workload waits on purpose.
    per_second: Option<u64>,
}

/// Runs the workloads one after the other and prints their figures.
pub(crate) fn bench(args: &BenchArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match measure(args.time, flags, ui) {
        Ok(figures) => {
            ui::data(&if args.json { as_json(&figures) } else { table(&figures) });
            0
        }
        Err(trouble) => ui.trouble(&trouble),
    }
}

fn measure(time: Duration, flags: &GlobalArgs, ui: &mut Ui) -> Result<Vec<Figure>, CliError> {
    let target = Target::find(flags)?;
    if target.is_memory() {
        return Err(CliError::usage("`memory:` has no server, and ends with this process"));
    }
    runtime()?.block_on(async {
        // Two lockers exclude each other like two processes.
        let lockers = [
            target.connect(ui, false).await?,
            target.configured().connect().await.map_err(|error| target.with_origin(&error))?,
        ];
        let key = format!("tenure-bench:{}:{}", std::process::id(), UnixMillis::now().0);
        let figures = LocalSet::new().run_until(workloads(&lockers, &key, time)).await;
        figures.map_err(|error| target.trouble(&error))
    })
}

async fn workloads(
    [one, other]: &[Locker; 2],
    key: &str,
    time: Duration,
) -> Result<Vec<Figure>, tenure::Error> {
    let request = repeat(time, async || one.inspect(key).await.map(drop)).await?;
    let alone = repeat(time, async || lock_and_release(one, key).await).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locker, key) = (one.clone(), format!("{key}:{task}"));
        tasks.spawn_local(async move {
            repeat(time, async || lock_and_release(&locker, &key).await).await
        });
    }
    let mut many = Vec::new();
    for samples in tasks.join_all().await {
        many.extend(samples?);
    }
    let handed_over = hand_over(one, other, key, time).await?;
    Ok(vec![
        Figure::of("one request", request, time),
        Figure::of("lock and release", alone, time),
        Figure::of("lock and release, 64 tasks with a key each", many, time),
        Figure {
            per_second: None,
            ..Figure::of("hand-over between two processes", handed_over, time)
        },
    ])
}

/// How long each run of `work` took, for about `time`. The first run, which connects, does not count.
async fn repeat(
    time: Duration,
    mut work: impl AsyncFnMut() -> Result<(), tenure::Error>,
) -> Result<Vec<Duration>, tenure::Error> {
    work().await?;
    let (start, mut samples) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let begun = Instant::now();
        work().await?;
        samples.push(begun.elapsed());
    }
    Ok(samples)
}

async fn lock_and_release(locker: &Locker, key: &str) -> Result<(), tenure::Error> {
    locker.lock(key).await?.release().await.map(drop)
}

/// How long it took from the start of each release until the other locker, which waited, held the lock.
async fn hand_over(
    one: &Locker,
    other: &Locker,
    key: &str,
    time: Duration,
) -> Result<Vec<Duration>, tenure::Error> {
    let (start, mut samples, mut lockers) = (Instant::now(), Vec::new(), [one, other]);
    let mut guard = one.lock(key).await?;
    while start.elapsed() < time {
        lockers.swap(0, 1);
        let mut next = pin!(lockers[0].lock(key).into_future());
        let queued = timeout(QUEUED_WITHIN, &mut next).await;
        if let Ok(early) = queued {
            // Ours has ended meanwhile: nothing was handed over.
            guard = early?;
            continue;
        }
        let released = Instant::now();
        let next = async {
            let next = next.await;
            (next, released.elapsed())
        };
        let (released, (next, took)) = tokio::join!(guard.release(), next);
        released?;
        guard = next?;
        samples.push(took);
    }
    guard.release().await?;
    Ok(samples)
}

impl Figure {
    fn of(name: &'static str, mut samples: Vec<Duration>, time: Duration) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let found = samples.get(samples.len().saturating_sub(1) * percent / 100);
            found.map_or(0, |sample| u64::try_from(sample.as_micros()).unwrap_or(u64::MAX))
        };
        let per_second = Some((samples.len() as f64 / time.as_secs_f64()) as u64);
        Figure { name, samples: samples.len(), p50_us: at(50), p99_us: at(99), per_second }
    }
}

fn as_json(figures: &[Figure]) -> String {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: u32,
        figures: &'a [Figure],
    }
    json(&Report { schema: SCHEMA, figures })
}

fn table(figures: &[Figure]) -> String {
    let head = format!("{:<44}{:>10}{:>10}{:>12}\n", "WHAT", "P50", "P99", "PER SECOND");
    let rows = figures.iter().map(|figure| {
        let Figure { name, p50_us, p99_us, per_second, .. } = figure;
        let per_second = per_second.map_or("-".into(), |count| count.to_string());
        format!("{name:<44}{:>10}{:>10}{per_second:>12}\n", shown(*p50_us), shown(*p99_us))
    });
    std::iter::once(head).chain(rows).collect()
}

fn shown(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{micros} µs"),
        _ => format!("{} ms", micros / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns are aligned, and the percentiles are those of the samples.
    #[test]
    fn table_in_full() {
        let samples = (1..=100).rev().map(Duration::from_micros).collect();
        let slow = vec![Duration::from_millis(12)];
        let figures = [
            Figure::of("lock and release", samples, Duration::from_secs(2)),
            Figure { per_second: None, ..Figure::of("hand-over", slow, Duration::from_secs(1)) },
            Figure::of("nothing", vec![], Duration::from_secs(1)),
        ];
        assert_eq!(
            table(&figures),
            "\
WHAT                                               P50       P99  PER SECOND
lock and release                                 50 µs     99 µs          50
hand-over                                        12 ms     12 ms           -
nothing                                           0 µs      0 µs           0
"
        );
        assert!(as_json(&figures[..1]).contains("\"samples\":100,\"p50_us\":50,\"p99_us\":99"));
    }
}
