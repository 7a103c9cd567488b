//! What `ls`, `show` and `watch` show, as values and as JSON.
//!
//! In: [`LockInfo`]s. Out: plain values. The JSON is a promise: fields may be added, none changes its
//! meaning without a new `schema`. Tokens never appear.

use serde::Serialize;
use tenure::backend::{Holding, LockInfo, Waiting};
use tenure::time::UnixMillis;
use tenure::{Client, Holder, Mode};

use crate::status::millis;

/// The version of the JSON.
pub(crate) const SCHEMA: u32 = 1;

/// One lock.
#[derive(Debug, Serialize)]
pub(crate) struct LockView {
    key: String,
    mode: String,
    holders: Vec<HolderView>,
    /// First come first; `null` where the engine does not know.
    waiters: Option<Vec<WaiterView>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct HolderView {
    #[serde(flatten)]
    who: Who,
    held_ms: Option<u64>,
    /// `null` where a lease has no end.
    lease_left_ms: Option<u64>,
    /// Released, and kept closed for the rest of its minimum time.
    closing: bool,
    /// A string: as a number it would not survive a reader that uses doubles.
    fence: Option<String>,
}

#[derive(Debug, Serialize)]
struct WaiterView {
    #[serde(flatten)]
    who: Who,
    waiting_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Who {
    user: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    program: Option<String>,
    since_unix_ms: Option<u64>,
    label: Option<String>,
    reason: Option<String>,
}

impl LockView {
    pub(crate) fn of(info: &LockInfo) -> Self {
        let waiters = info.waiters.as_ref();
        LockView {
            key: info.key.to_string(),
            mode: mode(info.mode),
            holders: info.holders.iter().map(HolderView::of).collect(),
            waiters: waiters.map(|queue| queue.iter().map(WaiterView::of).collect()),
        }
    }
}

impl HolderView {
    pub(crate) fn of(holding: &Holding) -> Self {
        let holder = &holding.holder;
        HolderView {
            who: Who::of(holder, holder.since),
            held_ms: holder.since.map(age),
            lease_left_ms: holder.lease_left.map(millis),
            closing: holder.closing,
            fence: holding.fence.map(|fence| fence.to_string()),
        }
    }
}

impl WaiterView {
    fn of(waiting: &Waiting) -> Self {
        let who = Who::of(&waiting.holder, waiting.since);
        WaiterView { who, waiting_ms: waiting.since.map(age) }
    }
}

impl Who {
    fn of(holder: &Holder, since: Option<UnixMillis>) -> Self {
        let client = holder.client.as_ref();
        let field = |get: fn(&Client) -> &String| client.map(get).cloned();
        Who {
            user: field(|client| &client.user),
            host: field(|client| &client.host),
            pid: client.map(|client| client.pid),
            program: field(|client| &client.program),
            since_unix_ms: since.map(|since| since.0),
            label: holder.label.clone(),
            reason: holder.reason.clone(),
        }
    }
}

fn age(since: UnixMillis) -> u64 {
    millis(since.elapsed())
}

/// How a lock is held, in a word or two.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".into(),
        Mode::Permits { permits, capacity } => format!("permits {permits}/{capacity}"),
    }
}

/// The same for people, who want to know first that nobody holds a lock that is only kept closed.
pub(crate) fn state<'a>(lock: &LockInfo, holders: impl IntoIterator<Item = &'a Holding>) -> String {
    let mut holders = holders.into_iter().peekable();
    let closed = holders.peek().is_some() && holders.all(|holding| holding.holder.closing);
    if closed { "closed".into() } else { mode(lock.mode) }
}

/// A value as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Our values have string keys and no failing parts: there is nothing that could go wrong.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use std::time::Duration;
    use tenure::watch::{Event, What};
    use tenure::{Fence, Key};

    pub(crate) fn holder(user: &str, pid: u32) -> Holder {
        let client =
            Client { host: "ci-7".into(), pid, user: user.into(), program: "tenure".into() };
        let mut holder = Holder::unknown();
        holder.client = Some(client);
        holder
    }

    /// It happened to somebody who had held `db-migrate` for 4m12s, in January 2027; two wait.
    pub(crate) fn event(what: What) -> Event {
        let lock = busy("db-migrate");
        let mut event = Event::new(UnixMillis(1_800_000_000_000), lock.key, what);
        let holding = &lock.holders[0];
        (event.holder, event.fence) = (Some(holding.holder.clone()), holding.fence);
        event.waiters = Some(2);
        event
    }

    fn ago(secs: u64) -> Option<UnixMillis> {
        Some(UnixMillis(UnixMillis::now().0 - secs * 1_000 - 300))
    }

    /// Held for 4m12s, with 21s of lease left and two waiters.
    pub(crate) fn busy(key: &str) -> LockInfo {
        let mut deploy = holder("deploy", 812);
        deploy.since = ago(252);
        deploy.reason = Some("release 41".into());
        deploy.lease_left = Some(Duration::from_millis(21_400));
        let holding = Holding::new(deploy, Some(Fence::from_raw(27_431)), None);
        let queue =
            vec![Waiting::new(holder("ann", 99), ago(12)), Waiting::new(Holder::unknown(), None)];
        LockInfo::exclusive(Key::new(key).unwrap(), vec![holding], Some(queue))
    }

    /// Released, and kept closed for another 21s.
    pub(crate) fn closed(key: &str) -> LockInfo {
        let mut lock = busy(key);
        lock.holders[0].holder.closing = true;
        lock.waiters = Some(vec![]);
        lock
    }

    /// Held by somebody of whom nothing is known.
    pub(crate) fn foreign(key: &str) -> LockInfo {
        let holding = Holding::new(Holder::unknown(), None, None);
        LockInfo::exclusive(Key::new(key).unwrap(), vec![holding], None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON of a lock of which everything is known.
    #[test]
    fn json_in_full() {
        let value = serde_json::to_value(LockView::of(&samples::busy("db"))).unwrap();
        let holder = &value["holders"][0];
        assert_eq!(value["key"], "db");
        assert_eq!(value["mode"], "exclusive");
        assert_eq!(holder["user"], "deploy");
        assert_eq!(holder["pid"], 812);
        assert_eq!(holder["reason"], "release 41");
        assert_eq!(holder["fence"], "27431");
        assert_eq!(holder["lease_left_ms"], 21_400);
        assert_eq!(holder["closing"], false);
        assert_eq!(value["waiters"][0]["user"], "ann");
        assert_eq!(value["waiters"][1]["user"], serde_json::Value::Null);
    }

    /// What is not known is `null`, and all fields are there.
    #[test]
    fn json_with_less() {
        assert_eq!(
            json(&LockView::of(&samples::foreign("k"))),
            "{\"key\":\"k\",\"mode\":\"exclusive\",\"holders\":[{\"user\":null,\"host\":null,\
             \"pid\":null,\"program\":null,\"since_unix_ms\":null,\"label\":null,\"reason\":null,\
             \"held_ms\":null,\"lease_left_ms\":null,\"closing\":false,\"fence\":null}],\
             \"waiters\":null}\n"
        );
    }
}
