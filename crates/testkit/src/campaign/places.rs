//! Places in a queue that were left at a master which died before its replica knew.
//!
//! In: keys that are still there when everybody has gone. Out: somebody who comes next, who has to clear
//! such a place away; any other is a leftover.

use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::fence::{EPOCH, PER_MILLI};
use tenure_core::time::UnixMillis;

use super::redis::text;
use crate::servers::Reply;

const QUEUE: &str = "tenure:queue:";
const BEAT: &str = "tenure:beat:";

#[derive(Default)]
pub(super) struct Places {
    /// Whether a replica has taken a master's place without having been told everything.
    died: AtomicBool,
}

impl Places {
    /// A master dies now.
    pub(super) fn master_dies(&self) {
        self.died.store(true, Ordering::Relaxed);
    }

    /// Whether one has.
    pub(super) fn master_died(&self) -> bool {
        self.died.load(Ordering::Relaxed)
    }

    /// Comes next at `url` where `key` is such a place. `ask` asks the server that has it.
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
            // In a cluster the name comes after a tag.
            come_next(url, name.split_once("}:").map_or(name, |(_, name)| name));
        }
    }
}

/// Whether nobody is behind this place any more, unless a heartbeat says so: `token client ttl good …` and its
/// ticket, which is a time.
fn was_long_ago(place: &[Reply]) -> bool {
    let [place, ticket] = place else { return false };
    let good = text(place).and_then(|place| place.split(' ').nth(3)?.parse::<u64>().ok());
    let came = text(ticket).and_then(|ticket| ticket.parse::<f64>().ok());
    let came = came.map(|ticket| EPOCH.0 + ticket as u64 / PER_MILLI);
    good.zip(came).is_some_and(|(good, came)| came + good < UnixMillis::now().0)
}

/// Whether nobody is behind this heartbeat any more.
fn has_ended(beat: &Reply) -> bool {
    let good = text(beat).and_then(|beat| beat.split(' ').next()?.parse::<u64>().ok());
    good.is_some_and(|good| good < UnixMillis::now().0)
}

/// Locks and releases, as whoever comes next does.
fn come_next(url: &str, name: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let locker = tenure::connect(url).await.expect("the servers are whole");
        locker.lock(name).await.expect("the lock is free").release().await.expect("it is ours");
    });
}
