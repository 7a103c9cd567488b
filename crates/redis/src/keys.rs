//! The names of our keys on the server. Nothing else spells one.
//!
//! | key | what | lives |
//! |---|---|---|
//! | `tenure:lock:order:1` | the lock `order:1`: a string, see `value.rs` | as long as its ttl |
//! | `tenure:fence` | the last fence that was given out, for all locks | for ever |
//! | `tenure:queue:order:1` | who waits for it: a sorted set of places (`scripts/queue.lua`) by ticket | while somebody does |
//! | `tenure:beat:order:1` | heartbeats of those who have waited for a while: a hash, token to until when, and how | with the queue |
//! | `tenure:holders:order:1` | the claims of a shared owner that holds it: a sorted set by their end | as long as its ttl |
//! | `tenure:forced:<token>` | who took this claim's lock away, for its holder to read | as long as the lease would have |
//! | `tenure:fenced:user:1` | the highest fence that wrote the value `user:1` | a day longer than the value |
//! | `tenure:user:1` | the value `user:1` of whoever uses the client: no name above | as it was set |
//!
//! In a cluster all that belongs to a lock is in the slot of its own key, whose name stays the same. The
//! others have a tag before the name, which is counted alone whatever the name has: `tenure:queue:{tag}:order:1`,
//! `tenure:fence:{tag}`, `tenure:forced:{tag}:<token>`, and so on (`cluster/slot.rs`).

use std::fmt;
use std::sync::Arc;

use tenure_core::{Key, Token};

use crate::cluster::slot;
use crate::scripts::Words;
use crate::trouble::{Cause, Trouble};

/// The names that are ours below the prefix; with a colon, all names that start so.
const LOCK: &str = "lock:";
const QUEUE: &str = "queue:";
const BEAT: &str = "beat:";
const HOLDERS: &str = "holders:";
const FENCE: &str = "fence";
const FORCED: &str = "forced:";
const INBOX: &str = "inbox:";
const FENCED: &str = "fenced:";
/// Not in use yet: records of processes.
const CLIENT: &str = "client:";
const OURS: [&str; 9] = [LOCK, QUEUE, BEAT, HOLDERS, FENCE, FORCED, INBOX, FENCED, CLIENT];

/// Stands for the slot of everything where there are none.
pub(crate) const NO_SLOT: u16 = 0;

/// The keys under one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    /// `tenure:`.
    values: Arc<str>,
    /// `tenure:fenced:`.
    fenced: Arc<str>,
    /// `tenure:lock:`.
    locks: Arc<str>,
    /// Where there are slots: what was counted of that.
    counted: Option<u16>,
    /// `tenure:queue`, and so on: a tag may follow.
    queues: Arc<str>,
    beats: Arc<str>,
    holders: Arc<str>,
    fence: Arc<str>,
    forced: Arc<str>,
    inboxes: Arc<str>,
}

/// The prefix whose keys those of `prefix` could be, and the name of ours that says so: under `tenure:lock`
/// the fence is the lock `fence` of `tenure`.
pub(crate) fn other_prefix(prefix: &str) -> Option<(&str, &str)> {
    prefix.match_indices(':').find_map(|(end, _)| {
        let name = prefix[end + 1..].split(':').next()?;
        let is_ours = |ours: &str| ours.trim_end_matches(':') == name;
        OURS.into_iter().any(is_ours).then_some((&prefix[..end], name))
    })
}

/// Names to try rights on.
pub(crate) struct Probe {
    pub(crate) text: String,
    pub(crate) keys: Vec<String>,
    pub(crate) channel: String,
}

