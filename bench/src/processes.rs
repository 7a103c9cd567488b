//! `file:` with ten waiting processes: what waiting costs, and how fast the lock changes hands.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tenure::time::{Clock, Time};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::report::{Figure, Report, median};

const WAITERS: usize = 10;
const SPAN: Duration = Duration::from_secs(10);
/// How long each holds the lock once they fight for it.
const HOLD: Duration = Duration::from_millis(5);

pub async fn measure(report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    if !report.wants("file/waiting/10") && !report.wants("file/handover/10") {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let url = format!("file:{}", dir.path().join("locks").display());
    let locker = tenure::connect(&url).await?;
    let guard = locker.lock("hot").await?;
    let mut waiters: Vec<Waiter> =
        (0..WAITERS).map(|_| Waiter::start(&url)).collect::<Result<_, _>>()?;
    for waiter in &mut waiters {
        waiter.line().await?;
    }
    report.add(waiting(&waiters).await?);
    guard.release().await?;
    report.add(handover(waiters).await?);
    Ok(())
}

/// What ten processes use that do nothing but wait.
async fn waiting(waiters: &[Waiter]) -> Result<Figure, Box<dyn std::error::Error>> {
    let (started, before) = (Instant::now(), used_by(waiters)?);
    tokio::time::sleep(SPAN).await;
    let busy = (used_by(waiters)? - before).as_secs_f64() / started.elapsed().as_secs_f64();
    Ok(Figure {
        name: "file/waiting/10",
        ours: busy * 100.0,
        bare: None,
        unit: "% of a core",
        bar: 1.0,
    })
}

/// The time from one process's release to another's acquire.
async fn handover(mut waiters: Vec<Waiter>) -> Result<Figure, Box<dyn std::error::Error>> {
    tokio::time::sleep(SPAN).await;
    let mut tenures = Vec::new();
    for waiter in &mut waiters {
        waiter.child.start_kill()?;
        while let Some(line) = waiter.lines.next_line().await? {
            tenures.extend(Tenure::parse(&line));
        }
    }
    tenures.sort_by_key(|tenure| tenure.acquired);
    let gaps = tenures.windows(2).map(|pair| pair[1].acquired.since(pair[0].released));
    let gaps: Vec<f64> = gaps.map(|gap| gap.as_secs_f64() * 1e3).collect();
    eprintln!("file/handover/10: {} hand-overs", gaps.len());
    Ok(Figure { name: "file/handover/10", ours: median(gaps), bare: None, unit: "ms", bar: 20.0 })
}

/// When one process had the lock.
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

/// One of the processes that fight: takes the lock, holds it for a moment, says when, again and again.
pub async fn contend(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (locker, clock) = (tenure::connect(url).await?, Clock::system());
    println!("ready");
    loop {
        let guard = locker.lock("hot").await?;
        let acquired = clock.now();
        tokio::time::sleep(HOLD).await;
        let released = clock.now();
        guard.release().await?;
        println!("{} {}", acquired.as_nanos(), released.as_nanos());
    }
}

struct Waiter {
    child: Child,
    lines: tokio::io::Lines<BufReader<ChildStdout>>,
}

impl Waiter {
    fn start(url: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--contender", url]).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        Ok(Waiter { child, lines })
    }

    async fn line(&mut self) -> Result<String, Box<dyn std::error::Error>> {
        self.lines.next_line().await?.ok_or_else(|| "a waiter ended".into())
    }
}

/// What all of them have used of the processors.
fn used_by(waiters: &[Waiter]) -> Result<Duration, Box<dyn std::error::Error>> {
    let pids = waiters.iter().filter_map(|waiter| waiter.child.id());
    pids.map(used_by_pid).sum()
}

/// The time on a processor of all threads, by the scheduler's own count.
fn used_by_pid(pid: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += stat.split_whitespace().next().ok_or("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}
