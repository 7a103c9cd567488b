//! Comparison with the locks of etcd itself: `etcdctl lock`, and the mutex of its Go client.
//!
//! Each is measured only if it is available: `etcdctl` if it is installed and `tenure` is built, the mutex if
//! `go` is installed and its modules can be fetched. The program for the mutex is in `bench/peers`, and
//! measures itself.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tokio::process::Command;

use crate::bench::Run;
use crate::error::Error;
use crate::etcd::Site;
use crate::fleet::Fleet;
use crate::report::{Figure, Measure};
use crate::rounds::{Lap, micros, quantiles};

pub(crate) const COMMAND: &str = "etcdctl/lock";
pub(crate) const CYCLE: &str = "go/uncontended/1";
pub(crate) const HANDOVER: &str = "go/handover/8";
const CLIENTS: usize = 8;
/// How often both sides are measured in turn.
const STRETCHES: u32 = 5;
/// We may not be slower than the other side.
const BAR: f64 = 1.0;
const GO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// A command under a lock: `tenure run` of the same build against `etcdctl lock`.
pub(crate) async fn command(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let tenure = std::env::current_exe()?.with_file_name("tenure");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for number in 0..run.rounds() {
        run.must_go_on()?;
        run.tell(f64::from(number) / f64::from(run.rounds()));
        let args =
            ["run", "-q", "-u", &site.url, "--prefix", &site.prefix, "command", "--", "true"];
        let Some(took) = time(&tenure, &args).await? else { return Ok(vec![]) };
        ours.push(took);
        let (endpoint, name) = (site.endpoint(), site.bare_key(0));
        let args = ["--endpoints", &endpoint, "lock", &name, "true"];
        let Some(took) = time(Path::new("etcdctl"), &args).await? else { return Ok(vec![]) };
        theirs.push(took);
    }
    Ok(vec![figure(COMMAND, ours, theirs)])
}

/// How long a program takes, in µs; `None` if it does not exist or fails.
async fn time(program: &Path, args: &[&str]) -> Result<Option<f64>, Error> {
    let started = Instant::now();
    match Command::new(program).args(args).output().await {
        Ok(done) if done.status.success() => Ok(Some(micros(started.elapsed()))),
        _ => Ok(None),
    }
}

/// The mutex of etcd's Go client: one client alone, and eight clients in turns.
pub(crate) async fn mutex(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let place = tempfile::tempdir()?;
    let Some(program) = build(place.path()).await? else { return Ok(vec![]) };
    let fleet = Fleet::connect(CLIENTS, || site.another_locker()).await?;
    let measured = stretches(run, site, &fleet, &program).await;
    fleet.close().await;
    let [cycle, handover] = measured?;
    Ok(vec![figure(CYCLE, cycle.0, cycle.1), figure(HANDOVER, handover.0, handover.1)])
}

async fn build(place: &Path) -> Result<Option<PathBuf>, Error> {
    let program = place.join("mutex");
    let built = Command::new("go").args(["build", "-o"]).arg(&program).current_dir(GO).output();
    Ok(built.await.is_ok_and(|built| built.status.success()).then_some(program))
}

/// The times of our side and of theirs, in µs per turn.
type Sides = (Vec<f64>, Vec<f64>);

async fn stretches(
    run: &Run<'_>,
    site: &Site,
    fleet: &Fleet,
    program: &Path,
) -> Result<[Sides; 2], Error> {
    let mut sides = [Sides::default(), Sides::default()];
    // The first stretch establishes connections, and does not count.
    for stretch in 0..=STRETCHES {
        run.tell(f64::from(stretch) / f64::from(STRETCHES));
        let alone = per_turn(run, async |lap| super::uncontended::ours(site, 1, lap).await).await?;
        let alone = (alone, theirs(run, site, program, 1).await?);
        let turns = per_turn(run, async |lap| fleet.pass_round(lap).await).await?;
        let turns = (turns, theirs(run, site, program, CLIENTS).await?);
        if stretch > 0 {
            for (side, (ours, theirs)) in sides.iter_mut().zip([alone, turns]) {
                side.0.push(ours);
                side.1.push(theirs);
            }
        }
    }
    Ok(sides)
}

async fn per_turn(
    run: &Run<'_>,
    ours: impl AsyncFn(Lap) -> Result<u64, Error>,
) -> Result<f64, Error> {
    let started = Instant::now();
    let turns = ours(Lap::lasting(run, run.size().fight() / STRETCHES / 2)).await?;
    run.must_go_on()?;
    Ok(micros(started.elapsed()) / turns.max(1) as f64)
}

async fn theirs(run: &Run<'_>, site: &Site, program: &Path, clients: usize) -> Result<f64, Error> {
    let millis = (run.size().fight() / STRETCHES / 2).as_millis().to_string();
    let (endpoint, prefix) = (site.endpoint(), site.bare_key(clients));
    let args = [endpoint, prefix, clients.to_string(), millis];
    let done = Command::new(program).args(args).output().await?;
    let said = String::from_utf8_lossy(&done.stdout).trim().parse();
    said.map_err(|_| Error::surprise(String::from_utf8_lossy(&done.stderr)))
}

fn figure(name: &'static str, ours: Vec<f64>, theirs: Vec<f64>) -> Figure {
    let [ours] = quantiles(ours, [0.5]);
    let [theirs] = quantiles(theirs, [0.5]);
    Figure { name, measure: Measure::Span { ours, bare: Some(theirs) }, bar: BAR }
}
