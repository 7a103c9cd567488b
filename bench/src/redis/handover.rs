//! One key from locker to locker, against a message from client to client.
//!
//! A hop of the bare side is one `PUBLISH` and its arrival: nobody can be told anything by this server
//! in less. Ours is a release, the news of the grant, and whatever the queue costs the server.

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
    let channels = [site.bare_key(0), site.bare_key(1)];
    let pingpong = PingPong::connect(&site.url, channels, Channels::Plain).await?;
    let fleet = Fleet::connect(lockers, || site.another_locker()).await?;
    let ours = async |lap| fleet.pass_round(lap).await;
    let measured = interleave(run, ours, async |lap| pingpong.play(lap, Hop::Message).await).await;
    fleet.close().await;
    measured
}

/// What two requests cost that do nothing but tell the other, before there is a lock.
pub(crate) async fn least(run: &Run<'_>, site: &Site) -> Result<Measure, Error> {
    let channels = [site.bare_key(0), site.bare_key(1)];
    let pingpong = PingPong::connect(&site.url, channels, Channels::Plain).await?;
    let scripts = async |lap| pingpong.play(lap, Hop::TwoScripts).await;
    interleave(run, scripts, async |lap| pingpong.play(lap, Hop::Message).await).await
}
