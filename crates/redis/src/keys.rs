//! The names of our keys on the server. Nothing else spells one.
//!
//! | key | what | lives |
//! |---|---|---|
//! | `tenure:lock:order:1` | the lock `order:1`: a string, see `value.rs` | as long as its ttl |
//! | `tenure:fence` | the last fence that was given out, for all locks | for ever |
//! | `tenure:forced:<token>` | who took this claim's lock away, for its holder to read | as long as the lease would have |

use std::fmt;
use std::sync::Arc;

use tenure_core::{Key, Token};

/// The keys under one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    /// `tenure:lock:`
    locks: Arc<str>,
    fence: Arc<str>,
    forced: Arc<str>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Keys {
            locks: format!("{prefix}:lock:").into(),
            fence: format!("{prefix}:fence").into(),
            forced: format!("{prefix}:forced:").into(),
        }
    }

    pub(crate) fn lock(&self, key: &Key) -> String {
        format!("{}{key}", self.locks)
    }

    pub(crate) fn fence(&self) -> &str {
        &self.fence
    }

    /// Short-lived, and only where an operator used force. Holds a token: keep it out of logs.
    pub(crate) fn forced(&self, token: Token) -> String {
        format!("{}{}", self.forced, token.expose())
    }

    /// The lock that the key `raw` is of; `None` if it is none of ours.
    pub(crate) fn parse_lock(&self, raw: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(raw).ok()?.strip_prefix(&*self.locks)?;
        Key::new(name).ok()
    }

    /// A pattern for `SCAN` that matches every lock, whatever characters the prefix has.
    pub(crate) fn all_locks(&self) -> String {
        let mut pattern = String::new();
        for c in self.locks.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern + "*"
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}…)", self.locks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A20: the layout on the wire, and back from it.
    #[test]
    fn the_layout() {
        let keys = Keys::new("tenure");
        let key = Key::new("order:1").unwrap();
        assert_eq!(keys.lock(&key), "tenure:lock:order:1");
        assert_eq!(keys.fence(), "tenure:fence");
        assert_eq!(keys.parse_lock(b"tenure:lock:order:1"), Some(key));
        assert_eq!(keys.parse_lock(b"tenure:fence"), None);
        assert_eq!(keys.parse_lock(b"tenure:lock:\xff"), None);
    }

    /// t59: a prefix with glob characters is taken literally.
    #[test]
    fn t59_the_pattern_is_literal() {
        assert_eq!(Keys::new("a*[b]").all_locks(), r"a\*\[b\]:lock:*");
    }
}
