//! The text of every message for people, in one target.
//!
//! In: what happened, as values. Out: lines without a line end, for `ui.rs` to print. A test compares the
//! full text of each, because people and scripts rely on it.
//!
//! On purpose there is no writer, no clock and no colour here. Tables are in `ls.rs` and `show.rs`.

mod election;
mod page;

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use tenure::backend::{Holding, LockInfo, Loss, Waiting};
use tenure::time::UnixMillis;
use tenure::view::taken;
use tenure::watch::{Event, EventKind};
use tenure::{Fence, Holder, Key, Mode, Process};

pub(crate) use election::{leadership, leading, lost_leadership, nobody_leads};

pub(crate) use page::{demo, demo_killed, serving};
pub(crate) use tenure::text::paste;

use crate::text::{escape, exact, ordinal, shell_word, short};

/// Printed once if neither flag nor configuration chose where the locks are.
pub(crate) fn using_default(url: &str) -> String {
    format!("tenure: no --url given, using {}", escape(url))
}

/// Printed once if a ttl was set for an engine whose locks end with their process.
pub(crate) fn ttl_without_effect(engine: &str) -> String {
    format!("tenure: --ttl has no effect on {engine}: locks, they end with their process")
}

/// Printed once for `memory:`, whose locks no other process shares.
pub(crate) fn memory_excludes_nobody() -> String {
    "tenure: memory: is not shared with other processes and excludes none of them".into()
}

/// The summary of `tenure doctor`.
pub(crate) fn checked(good: usize, unknown: usize, warnings: usize, unsafe_: usize) -> String {
    let all = good + unknown + warnings + unsafe_;
    let parts = [(unsafe_, "unsafe"), (warnings, "warning"), (unknown, "unknown"), (good, "good")];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, word)| format!("{count} {word}")).collect();
    let checks = if all == 1 { "check" } else { "checks" };
    format!("tenure: {all} {checks}: {}", parts.join(", "))
}

