//! Every line that `tenure` says to people, in one place.
//!
//! In: what happened, as values. Out: lines without their end, for `talk.rs` to print. Each has a
//! test on its full text, since people and scripts come to rely on it.
//!
//! Absent on purpose: no writer, no clock, no colour. Tables are in `ls.rs` and `show.rs`.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use tenure::backend::{LockInfo, Loss};
use tenure::time::UnixMillis;
use tenure::watch::{Event, What};
use tenure::{Fence, Holder};

use crate::text::{escape, exact, ordinal, shell_word, short};

/// Said once where nobody named a place for the locks.
pub(crate) fn using_default(url: &str) -> String {
    format!("tenure: no --url given, using {}", escape(url))
}

/// Said once where a ttl was given to an engine whose locks end with their process.
pub(crate) fn ttl_without_effect(engine: &str) -> String {
    format!("tenure: --ttl has no effect on {engine}: locks, they end with their process")
}

/// Said once where the locks are our own and the command's neighbours have theirs.
pub(crate) fn memory_excludes_nobody() -> String {
    "tenure: memory: is shared with no other process, nothing is excluded".into()
}

/// What a checkup came to.
pub(crate) fn checked(good: usize, unknown: usize, warnings: usize, unsafe_: usize) -> String {
    let all = good + unknown + warnings + unsafe_;
    let parts = [(unsafe_, "unsafe"), (warnings, "warning"), (unknown, "unknown"), (good, "good")];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, word)| format!("{count} {word}")).collect();
    let checks = if all == 1 { "check" } else { "checks" };
    format!("tenure: {all} {checks}: {}", parts.join(", "))
}

/// What stands in the way, as far as it is known.
pub(crate) fn waiting(key: &str, holder: Option<&Holder>, place: Option<u64>) -> String {
    let mut parts: Vec<String> = holder.map(obstacle).unwrap_or_default();
    parts.extend(place.map(|place| format!("you are {}", ordinal(place))));
    let line = format!("tenure: waiting for {}", escape(key));
    if parts.is_empty() { line } else { format!("{line}: {}", parts.join(", ")) }
}

/// The engine cannot be asked for now; the wait goes on for a while.
pub(crate) fn waiting_in_vain(key: &str, cause: &str) -> String {
    format!("tenure: waiting for {}: {}", escape(key), escape(cause))
}

fn obstacle(holder: &Holder) -> Vec<String> {
    let left = holder.lease_left.map(short);
    if holder.closing {
        let rest = left.map(|left| format!("kept closed for another {left}"));
        return [Some(format!("released by {}", long_name(holder))), rest]
            .into_iter()
            .flatten()
            .collect();
    }
    let since = holder.since.map(|since| format!(" {}", short(since.elapsed())));
    let held = format!("held{} by {}", since.unwrap_or_default(), long_name(holder));
    [Some(held), left.map(|left| format!("{left} of lease left"))].into_iter().flatten().collect()
}

/// `deploy@ci-7`, or that it is not known.
pub(crate) fn name(holder: &Holder) -> String {
    match &holder.client {
        Some(client) => escape(&format!("{}@{}", client.user, client.host)).into_owned(),
        None => holder.to_string(),
    }
}

/// `deploy@ci-7 (pid 812, "release 41")`.
pub(crate) fn long_name(holder: &Holder) -> String {
    described(name(holder), holder)
}

/// The same for somebody who waits.
pub(crate) fn waiter(waiter: &Holder) -> String {
    let name = if waiter.client.is_some() { name(waiter) } else { "an unknown waiter".into() };
    described(name, waiter)
}

fn described(name: String, holder: &Holder) -> String {
    let pid = holder.client.as_ref().map(|client| format!("pid {}", client.pid));
    let reason = holder.reason.as_deref().map(|reason| format!("\"{}\"", escape(reason)));
    let notes: Vec<String> = [pid, reason].into_iter().flatten().collect();
    if notes.is_empty() { name } else { format!("{name} ({})", notes.join(", ")) }
}

/// Said when a watch begins.
pub(crate) fn watching(held: usize) -> String {
    match held {
        1 => "tenure: watching, 1 lock is held now".into(),
        held => format!("tenure: watching, {held} locks are held now"),
    }
}

/// Said once while nothing can be seen.
pub(crate) fn cannot_see(cause: &str) -> String {
    format!("tenure: cannot see the locks, trying again: {}", escape(cause))
}

