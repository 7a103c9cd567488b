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
use tenure::{Client, Fence, Holder};

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
pub(crate) fn name(client: Option<&Client>) -> String {
    match client {
        Some(client) => escape(&format!("{}@{}", client.user, client.host)).into_owned(),
        None => "an unknown holder".into(),
    }
}

/// `deploy@ci-7 (pid 812, "release 41")`.
pub(crate) fn long_name(holder: &Holder) -> String {
    let pid = holder.client.as_ref().map(|client| format!("pid {}", client.pid));
    let reason = holder.reason.as_deref().map(|reason| format!("\"{}\"", escape(reason)));
    let notes: Vec<String> = [pid, reason].into_iter().flatten().collect();
    let name = name(holder.client.as_ref());
    if notes.is_empty() { name } else { format!("{name} ({})", notes.join(", ")) }
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
    let name = name(holder.client.as_ref());
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
mod tests {
    use super::*;
    use crate::view::samples;

    const FIVE: Duration = Duration::from_secs(5);

    fn ago(secs: u64) -> Option<UnixMillis> {
        // Half a second more, so that a slow test does not tip over to the next second.
        Some(UnixMillis(UnixMillis::now().0 - secs * 1_000 - 300))
    }

    fn holder() -> Holder {
        let client =
            Client { host: "ci-7".into(), pid: 812, user: "deploy".into(), program: "x".into() };
        let mut holder = Holder::unknown();
        holder.client = Some(client);
        holder
    }

    fn full() -> Holder {
        let mut holder = holder();
        holder.since = ago(252);
        holder.reason = Some("release 41".into());
        holder.lease_left = Some(Duration::from_millis(21_400));
        holder
    }

    fn closing() -> Holder {
        let mut holder = full();
        holder.closing = true;
        holder
    }

    /// A waiter is told everything that is known.
    #[test]
    fn waiting_in_full() {
        assert_eq!(
            waiting("db-migrate", Some(&full()), Some(2)),
            "tenure: waiting for db-migrate: held 4m12s by deploy@ci-7 (pid 812, \"release 41\"), \
             21s of lease left, you are 2nd"
        );
    }

    /// What is not known is left out.
    #[test]
    fn waiting_with_less() {
        assert_eq!(waiting("k", None, None), "tenure: waiting for k");
        assert_eq!(waiting_in_vain("k", "refused"), "tenure: waiting for k: refused");
        assert_eq!(waiting("k", None, Some(1)), "tenure: waiting for k: you are 1st");
        assert_eq!(
            waiting("k", Some(&holder()), None),
            "tenure: waiting for k: held by deploy@ci-7 (pid 812)"
        );
        assert_eq!(
            waiting("k", Some(&Holder::unknown()), None),
            "tenure: waiting for k: held by an unknown holder"
        );
    }

    /// A lock that is only kept closed is not called held.
    #[test]
    fn waiting_for_a_closed_lock() {
        assert_eq!(
            waiting("k", Some(&closing()), None),
            "tenure: waiting for k: released by deploy@ci-7 (pid 812, \"release 41\"), \
             kept closed for another 21s"
        );
    }

    /// A note from another process cannot draw on the terminal.
    #[test]
    fn t58_notes_of_others_are_escaped() {
        let mut holder = holder();
        holder.reason = Some("\u{1b}[2J".into());
        assert_eq!(
            waiting("k", Some(&holder), None),
            "tenure: waiting for k: held by deploy@ci-7 (pid 812, \"\\u{1b}[2J\")"
        );
    }

    /// The end of a wait, won.
    #[test]
    fn acquired_in_full() {
        let waited = Duration::from_millis(38_212);
        assert_eq!(
            acquired("db-migrate", waited, Fence::from_raw(27_431)),
            "tenure: acquired db-migrate after 38.2s (fence 27431)"
        );
        assert_eq!(acquired("k", waited, Fence::NONE), "tenure: acquired k after 38.2s");
    }

    /// The end of a wait, given up.
    #[test]
    fn not_acquired_in_full() {
        let mut holder = holder();
        holder.since = ago(282);
        let cases = [
            (
                not_acquired("db-migrate", Some(&holder), Some(Duration::from_secs(30))),
                "tenure: not acquired: db-migrate is held by deploy@ci-7 for 4m42s (gave up after 30s)",
            ),
            (
                not_acquired("k", Some(&holder), None),
                "tenure: not acquired: k is held by deploy@ci-7 for 4m42s",
            ),
            (
                not_acquired("k", Some(&Holder::unknown()), None),
                "tenure: not acquired: k is held by an unknown holder",
            ),
            (not_acquired("k", None, None), "tenure: not acquired: k is held"),
            (
                not_acquired("k", Some(&closing()), None),
                "tenure: not acquired: k was released by deploy@ci-7 and is kept closed for another 21s",
            ),
        ];
        for (line, text) in cases {
            assert_eq!(line, text);
        }
    }

    /// A hint is a command that can be pasted.
    #[test]
    fn hints() {
        assert_eq!(hint_show("db-migrate", None), "hint: tenure show db-migrate");
        assert_eq!(hint_show("a b", None), "hint: tenure show 'a b'");
        assert_eq!(hint_show("-x", None), "hint: tenure show -- -x");
        assert_eq!(
            hint_show("-x", Some("-u file:/var/lock")),
            "hint: tenure show -u file:/var/lock -- -x"
        );
        assert_eq!(hint("try 5m"), "hint: try 5m");
    }

    /// What is said of a lock that a script takes and gives back.
    #[test]
    fn scripted_locks() {
        let until = UnixMillis(1_800_000_000_123);
        let cases = [
            (
                not_renewed("k", Duration::from_secs(600), until),
                "tenure: k has a ttl of 10m00s and nobody renews it: rely on it until \
                 2027-01-15T08:00:00Z",
            ),
            (released("k"), "tenure: released k"),
            (
                not_ours("k", None),
                "tenure: not released: k is not held under this token (any more); it is free",
            ),
            (
                not_ours("k", Some(&samples::busy("k"))),
                "tenure: not released: k is not held under this token (any more); it is held by \
                 deploy@ci-7 for 4m12s",
            ),
            (paste("release", Some("--token TOKEN"), "-x"), "tenure release --token TOKEN -- -x"),
        ];
        for (line, text) in cases {
            assert_eq!(line, text);
        }
    }

    /// What is said of a lock that is taken away.
    #[test]
    fn forced_locks() {
        let mut tool = full();
        tool.client.as_mut().unwrap().program = "tenure".into();
        let full_name = "deploy@ci-7 (pid 812, \"release 41\")";
        let held_by = format!("tenure: k is held 4m12s by {full_name}, 21s of lease left");
        let cases = [
            (held("k", &full(), None), held_by.clone()),
            (
                held("k", &full(), Some(Life::Runs)),
                format!("{held_by}, its process runs on this machine"),
            ),
            (held("k", &full(), Some(Life::Ended)), format!("{held_by}, its process has ended")),
            (
                held("k", &tool, Some(Life::Ended)),
                format!("{held_by}, its process has ended, as that of `tenure acquire` always has"),
            ),
            (
                held("k", &closing(), None),
                format!("tenure: k was released by {full_name}, kept closed for another 21s"),
            ),
            (
                forced("k", &full(), None),
                format!(
                    "tenure: released k by force: {full_name} learns it at the next renewal, and \
                     may go on until then"
                ),
            ),
            (forced("k", &closing(), None), "tenure: opened k".into()),
            (
                forced("k", &full(), Some(Life::Ended)),
                "tenure: released k by force: a script that has its token learns it at its release"
                    .into(),
            ),
            (type_again(), "type the key again to take it away: ".into()),
            (renewed("k"), "tenure: k was renewed just now: its holder is alive".into()),
            (not_typed("k"), "tenure: not released: k was not typed".into()),
            (nothing_to_release("k"), "tenure: nothing to release: k is free".into()),
            (
                changed_hands("k", &full()),
                "tenure: not released: k has changed hands meanwhile; it is held by deploy@ci-7 \
                 for 4m12s"
                    .into(),
            ),
        ];
        for (line, text) in cases {
            assert_eq!(line, text);
        }
    }

    /// A lock that ends while the command runs: why, and what was done.
    #[test]
    fn losing_in_full() {
        let cause = Some("connection refused".into());
        let silent = Danger::NoRenewal { since: Duration::from_secs(20), cause };
        let term = Measure::Term { pid: 9911, kill_in: FIVE };
        let kill = Measure::Kill { pid: 9911 };
        let cases = [
            (
                losing("db-migrate", &silent, term),
                "tenure: losing db-migrate: no renewal confirmed for 20s (connection refused); \
                 sent TERM to 9911, KILL in 5s",
            ),
            (
                losing("k", &Danger::AtMost(Duration::from_secs(90)), term),
                "tenure: losing k: --at-most 1m30s is nearly over; sent TERM to 9911, KILL in 5s",
            ),
            (
                losing("k", &Danger::Lost(Loss::MaxHold), kill),
                "tenure: losing k: --at-most is over; sent KILL to 9911",
            ),
            (
                losing("k", &Danger::Lost(Loss::Gone), kill),
                "tenure: losing k: the engine no longer knows it as ours; sent KILL to 9911",
            ),
            (
                losing("k", &Danger::Lost(Loss::Expired), Measure::Nothing),
                "tenure: losing k: no renewal was confirmed in time; the command goes on",
            ),
            (lost("db-migrate"), "tenure: lost db-migrate"),
        ];
        for (line, text) in cases {
            assert_eq!(line, text);
        }
    }

    /// The remaining lines.
    #[test]
    fn other_lines() {
        let cases = [
            (
                using_default("file:/tmp/tenure-1000"),
                "tenure: no --url given, using file:/tmp/tenure-1000",
            ),
            (
                ttl_without_effect("file"),
                "tenure: --ttl has no effect on file: locks, they end with their process",
            ),
            (
                memory_excludes_nobody(),
                "tenure: memory: is shared with no other process, nothing is excluded",
            ),
            (
                not_released("k", "engine unavailable: connection refused"),
                "tenure: could not give back k: engine unavailable: connection refused",
            ),
            (error("a: b: c"), "tenure: error: a: b: c"),
            (no_locks(), "tenure: no locks"),
            (free("db-migrate"), "db-migrate is free"),
        ];
        for (line, text) in cases {
            assert_eq!(line, text);
        }
    }
}
