//! What has happened since the watch began, with a bound on everything.
//!
//! In: events of the one watch, and waiters of the looks. Out: tenures, waits, holds and events of each key, losses
//! of a day.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::UnixMillis;
use tenure_core::watch::{Event, EventKind};
use tenure_core::{Holder, Key, Process};
use tokio::time::Instant;

use crate::snapshot::Snapshot;

/// How many keys are remembered; the one without news for the longest time is forgotten.
pub(crate) const KEYS_MAX: usize = 2_000;
/// How many tenures and events of a key are remembered.
pub(crate) const PER_KEY: usize = 20;
const MINUTES_OF_A_DAY: u64 = 24 * 60;

/// The upper ends of the buckets; the last bucket has none.
pub(crate) const BUCKETS: [(Duration, &str); 6] = [
    (Duration::from_millis(10), "under 10ms"),
    (Duration::from_millis(100), "under 100ms"),
    (Duration::from_secs(1), "under 1s"),
    (Duration::from_secs(10), "under 10s"),
    (Duration::from_secs(60), "under 1m"),
    (Duration::from_secs(600), "under 10m"),
];
pub(crate) const LAST_BUCKET: &str = "10m and more";

/// Everything that is remembered.
#[derive(Debug)]
pub(crate) struct History {
    /// Since when it is watched.
    pub(crate) since: UnixMillis,
    keys: HashMap<Key, KeyHistory>,
    /// How many locks were lost in a minute, for the minutes of the last day with a loss.
    losses: VecDeque<(u64, u64)>,
    lost_ever: u64,
    clock: u64,
}

/// What is remembered of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyHistory {
    /// The newest last.
    pub(crate) tenures: VecDeque<Tenure>,
    /// The newest last.
    pub(crate) events: VecDeque<Arc<Event>>,
    pub(crate) waits: Histogram,
    pub(crate) holds: Histogram,
    touched: u64,
}

/// One claim that holds a lock, or held it.
#[derive(Clone, Debug)]
pub(crate) struct Tenure {
    pub(crate) holder: Holder,
    pub(crate) since: UnixMillis,
    /// When it was first seen, by our clock.
    pub(crate) seen: Instant,
    /// When and how it ended.
    pub(crate) end: Option<(UnixMillis, EventKind)>,
}

/// Durations, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    pub(crate) counts: [u64; BUCKETS.len() + 1],
    pub(crate) sum: Duration,
}