/// What happened to a lock: the word for it, and the rest of the line.
pub(crate) fn event(event: &Event) -> (&'static str, String) {
    let unknown = Holder::unknown();
    let holder = event.holder.as_ref().unwrap_or(&unknown);
    let (name, held) = (long_name(holder), held_for(holder));
    let waiters = event.waiters.filter(|count| *count > 0);
    let waiting = waiters.map(|count| format!(", {count} waiting")).unwrap_or_default();
    let (word, rest) = match &event.what {
        What::Acquired => ("acquired", format!(" by {name}")),
        What::Released => ("released", format!(" by {name}{held}")),
        What::HandedOver => (
            "handed over",
            format!(" to {name}{}", event.from.as_ref().map(former).unwrap_or_default()),
        ),
        What::Lost => ("lost", format!(" by {name}{held}")),
        What::Forced(by) => ("forced", format!(" from {name}{held} by {}", escape(by))),
        _ => ("ended", format!(": released or lost by {name}{held}, nobody saw which")),
    };
    (word, rest + &waiting)
}

fn former(holder: &Holder) -> String {
    format!(" by {}{}", long_name(holder), held_for(holder))
}

fn held_for(holder: &Holder) -> String {
    holder.since.map(|since| format!(" after {}", short(since.elapsed()))).unwrap_or_default()
}

/// The end of a wait that was talked about.
pub(crate) fn acquired(key: &str, waited: Duration, fence: Fence) -> String {
    let fence = if fence == Fence::NONE { String::new() } else { format!(" (fence {fence})") };
    format!("tenure: acquired {} after {}{fence}", escape(key), exact(waited))
}

/// The end of a wait that came to nothing. `gave_up` is how long it was, if it was one at all.
pub(crate) fn not_acquired(
    key: &str,
    holder: Option<&Holder>,
    gave_up: Option<Duration>,
) -> String {
    let by = holder.map(holder_briefly).unwrap_or_else(|| "is held".into());
    let after = gave_up.map(|wait| format!(" (gave up after {})", exact(wait)));
    format!("tenure: not acquired: {} {by}{}", escape(key), after.unwrap_or_default())
}

fn holder_briefly(holder: &Holder) -> String {
    let name = name(holder);
    if holder.closing {
        let rest = holder.lease_left.map(|left| format!(" for another {}", short(left)));
        return format!("was released by {name} and is kept closed{}", rest.unwrap_or_default());
    }
    let since = holder.since.map(|since| format!(" for {}", short(since.elapsed())));
    format!("is held by {name}{}", since.unwrap_or_default())
}

/// Where to look next. `option` is the one that leads to the same place, if one was given.
pub(crate) fn hint_show(key: &str, option: Option<&str>) -> String {
    hint(&paste("show", option, key))
}

/// A command that can be pasted into a shell, its options before the key.
pub(crate) fn paste(command: &str, options: Option<&str>, key: &str) -> String {
    let options = options.map(|options| format!("{} ", escape(options))).unwrap_or_default();
    let literal = if key.starts_with('-') { "-- " } else { "" };
    format!("tenure {command} {options}{literal}{}", shell_word(key))
}

/// What was taken for a script ends by itself: when.
pub(crate) fn not_renewed(key: &str, ttl: Duration, until: UnixMillis) -> String {
    let (key, ttl, until) = (escape(key), exact(ttl), moment(until));
    format!("tenure: {key} has a ttl of {ttl} and nobody renews it: rely on it until {until}")
}

/// A moment for people, to the second.
pub(crate) fn moment(at: UnixMillis) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(at.0)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Given back by its token.
pub(crate) fn released(key: &str) -> String {
    format!("tenure: released {}", escape(key))
}

/// Not given back: the token is of the past, or of another lock. `now` is how the lock stands.
pub(crate) fn not_ours(key: &str, now: Option<&LockInfo>) -> String {
    let holding = now.and_then(|lock| lock.holders.first());
    let stands = holding.map_or("is free".into(), |holding| holder_briefly(&holding.holder));
    let key = escape(key);
    format!("tenure: not released: {key} is not held under this token (any more); it {stands}")
}

/// Whether the process that took a lock still runs, as far as it can be seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    Ended,
}

