//! The names of our keys on the server. Nothing else spells one.
//!
//! | key | what | lives |
//! |---|---|---|
//! | `tenure/lock/<name>/<client>` | a claim on the lock `name`, which holds it or waits: see `value.rs` | with its lease |
//! | `tenure/session/<lease>` | changed when a claim of that session is undone that may yet be made: see `session.rs`; that it goes with a claim tells that the session has ended: see `watch.rs` | with its lease |
//! | `tenure/forced/<token>` | who took this claim's lock away, for its holder to read | as long as the lease would have |
//! | `tenure/epoch` | the base of fences: see `epoch.rs` | for ever |
//!
//! In a name, `/` and `%` are written as `%2F` and `%25`, so that what starts one lock's keys starts no
//! other's (`a` and `a/b`). The oldest key under `tenure/lock/<name>/` holds the lock; the others wait, in
//! the order in which they were created.
//!
//! The claims of one client on one lock have the same key, one after the other; only one that comes while
//! an earlier one is not yet gone has a key of its own (`<client>-<number>`). A server remembers every name
//! that there ever was until its history is compacted, and goes through all of them whenever it looks at a
//! queue: with a name for each claim, a lock would be the slower the more often it has been taken.

use std::fmt;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::{Key, Token};

/// What would end a name, or could not be told from an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');
const LOCK: &str = "lock";
const SESSION: &str = "session";
const FORCED: &str = "forced";
/// Right before [`FORCED`] in the order of keys: one watch is told of both.
const EPOCH: &str = "epoch";
/// The names that are ours below the prefix.
pub(crate) const OURS: [&str; 4] = [LOCK, SESSION, FORCED, EPOCH];

/// The keys under one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    locks: String,
    sessions: String,
    forced: String,
    epoch: Bytes,
    client: String,
}

impl Keys {
    /// Those of `client`, which no other has.
    pub(crate) fn new(prefix: &str, client: u64) -> Self {
        let under = |name: &str| format!("{prefix}/{name}/");
        let (locks, sessions, forced) = (under(LOCK), under(SESSION), under(FORCED));
        let epoch = format!("{prefix}/{EPOCH}").into();
        Keys { locks, sessions, forced, epoch, client: format!("{client:016x}") }
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
        // By hand: there is one for each lock, and the machinery of `format!` costs as much as all the rest.
        let mut queue = String::with_capacity(self.locks.len() + key.as_str().len() + 1);
        queue.push_str(&self.locks);
        queue.extend(utf8_percent_encode(key.as_str(), ESCAPED));
        queue.push('/');
        queue.into()
    }

    /// The key of a claim of ours in `queue`.
    pub(crate) fn claim(&self, queue: &[u8]) -> Bytes {
        [queue, self.client.as_bytes()].concat().into()
    }

    /// The key of one that comes while another of ours is there.
    pub(crate) fn another_claim(&self, queue: &[u8], number: u64) -> Bytes {
        [queue, self.client.as_bytes(), format!("-{number}").as_bytes()].concat().into()
    }

    pub(crate) fn session(&self, lease: i64) -> Bytes {
        format!("{}{lease:016x}", self.sessions).into()
    }

    /// What says the base of fences.
    pub(crate) fn epoch(&self) -> Bytes {
        self.epoch.clone()
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

    /// The lock that the key `raw` is a claim on. `None` if it is none.
    pub(crate) fn parse(&self, raw: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(raw).ok()?.strip_prefix(&self.locks)?;
        let (name, _) = rest.split_once('/')?;
        let name = percent_decode_str(name).decode_utf8().ok()?;
        Key::new(&name).ok()
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
        let (keys, token) = (Keys::new("tenure", 0xcd), Token::random().unwrap());
        let queue = keys.queue(&key("order:1"));
        assert_eq!(&queue[..], b"tenure/lock/order:1/");
        let (claim, another) = (keys.claim(&queue), keys.another_claim(&queue, 7));
        assert_eq!(&claim[..], b"tenure/lock/order:1/00000000000000cd");
        assert_eq!(&another[..], b"tenure/lock/order:1/00000000000000cd-7");
        assert_eq!(
            [claim, another].map(|name| keys.parse(&name)),
            [(); 2].map(|()| Some(key("order:1")))
        );
        assert_eq!(&keys.session(0xab)[..], b"tenure/session/00000000000000ab");
        assert_eq!(keys.parse_forced(&keys.forced(token)), Some(token));
        assert_eq!(&keys.epoch()[..], b"tenure/epoch");
        assert!(keys.epoch() < keys.all_forced() && keys.epoch() > keys.claim(b"tenure/"));
    }

    /// What starts one lock's keys starts no other's, and every name comes back as it was.
    #[test]
    fn t58_names_are_kept_apart() {
        let keys = Keys::new("tenure", 1);
        let names = ["a", "a/b", "a%2Fb", "a%", "ü/🔒", "a/", "/", "{}", "a*"];
        for one in names {
            let queue = keys.queue(&key(one));
            let claim = keys.claim(&queue);
            assert_eq!(keys.parse(&claim).unwrap().as_str(), one);
            for other in names.into_iter().filter(|other| *other != one) {
                assert!(!claim.starts_with(&keys.queue(&key(other))), "{one} {other}");
            }
        }
    }

    /// What is none of ours has no lock; what somebody put there by hand has one.
    #[test]
    fn t60_other_keys() {
        let keys = Keys::new("tenure", 1);
        assert_eq!(keys.parse(b"tenure/session/1"), None);
        assert_eq!(keys.parse(b"tenure/lock/\xff/1"), None);
        assert_eq!(keys.parse(b"tenure/lock/k/by-hand"), Some(key("k")));
    }
}
