//! The name of a lock.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// The longest name, in bytes. Every engine can carry it whole.
pub const KEY_MAX: usize = 512;

/// What is locked: a name such as `order:42`, checked.
///
/// One to 512 bytes of UTF-8 without control characters. Everything else is allowed and taken
/// literally: braces, spaces, `*`, emoji. A good name reads `module:resource:id`.
///
/// ```
/// use tenure::Key;
///
/// assert_eq!(Key::new("order:42")?.as_str(), "order:42");
/// let refused = Key::new("line\nbreak").unwrap_err();
/// assert_eq!(refused.to_string(), r"invalid key `line\nbreak`: it contains the control character `\n`");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Checks `name`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is empty, too long, or contains a control character.
    pub fn new(name: &str) -> Result<Self, Error> {
        match flaw(name) {
            None => Ok(Key(Arc::from(name))),
            Some(flaw) => Err(Error::invalid_key(name, flaw)),
        }
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn flaw(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("it is empty".into());
    }
    if name.len() > KEY_MAX {
        let len = name.len();
        return Some(format!("it is {len} bytes long, at most {KEY_MAX} are allowed"));
    }
    let control = name.chars().find(|c| c.is_control())?;
    Some(format!("it contains the control character `{}`", control.escape_debug()))
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that would confuse a shell, a glob or a cluster are ordinary names.
    #[test]
    fn t58_odd_names_are_taken_literally() {
        for name in ["}x", "{}", "a}b{c", "a b", "* ? [ ]", "🔒", "订单:42", "a/../b", "."] {
            assert_eq!(Key::new(name).unwrap().as_str(), name);
        }
    }

    /// Names nobody can read back are refused, and the message shows them escaped and short.
    #[test]
    fn t58_bad_names_are_refused() {
        let cases = [
            ("", "invalid key ``: it is empty"),
            ("a\0b", "invalid key `a\\0b`: it contains the control character `\\0`"),
            (
                "\u{1b}[31mred",
                "invalid key `\\u{1b}[31mred`: it contains the control character `\\u{1b}`",
            ),
        ];
        for (name, message) in cases {
            assert_eq!(Key::new(name).unwrap_err().to_string(), message);
        }
        let huge = Key::new(&"x".repeat(1 << 20)).unwrap_err().to_string();
        assert!(huge.ends_with("it is 1048576 bytes long, at most 512 are allowed"), "{huge}");
        assert!(huge.len() < 200, "{huge}");
    }
}
