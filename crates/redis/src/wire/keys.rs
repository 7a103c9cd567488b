//! The names of our keys on the server. No other file spells one.
//!
//! | key | content | lives |
//! |---|---|---|
//! | `tenure:lock:order:1` | the lock `order:1`: a string, see `value.rs` | as long as its ttl |
//! | `tenure:fence` | the last fence, for all locks | for ever |
//! | `tenure:queue:order:1` | its waiters: a sorted set by ticket, see `scripts/queue.lua` | while a claim waits |
//! | `tenure:beat:order:1` | heartbeats: a hash of token to end and wait mode (`scripts/queue.lua`) | with the queue |
//! | `tenure:holders:order:1` | the claims of its shared owner: a sorted set by their end | as long as its ttl |
//! | `tenure:forced:<token>` | who released this claim by force, for its holder | rest of the lease, at least 1 s |
//! | `tenure:fenced:user:1` | the highest fence that wrote the value `user:1` | a day longer than the value |
//! | `tenure:user:1` | the value `user:1` of a user of the client: no name above | as it was set |
//!
//! With a template (`lock_key.rs`) the template defines the key of a lock. Its queue, heartbeats and holders
//! then follow from that whole key, in a family of their own: `tenure:named:queue:<key of the lock>`. Two
//! templates that result in the same key mean the same lock, and so the same queue; a lock without a template
//! never has the queue of a lock with one. The other keys stay as they are: a fence is counted for all locks,
//! and tokens and processes have random names.
//!
//! In a cluster all keys of a lock are in the slot of its own key, whose name stays the same. The others have
//! a tag before the name; the server computes the slot from the tag alone, whatever the name contains:
//! `tenure:queue:{tag}:order:1`, `tenure:fence:{tag}`, `tenure:forced:{tag}:<token>`, and so on
//! (`wire/slot.rs`).

use std::fmt;
use std::sync::Arc;

use tenure_core::backend::{Fault, FaultKind};
use tenure_core::{Key, Token};

use super::command::CommandWriter;
use super::lock_key::LockKey;
use super::slot;
use crate::error::{Cause, EngineError};

/// Our names below the prefix; a name with a colon stands for all names that start with it.
const LOCK: &str = "lock:";
const QUEUE: &str = "queue:";
const BEAT: &str = "beat:";
const HOLDERS: &str = "holders:";
const FENCE: &str = "fence";
const FORCED: &str = "forced:";
const INBOX: &str = "inbox:";
const FENCED: &str = "fenced:";
/// Queues, heartbeats and holders of locks whose key follows a template.
const NAMED: &str = "named:";
/// Not in use yet: records of processes.
const CLIENT: &str = "client:";
const OURS: [&str; 10] = [LOCK, QUEUE, BEAT, HOLDERS, FENCE, FORCED, INBOX, FENCED, NAMED, CLIENT];

/// The slot of every key on a server without slots.
pub(crate) const NO_SLOT: u16 = 0;

/// The keys under one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    /// `tenure:`.
    values: Arc<str>,
    /// `tenure:fenced:`.
    #[cfg(feature = "kv")]
    fenced: Arc<str>,
    /// `tenure:lock:`, or the part of a template before the name of a lock.
    locks: Arc<str>,
    /// The part of a template after the name.
    after: Arc<str>,
    /// Whether a template defines the keys of locks.
    named: bool,
    /// In a cluster: the CRC16 of `locks`, from which the slot of a lock is computed.
    counted: Option<u16>,
    /// The text between the tag and the name in queues and the like: `:`, and with a template the part before
    /// the name.
    between: Arc<str>,
    /// `tenure:queue`, and so on: a tag may follow.
    queues: Arc<str>,
    beats: Arc<str>,
    holders: Arc<str>,
    fence: Arc<str>,
    forced: Arc<str>,
    inboxes: Arc<str>,
}

/// The prefix whose keys could be the same as those of `prefix`, and the name of ours that causes this: under
/// `tenure:lock` the fence is the lock `fence` of `tenure`.
pub(crate) fn other_prefix(prefix: &str) -> Option<(&str, &str)> {
    prefix.match_indices(':').find_map(|(end, _)| {
        let name = prefix[end + 1..].split(':').next()?;
        let is_ours = |ours: &str| ours.trim_end_matches(':') == name;
        OURS.into_iter().any(is_ours).then_some((&prefix[..end], name))
    })
}

