//! `#[lock]` against the same call written by hand.

use std::time::Duration;

use tenure::Locker;

use crate::bench::Run;
use crate::error::Error;
use crate::report::Figure;
use crate::rounds::{Lap, interleave};

pub(crate) const NAME: &str = "macro/1";
const BAR: f64 = 1.05;
const TTL: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(50);

pub(crate) async fn measure(run: &Run<'_>) -> Result<Figure, Error> {
    let locker = tenure::connect("memory:macro").await?;
    let measure = interleave(
        run,
        async |lap| cycles(lap, async |id| by_attribute(&locker, id).await).await,
        async |lap| cycles(lap, async |id| by_hand(&locker, id).await).await,
    )
    .await?;
    Ok(Figure { name: NAME, measure, bar: BAR })
}

#[tenure::lock(key = "order:{id}", locker = locker, ttl = "15s", wait = "0s", retry = "50ms")]
async fn by_attribute(locker: &Locker, id: u64) -> Result<u64, tenure::Error> {
    Ok(id)
}

/// The equivalent code by hand: the same options, and the same name for the metrics.
async fn by_hand(locker: &Locker, id: u64) -> Result<u64, tenure::Error> {
    let request = locker.lock(format!("order:{id}")).name("order:{id}");
    let request = request.ttl(TTL).wait(Duration::ZERO).retry_interval(RETRY);
    request.run(async |_| Ok(id)).await?
}

async fn cycles(
    lap: Lap,
    call: impl AsyncFn(u64) -> Result<u64, tenure::Error>,
) -> Result<u64, Error> {
    let mut cycles = 0;
    while lap.goes_on() {
        cycles += 1;
        call(cycles).await?;
    }
    Ok(cycles)
}
