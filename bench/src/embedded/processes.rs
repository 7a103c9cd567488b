//! `file:` with ten waiting processes: the cost of waiting, and the time of a hand-over.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tenure::time::{Clock, Time};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::bench::Run;
use crate::error::Error;
use crate::report::{Figure, Measure};
use crate::rounds::{micros, quantiles};
use crate::usage::cpu_time_of;

pub(crate) const WAITING: &str = "file/waiting/10";
pub(crate) const HANDOVER: &str = "file/handover/10";
const WAITERS: usize = 10;
/// The largest part of a core that ten waiters may use.
const WAITING_BAR: f64 = 0.01;
/// The longest time that a hand-over may take, in µs.
const HANDOVER_BAR: f64 = 20_000.0;
/// How long each process holds the lock when they compete.
const HOLD: Duration = Duration::from_millis(5);

pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Figure>, Error> {
    let dir = tempfile::tempdir()?;
    let url = format!("file:{}", dir.path().join("locks").display());
    let locker = tenure::connect(&url).await?;
    let guard = locker.lock("hot").await?;
    let mut waiters: Vec<Waiter> =
        (0..WAITERS).map(|_| Waiter::start(&url)).collect::<Result<_, _>>()?;
    for waiter in &mut waiters {
        waiter.line().await?;
    }
    let waiting = waiting(run, &waiters).await?;
    guard.release().await?;
    let handover = handover(run, waiters).await?;
    Ok(vec![
        Figure { name: WAITING, measure: waiting, bar: WAITING_BAR },
        Figure { name: HANDOVER, measure: handover, bar: HANDOVER_BAR },
    ])
}

/// The processor time of ten processes that only wait.
async fn waiting(run: &Run<'_>, waiters: &[Waiter]) -> Result<Measure, Error> {
    let (started, before) = (Instant::now(), used_by(waiters)?);
    run.sleep(run.size().fight()).await?;
    let used = used_by(waiters)? - before;
    Ok(Measure::Cpu { ours: micros(used) / started.elapsed().as_secs_f64() })
}

/// The time from one process's release to another's acquire.
async fn handover(run: &Run<'_>, mut waiters: Vec<Waiter>) -> Result<Measure, Error> {
    run.sleep(run.size().fight()).await?;
    let mut tenures = Vec::new();
    for waiter in &mut waiters {
        waiter.child.start_kill()?;
        while let Some(line) = waiter.lines.next_line().await? {
            tenures.extend(Tenure::parse(&line));
        }
    }
    tenures.sort_by_key(|tenure| tenure.acquired);
    let gaps = tenures.windows(2).map(|pair| pair[1].acquired.since(pair[0].released));
    let [ours] = quantiles(gaps.map(micros).collect(), [0.5]);
    Ok(Measure::Span { ours, bare: None })
}

/// The times at which one process acquired and released the lock.
struct Tenure {
    acquired: Time,
    released: Time,
}

impl Tenure {
    fn parse(line: &str) -> Option<Self> {
        let (acquired, released) = line.split_once(' ')?;
        let time = |text: &str| text.parse().ok().map(Time::from_nanos);
        Some(Tenure { acquired: time(acquired)?, released: time(released)? })
    }
}

/// One of the competing processes: acquires the lock, holds it for a moment, prints the times, and repeats.
/// The bench starts these processes with `--contender URL`.
///
/// # Errors
///
/// The error that ended it; usually the end of the bench.
pub async fn contend(url: &str) -> Result<(), Error> {
    let (locker, clock) = (tenure::connect(url).await?, Clock::system());
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    loop {
        let guard = locker.lock("hot").await?;
        let acquired = clock.now();
        tokio::time::sleep(HOLD).await;
        let released = clock.now();
        guard.release().await?;
        writeln!(out, "{} {}", acquired.as_nanos(), released.as_nanos())?;
    }
}

struct Waiter {
    child: Child,
    lines: tokio::io::Lines<BufReader<ChildStdout>>,
}

impl Waiter {
    fn start(url: &str) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--contender", url]).stdout(Stdio::piped()).kill_on_drop(true);
        // The bench handles Ctrl-C and ends the processes itself.
        let mut child = command.process_group(0).spawn()?;
        let out = child.stdout.take().ok_or_else(|| Error::surprise("a waiter says nothing"))?;
        Ok(Waiter { child, lines: BufReader::new(out).lines() })
    }

    async fn line(&mut self) -> Result<String, Error> {
        self.lines.next_line().await?.ok_or_else(|| Error::surprise("a waiter ended"))
    }
}

/// The processor time of all waiters.
fn used_by(waiters: &[Waiter]) -> Result<Duration, Error> {
    waiters.iter().filter_map(|waiter| waiter.child.id()).map(cpu_time_of).sum()
}