/// Names to test rights with.
pub(crate) struct Probe {
    pub(crate) text: String,
    pub(crate) keys: Vec<String>,
    pub(crate) channel: String,
}

impl Keys {
    /// Keys on one server.
    pub(crate) fn new(prefix: &str, template: Option<LockKey>) -> Self {
        let name = |rest: &str| format!("{prefix}:{rest}").into();
        let before_tag = |rest: &str| name(rest.trim_end_matches(':'));
        let of_lock = |rest: &str| match template {
            None => before_tag(rest),
            Some(_) => before_tag(&format!("{NAMED}{rest}")),
        };
        let (queues, beats, holders) = (of_lock(QUEUE), of_lock(BEAT), of_lock(HOLDERS));
        let named = template.is_some();
        let (locks, after, between) = match template {
            None => (name(LOCK), "".into(), ":".into()),
            Some(LockKey { before, after }) => {
                let between = format!(":{before}").into();
                (before.into(), after.into(), between)
            }
        };
        Keys {
            values: name(""),
            #[cfg(feature = "kv")]
            fenced: name(FENCED),
            locks,
            after,
            named,
            counted: None,
            between,
            queues,
            beats,
            holders,
            fence: name(FENCE),
            forced: before_tag(FORCED),
            inboxes: before_tag(INBOX),
        }
    }

    /// Keys in a cluster. The prefix must have no braces, which would decide the slot of every lock.
    pub(crate) fn in_cluster(prefix: &str, template: Option<LockKey>) -> Self {
        let keys = Self::new(prefix, template);
        Keys { counted: Some(slot::count(0, keys.locks.as_bytes())), ..keys }
    }

    /// Whether the server has slots.
    pub(crate) fn has_slots(&self) -> bool {
        self.counted.is_some()
    }

    /// The slot of a lock, and of all its keys.
    pub(crate) fn slot(&self, key: &Key) -> u16 {
        match self.counted {
            None => NO_SLOT,
            // A template may have braces, before the name or after it.
            Some(_) if self.named => slot::slot(self.lock(key).as_bytes()),
            Some(counted) => slot::slot_after(counted, key.as_str().as_bytes()),
        }
    }

