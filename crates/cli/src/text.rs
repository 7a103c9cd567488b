//! Values as text: durations, ordinals, errors. Names with any content are escaped by [`tenure::text`].
//!
//! In: values of the engine. Out: pieces of text for `output.rs`, safe to print on a terminal.

use std::fmt::Write as _;
use std::time::Duration;

pub(crate) use tenure::text::{escape, shell_word, short};

/// A duration with a decimal while that matters: `412ms`, `38.2s`, `30s`, `4m12s`.
pub(crate) fn exact(duration: Duration) -> String {
    // Round to tenths first, so that 59.97s is not printed as `60.0s`.
    let tenths = (duration.as_millis() + 50) / 100;
    match (duration.as_millis(), tenths) {
        (millis @ 0..1_000, _) => format!("{millis}ms"),
        (_, tenths @ 0..600) if tenths % 10 == 0 => format!("{}s", tenths / 10),
        (_, tenths @ 0..600) => format!("{}.{}s", tenths / 10, tenths % 10),
        _ => short(duration + Duration::from_millis(50)),
    }
}

/// `1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`.
pub(crate) fn ordinal(number: u64) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// An error and its causes in one line: `a: b: c`.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        // Writing to a string cannot fail.
        let _ = write!(line, ": {next}");
        cause = next.source();
    }
    line
}

/// The innermost cause of an error, for messages that already name the outer ones.
pub(crate) fn root(error: &tenure::Error) -> String {
    let said = error.fault().map_or_else(|| error.to_string(), ToString::to_string);
    let mut below = std::error::Error::source(error);
    while let Some(next) = below.and_then(std::error::Error::source) {
        below = Some(next);
    }
    below.map_or(said, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured times have a decimal only where it is useful.
    #[test]
    fn exact_durations() {
        let cases = [
            (412, "412ms"),
            (1_000, "1s"),
            (1_049, "1s"),
            (38_200, "38.2s"),
            (30_003, "30s"),
            (59_960, "1m00s"),
            (252_000, "4m12s"),
        ];
        for (millis, text) in cases {
            assert_eq!(exact(Duration::from_millis(millis)), text);
        }
    }

    /// English ordinals, with their three exceptions in every hundred.
    #[test]
    fn ordinals() {
        let cases = [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (112, "112th")];
        for (number, text) in cases {
            assert_eq!(ordinal(number), text);
        }
        assert_eq!(ordinal(21), "21st");
    }
}