/// What keeps a waiter from the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle<'a> {
    /// The holders; at least one.
    Holders(&'a [Holding]),
    /// A waiter before us, although the holders would admit us.
    Waiter(&'a Waiting),
}

/// What a waiter waits for, as far as it is known.
pub(crate) fn waiting(key: &str, obstacle: Option<&Obstacle<'_>>, position: Option<u64>) -> String {
    let mut parts = match obstacle {
        None => Vec::new(),
        Some(Obstacle::Holders(holders)) => kept_out_by(holders),
        Some(Obstacle::Waiter(ahead)) => {
            vec![format!("behind {}, who wants {}", waiter(ahead), how(&ahead.mode))]
        }
    };
    parts.extend(position.map(|position| format!("you are {}", ordinal(position))));
    let line = format!("tenure: waiting for {}", escape(key));
    if parts.is_empty() { line } else { format!("{line}: {}", parts.join(", ")) }
}

/// The holders, as a reason to wait: the first one, how many others there are, and how the key is held.
fn kept_out_by(holders: &[Holding]) -> Vec<String> {
    let Some((first, others)) = holders.split_first() else { return Vec::new() };
    let mut parts = obstacle(&first.holder);
    if first.mode.is_together() && !first.holder.cooling_down {
        let since = held_since(&first.holder);
        let verb = if first.mode == Mode::Read { "read" } else { "held" };
        let others = match others.len() {
            0 => String::new(),
            1 => " and 1 other".into(),
            count => format!(" and {count} others"),
        };
        parts[0] = format!("{verb}{since} by {}{others}", long_name(&first.holder));
        parts
            .splice(0..0, taken(holders).map(|(used, of)| format!("{used} of {of} permits taken")));
    }
    parts
}

/// How a claim holds a key or wants it, in a sentence.
fn how(mode: &Mode) -> String {
    match mode {
        Mode::Exclusive | Mode::SharedOwner(_) => "it alone".into(),
        Mode::Read => "to read it".into(),
        Mode::Permits { permits: 1, .. } => "1 permit".into(),
        Mode::Permits { permits, .. } => format!("{permits} permits"),
    }
}

/// How one claim holds a key or wants it, in a table: `exclusive`, `shared`, `2 of 4`.
pub(crate) fn mode(mode: &Mode) -> String {
    match mode {
        Mode::Permits { permits, capacity } => format!("{permits} of {capacity}"),
        other => other.as_str().into(),
    }
}

/// The server cannot be reached now. The wait continues, for the time that is `left` of its limit.
pub(crate) fn waiting_for_server(key: &str, cause: &str, left: Option<Duration>) -> String {
    let left = left.map(|left| format!("; giving up in {}", short(left))).unwrap_or_default();
    format!("tenure: waiting for the server of {}: {}{left}", escape(key), escape(cause))
}

/// The length of a wait that was given up.
pub(crate) fn gave_up(waited: Duration) -> String {
    format!(" (gave up after {})", exact(waited))
}

fn obstacle(holder: &Holder) -> Vec<String> {
    let left = holder.lease_left.map(short);
    if holder.cooling_down {
        let rest = left.map(|left| format!("kept closed for another {left}"));
        return [Some(format!("released by {}", long_name(holder))), rest]
            .into_iter()
            .flatten()
            .collect();
    }
    let held = format!("held{} by {}", held_since(holder), long_name(holder));
    [Some(held), left.map(|left| format!("{left} of lease left"))].into_iter().flatten().collect()
}

fn held_since(holder: &Holder) -> String {
    holder.since.map(|since| format!(" {}", short(since.elapsed()))).unwrap_or_default()
}

/// `deploy@ci-7`, or the text for an unknown holder.
pub(crate) fn name(holder: &Holder) -> String {
    holder.process.as_ref().map_or_else(|| holder.to_string(), user_at_host)
}

fn user_at_host(process: &Process) -> String {
    escape(&format!("{}@{}", process.user, process.host)).into_owned()
}

/// `deploy@ci-7 (pid 812, "release 41")`.
pub(crate) fn long_name(holder: &Holder) -> String {
    described(name(holder), holder.process.as_ref(), holder.reason.as_deref())
}

/// Like [`long_name`], for a waiter.
pub(crate) fn waiter(waiter: &Waiting) -> String {
    let process = waiter.process.as_ref();
    let name = process.map_or_else(|| "an unknown waiter".into(), user_at_host);
    described(name, process, waiter.reason.as_deref())
}

fn described(name: String, process: Option<&Process>, reason: Option<&str>) -> String {
    let pid = process.map(|process| format!("pid {}", process.pid));
    let reason = reason.map(|reason| format!("\"{}\"", escape(reason)));
    let notes: Vec<String> = [pid, reason].into_iter().flatten().collect();
    if notes.is_empty() { name } else { format!("{name} ({})", notes.join(", ")) }
}

/// Printed when a watch starts.
pub(crate) fn watching(held: usize) -> String {
    match held {
        1 => "tenure: watching, 1 lock is held now".into(),
        held => format!("tenure: watching, {held} locks are held now"),
    }
}

/// Printed once while the locks cannot be read.
pub(crate) fn cannot_see(cause: &str) -> String {
    format!("tenure: cannot see the locks, trying again: {}", escape(cause))
}

/// An event of a lock: the word for it, and the rest of the line.
pub(crate) fn event(event: &Event) -> (&'static str, String) {
    let unknown = Holder::unknown();
    let holder = event.holder.as_ref().unwrap_or(&unknown);
    let (name, held) = (long_name(holder), held_for(holder));
    let waiters = event.waiters.filter(|count| *count > 0);
    let waiting = waiters.map(|count| format!(", {count} waiting")).unwrap_or_default();
    let (word, rest) = match &event.what {
        EventKind::Acquired => ("acquired", format!(" by {name}")),
        EventKind::Released => ("released", format!(" by {name}{held}")),
        EventKind::HandedOver => (
            "handed over",
            format!(" to {name}{}", event.from.as_ref().map(former).unwrap_or_default()),
        ),
        EventKind::Lost => ("lost", format!(" by {name}{held}")),
        EventKind::Forced(by) => ("forced", format!(" from {name}{held} by {}", escape(by))),
        _ => ("ended", format!(": released or lost by {name}{held}, it is not known which")),
    };
    (word, rest + &waiting)
}

fn former(holder: &Holder) -> String {
    format!(" by {}{}", long_name(holder), held_for(holder))
}

fn held_for(holder: &Holder) -> String {
    holder.since.map(|since| format!(" after {}", short(since.elapsed()))).unwrap_or_default()
}

/// The keys were acquired after a wait that was reported. Of several keys, the fences are not shown.
pub(crate) fn acquired(keys: &[Key], waited: Duration, fence: impl Fn(&Key) -> Fence) -> String {
    let fence = match keys {
        [key] => Some(fence(key)).filter(|fence| *fence != Fence::NONE),
        _ => None,
    };
    let fence = fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
    let names: Vec<_> = keys.iter().map(|key| escape(key.as_str())).collect();
    format!("tenure: acquired {} after {}{fence}", names.join(", "), exact(waited))
}

/// The lock was not acquired. `gave_up` is the limit of the wait, if the caller waited.
pub(crate) fn not_acquired(
    key: &str,
    holder: Option<&Holder>,
    gave_up: Option<Duration>,
) -> String {
    let by = holder.map(holder_briefly).unwrap_or_else(|| "is held".into());
    let after = gave_up.map(self::gave_up).unwrap_or_default();
    format!("tenure: not acquired: {} {by}{after}", escape(key))
}

fn holder_briefly(holder: &Holder) -> String {
    let name = name(holder);
    if holder.cooling_down {
        let rest = holder.lease_left.map(|left| format!(" for another {}", short(left)));
        return format!("was released by {name} and is kept closed{}", rest.unwrap_or_default());
    }
    let since = holder.since.map(|since| format!(" for {}", short(since.elapsed())));
    let since = since.unwrap_or_default();
    match &holder.mode {
        Some(Mode::Read) => format!("is read by {name}{since}"),
        Some(Mode::Permits { permits, capacity }) => {
            format!("is held by {name} with {permits} of {capacity} permits{since}")
        }
        _ => format!("is held by {name}{since}"),
    }
}

/// A `tenure show` command for this lock. `option` is the flag that chooses the same server or directory, if
/// needed.
pub(crate) fn hint_show(key: &str, option: Option<&str>) -> String {
    hint(&paste("show", option, key))
}

/// A lock of `tenure acquire` is not renewed: when it ends.
pub(crate) fn not_renewed(key: &str, ttl: Duration, until: UnixMillis) -> String {
    let (key, ttl, until) = (escape(key), exact(ttl), moment(until));
    format!("tenure: {key} has a ttl of {ttl} and is not renewed: rely on it until {until}")
}

/// A point in time for people, to the second.
pub(crate) fn moment(at: UnixMillis) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(at.0)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// The lock was released with its token.
pub(crate) fn released(key: &str) -> String {
    format!("tenure: released {}", escape(key))
}

/// The lock was not released: its token is out of date, or belongs to another lock. `now` is the lock's
/// present state.
pub(crate) fn not_ours(key: &str, now: Option<&LockInfo>) -> String {
    let holding = now.and_then(|lock| lock.holders.first());
    let stands = holding.map_or("is free".into(), |holding| holder_briefly(&holding.holder));
    let key = escape(key);
    format!("tenure: not released: {key} is not held with this token, or no longer; it {stands}")
}

/// Whether the process that acquired a lock still runs, as far as this machine can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    Ended,
}