    /// The tag that keeps the other keys of a lock in its slot.
    fn tag(&self, key: &Key) -> &'static str {
        match self.counted {
            Some(_) => slot::tag(self.slot(key)),
            None => "",
        }
    }

    /// The start of all names.
    pub(crate) fn prefix(&self) -> &str {
        self.values.strip_suffix(':').unwrap_or(&self.values)
    }

    /// Unused names to test rights with: a key for a string, a key of every kind, a channel.
    pub(crate) fn probe(&self) -> Result<Probe, EngineError> {
        let refused = |why: String| EngineError::new(Cause::Refused, &"here", why);
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

    /// The key of the client's value `key`, in two parts; or the name of ours that it would hit.
    #[cfg(feature = "kv")]
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

    /// The key of the highest fence that wrote the value `key`, in two parts.
    #[cfg(feature = "kv")]
    pub(crate) fn fenced<'a>(&'a self, key: &'a [u8]) -> [&'a [u8]; 2] {
        [self.fenced.as_bytes(), key]
    }

    pub(crate) fn lock(&self, key: &Key) -> String {
        format!("{}{key}{}", self.locks, self.after)
    }

    /// Whether the key of this lock would be one that tenure uses for other purposes.
    pub(crate) fn is_reserved(&self, key: &Key) -> bool {
        self.may_reserve() && self.lock(key).starts_with(&*self.values)
    }

    /// Refuses a lock whose key would be one that tenure uses for other purposes.
    pub(crate) fn refuse_reserved(&self, key: &Key) -> Result<(), Fault> {
        match self.is_reserved(key) {
            false => Ok(()),
            true => {
                let (name, prefix) = (self.lock(key), self.prefix());
                let what = format!("the key `{name}` starts with `{prefix}:`, as tenure's own do");
                Err(Fault::new(FaultKind::Invalid, what))
            }
        }
    }

    /// Whether the template is so general that such locks exist.
    fn may_reserve(&self) -> bool {
        self.named && self.values.starts_with(&*self.locks)
    }

    /// Whether every key on the server has the form of a lock's key: then most of them are no locks.
    pub(crate) fn are_bare(&self) -> bool {
        self.locks.is_empty() && self.after.is_empty()
    }

    /// The start of the names of locks.
    pub(crate) fn locks(&self) -> &str {
        &self.locks
    }

    fn of_lock(&self, family: &str, key: &Key) -> String {
        format!("{family}{}{}{key}{}", self.tag(key), self.between, self.after)
    }

    fn add_of_lock(&self, family: &str, key: &Key, words: &mut CommandWriter) {
        words.add_parts(&[family, self.tag(key), &self.between, key.as_str(), &self.after]);
    }

    pub(crate) fn queue(&self, key: &Key) -> String {
        self.of_lock(&self.queues, key)
    }

    pub(crate) fn beats(&self, key: &Key) -> String {
        self.of_lock(&self.beats, key)
    }

    pub(crate) fn holders(&self, key: &Key) -> String {
        self.of_lock(&self.holders, key)
    }

    pub(crate) fn fence(&self, key: &Key) -> String {
        format!("{}{}", self.fence, self.tag(key))
    }

    /// The channel on which the process `client` is notified; in a cluster, the channel for locks of one
    /// slot.
    pub(crate) fn inbox(&self, client: &str, slot: Option<u16>) -> String {
        let tag = slot.map_or("", slot::tag);
        format!("{}{tag}:{client}", self.inboxes)
    }

    /// Adds the keys of a lock in the order in which scripts expect them.
    pub(crate) fn add_all(&self, key: &Key, words: &mut CommandWriter) {
        self.add_usual(key, words);
        self.add_beats(key, words);
        self.add_holders(key, words);
    }

    /// Adds the keys that the short scripts need.
    pub(crate) fn add_usual(&self, key: &Key, words: &mut CommandWriter) {
        self.add_lock(key, words);
        self.add_fence(key, words);
        self.add_queue(key, words);
    }

    pub(crate) fn add_lock(&self, key: &Key, words: &mut CommandWriter) {
        words.add_parts(&[&self.locks, key.as_str(), &self.after]);
    }

    pub(crate) fn add_queue(&self, key: &Key, words: &mut CommandWriter) {
        self.add_of_lock(&self.queues, key, words);
    }

    pub(crate) fn add_beats(&self, key: &Key, words: &mut CommandWriter) {
        self.add_of_lock(&self.beats, key, words);
    }

    pub(crate) fn add_holders(&self, key: &Key, words: &mut CommandWriter) {
        self.add_of_lock(&self.holders, key, words);
    }

    pub(crate) fn add_fence(&self, key: &Key, words: &mut CommandWriter) {
        words.add_parts(&[&self.fence, self.tag(key)]);
    }

    /// Adds the start of the names of inbox channels.
    pub(crate) fn add_inboxes(&self, key: &Key, words: &mut CommandWriter) {
        words.add_parts(&[&self.inboxes, self.tag(key), ":"]);
    }

    /// Adds the key of a forced release. It is short-lived, and exists only after an operator used force. It
    /// contains a token: keep it out of logs.
    pub(crate) fn add_forced(&self, key: &Key, token: Token, words: &mut CommandWriter) {
        words.add_parts(&[&self.forced, self.tag(key), ":", &token.digits()]);
    }

    /// The key of a forced release as a string.
    pub(crate) fn forced(&self, key: &Key, token: Token) -> String {
        format!("{}{}:{}", self.forced, self.tag(key), token.expose())
    }

    /// The name of the lock whose key is `raw`, if `raw` has the form of a lock's key.
    pub(crate) fn name_in<'a>(&self, raw: &'a [u8]) -> Option<&'a [u8]> {
        raw.strip_prefix(self.locks.as_bytes())?.strip_suffix(self.after.as_bytes())
    }

    /// The lock whose key is `raw`; `None` if it is not one of ours.
    pub(crate) fn parse_lock(&self, raw: &[u8]) -> Option<Key> {
        let key = Key::new(std::str::from_utf8(self.name_in(raw)?).ok()?).ok()?;
        (!self.is_reserved(&key)).then_some(key)
    }

    /// A pattern for `SCAN` that matches every lock; special characters around the name are escaped.
    pub(crate) fn all_locks(&self) -> String {
        let pattern = [&literal(self.locks.as_bytes())[..], b"*", &literal(self.after.as_bytes())];
        String::from_utf8_lossy(&pattern.concat()).into_owned()
    }

    /// The keys that a user must have rights on, in the form of an ACL.
    pub(crate) fn patterns(&self) -> String {
        let ours = format!("~{}*", self.values);
        match self.named {
            false => ours,
            true => format!("{ours} ~{}", self.all_locks()),
        }
    }

    /// A pattern for `SCAN` that matches every value whose name starts with `start`.
    #[cfg(feature = "kv")]
    pub(crate) fn all_values(&self, start: &[u8]) -> Vec<u8> {
        [&literal(self.values.as_bytes())[..], &literal(start), b"*"].concat()
    }

    /// The name of the value whose key is `raw`; `None` if it is one of our keys or under another prefix.
    #[cfg(feature = "kv")]
    pub(crate) fn parse_value<'a>(&self, raw: &'a [u8]) -> Option<&'a [u8]> {
        let name = raw.strip_prefix(self.values.as_bytes())?;
        self.value(name).is_ok().then_some(name)
    }
}

