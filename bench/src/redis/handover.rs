//! One key from locker to locker, against a message from client to client.
//!
//! A hop of the bare side is one `PUBLISH` and its arrival: nobody can be told anything by this server
//! in less. Ours is a release, the news of the grant, and whatever the queue costs the server.

use std::ops::Range;

use crate::bench::Run;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::redis::Site;
use crate::redis::pingpong::{Channels, Hop, PingPong};
use crate::report::Measure;
use crate::rounds::interleave;

/// From the design's table of figures.
pub(crate) const BAR: f64 = 1.3;

pub(crate) async fn measure(run: &Run<'_>, site: &Site, lockers: usize) -> Result<Measure, Error> {
    let pingpong = ring(site, 0..2).await?;
    let fleet = Fleet::connect(lockers, || site.another_locker()).await?;
    let ours = async |lap| fleet.pass_round(lap).await;
    let measured = interleave(run, ours, async |lap| pingpong.play(lap, Hop::Message).await).await;
    fleet.close().await;
    measured
}

/// What two requests cost that do nothing but tell the next of so many clients, before there is a lock.
pub(crate) async fn least(run: &Run<'_>, site: &Site, clients: usize) -> Result<Measure, Error> {
    let (pingpong, many) = (ring(site, 0..2).await?, ring(site, 2..2 + clients).await?);
    let scripts = async |lap| many.play(lap, Hop::TwoScripts).await;
    interleave(run, scripts, async |lap| pingpong.play(lap, Hop::Message).await).await
}

async fn ring(site: &Site, numbers: Range<usize>) -> Result<PingPong, Error> {
    let channels: Vec<_> = numbers.map(|number| site.bare_key(number)).collect();
    PingPong::connect(&site.url, &channels, Channels::Plain).await
}
