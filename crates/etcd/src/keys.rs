//! The names of our keys on the server. No other module builds them.
//!
//! | key | content | lives |
//! |---|---|---|
//! | `tenure/lock/<name>/<client>` | a claim on the lock `name`, held or waiting: see `value.rs` | with its lease |
//! | `tenure/session/<lease>` | a session: see below | with its lease |
//! | `tenure/forced/<token>` | who released this claim's lock by force | as long as its lease could have |
//! | `tenure/epoch` | the base of fences: see `epoch.rs` | for ever |
//!
//! The key of a session is changed when a claim of the session is undone whose key a late request may still
//! create: see `session.rs`. If it is deleted together with a claim, the session has ended: see `watch.rs`.
//!
//! In a name, `/` and `%` are written as `%2F` and `%25`, so that the prefix of one lock's keys is no prefix
//! of another's (`a` and `a/b`). The oldest key under `tenure/lock/<name>/` holds the lock. The others wait,
//! in the order in which they were created. Readers, and permits up to their capacity, hold it together.
//!
//! The name of a claim begins with its mode: see `modes.rs`. The claims of one client on one lock use the same keys,
//! one after the other. Only a claim that comes while earlier ones still have theirs gets another key
//! (`<client>-<number>`, the lowest number that is free). A server remembers every name until its history is
//! compacted, and goes through all of them whenever it reads a queue. With a name for each claim, a lock would
//! become slower each time it is acquired.

use std::fmt;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::{Key, Mode, Token};

use crate::modes;

/// Characters that would end a name, or look like an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');
const LOCK: &str = "lock";
const SESSION: &str = "session";
const FORCED: &str = "forced";
/// Right before [`FORCED`] in the order of keys, so that one watch covers both.
const EPOCH: &str = "epoch";
/// The names that we use below the prefix.
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
    /// The keys of `client`, a number that is unique among clients.
    pub(crate) fn new(prefix: &str, client: u64) -> Self {
        let under = |name: &str| format!("{prefix}/{name}/");
        let (locks, sessions, forced) = (under(LOCK), under(SESSION), under(FORCED));
        let epoch = format!("{prefix}/{EPOCH}").into();
        Keys { locks, sessions, forced, epoch, client: format!("{client:016x}") }
    }

    /// The prefix of all our keys, including the `/`.
    pub(crate) fn root(&self) -> &str {
        self.locks.strip_suffix("lock/").unwrap_or(&self.locks)
    }

    /// The prefix of the keys of all claims.
    pub(crate) fn locks(&self) -> Bytes {
        self.locks.clone().into()
    }

    /// The prefix of the keys of all claims on `key`.
    pub(crate) fn queue(&self, key: &Key) -> Bytes {
        // Without `format!`: there is one call for each lock, and `format!` costs as much as all the rest.
        let mut queue = String::with_capacity(self.locks.len() + key.as_str().len() + 1);
        queue.push_str(&self.locks);
        queue.extend(utf8_percent_encode(key.as_str(), ESCAPED));
        queue.push('/');
        queue.into()
    }

    /// The key of a claim of ours in `queue`. `number` tells it from our other claims in this mode.
    pub(crate) fn claim(&self, queue: &[u8], mode: &Mode, number: u32) -> Bytes {
        let mut name = modes::prefix(mode) + &self.client;
        if number > 0 {
            name.push_str(&format!("-{number}"));
        }
        [queue, name.as_bytes()].concat().into()
    }

    pub(crate) fn session(&self, lease: i64) -> Bytes {
        format!("{}{lease:016x}", self.sessions).into()
    }

    /// The key of the base of fences.
    pub(crate) fn epoch(&self) -> Bytes {
        self.epoch.clone()
    }

    /// The prefix of the keys of all notes about forced releases.
    pub(crate) fn all_forced(&self) -> Bytes {
        self.forced.clone().into()
    }

    /// Contains a token: keep it out of logs.
    pub(crate) fn forced(&self, token: Token) -> Bytes {
        format!("{}{}", self.forced, token.expose()).into()
    }

    /// The token of the claim whose lock was released by force.
    pub(crate) fn parse_forced(&self, raw: &[u8]) -> Option<Token> {
        Token::parse(std::str::from_utf8(raw).ok()?.strip_prefix(&self.forced)?)
    }

    /// The lock that the key `raw` is a claim on, and the mode of the claim; `None` if it is not a claim.
    pub(crate) fn parse(&self, raw: &[u8]) -> Option<(Key, Mode)> {
        let rest = std::str::from_utf8(raw).ok()?.strip_prefix(&self.locks)?;
        let (name, claim) = rest.split_once('/')?;
        let name = percent_decode_str(name).decode_utf8().ok()?;
        Some((Key::new(&name).ok()?, modes::parse(claim.as_bytes())))
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

    /// A2, A20: the layout on the wire, written and parsed.
    #[test]
    fn the_layout() {
        let (keys, token) = (Keys::new("tenure", 0xcd), Token::random().unwrap());
        let queue = keys.queue(&key("order:1"));
        assert_eq!(&queue[..], b"tenure/lock/order:1/");
        let permit = Mode::Permits { permits: 2, capacity: 4 };
        for (mode, number, name) in [
            (Mode::Exclusive, 0, "00000000000000cd"),
            (Mode::Exclusive, 7, "00000000000000cd-7"),
            (Mode::Read, 0, "~00000000000000cd"),
            (permit, 1, "#2of4.00000000000000cd-1"),
        ] {
            let claim = keys.claim(&queue, &mode, number);
            assert_eq!(claim, [&queue[..], name.as_bytes()].concat());
            assert_eq!(keys.parse(&claim), Some((key("order:1"), mode)));
        }
        assert_eq!(&keys.session(0xab)[..], b"tenure/session/00000000000000ab");
        assert_eq!(keys.parse_forced(&keys.forced(token)), Some(token));
        assert_eq!(&keys.epoch()[..], b"tenure/epoch");
        assert!(
            keys.epoch() < keys.all_forced()
                && keys.epoch() > keys.claim(b"tenure/", &Mode::Exclusive, 0)
        );
    }

    /// The prefix of one lock's keys is no prefix of another's, and every name is parsed as it was written.
    #[test]
    fn t58_names_are_kept_apart() {
        let keys = Keys::new("tenure", 1);
        let names = ["a", "a/b", "a%2Fb", "a%", "ü/🔒", "a/", "/", "{}", "a*"];
        for one in names {
            let queue = keys.queue(&key(one));
            let claim = keys.claim(&queue, &Mode::Read, 0);
            assert_eq!(keys.parse(&claim).unwrap().0.as_str(), one);
            for other in names.into_iter().filter(|other| *other != one) {
                assert!(!claim.starts_with(&keys.queue(&key(other))), "{one} {other}");
            }
        }
    }

    /// A key that is not a claim has no lock; a key that a person put below a lock has one.
    #[test]
    fn t60_other_keys() {
        let keys = Keys::new("tenure", 1);
        assert_eq!(keys.parse(b"tenure/session/1"), None);
        assert_eq!(keys.parse(b"tenure/lock/\xff/1"), None);
        assert_eq!(keys.parse(b"tenure/lock/k/by-hand"), Some((key("k"), Mode::Exclusive)));
    }
}
