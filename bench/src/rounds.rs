//! Interleaved rounds of two sides.
//!
//! In: a function that runs our side for a while, and one for the bare side. Out: the time of a cycle of
//! each, as medians, and the spread of the rounds.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bench::Run;
use crate::error::Error;
use crate::report::{Cycle, Measure};
use crate::usage::cpu_time;

/// A lap this long without a finished cycle is a failure.
const LONGEST_LAP: Duration = Duration::from_secs(2);

/// How long a side runs in one round, and whether it still does.
#[derive(Clone, Debug)]
pub(crate) struct Lap {
    until: Instant,
    stop: CancellationToken,
}

impl Lap {
    pub(crate) fn new(run: &Run<'_>) -> Self {
        Lap::lasting(run, run.size().lap())
    }

    pub(crate) fn lasting(run: &Run<'_>, span: Duration) -> Self {
        Lap { until: Instant::now() + span, stop: run.stop().clone() }
    }

    pub(crate) fn goes_on(&self) -> bool {
        Instant::now() < self.until && !self.stop.is_cancelled()
    }
}

/// Runs both sides in turn, and returns the time of a cycle of each. A side runs for a [`Lap`] and returns
/// its number of cycles.
pub(crate) async fn interleave(
    run: &Run<'_>,
    mut ours: impl AsyncFnMut(Lap) -> Result<u64, Error>,
    mut bare: impl AsyncFnMut(Lap) -> Result<u64, Error>,
) -> Result<Measure, Error> {
    let (mut our, mut base) = (Vec::new(), Vec::new());
    // The first round establishes connections, loads scripts and fills caches, and does not count.
    for round in 0..=run.rounds() {
        // The sides alternate in going first, so that a drift does not favour one of them.
        let bare_first = round % 2 == 0;
        let early = if bare_first { Some(time(run, &mut bare).await?) } else { None };
        let ours = time(run, &mut ours).await?;
        let bare = match early {
            Some(bare) => bare,
            None => time(run, &mut bare).await?,
        };
        if round > 0 {
            our.push(ours);
            base.push(bare);
        }
        run.tell(f64::from(round) / f64::from(run.rounds()));
    }
    let ratios = our.iter().zip(&base).map(|(ours, bare)| ours.took / bare.took).collect();
    let [low, high] = quantiles(ratios, [0.25, 0.75]);
    Ok(Measure::Time { ours: Cycle::median(&our), bare: Cycle::median(&base), spread: (low, high) })
}

impl Cycle {
    fn median(laps: &[Cycle]) -> Self {
        let median = |field: fn(&Cycle) -> f64| {
            let [middle] = quantiles(laps.iter().map(field).collect(), [0.5]);
            middle
        };
        Cycle { took: median(|lap| lap.took), cpu: median(|lap| lap.cpu) }
    }
}

/// One lap. A lap without a finished cycle is repeated with twice the length: on a busy machine a short lap
/// can be over before its tasks have run.
pub(crate) async fn time(
    run: &Run<'_>,
    side: &mut impl AsyncFnMut(Lap) -> Result<u64, Error>,
) -> Result<Cycle, Error> {
    let mut span = run.size().lap();
    loop {
        let (started, before) = (Instant::now(), cpu_time());
        let cycles = side(Lap::lasting(run, span)).await? as f64;
        let (took, used) = (started.elapsed(), cpu_time() - before);
        run.must_go_on()?;
        if cycles > 0.0 {
            return Ok(Cycle { took: micros(took) / cycles, cpu: micros(used) / cycles });
        }
        if span > LONGEST_LAP {
            return Err(Error::surprise("not one cycle was done"));
        }
        span *= 2;
    }
}

/// Runs `count` tasks at once, and adds up their cycles.
pub(crate) async fn together<F>(count: usize, task: impl Fn(usize) -> F) -> Result<u64, Error>
where
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let here = Handle::current();
    together_at(std::iter::repeat_n(&here, count), task).await
}

/// Runs one task on each of these runtimes, and adds up their cycles.
pub(crate) async fn together_at<'a, F>(
    places: impl IntoIterator<Item = &'a Handle>,
    task: impl Fn(usize) -> F,
) -> Result<u64, Error>
where
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (number, place) in places.into_iter().enumerate() {
        tasks.spawn_on(task(number), place);
    }
    tasks.join_all().await.into_iter().sum()
}

/// The quantiles of the samples at `parts`, each from 0 to 1.
pub(crate) fn quantiles<const N: usize>(mut samples: Vec<f64>, parts: [f64; N]) -> [f64; N] {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1) as f64;
    parts.map(|part| samples.get((last * part).round() as usize).copied().unwrap_or(f64::NAN))
}

pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
