//! One key from locker to locker, against a message from client to client.
//!
//! A hop of the bare side is one `PUBLISH` and the arrival of its message, the fastest notification that this
//! server offers. Our side needs a release, the notification of the grant, and the work on the queue.

use std::ops::Range;

use crate::bench::Run;
use crate::client_thread::Home;
use crate::error::Error;
use crate::fleet::{Fleet, Turn};
use crate::redis::Site;
use crate::redis::pingpong::{Channels, Hop, PingPong};
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together_at};

/// The permits of a semaphore that several lockers share.
const PERMITS: u32 = 4;
const PERMIT_KEY: &str = "permits";

pub(crate) async fn measure(
    run: &Run<'_>,
    site: &Site,
    lockers: usize,
    turn: Turn,
) -> Result<Measure, Error> {
    let pingpong = ring(site, 0..2).await?;
    let fleet = Fleet::connect(lockers, || site.another_locker()).await?;
    let ours = async |lap| fleet.take_turns(lap, turn).await;
    let measured = interleave(run, ours, async |lap| pingpong.play(lap, Hop::Message).await).await;
    fleet.close().await;
    measured
}

/// The lockers share `PERMITS` permits of one key: elapsed time ÷ number of grants.
pub(crate) async fn permits(run: &Run<'_>, site: &Site, lockers: usize) -> Result<Measure, Error> {
    let pingpong = ring(site, 0..2).await?;
    let fleet = Fleet::connect(lockers, || site.another_locker()).await?;
    let ours = async |lap: Lap| {
        together_at(fleet.homes().iter().map(Home::runtime), |number| {
            let semaphore = fleet.lockers()[number].semaphore(PERMIT_KEY, PERMITS);
            let lap = lap.clone();
            async move {
                let mut grants = 0;
                while lap.goes_on() {
                    semaphore.acquire().await?.release().await?;
                    grants += 1;
                }
                Ok(grants)
            }
        })
        .await
    };
    let measured = interleave(run, ours, async |lap| pingpong.play(lap, Hop::Message).await).await;
    fleet.close().await;
    measured
}

/// The cost of two requests that only notify the next of `clients` clients, without any lock.
pub(crate) async fn least(run: &Run<'_>, site: &Site, clients: usize) -> Result<Measure, Error> {
    let (pingpong, many) = (ring(site, 0..2).await?, ring(site, 2..2 + clients).await?);
    let scripts = async |lap| many.play(lap, Hop::TwoScripts).await;
    interleave(run, scripts, async |lap| pingpong.play(lap, Hop::Message).await).await
}

pub(super) async fn ring(site: &Site, numbers: Range<usize>) -> Result<PingPong, Error> {
    let channels: Vec<_> = numbers.map(|number| site.bare_key(number)).collect();
    PingPong::connect(&site.url, &channels, Channels::Plain).await
}
