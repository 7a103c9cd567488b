//! The names of our keys on the server. Nothing else spells one.
//!
//! | key | what | lives |
//! |---|---|---|
//! | `tenure/lock/<name>/<lease>/<token>` | a claim on the lock `name`, which holds it or waits: see `value.rs` | with its lease |
//! | `tenure/session/<lease>` | changed when a claim of that session is undone that may yet be made: see `session.rs` | with its lease |
//! | `tenure/forced/<token>` | who took this claim's lock away, for its holder to read | as long as the lease would have |
//!
//! In a name, `/` and `%` are written as `%2F` and `%25`, so that what starts one lock's keys starts no
//! other's (`a` and `a/b`). The oldest key under `tenure/lock/<name>/` holds the lock; the others wait, in
//! the order in which they were created.

use std::fmt;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::{Key, Token};

/// What would end a name, or could not be told from an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');
const LOCK: &str = "lock";
const SESSION: &str = "session";
const FORCED: &str = "forced";
/// The names that are ours below the prefix.
pub(crate) const OURS: [&str; 3] = [LOCK, SESSION, FORCED];

/// The keys under one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    locks: String,
    sessions: String,
    forced: String,
}

/// What the name of a claim's key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) key: Key,
    pub(crate) token: Option<Token>,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let under = |name: &str| format!("{prefix}/{name}/");
        Keys { locks: under(LOCK), sessions: under(SESSION), forced: under(FORCED) }
    }

    /// What all of them start with, `/` included.
    pub(crate) fn root(&self) -> &str {
        self.locks.strip_suffix("lock/").unwrap_or(&self.locks)
    }

    /// What the keys of all claims start with.
    pub(crate) fn locks(&self) -> Bytes {
        self.locks.clone().into()
    }

    /// What the keys of all claims on `key` start with.
    pub(crate) fn queue(&self, key: &Key) -> Bytes {
        format!("{}{}/", self.locks, utf8_percent_encode(key.as_str(), ESCAPED)).into()
    }

    /// A claim's own key in `queue`.
    pub(crate) fn claim(&self, queue: &Bytes, lease: i64, token: Token) -> Bytes {
        let mut name = Vec::with_capacity(queue.len() + 49);
        name.extend_from_slice(queue);
        name.extend_from_slice(format!("{lease:016x}/").as_bytes());
        name.extend_from_slice(token.digits().as_bytes());
        name.into()
    }

    pub(crate) fn session(&self, lease: i64) -> Bytes {
        format!("{}{lease:016x}", self.sessions).into()
    }

    /// What the keys of all words about force start with.
    pub(crate) fn all_forced(&self) -> Bytes {
        self.forced.clone().into()
    }

    /// Holds a token: keep it out of logs.
    pub(crate) fn forced(&self, token: Token) -> Bytes {
        format!("{}{}", self.forced, token.expose()).into()
    }

    /// The claim whose lock was taken away.
    pub(crate) fn parse_forced(&self, raw: &[u8]) -> Option<Token> {
        Token::parse(std::str::from_utf8(raw).ok()?.strip_prefix(&self.forced)?)
    }

    /// The lock that the key `raw` is about, and whose claim it is. `None` if it is none of ours.
    pub(crate) fn parse(&self, raw: &[u8]) -> Option<Place> {
        let rest = std::str::from_utf8(raw).ok()?.strip_prefix(&self.locks)?;
        let (name, rest) = rest.split_once('/')?;
        let name = percent_decode_str(name).decode_utf8().ok()?;
        let token = rest.split_once('/').and_then(|(_, token)| Token::parse(token));
        Some(Place { key: Key::new(&name).ok()?, token })
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

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    /// A20: the layout on the wire, and back from it.
    #[test]
    fn the_layout() {
        let (keys, token) = (Keys::new("tenure"), Token::random().unwrap());
        let queue = keys.queue(&key("order:1"));
        assert_eq!(&queue[..], b"tenure/lock/order:1/");
        let claim = keys.claim(&queue, 0xab, token);
        let expected = format!("tenure/lock/order:1/00000000000000ab/{}", token.expose());
        assert_eq!(&claim[..], expected.as_bytes());
        let place = Place { key: key("order:1"), token: Some(token) };
        assert_eq!(keys.parse(&claim), Some(place));
        assert_eq!(&keys.session(0xab)[..], b"tenure/session/00000000000000ab");
        assert_eq!(keys.parse_forced(&keys.forced(token)), Some(token));
    }

    /// What starts one lock's keys starts no other's, and every name comes back as it was.
    #[test]
    fn t58_names_are_kept_apart() {
        let keys = Keys::new("tenure");
        let names = ["a", "a/b", "a%2Fb", "a%", "ü/🔒", "a/", "/", "{}", "a*"];
        for one in names {
            let queue = keys.queue(&key(one));
            let claim = keys.claim(&queue, 1, Token::random().unwrap());
            assert_eq!(keys.parse(&claim).unwrap().key.as_str(), one);
            for other in names.into_iter().filter(|other| *other != one) {
                assert!(!claim.starts_with(&keys.queue(&key(other))), "{one} {other}");
            }
        }
    }

    /// What is none of ours has no lock; what is not of our form has no token.
    #[test]
    fn t60_other_keys() {
        let keys = Keys::new("tenure");
        assert_eq!(keys.parse(b"tenure/session/1"), None);
        assert_eq!(keys.parse(b"tenure/lock/\xff/1/2"), None);
        assert_eq!(keys.parse(b"tenure/lock/k/by-hand").unwrap().token, None);
    }
}