impl Histogram {
    pub(crate) fn add(&mut self, duration: Duration) {
        let bucket = BUCKETS.iter().position(|(end, _)| duration < *end);
        self.counts[bucket.unwrap_or(BUCKETS.len())] += 1;
        self.sum = self.sum.saturating_add(duration);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl History {
    pub(crate) fn new() -> Self {
        let (keys, losses) = Default::default();
        History { since: UnixMillis::now(), keys, losses, lost_ever: 0, clock: 0 }
    }

    pub(crate) fn of(&self, key: &Key) -> Option<&KeyHistory> {
        self.keys.get(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Key, &KeyHistory)> {
        self.keys.iter()
    }

    /// How many locks were lost in the last 24 hours.
    pub(crate) fn lost_today(&self) -> u64 {
        let first = minute(UnixMillis::now()).saturating_sub(MINUTES_OF_A_DAY);
        let recent = self.losses.iter().filter(|(minute, _)| *minute > first);
        recent.map(|(_, count)| count).sum()
    }

    /// How many locks were lost since the watch began.
    pub(crate) fn lost_ever(&self) -> u64 {
        self.lost_ever
    }

    /// Adds an event. `before` is the last look: it may show how long the new holder had waited.
    pub(crate) fn add(&mut self, event: Event, before: &Snapshot) {
        if event.what == EventKind::Lost {
            self.lose(event.at);
        }
        let event = Arc::new(event);
        let waited = waited(&event, before);
        let key = self.touch(&event.key);
        key.apply(&event);
        waited.into_iter().for_each(|waited| key.waits.add(waited));
        push(&mut key.events, event, PER_KEY);
    }

    /// Adds the tenures that a look shows and that no event has announced: they began before the watch. Forgets nothing
    /// for them.
    pub(crate) fn add_seen(&mut self, snapshot: &Snapshot) {
        for seen in &snapshot.locks {
            let key = &seen.info.key;
            if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(key) {
                continue;
            }
            for holding in seen.info.holders.iter().filter(|holding| !holding.holder.cooling_down) {
                let Some(since) = holding.holder.since else { continue };
                self.touch(key).begin(&holding.holder, since);
            }
        }
    }

    fn lose(&mut self, at: UnixMillis) {
        self.lost_ever += 1;
        let now = minute(at);
        match self.losses.back_mut().filter(|(minute, _)| *minute >= now) {
            Some((_, count)) => *count += 1,
            None => self.losses.push_back((now, 1)),
        }
        self.losses.retain(|(minute, _)| *minute + MINUTES_OF_A_DAY > now);
    }

    fn touch(&mut self, key: &Key) -> &mut KeyHistory {
        self.clock += 1;
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(key) {
            let oldest = self.keys.iter().min_by_key(|(_, history)| history.touched);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| self.keys.remove(&key));
        }
        let history = self.keys.entry(key.clone()).or_default();
        history.touched = self.clock;
        history
    }
}

impl KeyHistory {
    fn apply(&mut self, event: &Event) {
        match event.what {
            EventKind::Acquired => self.begin_by(event),
            EventKind::HandedOver => {
                event.from.iter().for_each(|from| self.end(from, event.at, &EventKind::Released));
                self.begin_by(event);
            }
            _ => event.holder.iter().for_each(|from| self.end(from, event.at, &event.what)),
        }
    }

    fn begin_by(&mut self, event: &Event) {
        let holder = event.holder.clone().unwrap_or_else(Holder::unknown);
        self.begin(&holder, holder.since.unwrap_or(event.at));
    }

    fn begin(&mut self, holder: &Holder, since: UnixMillis) {
        let is_it =
            |tenure: &Tenure| tenure.since == since && tenure.holder.process == holder.process;
        if !self.tenures.iter().any(is_it) {
            push(
                &mut self.tenures,
                Tenure { holder: holder.clone(), since, seen: Instant::now(), end: None },
                PER_KEY,
            );
        }
    }

    fn end(&mut self, holder: &Holder, at: UnixMillis, how: &EventKind) {
        let end = Some((at, how.clone()));
        let since = holder.since.unwrap_or(at);
        self.begin(holder, since);
        let is_it = |tenure: &&mut Tenure| {
            tenure.end.is_none() && tenure.holder.process == holder.process && tenure.since == since
        };
        let Some(tenure) = self.tenures.iter_mut().find(is_it) else { return };
        tenure.end = end;
        self.holds.add(Duration::from_millis(at.0.saturating_sub(since.0)));
    }
}

/// How long the new holder had waited, if the last look showed it in the queue.
fn waited(event: &Event, before: &Snapshot) -> Option<Duration> {
    if !matches!(event.what, EventKind::Acquired | EventKind::HandedOver) {
        return None;
    }
    let holder = event.holder.as_ref()?;
    let process: &Process = holder.process.as_ref()?;
    let queue = before.get(&event.key)?.waiters();
    let waiting = queue.iter().find(|waiting| {
        waiting.process.as_ref() == Some(process) && waiting.label == holder.label
    })?;
    let until = holder.since.unwrap_or(event.at);
    Some(Duration::from_millis(until.0.saturating_sub(waiting.since?.0)))
}

fn minute(at: UnixMillis) -> u64 {
    at.0 / 60_000
}

fn push<T>(to: &mut VecDeque<T>, value: T, most: usize) {
    if to.len() >= most {
        to.pop_front();
    }
    to.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Holding, LockInfo, Waiting};

    fn holder(pid: u32, since: u64) -> Holder {
        let mut holder = Holder::unknown();
        holder.process = Some(Process { pid, ..Process::this_process().clone() });
        holder.since = Some(UnixMillis(since));
        holder
    }

    fn event(key: &str, what: EventKind, holder: Holder, at: u64) -> Event {
        let mut event = Event::new(UnixMillis(at), Key::new(key).unwrap(), what);
        event.holder = Some(holder);
        event
    }

    /// F2: a tenure ends with its event, and its hold is counted. A wait is counted if the queue was seen.
    #[tokio::test]
    async fn f2_tenures_holds_and_waits() {
        let mut history = History::new();
        let queue = Some(vec![Waiting::new(holder(2, 0), Some(UnixMillis(1_000)))]);
        let held = vec![Holding::new(holder(1, 500), None, None)];
        let info = LockInfo::new(Key::new("k").unwrap(), held, queue);
        let before = Snapshot::none().after(vec![info], Instant::now());
        let mut handed = event("k", EventKind::HandedOver, holder(2, 6_000), 6_000);
        handed.from = Some(holder(1, 500));
        history.add(handed, &before);
        history.add(event("k", EventKind::Lost, holder(2, 6_000), 6_050), &before);
        let key = history.of(&Key::new("k").unwrap()).unwrap();
        let ends: Vec<_> = key.tenures.iter().map(|t| t.end.clone().unwrap().1).collect();
        assert_eq!(ends, [EventKind::Released, EventKind::Lost]);
        assert_eq!(key.holds.counts, [0, 1, 0, 1, 0, 0, 0]);
        assert_eq!((key.waits.count(), key.waits.sum), (1, Duration::from_secs(5)));
        assert_eq!((history.lost_ever(), key.events.len()), (1, 2));
    }

    /// F2: a tenure that began before the watch is known from a look, and counts once.
    #[tokio::test]
    async fn f2_tenures_from_before() {
        let mut history = History::new();
        let held = vec![Holding::new(holder(1, 500), None, None)];
        let info = LockInfo::new(Key::new("k").unwrap(), held, None);
        let look = Snapshot::none().after(vec![info], Instant::now());
        history.add_seen(&look);
        history.add_seen(&look);
        history.add(event("k", EventKind::Acquired, holder(1, 500), 510), &look);
        history.add(event("k", EventKind::Released, holder(1, 500), 700), &look);
        let key = history.of(&Key::new("k").unwrap()).unwrap();
        assert_eq!((key.tenures.len(), key.holds.count()), (1, 1));
        assert_eq!(key.tenures[0].end, Some((UnixMillis(700), EventKind::Released)));
    }

    /// t70: what is remembered has a bound, however many keys and events there are.
    #[test]
    fn t70_history_is_bounded() {
        let (mut history, none) = (History::new(), Snapshot::none());
        for n in 0..KEYS_MAX as u64 * 2 {
            history.add(event(&format!("k{n}"), EventKind::Acquired, holder(1, n), n), &none);
            history.add(event("busy", EventKind::Acquired, holder(1, n), n), &none);
        }
        assert_eq!(history.keys().count(), KEYS_MAX);
        let busy = history.of(&Key::new("busy").unwrap()).unwrap();
        assert_eq!((busy.tenures.len(), busy.events.len()), (PER_KEY, PER_KEY));
        assert!(history.of(&Key::new("k0").unwrap()).is_none());
    }

    /// Losses older than a day are forgotten.
    #[test]
    fn losses_of_a_day() {
        let (mut history, none) = (History::new(), Snapshot::none());
        let now = UnixMillis::now().0;
        for hours in [30, 25, 23, 0] {
            let at = now - hours * 3_600_000;
            history.add(event("k", EventKind::Lost, holder(1, at), at), &none);
        }
        assert_eq!((history.lost_today(), history.lost_ever()), (2, 4));
    }
}
