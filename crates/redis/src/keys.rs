//! The names of our keys on the server. Nothing else spells one.
//!
//! | key | what | lives |
//! |---|---|---|
//! | `tenure:lock:order:1` | the lock `order:1`: a string, see `value.rs` | as long as its ttl |
//! | `tenure:fence` | the last fence that was given out, for all locks | for ever |
//! | `tenure:queue:order:1` | who waits for it: a sorted set of tokens by ticket | while somebody does |
//! | `tenure:beat:order:1` | their heartbeats: a hash, token to until when, how, ttl and value | with the queue |
//! | `tenure:holders:order:1` | the claims of a shared owner that holds it: a sorted set by their end | as long as its ttl |
//! | `tenure:forced:<token>` | who took this claim's lock away, for its holder to read | as long as the lease would have |

use std::fmt;
use std::sync::Arc;

use tenure_core::{Key, Token};

use crate::scripts::Words;

/// The keys under one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    /// `tenure:lock:`, and so on.
    locks: Arc<str>,
    queues: Arc<str>,
    beats: Arc<str>,
    holders: Arc<str>,
    fence: Arc<str>,
    forced: Arc<str>,
    inboxes: Arc<str>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}:{rest}").into();
        Keys {
            locks: name("lock:"),
            queues: name("queue:"),
            beats: name("beat:"),
            holders: name("holders:"),
            fence: name("fence"),
            forced: name("forced:"),
            inboxes: name("inbox:"),
        }
    }

    pub(crate) fn lock(&self, key: &Key) -> String {
        format!("{}{key}", self.locks)
    }

    /// What the names of locks start with.
    pub(crate) fn locks(&self) -> &str {
        &self.locks
    }

    pub(crate) fn queue(&self, key: &Key) -> String {
        format!("{}{key}", self.queues)
    }

    pub(crate) fn beats(&self, key: &Key) -> String {
        format!("{}{key}", self.beats)
    }

    pub(crate) fn holders(&self, key: &Key) -> String {
        format!("{}{key}", self.holders)
    }

    pub(crate) fn fence(&self) -> &str {
        &self.fence
    }

    /// What the channels start with on which processes are told of their turn.
    pub(crate) fn inboxes(&self) -> &str {
        &self.inboxes
    }

    /// The keys of a lock in the order in which scripts want them.
    pub(crate) fn add_all(&self, key: &Key, words: &mut Words) {
        self.add_lock(key, words);
        words.add(&self.fence);
        words.add_parts(&[&self.queues, key.as_str()]);
        words.add_parts(&[&self.beats, key.as_str()]);
        self.add_holders(key, words);
    }

    pub(crate) fn add_lock(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.locks, key.as_str()]);
    }

    pub(crate) fn add_holders(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.holders, key.as_str()]);
    }

    /// Short-lived, and only where an operator used force. Holds a token: keep it out of logs.
    pub(crate) fn add_forced(&self, token: Token, words: &mut Words) {
        words.add_parts(&[&self.forced, &token.expose()]);
    }

    /// The same by itself.
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
