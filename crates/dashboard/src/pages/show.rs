//! Values as they appear on pages.
//!
//! In: values of the library. Out: texts without characters that move, hide or reorder others. The templates then
//! escape what HTML would read.

use std::time::{Duration, UNIX_EPOCH};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tenure_core::text::{escape, paste, short};
use tenure_core::time::UnixMillis;
use tenure_core::{Capabilities, Holder, Holding, Key, Mode, Process};
use tokio::time::Instant;

use crate::app::App;
use crate::lease_signs::{LeaseSigns, Life};

/// What is shown for a value that is not known.
pub(crate) const UNKNOWN: &str = "–";

/// A text that others chose.
pub(crate) fn text(text: &str) -> String {
    escape(text).into_owned()
}

/// The address of the page of a lock.
pub(crate) fn link(key: &str) -> String {
    format!("lock?key={}", utf8_percent_encode(key, NON_ALPHANUMERIC))
}

/// A duration with a decimal below ten seconds.
pub(crate) fn exact(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ 0..1_000 => format!("{millis}ms"),
        millis @ 1_000..10_000 => format!("{}.{}s", millis / 1_000, millis % 1_000 / 100),
        _ => short(duration),
    }
}

/// `just now`, `4s ago`.
pub(crate) fn ago(age: Duration) -> String {
    if age < Duration::from_secs(2) { "just now".into() } else { format!("{} ago", short(age)) }
}

pub(crate) fn age(since: Option<UnixMillis>) -> String {
    since.map_or_else(|| UNKNOWN.into(), |since| short(since.elapsed()))
}

/// `2027-01-15T08:00:00Z`.
pub(crate) fn moment(at: UnixMillis) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(at.0)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// `08:00:00`, in UTC.
pub(crate) fn clock(at: UnixMillis) -> String {
    moment(at).get(11..19).unwrap_or_default().into()
}

/// `deploy@ci-7`.
pub(crate) fn name(process: &Process) -> String {
    text(&format!("{}@{}", process.user, process.host))
}

/// A process, as one cell of a table.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub(crate) name: String,
    /// `pid 812`.
    pub(crate) pid: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) reason: Option<String>,
}

impl Who {
    pub(crate) fn holds(holder: &Holder) -> Self {
        let name = match &holder.process {
            Some(_) => None,
            None => Some(text(&holder.to_string())),
        };
        Who::new(holder.process.as_ref(), name, &holder.label, &holder.reason)
    }

    pub(crate) fn new(
        process: Option<&Process>,
        other: Option<String>,
        label: &Option<String>,
        reason: &Option<String>,
    ) -> Self {
        Who {
            name: process.map(name).or(other).unwrap_or_else(|| "unknown".into()),
            pid: process.map(|process| format!("pid {}", process.pid)),
            program: process.map(|process| text(&process.program)),
            label: label.as_deref().map(text),
            reason: reason.as_deref().map(text),
        }
    }
}

/// How one claim holds or wants a key: `exclusive`, `shared`, `2 of 4 permits`.
pub(crate) fn mode(mode: &Mode) -> String {
    match mode {
        Mode::Permits { permits, capacity } => format!("{permits} of {capacity} permits"),
        other => other.as_str().into(),
    }
}

/// A holder with everything that a page shows of it.
#[derive(Debug)]
pub(crate) struct HolderCell {
    pub(crate) who: Who,
    pub(crate) mode: String,
    pub(crate) slot: String,
    pub(crate) life: Life,
    /// The sign before the word, so that the state is not a colour alone.
    pub(crate) sign: &'static str,
    pub(crate) held: String,
    pub(crate) since: String,
    pub(crate) lease: String,
    pub(crate) percent: Option<u32>,
    pub(crate) fence: String,
    /// The name of the claim, if it can be released here.
    pub(crate) claim: Option<String>,
    pub(crate) token_start: Option<String>,
}

impl HolderCell {
    pub(crate) fn new(app: &App, key: &Key, holding: &Holding, signs: &LeaseSigns) -> Self {
        let (holder, now) = (&holding.holder, Instant::now());
        let life = signs.life(holder, &app.can, now);
        let releasable = holding.token.filter(|_| app.may_release());
        HolderCell {
            who: Who::holds(holder),
            mode: mode(&holding.mode),
            slot: holding.slot.map_or_else(|| UNKNOWN.into(), |slot| slot.to_string()),
            sign: sign(life.word),
            life,
            held: age(holder.since),
            since: holder.since.map(moment).unwrap_or_default(),
            lease: lease(signs, &app.can, now),
            percent: signs.percent(now),
            fence: holding.fence.map_or_else(|| UNKNOWN.into(), |fence| fence.to_string()),
            claim: releasable.map(|token| app.claim_name(key, token)),
            token_start: holding.token.as_ref().map(tenure_core::view::token_start),
        }
    }
}

fn lease(signs: &LeaseSigns, can: &Capabilities, now: Instant) -> String {
    match (signs.left(now), signs.longest) {
        (Some(left), Some(longest)) => format!("{} of {}", short(left), short(rounded(longest))),
        _ if can.expires => "does not expire".into(),
        _ => "as long as its process".into(),
    }
}

/// To the nearest second: the first rest that is seen is a little less than the ttl.
fn rounded(longest: Duration) -> Duration {
    Duration::from_secs((longest.as_millis() as u64 + 500) / 1_000)
}

/// A sign for a state, beside its word.
pub(crate) fn sign(word: &str) -> &'static str {
    match word {
        "alive" | "good" => "●",
        "silent" | "unsafe" | "lost" => "▲",
        "closed" => "■",
        "warning" | "forced" | "ended" => "◆",
        _ => "○",
    }
}

/// A command to type.
pub(crate) fn command(app: &App, verb: &str, options: Option<&str>, key: &str) -> String {
    let all = [app.options.command_options.as_deref(), options];
    let all = all.into_iter().flatten().collect::<Vec<_>>().join(" ");
    paste(verb, Some(all.as_str()).filter(|all| !all.is_empty()), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts cannot reorder or hide what is beside them, and keys survive their address.
    #[test]
    fn t70_texts_and_links() {
        assert_eq!(text("a\u{202e}b\u{1b}[2J"), r"a\u{202e}b\u{1b}[2J");
        assert_eq!(link("a&b=<c> \u{202e}/"), "lock?key=a%26b%3D%3Cc%3E%20%E2%80%AE%2F");
        assert_eq!(exact(Duration::from_millis(412)), "412ms");
        assert_eq!(exact(Duration::from_millis(9_960)), "9.9s");
        assert_eq!(clock(UnixMillis(1_800_000_000_000)), "08:00:00");
    }
}
