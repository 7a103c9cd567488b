//! The name of a lock.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::error::Error;

/// The longest key, in bytes. Every engine can store it in full.
pub const KEY_MAX: usize = 512;

/// The validated name of a lock, such as `order:42`.
///
/// It has 1 to 512 bytes of UTF-8 without control characters. All other characters are allowed and have no
/// special meaning: braces, spaces, `*`, emoji. A good key has the form `module:resource:id`.
///
/// ```
/// use tenure::Key;
///
/// assert_eq!(Key::new("order:42")?.as_str(), "order:42");
/// let refused = Key::new("line\nbreak").unwrap_err();
/// assert_eq!(refused.to_string(), r"invalid key `line\nbreak`: it contains the control character `\n`");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Key {
    name: Arc<str>,
    /// The hash of the name, computed once: a lock request looks the key up in several tables.
    hash: u64,
}

/// The random hash seed of this process, so that an attacker cannot choose names that collide.
static HASHED_BY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Key {
    /// Validates `name`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is empty, too long, or contains a control character.
    pub fn new(name: &str) -> Result<Self, Error> {
        match flaw(name) {
            None => Ok(Key { name: Arc::from(name), hash: HASHED_BY.hash_one(name) }),
            Some(flaw) => Err(Error::invalid_key(name, flaw)),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The index of the part of a table, of `parts`, that the key belongs to.
    pub(crate) fn part_of(&self, parts: usize) -> usize {
        // Uses the high bits; the hash map inside a part chooses its bucket by the low bits.
        (self.hash >> 32) as usize % parts
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.name == other.name
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The hasher of tables by [`Key`]: returns the hash that the key has stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrehashedHasher(u64);

impl Hasher for PrehashedHasher {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Not used by `Key`; `Hasher` requires it.
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
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
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.name, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names with a special meaning to a shell, a glob or a cluster are ordinary names.
    #[test]
    fn t58_odd_names_are_taken_literally() {
        for name in ["}x", "{}", "a}b{c", "a b", "* ? [ ]", "🔒", "订单:42", "a/../b", "."] {
            assert_eq!(Key::new(name).unwrap().as_str(), name);
        }
    }

    /// Keys with the same name are equal, and are ordered by name, in tables of any kind.
    #[test]
    fn keys_are_known_by_their_names() {
        use std::collections::{BTreeSet, HashMap, HashSet};
        use std::hash::BuildHasherDefault;

        let keys = || (0..100).map(|number| Key::new(&format!("order:{number}")).unwrap());
        let mut known = HashMap::<Key, usize, BuildHasherDefault<PrehashedHasher>>::default();
        keys().enumerate().for_each(|(at, key)| assert_eq!(known.insert(key, at), None));
        keys().enumerate().for_each(|(at, key)| assert_eq!(known.get(&key), Some(&at)));
        assert_eq!(keys().chain(keys()).collect::<HashSet<_>>().len(), 100);
        let sorted: Vec<_> = keys().collect::<BTreeSet<_>>().into_iter().collect();
        assert!(sorted.is_sorted_by_key(|key| key.as_str().to_owned()));
        assert_eq!(keys().map(|key| key.part_of(8)).collect::<HashSet<_>>().len(), 8);
    }

    /// Unprintable names are refused; the message shows them escaped and shortened.
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
