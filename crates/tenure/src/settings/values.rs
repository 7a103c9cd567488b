//! The values of the fields: their form, and which are allowed.
//!
//! In: the text of a field. Out: its value, or `None` if it is invalid.

use std::time::Duration;

use tenure_core::config::{Settings, duration};
use tenure_core::{Error, Renew, TTL_MAX, WithinProcess};

use super::Wait;

/// The shortest time that is not zero.
pub(super) const LEAST: Duration = Duration::from_millis(1);

/// `None` if nothing is configured. If the watchdog is off, the ratio has no effect.
pub(super) fn renew(given: &Settings) -> Result<Option<Renew>, Error> {
    let on = given.get("watchdog", "`true` or `false`", |text| text.parse().ok())?;
    let ratio = given.get("watchdog_ratio", "a number between 0 and 0.5", |text| {
        text.parse().ok().filter(|ratio| *ratio > 0.0 && *ratio < 0.5)
    })?;
    Ok(match (on, ratio) {
        (Some(false), _) => Some(Renew::Off),
        (_, Some(ratio)) => Some(Renew::Ratio(ratio)),
        (Some(true), None) => Some(Renew::Auto),
        (None, None) => None,
    })
}

pub(super) fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.into())
}

pub(super) fn wait(text: &str) -> Option<Wait> {
    match text {
        "forever" => Some(Wait::Forever),
        _ => any_time(text).map(Wait::For),
    }
}

pub(super) fn within_process(text: &str) -> Option<WithinProcess> {
    match text {
        "queue" => Some(WithinProcess::Queue),
        "fail" => Some(WithinProcess::Fail),
        _ => None,
    }
}

pub(super) fn any_time(text: &str) -> Option<Duration> {
    time(text, Duration::ZERO)
}

pub(super) fn time(text: &str, min: Duration) -> Option<Duration> {
    duration(text).filter(|time| (min..=TTL_MAX).contains(time))
}

pub(super) fn between(min: Duration) -> String {
    format!("a time from {min:?} to 365 days, such as `15s`")
}
