//! `tenure show`: one lock in full, its holder and its queue.
//!
//! Ends with 0 whether the lock is held or free: both are answers. Scripts ask for `--json`.

use serde::Serialize;
use tenure::backend::{Holding, LockInfo, Waiting};
use tenure::time::UnixMillis;
use tenure::{Holder, Key};

use crate::args::{Everywhere, ShowArgs};
use crate::output;
use crate::talk::{self, Talk};
use crate::text::{escape, short};
use crate::trouble::{self, Trouble};
use crate::url::look_at;
use crate::view::{LockView, SCHEMA, json, state};

/// Shows the lock.
pub(crate) fn show(args: &ShowArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    match look(args, flags, talk) {
        Ok(text) => {
            talk::data(&text);
            0
        }
        Err(trouble) => talk.trouble(&trouble),
    }
}

fn look(args: &ShowArgs, flags: &Everywhere, talk: &mut Talk) -> Result<String, Trouble> {
    let key = trouble::key(&args.key)?;
    let lock = look_at(flags, talk, async |locker| locker.inspect(key.as_str()).await)?;
    Ok(match &lock {
        _ if args.json => as_json(&key, lock.as_ref()),
        Some(lock) => in_full(lock),
        None => output::free(key.as_str()) + "\n",
    })
}

fn as_json(key: &Key, lock: Option<&LockInfo>) -> String {
    #[derive(Serialize)]
    struct Showing<'a> {
        schema: u32,
        key: &'a str,
        lock: Option<LockView>,
    }
    json(&Showing { schema: SCHEMA, key: key.as_str(), lock: lock.map(LockView::of) })
}

fn in_full(lock: &LockInfo) -> String {
    let state = state(lock, &lock.holders);
    let mut lines = vec![escape(lock.key.as_str()).into_owned(), field("mode", &state)];
    if lock.holders.is_empty() {
        lines.push(field("holder", "nobody"));
    }
    lines.extend(lock.holders.iter().flat_map(holder_lines));
    lines.extend(queue_lines(lock.waiters.as_deref()));
    lines.join("\n") + "\n"
}

fn field(name: &str, value: &str) -> String {
    format!("  {name:<9} {value}")
}

fn holder_lines(holding: &Holding) -> Vec<String> {
    let holder = &holding.holder;
    let left = holder.lease_left.map(|left| format!("{} left", short(left)));
    let closed = holder.lease_left.map(|left| format!("for another {}", short(left)));
    let state = match holder.closing {
        true => ("closed", Some(closed.unwrap_or_else(|| "for its minimum time".into()))),
        false => ("lease", Some(left.unwrap_or_else(|| "no end of its own".into()))),
    };
    let fields = [
        ("holder", Some(person(holder))),
        ("label", holder.label.clone()),
        ("reason", holder.reason.clone()),
        ("held for", holder.since.map(since)),
        state,
        ("fence", holding.fence.map(|fence| fence.to_string())),
    ];
    let known = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| field(name, &escape(&value))).collect()
}

fn person(holder: &Holder) -> String {
    let name = output::name(holder);
    match &holder.client {
        Some(c) => format!("{name} (pid {}, {})", c.pid, escape(&c.program)),
        None => name,
    }
}

fn since(since: UnixMillis) -> String {
    format!("{} (since {})", short(since.elapsed()), output::moment(since))
}

fn queue_lines(queue: Option<&[Waiting]>) -> Vec<String> {
    let Some(queue) = queue else { return vec![field("queue", "not known to this engine")] };
    if queue.is_empty() {
        return vec![field("queue", "empty")];
    }
    let head = field("queue", &format!("{} waiting, next first", queue.len()));
    let places = queue.iter().zip(1..).map(|(waiting, place)| waiter(place, waiting));
    std::iter::once(head).chain(places).collect()
}

fn waiter(place: usize, waiting: &Waiting) -> String {
    let age = waiting.since.map(|since| format!(", waiting {}", short(since.elapsed())));
    let name = output::waiter(&waiting.holder);
    format!("  {place:>3}. {name}{}", age.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples::{busy, closed, foreign};

    /// Everything that is known about a lock, with the moment it was taken.
    #[test]
    fn lock_in_full() {
        let text = in_full(&busy("db-migrate"));
        let (head, rest) = text.split_once("(since ").unwrap();
        let (moment, rest) = rest.split_once(")\n").unwrap();
        assert_eq!(
            head,
            "db-migrate\n  mode      exclusive\n  holder    deploy@ci-7 (pid 812, tenure)\n  \
             reason    release 41\n  held for  4m12s "
        );
        assert!(humantime::parse_rfc3339(moment).is_ok(), "{moment}");
        assert_eq!(
            rest,
            "  lease     21s left\n  fence     27431\n  queue     2 waiting, next first\n    \
             1. ann@ci-7 (pid 99), waiting 12s\n    2. an unknown waiter\n"
        );
    }

    /// A waiter's name and reason stay as they are.
    #[test]
    fn waiters_keep_their_names() {
        let mut shareholder = crate::view::samples::holder("shareholder", 7);
        shareholder.reason = Some("the holder's report".into());
        let line = waiter(1, &Waiting::new(shareholder, None));
        assert_eq!(line, "    1. shareholder@ci-7 (pid 7, \"the holder's report\")");
    }

    /// A lock that is only kept closed is called so, as `ls` does.
    #[test]
    fn closed_lock() {
        let mut lock = closed("cron");
        lock.holders[0].holder.since = None;
        assert_eq!(
            in_full(&lock),
            "cron\n  mode      closed\n  holder    deploy@ci-7 (pid 812, tenure)\n  \
             reason    release 41\n  closed    for another 21s\n  fence     27431\n  \
             queue     empty\n"
        );
    }

    /// A lock of which little is known says so.
    #[test]
    fn lock_with_less() {
        assert_eq!(
            in_full(&foreign("k")),
            "k\n  mode      exclusive\n  holder    an unknown holder\n  \
             lease     no end of its own\n  queue     not known to this engine\n"
        );
    }

    /// A free lock is `null`, not an error.
    #[test]
    fn json_of_a_free_lock() {
        let key = Key::new("k").unwrap();
        assert_eq!(as_json(&key, None), "{\"schema\":1,\"key\":\"k\",\"lock\":null}\n");
    }
}
