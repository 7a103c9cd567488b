//! How a key is claimed, and which claims can hold it at the same time.
//!
//! One rule: a key is held alone, or together by claims of one kind. [`admits`] is that rule. The gate, the
//! engine `memory:` and the judge of the tests use it; the other engines follow it in their own language.

use std::fmt;
use std::sync::Arc;

/// The most permits of one claim.
pub const PERMITS_MAX: u32 = 100;

/// How a key is claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone: a lock, or the write lock of readers.
    #[default]
    Exclusive,
    /// Together with the other claims of this owner, which several processes share.
    SharedOwner(Arc<str>),
    /// Together with other readers.
    Read,
    /// Together with other permits, as long as at most `capacity` permits are taken.
    Permits {
        /// How many permits this claim takes.
        permits: u32,
        /// How many permits may be taken, this claim included.
        capacity: u32,
    },
}

impl Mode {
    /// Whether claims of this mode can hold the key together.
    pub fn is_together(&self) -> bool {
        matches!(self, Mode::Read | Mode::Permits { .. })
    }

    /// How many permits the mode takes; zero if it takes none.
    pub fn permits(&self) -> u32 {
        match self {
            Mode::Permits { permits, .. } => *permits,
            _ => 0,
        }
    }

    /// The word for lists, and for the label `mode` of metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Mode::Exclusive | Mode::SharedOwner(_) => "exclusive",
            Mode::Read => "shared",
            Mode::Permits { .. } => "permits",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Permits { permits, capacity } => write!(f, "permits {permits}/{capacity}"),
            other => f.write_str(other.as_str()),
        }
    }
}

/// How a key is held, as a type: [`Exclusive`], [`Shared`] or [`Permits`]. So a function that needs an exclusive
/// lock cannot be called with the guard of a reader.
pub trait HeldMode: sealed::Sealed + Send + Sync + 'static {}

/// Held alone.
#[derive(Clone, Copy, Debug)]
pub enum Exclusive {}

/// Held together with other readers.
#[derive(Clone, Copy, Debug)]
pub enum Shared {}

/// Held as permits of a semaphore.
#[derive(Clone, Copy, Debug)]
pub enum Permits {}

impl HeldMode for Exclusive {}
impl HeldMode for Shared {}
impl HeldMode for Permits {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Exclusive {}
    impl Sealed for super::Shared {}
    impl Sealed for super::Permits {}
}

/// Whether `claim` can hold a key together with `holders`. Who waits for the key is not considered.
///
/// The claim brings its own capacity: it is admitted if at most so many permits are taken with it. So the
/// capacity can change while permits are held, and the largest one in use is never exceeded.
pub fn admits<'a>(holders: impl IntoIterator<Item = &'a Mode>, claim: &Mode) -> bool {
    let mut holders = holders.into_iter();
    match claim {
        Mode::Exclusive => holders.next().is_none(),
        Mode::SharedOwner(_) | Mode::Read => holders.all(|holder| holder == claim),
        Mode::Permits { permits, capacity } => {
            let used = holders.try_fold(*permits, |used, holder| match holder {
                Mode::Permits { permits, .. } => used.checked_add(*permits),
                _ => None,
            });
            used.is_some_and(|used| used <= *capacity)
        }
    }
}

/// The lowest number that is not in `taken`: the slot of the next numbered permit. It is lower than the capacity of
/// an admitted claim, because fewer permits than that are taken.
pub fn free_slot(taken: impl IntoIterator<Item = u32>) -> u32 {
    let taken: Vec<u32> = taken.into_iter().collect();
    (0..).find(|slot| !taken.contains(slot)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Mode, admits, free_slot};

    fn permits(permits: u32, capacity: u32) -> Mode {
        Mode::Permits { permits, capacity }
    }

    #[test]
    fn b2_one_kind_at_a_time() {
        let ours = Mode::SharedOwner("us".into());
        let theirs = Mode::SharedOwner("them".into());
        let all = [Mode::Exclusive, ours.clone(), theirs, Mode::Read, permits(1, 4)];
        for claim in &all {
            assert!(admits([], claim), "{claim} on a free key");
            for holder in &all {
                let together = claim == holder && *claim != Mode::Exclusive;
                assert_eq!(admits([holder], claim), together, "{claim} beside {holder}");
            }
        }
        assert!(!admits([&ours, &Mode::Read], &ours), "a second kind among the holders");
    }

    /// B3, t80: the claim that asks brings the capacity: what fits is decided by its number.
    #[test]
    fn b3_the_asker_brings_the_capacity() {
        let (small, large) = (permits(1, 4), permits(1, 6));
        assert!(!admits([&permits(4, 6)], &small));
        assert!(admits([&permits(4, 6)], &large));
        assert!(admits([&permits(5, 6)], &large));
        assert!(!admits([&permits(6, 6)], &large));
        assert!(!admits([&small, &small], &permits(3, 4)), "too heavy");
        assert!(!admits([&permits(u32::MAX, u32::MAX)], &permits(1, u32::MAX)), "no overflow");
    }

    #[test]
    fn b3_the_lowest_free_slot() {
        assert_eq!(free_slot([]), 0);
        assert_eq!(free_slot([0, 1, 3]), 2);
        assert_eq!(free_slot([5]), 0);
    }
}
