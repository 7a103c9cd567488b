//! Queue entries that survive because their removal was lost when a master died.
//!
//! In: keys that are still on the server after all contenders have exited. Out: one more lock and release of
//! such a key, which must remove the stale entry. An entry that stays after that is a leftover.

use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::fence::{EPOCH, PER_MILLI};
use tenure_core::time::UnixMillis;

use super::observer::text;
use crate::servers::Reply;

const QUEUE: &str = "tenure:queue:";
const BEAT: &str = "tenure:beat:";

#[derive(Default)]
pub(super) struct Places {
    /// Whether a replica was promoted without all data of its master.
    died: AtomicBool,
}

impl Places {
    /// Records that a master is killed or stopped.
    pub(super) fn master_dies(&self) {
        self.died.store(true, Ordering::Relaxed);
    }

    /// Whether a master was killed or stopped.
    pub(super) fn master_died(&self) -> bool {
        self.died.load(Ordering::Relaxed)
    }

    /// Locks and releases at `url` if `key` is such an entry. `ask` sends a command to the server that stores
    /// it.
    pub(super) fn clear(&self, url: &str, key: &str, ask: impl Fn(&[&str]) -> Option<Reply>) {
        let name = key.strip_prefix(QUEUE).or_else(|| key.strip_prefix(BEAT));
        let Some(name) = name.filter(|_| self.master_died()) else { return };
        let (queue, beats) = (format!("{QUEUE}{name}"), format!("{BEAT}{name}"));
        let places = ask(&["ZRANGE", &queue, "0", "-1", "WITHSCORES"]);
        if let (Some(Reply::Many(places)), Some(Reply::Many(beats))) =
            (places, ask(&["HVALS", &beats]))
            && places.chunks(2).all(was_long_ago)
            && beats.iter().all(has_ended)
        {
            // In a cluster the name follows a hash tag.
            come_next(url, name.split_once("}:").map_or(name, |(_, name)| name));
        }
    }
}

/// Whether this queue entry has expired, heartbeats aside. The entry is `token client ttl alive_ms …`, and
/// its score is a ticket, which is a time.
fn was_long_ago(place: &[Reply]) -> bool {
    let [place, ticket] = place else { return false };
    let good = text(place).and_then(|place| place.split(' ').nth(3)?.parse::<u64>().ok());
    let came = text(ticket).and_then(|ticket| ticket.parse::<f64>().ok());
    let came = came.map(|ticket| EPOCH.0 + ticket as u64 / PER_MILLI);
    good.zip(came).is_some_and(|(good, came)| came + good < UnixMillis::now().0)
}

/// Whether this heartbeat has expired.
fn has_ended(beat: &Reply) -> bool {
    let good = text(beat).and_then(|beat| beat.split(' ').next()?.parse::<u64>().ok());
    good.is_some_and(|good| good < UnixMillis::now().0)
}

/// Locks and releases, as any later client does.
fn come_next(url: &str, name: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let locker = tenure::connect(url).await.expect("the servers are whole");
        locker.lock(name).await.expect("the lock is free").release().await.expect("it is ours");
    });
}
