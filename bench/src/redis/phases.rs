//! Readers and a writer on one key, in turn: the time from the release that lets the other side in until it is in.
//!
//! The bare side is one `PUBLISH` and its arrival: at one client, as in `handover.rs`, or at the last of as many
//! clients as there are readers. On one machine the readers share its processors, also to wake up.

use std::time::{Duration, Instant};

use tenure::{Guard, HeldMode, Locker, ReadGuard};

use crate::bench::Run;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::redis::pingpong::{FanOut, Hop};
use crate::redis::{Site, handover};
use crate::report::{Figure, Measure};
use crate::rounds::{Lap, micros, quantiles, time};

pub(crate) const WRITER: &str = "handover/writer-after-readers";
pub(crate) const NOTIFIED: &str = "readers/8-notified";
const READERS: usize = 8;
const WRITER_BAR: f64 = 1.6;
const NOTIFIED_BAR: f64 = 2.0;
const KEY: &str = "phases";

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let fleet = Fleet::connect(READERS + 1, || site.another_locker()).await?;
    let measured = rounds(run, site, &fleet).await;
    fleet.close().await;
    measured
}

async fn rounds(run: &Run<'_>, site: &Site, fleet: &Fleet) -> Result<Vec<Figure>, Error> {
    let pingpong = handover::ring(site, 0..2).await?;
    let fan_out = FanOut::connect(&site.url, &[2, 3].map(|n| site.bare_key(n)), READERS).await?;
    let (mut hops, mut fans) = (Vec::new(), Vec::new());
    let (mut to_writer, mut to_readers) = (Vec::new(), Vec::new());
    let (mut readers, _) = granted_to(start_readers(fleet, KEY, READERS)).await?;
    // The first round establishes connections and loads scripts, and does not count.
    for round in 0..=run.rounds() {
        let mut bare = async |lap| pingpong.play(lap, Hop::Message).await;
        let hop = time(run, &mut bare).await?.took;
        let (lap, mut spans) = (Lap::new(run), Vec::new());
        while spans.is_empty() || lap.goes_on() {
            let (after, phases) = both_phases(site, fleet, readers).await?;
            readers = after;
            spans.push([phases[0], phases[1], fan_out.publish().await?].map(micros));
        }
        run.must_go_on()?;
        if round > 0 {
            hops.push(hop);
            to_writer.push(median(spans.iter().map(|span| span[0])));
            to_readers.push(median(spans.iter().map(|span| span[1])));
            fans.push(median(spans.iter().map(|span| span[2])));
        }
        run.tell(f64::from(round) / f64::from(run.rounds()));
    }
    let figure = |name, ours, bare, bar| {
        let measure = Measure::Span { ours: median(ours), bare: Some(median(bare)) };
        Figure { name, measure, bar }
    };
    Ok(vec![
        figure(WRITER, to_writer, hops, WRITER_BAR),
        figure(NOTIFIED, to_readers, fans, NOTIFIED_BAR),
    ])
}

fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    let [middle] = quantiles(samples.into_iter().collect(), [0.5]);
    middle
}

/// The readers hold the key and the writer waits; then the other way round. Returns the new guards of the readers,
/// and for both phases the time from the last release to the last grant.
async fn both_phases(
    site: &Site,
    fleet: &Fleet,
    readers: Vec<ReadGuard>,
) -> Result<(Vec<ReadGuard>, [Duration; 2]), Error> {
    let (writer, home) = (fleet.lockers()[READERS].clone(), &fleet.homes()[READERS]);
    let waiting = home.run(async move { at_once(writer.write(KEY).await?) });
    site.until_queued(KEY, 1).await?;
    let mut released = Instant::now();
    for (reader, home) in readers.into_iter().zip(fleet.homes()) {
        released = home.run(release(reader)).await?;
    }
    let (guard, granted): (Guard, _) = waiting.await?;
    let to_writer = granted - released;

    let waiting = start_readers(fleet, KEY, READERS);
    site.until_queued(KEY, READERS).await?;
    let released = home.run(release(guard)).await?;
    let (readers, granted) = granted_to(waiting).await?;
    Ok((readers, [to_writer, granted - released]))
}

fn at_once<G>(guard: G) -> Result<(G, Instant), Error> {
    Ok((guard, Instant::now()))
}

/// Releases a guard. Returns when that began.
pub(super) async fn release<M: HeldMode>(guard: Guard<M>) -> Result<Instant, Error> {
    let began = Instant::now();
    guard.release().await?;
    Ok(began)
}

/// Makes the first `count` clients read, each on its own thread.
pub(super) fn start_readers(
    fleet: &Fleet,
    key: &'static str,
    count: usize,
) -> Vec<impl Future<Output = Result<(ReadGuard, Instant), Error>> + Send + use<>> {
    let clients = fleet.homes().iter().zip(fleet.lockers()).take(count);
    let read = |locker: Locker| async move { at_once(locker.read(key).await?) };
    clients.map(|(home, locker)| home.run(read(locker.clone()))).collect()
}

/// Waits until all of them read. Returns their guards, in order, and the time of the last grant.
pub(super) async fn granted_to(
    readers: Vec<impl Future<Output = Result<(ReadGuard, Instant), Error>>>,
) -> Result<(Vec<ReadGuard>, Instant), Error> {
    let (mut guards, mut last) = (Vec::new(), None);
    for reading in readers {
        let (guard, at) = reading.await?;
        guards.push(guard);
        last = last.max(Some(at));
    }
    Ok((guards, last.unwrap_or_else(Instant::now)))
}
