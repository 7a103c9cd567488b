//! One key from locker to locker, against a deleted key that is seen, and one read.
//!
//! A hop of the bare side is one transaction that deletes a key, the news of it at the other client, and a
//! read there: nobody who waits for its turn on this server can be sure of it in less.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_etcd::bare::{Bare, Listening};
use tokio::sync::Mutex;

use crate::bench::Run;
use crate::error::Error;
use crate::etcd::Site;
use crate::fleet::Fleet;
use crate::home::Home;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together_at};

/// From the design's table of figures.
pub(crate) const BAR: f64 = 1.3;
/// News that is lost would be waited for for ever.
const LONGEST: Duration = Duration::from_secs(10);

pub(crate) async fn measure(run: &Run<'_>, site: &Site, lockers: usize) -> Result<Measure, Error> {
    let relay = Relay::connect(site).await?;
    let fleet = Fleet::connect(lockers, || site.another_locker()).await?;
    let ours = async |lap| fleet.pass_round(lap).await;
    let measured = interleave(run, ours, async |lap| relay.run(lap).await).await;
    fleet.close().await;
    relay.clear().await?;
    measured
}

/// Two bare clients that wake each other, each at home as one of ours is.
struct Relay {
    runners: [Arc<Mutex<Runner>>; 2],
    homes: [Home; 2],
}

struct Runner {
    bare: Bare,
    heard: Listening,
    own: String,
    other: String,
    turn: u64,
}

impl Relay {
    async fn connect(site: &Site) -> Result<Self, Error> {
        let (first, second) = (site.bare_key(0), site.bare_key(1));
        let homes = [Home::new()?, Home::new()?];
        let runners = [
            homes[0].run(Runner::connect(site, first.clone(), second.clone())).await?,
            homes[1].run(Runner::connect(site, second, first)).await?,
        ];
        Ok(Relay { runners: runners.map(|runner| Arc::new(Mutex::new(runner))), homes })
    }

    /// Runs until the lap is over. How often one has woken the other.
    async fn run(&self, lap: Lap) -> Result<u64, Error> {
        let last = Arc::new(AtomicBool::new(false));
        let both = together_at(self.homes.iter().map(Home::runtime), |number| {
            let (runner, lap, last) = (self.runners[number].clone(), lap.clone(), last.clone());
            async move {
                let mut runner = runner.lock().await;
                if number == 0 {
                    runner.lead(&lap, &last).await
                } else {
                    runner.follow(&last).await
                }
            }
        });
        let lost = |_| Error::surprise("news between bare clients was lost");
        tokio::time::timeout(LONGEST, both).await.map_err(lost)?
    }

    async fn clear(&self) -> Result<(), Error> {
        for runner in &self.runners {
            runner.lock().await.bare.clear().await?;
        }
        Ok(())
    }
}

impl Runner {
    fn connect(
        site: &Site,
        own: String,
        other: String,
    ) -> impl Future<Output = Result<Self, Error>> + Send + use<> {
        let bare = site.another_bare();
        async {
            let bare = bare.await?;
            // There from the start: a key that is not there cannot be deleted.
            bare.tell(&other, 0).await?;
            let heard = bare.listen(&own).await?;
            Ok(Runner { bare, heard, own, other, turn: 1 })
        }
    }

    /// Wakes the other and is woken, and says before the last time that it is.
    async fn lead(&mut self, lap: &Lap, last: &AtomicBool) -> Result<u64, Error> {
        let mut hops = 0;
        while !last.load(Ordering::Acquire) {
            last.store(!lap.goes_on(), Ordering::Release);
            self.tell().await?;
            self.bare.hear(&mut self.heard, &self.own).await?;
            hops += 1;
        }
        Ok(hops)
    }

    async fn follow(&mut self, last: &AtomicBool) -> Result<u64, Error> {
        let mut hops = 0;
        loop {
            self.bare.hear(&mut self.heard, &self.own).await?;
            hops += 1;
            let is_last = last.load(Ordering::Acquire);
            self.tell().await?;
            if is_last {
                return Ok(hops);
            }
        }
    }

    async fn tell(&mut self) -> Result<(), Error> {
        self.turn += 1;
        Ok(self.bare.tell(&self.other, self.turn - 1).await?)
    }
}
