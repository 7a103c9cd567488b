//! Values as text for people: durations, and names with any content.
//!
//! In: values of an engine, which other users chose. Out: text that is safe on a terminal and on a page.

use std::borrow::Cow;
use std::time::Duration;

/// A duration to the second: `21s`, `4m12s`, `2h05m`, `3d04h`.
pub fn short(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0..60 => format!("{secs}s"),
        60..3_600 => format!("{}m{:02}s", secs / 60, secs % 60),
        3_600..86_400 => format!("{}h{:02}m", secs / 3_600, secs / 60 % 60),
        _ => format!("{}d{:02}h", secs / 86_400, secs / 3_600 % 24),
    }
}

/// A name or note, safe to print. Characters that could move the cursor, colour the screen or change the
/// direction of writing are escaped, because other users chose these texts.
pub fn escape(text: &str) -> Cow<'_, str> {
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
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", escape(word).replace('\'', r"'\''")))
}

/// A `tenure` command to paste into a shell, with its options before the key.
pub fn paste(command: &str, options: Option<&str>, key: &str) -> String {
    let options = options.map(|options| format!("{} ", escape(options))).unwrap_or_default();
    let literal = if key.starts_with('-') { "-- " } else { "" };
    format!("tenure {command} {options}{literal}{}", shell_word(key))
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