/// The holder that is about to lose its lock.
pub(crate) fn held(key: &str, holder: &Holder, life: Option<Life>) -> String {
    let mut parts = obstacle(holder);
    parts.extend(life.map(|life| match life {
        Life::Runs => "its process runs on this machine".into(),
        // A script may still work under this lock, so the holder must not look dead.
        Life::Ended if is_the_tool(holder) => {
            "its process has ended, as that of `tenure acquire` always has".into()
        }
        Life::Ended => "its process has ended".into(),
    }));
    let verb = if holder.cooling_down { "was" } else { "is" };
    format!("tenure: {} {verb} {}", escape(key), parts.join(", "))
}

fn is_the_tool(holder: &Holder) -> bool {
    holder.process.as_ref().is_some_and(|client| client.program == env!("CARGO_BIN_NAME"))
}

/// The question before a forced release; the answer is the key.
pub(crate) fn type_again() -> String {
    "type the key again to take it away: ".into()
}

/// The holder renewed the lock while the question was open.
pub(crate) fn renewed(key: &str) -> String {
    format!("tenure: {} was renewed just now: its holder is alive", escape(key))
}

/// The operator did not type the key.
pub(crate) fn not_typed(key: &str) -> String {
    format!("tenure: not released: {} was not typed", escape(key))
}