/// Who is about to lose a lock.
pub(crate) fn held(key: &str, holder: &Holder, life: Option<Life>) -> String {
    let mut parts = obstacle(holder);
    parts.extend(life.map(|life| match life {
        Life::Runs => "its process runs on this machine".into(),
        // It may be a script's, which goes on working: that must not look like a dead holder.
        Life::Ended if is_the_tool(holder) => {
            "its process has ended, as that of `tenure acquire` always has".into()
        }
        Life::Ended => "its process has ended".into(),
    }));
    let verb = if holder.closing { "was" } else { "is" };
    format!("tenure: {} {verb} {}", escape(key), parts.join(", "))
}

fn is_the_tool(holder: &Holder) -> bool {
    holder.client.as_ref().is_some_and(|client| client.program == env!("CARGO_BIN_NAME"))
}

/// The question before a lock is taken away; the answer is the key.
pub(crate) fn type_again() -> String {
    "type the key again to take it away: ".into()
}

/// The holder was seen to live while the question was open.
pub(crate) fn renewed(key: &str) -> String {
    format!("tenure: {} was renewed just now: its holder is alive", escape(key))
}

/// The operator thought again.
pub(crate) fn not_typed(key: &str) -> String {
    format!("tenure: not released: {} was not typed", escape(key))
}

/// Taken away, and what that means for whoever had it.
pub(crate) fn forced(key: &str, holder: &Holder, life: Option<Life>) -> String {
    let key = escape(key);
    let then = match life {
        _ if holder.closing => return format!("tenure: opened {key}"),
        Some(Life::Ended) => "a script that has its token learns it at its release".into(),
        _ => {
            format!("{} learns it at the next renewal, and may go on until then", long_name(holder))
        }
    };
    format!("tenure: released {key} by force: {then}")
}

/// Nobody holds it.
pub(crate) fn nothing_to_release(key: &str) -> String {
    format!("tenure: nothing to release: {} is free", escape(key))
}

/// Not taken away: it is not the holder any more that was shown.
pub(crate) fn changed_hands(key: &str, holder: &Holder) -> String {
    let (key, stands) = (escape(key), holder_briefly(holder));
    format!("tenure: not released: {key} has changed hands meanwhile; it {stands}")
}

/// Why the lock is about to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Danger {
    /// The server has not confirmed a renewal for so long, and why the last attempt failed.
    NoRenewal { since: Duration, cause: Option<String> },
    /// It was to be held at most so long.
    AtMost(Duration),
    /// It is lost already.
    Lost(Loss),
}

impl Danger {
    /// The loss that it is, or would have become.
    pub(crate) fn loss(&self) -> Loss {
        match self {
            Danger::NoRenewal { .. } => Loss::Expired,
            Danger::AtMost(_) => Loss::MaxHold,
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
            Danger::AtMost(limit) => write!(f, "--at-most {} is nearly over", exact(*limit)),
            Danger::Lost(Loss::MaxHold) => f.write_str("--at-most is over"),
            Danger::Lost(loss) => f.write_str(&escape(&loss.to_string())),
        }
    }
}

/// What was done to the command because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// TERM now, KILL after so long.
    Term { pid: i32, kill_in: Duration },
    /// KILL now.
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
            Measure::Nothing => f.write_str("the command goes on"),
        }
    }
}

/// The lock is about to end, or has just ended, while the command runs.
pub(crate) fn losing(key: &str, danger: &Danger, measure: Measure) -> String {
    format!("tenure: losing {}: {danger}; {measure}", escape(key))
}

/// The lock is gone, and what was done about it has been done.
pub(crate) fn lost(key: &str) -> String {
    format!("tenure: lost {}", escape(key))
}

/// The lock could not be given back. The command has ended, and its status stands.
pub(crate) fn not_released(key: &str, cause: &str) -> String {
    format!("tenure: could not give back {}: {}", escape(key), escape(cause))
}

/// Something is wrong: `tenure: error: a: b: c`.
pub(crate) fn error(chain: &str) -> String {
    format!("tenure: error: {}", escape(chain))
}

/// What to do about it, on a line of its own.
pub(crate) fn hint(advice: &str) -> String {
    format!("hint: {}", escape(advice))
}

/// `ls` found nothing.
pub(crate) fn no_locks() -> String {
    "tenure: no locks".into()
}

/// `show` found nobody who holds or waits.
pub(crate) fn free(key: &str) -> String {
    format!("{} is free", escape(key))
}

#[cfg(test)]
mod tests;
