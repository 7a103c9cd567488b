//! Locks and events as JSON. The form is the library's: [`tenure::view`].

use serde::Serialize;

pub(crate) use tenure::view::{SCHEMA, TOKEN_SHOWN, state, token_start};

/// A value as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Serialization cannot fail: our values have string keys and no failing parts.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
pub(crate) mod samples {
    use std::time::Duration;
    use tenure::backend::{Holding, LockInfo, Waiting};
    use tenure::time::UnixMillis;
    use tenure::watch::{Event, EventKind};
    use tenure::{Fence, Holder, Key, Mode, Process, Token};

    pub(crate) fn holder(user: &str, pid: u32) -> Holder {
        let client =
            Process { host: "ci-7".into(), pid, user: user.into(), program: "tenure".into() };
        let mut holder = Holder::unknown();
        holder.process = Some(client);
        holder
    }

    /// An event in January 2027: the holder had held `db-migrate` for 4m12s, and two claims wait.
    pub(crate) fn event(what: EventKind) -> Event {
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
        LockInfo::new(Key::new(key).unwrap(), vec![holding], Some(queue))
    }

    /// Released, and kept closed for another 21s.
    pub(crate) fn closed(key: &str) -> LockInfo {
        let mut lock = busy(key);
        lock.holders[0].holder.cooling_down = true;
        lock.waiters = Some(vec![]);
        lock
    }

    fn token(start: &str) -> Option<Token> {
        Token::parse(&format!("{start:0<32}"))
    }

    fn held_by(pid: u32, mode: Mode) -> Holding {
        let mut ann = holder("ann", pid);
        (ann.since, ann.lease_left) = (ago(12), Some(Duration::from_millis(21_400)));
        Holding::new(ann, None, token(&format!("{pid}f3a9c2e"))).mode(mode, None)
    }

    /// Held by three readers; a writer waits.
    pub(crate) fn readers(key: &str) -> LockInfo {
        let holders = (1..=3).map(|pid| held_by(pid, Mode::Read)).collect();
        let writer = Waiting::new(holder("ann", 99), ago(12));
        LockInfo::new(Key::new(key).unwrap(), holders, Some(vec![writer]))
    }

    /// Two holders of permits, with different capacities; a third one waits.
    pub(crate) fn permits(key: &str) -> LockInfo {
        let mode = |permits, capacity| Mode::Permits { permits, capacity };
        let mut one = held_by(1, mode(1, 4));
        (one.slot, one.fence) = (Some(0), Some(Fence::from_raw(27_431)));
        one.holder.reason = Some("release 41".into());
        let mut other = held_by(2, mode(2, 6));
        other.holder.since = None;
        let waiter = Waiting::new(holder("ann", 99), ago(12)).mode(mode(4, 6));
        LockInfo::new(Key::new(key).unwrap(), vec![one, other], Some(vec![waiter]))
    }

    /// Held by an unknown holder.
    pub(crate) fn foreign(key: &str) -> LockInfo {
        let holding = Holding::new(Holder::unknown(), None, None);
        LockInfo::new(Key::new(key).unwrap(), vec![holding], None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::view::LockView;

    /// B3: the lock says how many permits are taken, and each holder and waiter how many it has or wants. Only
    /// the start of a token is shown.
    #[test]
    fn b3_modes_of_several_holders() {
        let value = serde_json::to_value(LockView::of(&samples::permits("limit"))).unwrap();
        assert_eq!((&value["mode"], &value["permits"]), (&"permits".into(), &3.into()));
        assert_eq!(value["capacity"], 6);
        let other = &value["holders"][1];
        assert_eq!((&other["mode"], &other["permits"]), (&"permits".into(), &2.into()));
        assert_eq!((&other["capacity"], &other["slot"]), (&6.into(), &serde_json::Value::Null));
        assert_eq!((&other["token_start"], &other["fence"]), (&"2f3a9c2e".into(), &().into()));
        assert_eq!(value["holders"][0]["slot"], 0);
        assert_eq!(
            (&value["waiters"][0]["mode"], &value["waiters"][0]["permits"]),
            (&"permits".into(), &4.into())
        );
        let value = serde_json::to_value(LockView::of(&samples::readers("k"))).unwrap();
        assert_eq!((&value["mode"], &value["permits"]), (&"shared".into(), &().into()));
        assert_eq!(value["waiters"][0]["mode"], "exclusive");
    }

    /// B2, B3: the column of the mode counts readers, and permits of the largest capacity in use. A lock that is only
    /// waited for has no holder to count.
    #[test]
    fn b2_b3_states() {
        let mut readers = samples::readers("k");
        assert_eq!(state(&readers), "shared 3");
        readers.holders[0].holder.cooling_down = true;
        assert_eq!(state(&readers), "shared 3", "the others hold it");
        let mut permits = samples::permits("k");
        assert_eq!(state(&permits), "3 of 6");
        permits.holders.clear();
        assert_eq!(state(&permits), "0 of 6");
        assert_eq!(state(&samples::closed("k")), "closed");
        assert_eq!(state(&samples::foreign("k")), "exclusive");
    }

    /// The JSON of a lock with every field known.
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
        assert_eq!(holder["cooling_down"], false);
        assert_eq!(value["waiters"][0]["user"], "ann");
        assert_eq!(value["waiters"][1]["user"], serde_json::Value::Null);
    }

    /// Unknown values are `null`, and all fields are present.
    #[test]
    fn json_with_less() {
        assert_eq!(
            json(&LockView::of(&samples::foreign("k"))),
            "{\"key\":\"k\",\"mode\":\"exclusive\",\"permits\":null,\"capacity\":null,\"holders\":[{\"user\":null,\"host\":null,\
             \"pid\":null,\"program\":null,\"since_unix_ms\":null,\"label\":null,\"reason\":null,\
             \"held_ms\":null,\"lease_left_ms\":null,\"cooling_down\":false,\"fence\":null,\
             \"mode\":\"exclusive\",\"permits\":null,\"capacity\":null,\"slot\":null,\"token_start\":null}],\
             \"waiters\":null}\n"
        );
    }
}