/// The lock was released by force, and when its former holder notices.
pub(crate) fn forced(key: &str, holder: &Holder, life: Option<Life>) -> String {
    let key = escape(key);
    let then = match life {
        _ if holder.cooling_down => return format!("tenure: opened {key}"),
        Some(Life::Ended) => "a script that has its token will see it when it releases".into(),
        _ => {
            format!(
                "{} will see it at its next renewal, and may continue until then",
                long_name(holder)
            )
        }
    };
    format!("tenure: released {key} by force: {then}")
}

/// The lock is free.
pub(crate) fn nothing_to_release(key: &str) -> String {
    format!("tenure: nothing to release: {} is free", escape(key))
}

/// One of several holders has left by itself.
pub(crate) fn has_left(key: &str, holder: &Holder) -> String {
    let (key, name) = (escape(key), long_name(holder));
    format!("tenure: nothing to release: {name} does not hold {key} any more")
}

/// The lock was not released by force: it has another holder than the one that was shown.
pub(crate) fn changed_hands(key: &str, holder: &Holder) -> String {
    let (key, stands) = (escape(key), holder_briefly(holder));
    format!("tenure: not released: {key} has changed hands meanwhile; it {stands}")
}

/// Why the lock is about to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Danger {
    /// The server has not confirmed a renewal for this long; `cause` is why the last attempt failed.
    NoRenewal { since: Duration, cause: Option<String> },
    /// This limit of `--max-hold` is nearly over.
    MaxHold(Duration),
    /// The lock is lost already.
    Lost(Loss),
}

impl Danger {
    /// The loss that has happened, or will happen.
    pub(crate) fn loss(&self) -> Loss {
        match self {
            Danger::NoRenewal { .. } => Loss::Expired,
            Danger::MaxHold(_) => Loss::MaxHold,
            Danger::Lost(loss) => loss.clone(),
        }
    }
}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Danger::NoRenewal { since, cause } => {
                write!(f, "no renewal confirmed for {}", short(*since))?;
                cause.as_ref().map_or(Ok(()), |cause| write!(f, " ({})", escape(cause)))
            }
            Danger::MaxHold(limit) => write!(f, "--max-hold {} is nearly over", exact(*limit)),
            Danger::Lost(Loss::MaxHold) => f.write_str("--max-hold is over"),
            Danger::Lost(loss) => f.write_str(&escape(&loss.to_string())),
        }
    }
}

/// How the command was treated because of the danger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// TERM was sent; KILL follows after this time.
    Term { pid: i32, kill_in: Duration },
    /// KILL was sent.
    Kill { pid: i32 },
    /// Nothing: `--on-lost ignore`.
    Nothing,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measure::Term { pid, kill_in } => {
                write!(f, "sent TERM to {pid}, KILL in {}", exact(*kill_in))
            }
            Measure::Kill { pid } => write!(f, "sent KILL to {pid}"),
            Measure::Nothing => f.write_str("the command continues"),
        }
    }
}

/// The lock is about to end, or has just ended, while the command runs.
pub(crate) fn losing(key: &str, danger: &Danger, measure: Measure) -> String {
    format!("tenure: losing {}: {danger}; {measure}", escape(key))
}

/// The lock is lost, and the command has ended.
pub(crate) fn lost(key: &str) -> String {
    format!("tenure: lost {}", escape(key))
}

/// The lock could not be released. The command has ended, and its exit status stays.
pub(crate) fn not_released(key: &str, cause: &str) -> String {
    format!("tenure: could not release {}: {}", escape(key), escape(cause))
}

/// An error: `tenure: error: a: b: c`.
pub(crate) fn error(chain: &str) -> String {
    format!("tenure: error: {}", escape(chain))
}

/// Advice, on a line of its own.
pub(crate) fn hint(advice: &str) -> String {
    format!("hint: {}", escape(advice))
}

/// `ls` found no locks; with a glob, other locks may exist.
pub(crate) fn no_locks(glob: &str) -> String {
    match glob {
        "*" => "tenure: no locks".into(),
        glob => format!("tenure: no locks match {}", shell_word(glob)),
    }
}

/// `show` found neither a holder nor a waiter.
pub(crate) fn free(key: &str) -> String {
    format!("{} is free", escape(key))
}

#[cfg(test)]
mod tests;