impl Keys {
    /// On one server.
    pub(crate) fn new(prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}:{rest}").into();
        let before_tag = |rest: &str| name(rest.trim_end_matches(':'));
        Keys {
            values: name(""),
            fenced: name(FENCED),
            locks: name(LOCK),
            counted: None,
            queues: before_tag(QUEUE),
            beats: before_tag(BEAT),
            holders: before_tag(HOLDERS),
            fence: name(FENCE),
            forced: before_tag(FORCED),
            inboxes: before_tag(INBOX),
        }
    }

    /// In a cluster. A prefix with braces would decide on the slot of every lock.
    pub(crate) fn in_cluster(prefix: &str) -> Self {
        let keys = Self::new(prefix);
        Keys { counted: Some(slot::count(0, keys.locks.as_bytes())), ..keys }
    }

    /// Whether there are slots.
    pub(crate) fn has_slots(&self) -> bool {
        self.counted.is_some()
    }

    /// The slot of a lock, and of all that belongs to it.
    pub(crate) fn slot(&self, key: &Key) -> u16 {
        let slot = |counted| slot::slot_after(counted, key.as_str().as_bytes());
        self.counted.map_or(NO_SLOT, slot)
    }

    /// What keeps the other keys of a lock in its slot.
    fn tag(&self, key: &Key) -> &'static str {
        match self.counted {
            Some(_) => slot::tag(self.slot(key)),
            None => "",
        }
    }

    /// What all names start with.
    pub(crate) fn prefix(&self) -> &str {
        self.values.strip_suffix(':').unwrap_or(&self.values)
    }

    /// Names that nobody else has, to try rights on: a key for a text, one of every kind, a channel.
    pub(crate) fn probe(&self) -> Result<Probe, Trouble> {
        let refused = |why: String| Trouble::new(Cause::Refused, &"here", why);
        let token =
            Token::random().map_err(|error| refused(format!("no random numbers: {error}")))?;
        let name = format!("tenure-doctor:{}", &token.digits()[..16]);
        let key = Key::new(&name).map_err(|error| refused(error.to_string()))?;
        let of_lock = [self.lock(&key), self.queue(&key), self.beats(&key), self.holders(&key)];
        let keys =
            of_lock.into_iter().chain([self.fence(&key), self.forced(&key, token)]).collect();
        let channel = self.inbox(&name, self.has_slots().then(|| self.slot(&key)));
        Ok(Probe { text: self.lock(&key), keys, channel })
    }

    /// The value that whoever uses the client calls `key`, in two parts; or the name of ours that it
    /// would hit.
    pub(crate) fn value<'a>(&'a self, key: &'a [u8]) -> Result<[&'a [u8]; 2], &'static str> {
        let hit = |ours: &&str| match ours.ends_with(':') {
            true => key.starts_with(ours.as_bytes()),
            false => key == ours.as_bytes(),
        };
        match OURS.into_iter().find(|ours| hit(ours)) {
            Some(ours) => Err(ours),
            None => Ok([self.values.as_bytes(), key]),
        }
    }

    /// The highest fence that wrote the value `key`, in two parts.
    pub(crate) fn fenced<'a>(&'a self, key: &'a [u8]) -> [&'a [u8]; 2] {
        [self.fenced.as_bytes(), key]
    }

    pub(crate) fn lock(&self, key: &Key) -> String {
        format!("{}{key}", self.locks)
    }

    /// What the names of locks start with.
    pub(crate) fn locks(&self) -> &str {
        &self.locks
    }

    pub(crate) fn queue(&self, key: &Key) -> String {
        format!("{}{}:{key}", self.queues, self.tag(key))
    }

    pub(crate) fn beats(&self, key: &Key) -> String {
        format!("{}{}:{key}", self.beats, self.tag(key))
    }

    pub(crate) fn holders(&self, key: &Key) -> String {
        format!("{}{}:{key}", self.holders, self.tag(key))
    }

    pub(crate) fn fence(&self, key: &Key) -> String {
        format!("{}{}", self.fence, self.tag(key))
    }

    /// The channel on which the process `client` is told of its turns; in a cluster, of those in a
    /// slot.
    pub(crate) fn inbox(&self, client: &str, slot: Option<u16>) -> String {
        let tag = slot.map_or("", slot::tag);
        format!("{}{tag}:{client}", self.inboxes)
    }

    /// The keys of a lock in the order in which scripts want them.
    pub(crate) fn add_all(&self, key: &Key, words: &mut Words) {
        self.add_usual(key, words);
        self.add_beats(key, words);
        self.add_holders(key, words);
    }

    /// Those of them that the short forms want.
    pub(crate) fn add_usual(&self, key: &Key, words: &mut Words) {
        self.add_lock(key, words);
        self.add_fence(key, words);
        self.add_queue(key, words);
    }

    pub(crate) fn add_lock(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.locks, key.as_str()]);
    }

    pub(crate) fn add_queue(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.queues, self.tag(key), ":", key.as_str()]);
    }

    pub(crate) fn add_beats(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.beats, self.tag(key), ":", key.as_str()]);
    }

    pub(crate) fn add_holders(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.holders, self.tag(key), ":", key.as_str()]);
    }

    pub(crate) fn add_fence(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.fence, self.tag(key)]);
    }

    /// What the channels start with on which processes are told of their turn.
    pub(crate) fn add_inboxes(&self, key: &Key, words: &mut Words) {
        words.add_parts(&[&self.inboxes, self.tag(key), ":"]);
    }

    /// Short-lived, and only where an operator used force. Holds a token: keep it out of logs.
    pub(crate) fn add_forced(&self, key: &Key, token: Token, words: &mut Words) {
        words.add_parts(&[&self.forced, self.tag(key), ":", &token.digits()]);
    }

    /// The same by itself.
    pub(crate) fn forced(&self, key: &Key, token: Token) -> String {
        format!("{}{}:{}", self.forced, self.tag(key), token.expose())
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
        assert_eq!(keys.fence(&key), "tenure:fence");
        assert_eq!(keys.queue(&key), "tenure:queue:order:1");
        assert_eq!(keys.inbox("c", None), "tenure:inbox:c");
        assert_eq!(keys.parse_lock(b"tenure:lock:order:1"), Some(key));
        assert_eq!(keys.parse_lock(b"tenure:fence"), None);
        assert_eq!(keys.parse_lock(b"tenure:lock:\xff"), None);
    }

    /// t58: in a cluster everything of a lock is in the slot of its key, whatever its name has.
    #[test]
    fn t58_one_slot_for_each_lock() {
        let (keys, token) = (Keys::in_cluster("tenure"), Token::random().unwrap());
        for name in
            ["order:1", "{}", "}{", "}x", "a}b{c", "{a}{b}", "a{b}c", "{", "}", "{}{x}", "ü{"]
        {
            let key = Key::new(name).unwrap();
            let slot = slot::slot(keys.lock(&key).as_bytes());
            assert_eq!(keys.slot(&key), slot, "{name}");
            let others = [keys.queue(&key), keys.beats(&key), keys.holders(&key), keys.fence(&key)];
            let more = [keys.forced(&key, token), keys.inbox("c", Some(slot))];
            for other in others.iter().chain(&more) {
                assert_eq!(slot::slot(other.as_bytes()), slot, "{other} for {name}");
            }
        }
        let key = Key::new("order:1").unwrap();
        assert_eq!(keys.lock(&key), "tenure:lock:order:1", "other clients know it by this name");
        assert_eq!(keys.queue(&key), format!("tenure:queue{}:order:1", slot::tag(keys.slot(&key))));
    }

    /// D8: what is ours cannot be reached as a value; what only looks like it can.
    #[test]
    fn d8_our_names_are_no_values() {
        let keys = Keys::new("tenure");
        for name in ["lock:order:1", "lock:", "queue:k", "beat:k", "holders:k", "fence"] {
            assert!(keys.value(name.as_bytes()).is_err(), "{name}");
        }
        for name in ["forced:1", "inbox:1", "fenced:k", "client:1"] {
            assert!(keys.value(name.as_bytes()).is_err(), "{name}");
        }
        for name in ["lock", "locks:1", "fences", "fence:1", "", "order:lock:1"] {
            let whole = keys.value(name.as_bytes()).unwrap().concat();
            assert_eq!(whole, format!("tenure:{name}").as_bytes());
        }
        assert_eq!(keys.fenced(b"\xff").concat(), b"tenure:fenced:\xff");
    }

    /// A prefix that could spell another one's keys is found, and no other.
    #[test]
    fn prefixes_that_collide() {
        for (prefix, other, ours) in
            [("a:lock", "a", "lock"), ("a:b:fenced:c", "a:b", "fenced"), ("a:fence:", "a", "fence")]
        {
            assert_eq!(other_prefix(prefix), Some((other, ours)), "{prefix}");
        }
        for prefix in ["tenure", "lock", "lock:a", "a:locks", "a:b", "a:b:", "a:relock"] {
            assert_eq!(other_prefix(prefix), None, "{prefix}");
        }
    }

    /// t59: a prefix with glob characters is taken literally.
    #[test]
    fn t59_the_pattern_is_literal() {
        assert_eq!(Keys::new("a*[b]").all_locks(), r"a\*\[b\]:lock:*");
    }
}