/// A pattern that matches only this text.
fn literal(text: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        b'*' | b'?' | b'[' | b']' | b'^' | b'-' | b'\\' => vec![b'\\', *byte],
        _ => vec![*byte],
    };
    text.iter().flat_map(escaped).collect()
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}…{})", self.locks, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A2, A20: the layout on the wire, written and parsed.
    #[test]
    fn the_layout() {
        let keys = Keys::new("tenure", None);
        let key = Key::new("order:1").unwrap();
        assert_eq!(keys.lock(&key), "tenure:lock:order:1");
        assert_eq!(keys.fence(&key), "tenure:fence");
        assert_eq!(keys.queue(&key), "tenure:queue:order:1");
        assert_eq!(keys.inbox("c", None), "tenure:inbox:c");
        assert_eq!(keys.parse_lock(b"tenure:lock:order:1"), Some(key));
        assert_eq!(keys.parse_lock(b"tenure:fence"), None);
        assert_eq!(keys.parse_lock(b"tenure:lock:\xff"), None);
    }

    /// t58: in a cluster all keys of a lock are in the slot of its key, whatever its name contains.
    #[test]
    fn t58_one_slot_for_each_lock() {
        let (keys, token) = (Keys::in_cluster("tenure", None), Token::random().unwrap());
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

    /// D8: our keys cannot be reached as values; names that only look like them can.
    #[test]
    fn d8_our_names_are_no_values() {
        let keys = Keys::new("tenure", None);
        for name in ["lock:order:1", "lock:", "queue:k", "beat:k", "holders:k", "fence"] {
            assert!(keys.value(name.as_bytes()).is_err(), "{name}");
        }
        for name in ["forced:1", "inbox:1", "fenced:k", "client:1", "named:queue:k"] {
            assert!(keys.value(name.as_bytes()).is_err(), "{name}");
        }
        for name in ["lock", "locks:1", "fences", "fence:1", "", "order:lock:1"] {
            let whole = keys.value(name.as_bytes()).unwrap().concat();
            assert_eq!(whole, format!("tenure:{name}").as_bytes());
        }
        assert_eq!(keys.fenced(b"\xff").concat(), b"tenure:fenced:\xff");
    }

    /// A prefix whose keys could be those of another prefix is found, and no other.
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
        assert_eq!(Keys::new("a*[b]", None).all_locks(), r"a\*\[b\]:lock:*");
    }

    fn template(text: &str) -> Option<LockKey> {
        LockKey::parse(text, "tenure").unwrap()
    }

    /// D1, D3, D4: the template defines the key of a lock; the keys of its queue follow from that key.
    #[test]
    fn a_template_spells_the_lock() {
        let key = Key::new("order:1").unwrap();
        for (text, lock) in [
            ("distributed_lock:{key}", "distributed_lock:order:1"),
            ("{key}", "order:1"),
            ("a*{key}]", "a*order:1]"),
        ] {
            let keys = Keys::new("tenure", template(text));
            assert_eq!(keys.lock(&key), lock);
            assert_eq!(keys.queue(&key), format!("tenure:named:queue:{lock}"));
            assert_eq!(keys.beats(&key), format!("tenure:named:beat:{lock}"));
            assert_eq!(keys.holders(&key), format!("tenure:named:holders:{lock}"));
            assert_eq!(keys.fence(&key), "tenure:fence");
            assert_eq!(keys.parse_lock(lock.as_bytes()), Some(key.clone()));
        }
        let keys = Keys::new("tenure", template("a*{key}]"));
        assert_eq!(keys.all_locks(), r"a\**\]");
        assert_eq!(keys.patterns(), r"~tenure:* ~a\**\]");
        assert_eq!(keys.parse_lock(b"a*]"), None, "a lock has a name");
        assert_eq!(keys.parse_lock(b"a*x"), None);
    }

    /// The same key is the same lock, with the same queue; other locks never share one.
    #[test]
    fn queues_do_not_collide() {
        let of = |keys: Keys, name: &str| {
            let key = Key::new(name).unwrap();
            (keys.lock(&key), keys.queue(&key))
        };
        let named = |text, name| of(Keys::new("tenure", template(text)), name);
        assert_eq!(named("a:{key}", "x"), named("{key}", "a:x"));
        assert_eq!(named("a:{key}", "x:1"), named("a:{key}:1", "x"));
        let plain = of(Keys::new("tenure", None), "a:x");
        assert_ne!(plain.1, named("a:{key}", "x").1);
        assert_ne!(plain.1, named("{key}", "a:x").1);
        assert_eq!(other_prefix("tenure:named"), Some(("tenure", "named")));
    }

    /// A template that is very general cannot reach tenure's own keys.
    #[test]
    fn reserved_names() {
        for (text, name) in [
            ("{key}", "tenure:fence"),
            ("{key}", "tenure:lock:order:1"),
            ("{key}", "tenure:"),
            ("ten{key}", "ure:named:queue:x"),
            ("t{key}e:x", "enur"),
        ] {
            let (keys, key) = (Keys::new("tenure", template(text)), Key::new(name).unwrap());
            assert!(keys.is_reserved(&key), "{text} {name}");
            assert_eq!(keys.parse_lock(keys.lock(&key).as_bytes()), None, "{text} {name}");
        }
        for (text, name) in [("{key}", "tenures:1"), ("a:{key}", "tenure:fence")] {
            let keys = Keys::new("tenure", template(text));
            assert!(!keys.is_reserved(&Key::new(name).unwrap()), "{text} {name}");
        }
        let plain = Keys::new("tenure", None);
        assert!(!plain.is_reserved(&Key::new("tenure:fence").unwrap()));
    }

    /// In a cluster all keys of a lock are in the slot that the server computes for its key, also if the
    /// template has braces or an end.
    #[test]
    fn one_slot_with_a_template() {
        let token = Token::random().unwrap();
        for text in
            ["{key}", "a:{key}", "{key}:b", "a{{key}}", "{t}:{key}", "a{{key}", "{key}}b{c}"]
        {
            let keys = Keys::in_cluster("tenure", template(text));
            for name in ["order:1", "{}", "}{", "a}b{c", "{a}{b}", "a{b}c", "{", "}"] {
                let key = Key::new(name).unwrap();
                let slot = slot::slot(keys.lock(&key).as_bytes());
                assert_eq!(keys.slot(&key), slot, "{text} {name}");
                let of_lock = [keys.queue(&key), keys.beats(&key), keys.holders(&key)];
                let more = [keys.fence(&key), keys.forced(&key, token)];
                for other in of_lock.iter().chain(&more) {
                    assert_eq!(slot::slot(other.as_bytes()), slot, "{other} for {text} {name}");
                }
            }
        }
    }
}
