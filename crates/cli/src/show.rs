//! `tenure show`: one lock with its holder, or a line for each of its holders, and its queue.
//!
//! Exits with 0 whether the lock is held or free. Scripts use `--json`.

use std::collections::BTreeSet;

use tenure::backend::{Holding, LockInfo, Waiting};
use tenure::time::UnixMillis;
use tenure::view::Showing;
use tenure::{Holder, Key, Mode};

use crate::args::{GlobalArgs, ShowArgs};
use crate::error::{self, CliError};
use crate::json::{json, state, token_start};
use crate::ls;
use crate::output;
use crate::target::look_at;
use crate::text::{escape, short};
use crate::ui::{self, Ui};

pub(crate) fn show(args: &ShowArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match look(args, flags, ui) {
        Ok(text) => {
            ui::data(&text);
            0
        }
        Err(trouble) => ui.trouble(&trouble),
    }
}

fn look(args: &ShowArgs, flags: &GlobalArgs, ui: &mut Ui) -> Result<String, CliError> {
    let key = error::key(&args.key)?;
    let lock = look_at(flags, ui, async |locker| locker.inspect(key.as_str()).await)?;
    Ok(match &lock {
        _ if args.json => as_json(&key, lock.as_ref()),
        Some(lock) => in_full(lock),
        None => output::free(key.as_str()) + "\n",
    })
}

fn as_json(key: &Key, lock: Option<&LockInfo>) -> String {
    json(&Showing::of(key.as_str(), lock))
}

fn in_full(lock: &LockInfo) -> String {
    let mut lines = vec![escape(lock.key.as_str()).into_owned(), field("mode", &mode(lock))];
    match &lock.holders[..] {
        [] => lines.push(field("holder", "none")),
        [only] if !only.mode.is_together() => lines.extend(holder_lines(only)),
        several => lines.extend(table(several)),
    }
    lines.extend(queue_lines(lock.waiters.as_deref()));
    lines.join("\n") + "\n"
}

/// The mode, and every capacity if holders and waiters have several.
fn mode(lock: &LockInfo) -> String {
    let held = lock.holders.iter().map(|holding| &holding.mode);
    let wanted = lock.waiters.iter().flatten().map(|waiting| &waiting.mode);
    let capacities: BTreeSet<u32> = held.chain(wanted).filter_map(capacity).collect();
    if capacities.len() < 2 {
        return state(lock);
    }
    let all: Vec<_> = capacities.iter().map(u32::to_string).collect();
    format!("{} (capacities in use: {})", state(lock), all.join(", "))
}

fn capacity(mode: &Mode) -> Option<u32> {
    match mode {
        Mode::Permits { capacity, .. } => Some(*capacity),
        _ => None,
    }
}

const HEAD: [&str; 8] =
    ["HOLDER", "MODE", "SLOT", "HELD FOR", "LEASE LEFT", "FENCE", "TOKEN", "REASON"];

/// A line for each of several holders.
fn table(holders: &[Holding]) -> Vec<String> {
    let head = field("holders", &holders.len().to_string());
    let lines = ls::aligned(HEAD, holders.iter().map(row));
    std::iter::once(head).chain(lines.into_iter().map(|line| format!("    {line}"))).collect()
}

fn row(holding: &Holding) -> [String; 8] {
    let (holder, unknown) = (&holding.holder, || "-".to_string());
    let mode = if holder.cooling_down { "closed".into() } else { output::mode(&holding.mode) };
    [
        ls::who(holder, 1),
        mode,
        holding.slot.map_or_else(unknown, |slot| slot.to_string()),
        holder.since.map_or_else(unknown, |since| short(since.elapsed())),
        holder.lease_left.map_or_else(unknown, short),
        holding.fence.map_or_else(unknown, |fence| fence.to_string()),
        holding.token.as_ref().map_or_else(unknown, token_start),
        holder.reason.as_deref().map_or_else(unknown, |reason| escape(reason).into_owned()),
    ]
}

fn field(name: &str, value: &str) -> String {
    format!("  {name:<9} {value}")
}

