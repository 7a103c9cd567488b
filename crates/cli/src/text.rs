//! Values as text: durations, ordinals, names with any content.
//!
//! In: values of the engine. Out: pieces of text for `output.rs`, safe to print on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

/// A duration to the second: `21s`, `4m12s`, `2h05m`, `3d04h`.
pub(crate) fn short(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0..60 => format!("{secs}s"),
        60..3_600 => format!("{}m{:02}s", secs / 60, secs % 60),
        3_600..86_400 => format!("{}h{:02}m", secs / 3_600, secs / 60 % 60),
        _ => format!("{}d{:02}h", secs / 86_400, secs / 3_600 % 24),
    }
}

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

/// A name or note, safe to print. Characters that could move the cursor, colour the screen or change the
/// direction of writing are escaped, because other users chose these texts.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_unsafe(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Control characters, separators that break lines, and marks that reorder or hide text.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{61c}' | '\u{feff}')
}

/// An argument, quoted for a shell if needed.
pub(crate) fn shell_word(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", escape(word).replace('\'', r"'\''")))
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

    /// Ages are exact to the second, and coarser the longer they are.
    #[test]
    fn short_durations() {
        let cases = [(0, "0s"), (21, "21s"), (252, "4m12s"), (7_500, "2h05m"), (273_600, "3d04h")];
        for (secs, text) in cases {
            assert_eq!(short(Duration::from_secs(secs)), text);
        }
    }

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

    /// Names that others chose cannot control our terminal; ordinary names stay unchanged.
    #[test]
    fn t58_odd_names_are_shown_escaped() {
        assert_eq!(escape("\u{1b}[31mred\n"), r"\u{1b}[31mred\n");
        assert_eq!(escape("a\u{202e}b"), r"a\u{202e}b");
        assert_eq!(escape("🔒 订单"), "🔒 订单");
    }

    /// A hint can be pasted into a shell.
    #[test]
    fn shell_words_are_quoted_when_needed() {
        assert_eq!(shell_word("db-migrate"), "db-migrate");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
