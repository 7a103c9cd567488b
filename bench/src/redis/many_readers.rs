//! 200 readers behind a writer: the longest script that serves them, and the time until all of them read.
//!
//! The server's slow log tells how long each script took. It is told to log more while this runs, and then what it
//! logged before. A server that refuses this has no such figures.

use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::bench::Run;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::redis::Site;
use crate::redis::phases::{granted_to, release, start_readers};
use crate::report::{Figure, Measure, NO_BAR};
use crate::rounds::{micros, quantiles};

pub(crate) const LONGEST: &str = "readers/200-behind-a-writer";
pub(crate) const ALL: &str = "readers/200-notified";
const READERS: usize = 200;
/// In microseconds: no script may keep the server from others for longer.
const BAR: f64 = 2_000.0;
const KEY: &str = "many-readers";
/// Scripts that take so many microseconds are logged: few others do.
const LOGGED: i64 = 100;
/// The last entries of the log that are read: each batch of readers takes one.
const ENTRIES: usize = 128;
const SETTING: &str = "slowlog-log-slower-than";

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let mut connection = site.bare.connection();
    let Ok(before) = threshold(&mut connection).await else { return Ok(Vec::new()) };
    let fleet = Fleet::connect(READERS + 1, || site.another_locker()).await?;
    set_threshold(&mut connection, LOGGED).await?;
    let measured = rounds(run, site, &fleet, &mut connection).await;
    fleet.close().await;
    set_threshold(&mut connection, before).await?;
    let (scripts, all) = measured?;
    let figure = |name, samples, bar| {
        let [ours] = quantiles(samples, [0.5]);
        Figure { name, measure: Measure::Span { ours, bare: None }, bar }
    };
    Ok(vec![figure(LONGEST, scripts, BAR), figure(ALL, all, NO_BAR)])
}

/// The longest script of each round, and the time until all readers read.
async fn rounds(
    run: &Run<'_>,
    site: &Site,
    fleet: &Fleet,
    connection: &mut MultiplexedConnection,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let (mut scripts, mut all) = (Vec::new(), Vec::new());
    // The first round establishes connections and loads scripts, and does not count.
    for round in 0..=run.rounds() {
        run.must_go_on()?;
        let (writer, home) = (fleet.lockers()[READERS].clone(), &fleet.homes()[READERS]);
        let guard = home.run(async move { Ok(writer.write(KEY).await?) }).await?;
        let waiting = start_readers(fleet, KEY, READERS);
        site.until_queued(KEY, READERS).await?;
        let mark = next_entry(connection).await?;
        let released = home.run(release(guard)).await?;
        let (guards, granted) = granted_to(waiting).await?;
        let longest = longest(connection, mark).await?;
        for (guard, home) in guards.into_iter().zip(fleet.homes()) {
            home.run(release(guard)).await?;
        }
        if round > 0 {
            scripts.push(longest);
            all.push(micros(granted - released));
        }
        run.tell(f64::from(round) / f64::from(run.rounds()));
    }
    Ok((scripts, all))
}

async fn threshold(connection: &mut MultiplexedConnection) -> Result<i64, Error> {
    let mut get = redis::cmd("CONFIG");
    let (_, value): (String, String) = get.arg("GET").arg(SETTING).query_async(connection).await?;
    value.parse().map_err(|_| Error::surprise("the threshold of the slow log is not a number"))
}

async fn set_threshold(connection: &mut MultiplexedConnection, micros: i64) -> Result<(), Error> {
    let mut set = redis::cmd("CONFIG");
    Ok(set.arg("SET").arg(SETTING).arg(micros).exec_async(connection).await?)
}

/// An entry of the slow log: its number, when and how long in microseconds, the command, and its client.
type Logged = (u64, i64, u64, Vec<Vec<u8>>, Value, Value);

async fn log(connection: &mut MultiplexedConnection, entries: usize) -> Result<Vec<Logged>, Error> {
    Ok(redis::cmd("SLOWLOG").arg("GET").arg(entries).query_async(connection).await?)
}

/// The number of the next entry.
async fn next_entry(connection: &mut MultiplexedConnection) -> Result<u64, Error> {
    Ok(log(connection, 1).await?.first().map_or(0, |last| last.0 + 1))
}

/// The longest script that was logged since `first`, in microseconds; [`LOGGED`] if there is none.
async fn longest(connection: &mut MultiplexedConnection, first: u64) -> Result<f64, Error> {
    let is_script = |command: &[Vec<u8>]| {
        command.first().is_some_and(|name| name.to_ascii_uppercase().starts_with(b"EVAL"))
    };
    let entries = log(connection, ENTRIES).await?;
    let scripts = entries.iter().filter(|entry| entry.0 >= first && is_script(&entry.3));
    Ok(scripts.map(|entry| entry.2).max().unwrap_or(LOGGED as u64) as f64)
}