fn holder_lines(holding: &Holding) -> Vec<String> {
    let holder = &holding.holder;
    let left = holder.lease_left.map(|left| format!("{} left", short(left)));
    let closed = holder.lease_left.map(|left| format!("for another {}", short(left)));
    let state = match holder.cooling_down {
        true => ("closed", Some(closed.unwrap_or_else(|| "for its minimum time".into()))),
        false => ("lease", Some(left.unwrap_or_else(|| "does not expire".into()))),
    };
    let fields = [
        ("holder", Some(person(holder))),
        ("label", holder.label.clone()),
        ("reason", holder.reason.clone()),
        match holder.cooling_down {
            true => ("granted", holder.since.map(|at| format!("{} ago", short(at.elapsed())))),
            false => ("held for", holder.since.map(since)),
        },
        state,
        ("fence", holding.fence.map(|fence| fence.to_string())),
    ];
    let known = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| field(name, &escape(&value))).collect()
}

fn person(holder: &Holder) -> String {
    let name = output::name(holder);
    match &holder.process {
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
    let waiters = queue.iter().zip(1..).map(|(waiting, position)| waiter(position, waiting));
    std::iter::once(head).chain(waiters).collect()
}

fn waiter(position: usize, waiting: &Waiting) -> String {
    let age = waiting.since.map(|since| format!(", waiting {}", short(since.elapsed())));
    let name = output::waiter(waiting);
    let mode = output::mode(&waiting.mode);
    format!("  {position:>3}. {name}, {mode}{}", age.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::samples::{busy, closed, foreign, permits, readers};

    /// Everything that is known about a lock, with the time at which it was acquired.
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
             1. ann@ci-7 (pid 99), exclusive, waiting 12s\n    2. an unknown waiter, exclusive\n"
        );
    }

    /// B3: each of several holders has a line, with its permits and its slot; what is not known is a dash. A
    /// waiter says what it wants. If two capacities are in use, both are shown.
    #[test]
    fn b3_permits_in_full() {
        assert_eq!(
            in_full(&permits("limit")),
            "\
limit
  mode      3 of 6 (capacities in use: 4, 6)
  holders   2
    HOLDER          MODE    SLOT  HELD FOR  LEASE LEFT  FENCE  TOKEN     REASON
    ann@ci-7 pid 1  1 of 4  0     12s       21s         27431  1f3a9c2e  release 41
    ann@ci-7 pid 2  2 of 6  -     -         21s         -      2f3a9c2e  -
  queue     1 waiting, next first
    1. ann@ci-7 (pid 99), 4 of 6, waiting 12s
"
        );
    }

    /// B2: one reader has a line too, so that a script finds readers in one form.
    #[test]
    fn b2_a_reader_in_full() {
        let mut lock = readers("prices");
        lock.holders.truncate(1);
        assert_eq!(
            in_full(&lock),
            "\
prices
  mode      shared 1
  holders   1
    HOLDER          MODE    SLOT  HELD FOR  LEASE LEFT  FENCE  TOKEN     REASON
    ann@ci-7 pid 1  shared  -     12s       21s         -      1f3a9c2e  -
  queue     1 waiting, next first
    1. ann@ci-7 (pid 99), exclusive, waiting 12s
"
        );
    }

    /// A waiter's name and reason are printed unchanged.
    #[test]
    fn waiters_keep_their_names() {
        let mut shareholder = crate::json::samples::holder("shareholder", 7);
        shareholder.reason = Some("the holder's report".into());
        let line = waiter(1, &Waiting::new(shareholder, None));
        assert_eq!(line, "    1. shareholder@ci-7 (pid 7, \"the holder's report\"), exclusive");
    }

    /// A lock that is only kept closed is called closed, as in `ls`.
    #[test]
    fn closed_lock() {
        let lock = closed("cron");
        assert_eq!(
            in_full(&lock),
            "cron\n  mode      closed\n  holder    deploy@ci-7 (pid 812, tenure)\n  \
             reason    release 41\n  granted   4m12s ago\n  closed    for another 21s\n  fence     27431\n  \
             queue     empty\n"
        );
    }

    /// Unknown values are named as unknown.
    #[test]
    fn lock_with_less() {
        assert_eq!(
            in_full(&foreign("k")),
            "k\n  mode      exclusive\n  holder    an unknown holder\n  \
             lease     does not expire\n  queue     not known to this engine\n"
        );
    }

    /// A free lock is `null`, not an error.
    #[test]
    fn json_of_a_free_lock() {
        let key = Key::new("k").unwrap();
        assert_eq!(as_json(&key, None), "{\"schema\":1,\"key\":\"k\",\"lock\":null}\n");
    }
}
