//! One key from locker to locker, against the deletion of a key, its watch event, and one read.
//!
//! A hop of the bare side is one transaction that deletes a key, the watch event at the other client, and a
//! read there: a waiter on this server needs at least this to be sure of its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_etcd::bench_client::{BenchClient, Events};
use tokio::sync::Mutex;

use crate::bench::Run;
use crate::client_thread::Home;
use crate::error::Error;
use crate::etcd::Site;
use crate::fleet::Fleet;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together_at};

/// From the design's table of figures.
pub(crate) const BAR: f64 = 1.35;
/// The time-out of a lap: without it a lost event would block for ever.
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

/// Two bare clients that wake each other, each on its own thread like our lockers.
struct Relay {
    runners: [Arc<Mutex<Runner>>; 2],
    homes: [Home; 2],
}

struct Runner {
    bare: BenchClient,
    events: Events,
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

    /// Runs until the lap is over. Returns how often one client woke the other.
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
            // The key must exist from the start, because only an existing key can be deleted.
            bare.hand_over(&other, 0).await?;
            let events = bare.watch_prefix(&own).await?;
            Ok(Runner { bare, events, own, other, turn: 1 })
        }
    }

    /// Wakes the other client and waits for it; sets `last` before the last time.
    async fn lead(&mut self, lap: &Lap, last: &AtomicBool) -> Result<u64, Error> {
        let mut hops = 0;
        while !last.load(Ordering::Acquire) {
            last.store(!lap.goes_on(), Ordering::Release);
            self.hand_over().await?;
            self.bare.wait_for_turn(&mut self.events, &self.own).await?;
            hops += 1;
        }
        Ok(hops)
    }

    async fn follow(&mut self, last: &AtomicBool) -> Result<u64, Error> {
        let mut hops = 0;
        loop {
            self.bare.wait_for_turn(&mut self.events, &self.own).await?;
            hops += 1;
            let is_last = last.load(Ordering::Acquire);
            self.hand_over().await?;
            if is_last {
                return Ok(hops);
            }
        }
    }

    async fn hand_over(&mut self) -> Result<(), Error> {
        self.turn += 1;
        Ok(self.bare.hand_over(&self.other, self.turn - 1).await?)
    }
}
