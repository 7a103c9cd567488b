//! The mode of a claim in the name of its key, and which claims of a queue hold the lock.
//!
//! In: names of keys, and the claims in the order of their arrival. Out: their modes, and how many of them hold. The
//! rule is core's [`admits`]; this module sends no request.
//!
//! | name after the queue | mode |
//! |---|---|
//! | `<client>` | alone |
//! | `~<client>` | a reader |
//! | `#<permits>of<capacity>.<client>` | permits |
//!
//! Names are in the order of their bytes, so that one range has the claims that a reader waits for: `~` comes after
//! all characters of the other names. A name of any other form counts as a claim alone, as does every claim of a
//! tenure that had no other modes.

use bytes::Bytes;
use tenure_core::{Mode, admits};

use crate::proto::{RangeRequest, end_of};

const READER: &str = "~";

/// How the name of a claim in this mode begins.
pub(crate) fn prefix(mode: &Mode) -> String {
    match mode {
        Mode::Exclusive | Mode::SharedOwner(_) => String::new(),
        Mode::Read => READER.into(),
        Mode::Permits { permits, capacity } => format!("#{permits}of{capacity}."),
    }
}

/// The mode of a claim, by its name after the queue.
pub(crate) fn parse(name: &[u8]) -> Mode {
    let name = std::str::from_utf8(name).unwrap_or_default();
    if name.starts_with(READER) {
        return Mode::Read;
    }
    let permits = || {
        let (numbers, _) = name.strip_prefix('#')?.split_once('.')?;
        let (permits, capacity) = numbers.split_once("of")?;
        Some(Mode::Permits { permits: permits.parse().ok()?, capacity: capacity.parse().ok()? })
    };
    permits().unwrap_or_default()
}

/// The claims under `queue` that a claim in this mode waits for, if they came before it. Permits also wait for
/// other permits, but not for all.
pub(crate) fn in_the_way(queue: &Bytes, mode: &Mode) -> RangeRequest {
    let range_end = match mode {
        Mode::Read => [queue, READER.as_bytes()].concat().into(),
        _ => end_of(queue),
    };
    RangeRequest { key: queue.clone(), range_end, ..Default::default() }
}

/// How many of these claims, the oldest first, hold the lock: those that are admitted by all before them. The first
/// that is not admitted holds back all behind it.
pub(crate) fn holders<'a>(claims: impl IntoIterator<Item = &'a Mode>) -> usize {
    let mut before: Option<Mode> = None;
    let admitted = claims.into_iter().take_while(|claim| {
        let admitted = admits(&before, claim);
        before = Some(match (&before, claim) {
            (Some(Mode::Permits { permits: taken, .. }), Mode::Permits { permits, capacity }) => {
                Mode::Permits { permits: taken.saturating_add(*permits), capacity: *capacity }
            }
            _ => (*claim).clone(),
        });
        admitted
    });
    admitted.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(permits: u32, capacity: u32) -> Mode {
        Mode::Permits { permits, capacity }
    }

    /// A mode is written into a name and parsed. A name of another form is a claim alone.
    #[test]
    fn t60_modes_in_names() {
        for mode in [Mode::Exclusive, Mode::Read, permits(2, 4), permits(100, u32::MAX)] {
            assert_eq!(parse(format!("{}00cd-7", prefix(&mode)).as_bytes()), mode);
        }
        for other in ["", "by-hand", "#", "#2", "#2.x", "#2of.x", "#2of4", "#-1of4.x", "2of4.x"] {
            assert_eq!(parse(other.as_bytes()), Mode::Exclusive, "{other}");
        }
        assert_eq!(parse(b"\xff"), Mode::Exclusive);
    }

    /// A reader's range has the names of all other modes, and of no reader.
    #[test]
    fn b2_the_range_of_a_reader() {
        let queue = Bytes::from_static(b"tenure/lock/k/");
        let range = in_the_way(&queue, &Mode::Read);
        let has = |name: &str| {
            let name = [&queue[..], name.as_bytes()].concat();
            range.key[..] <= name[..] && name[..] < range.range_end[..]
        };
        assert!(["00cd", "ffff-9", "#1of9.00cd", "by-hand"].into_iter().all(has));
        assert!(!has("~00cd") && !has("~"));
    }

    /// B2, B3, t106: those who hold are the claims at the front that fit together. A claim that does not fit holds back
    /// those behind it, whatever their mode and their capacity.
    #[test]
    fn b3_those_at_the_front_hold() {
        let alone = Mode::Exclusive;
        for (claims, count) in [
            (vec![], 0),
            (vec![alone.clone(), Mode::Read], 1),
            (vec![Mode::Read, Mode::Read, alone.clone(), Mode::Read], 2),
            (vec![permits(2, 4), permits(2, 4), permits(1, 4)], 2),
            (vec![permits(2, 3), permits(3, 3), permits(1, 9)], 1),
            (vec![permits(1, 1), permits(1, 2), permits(1, 2)], 2),
            (vec![permits(1, 2), Mode::Read, permits(1, 2)], 1),
            (vec![Mode::Read, permits(1, 2), Mode::Read], 1),
            (vec![permits(u32::MAX, u32::MAX), permits(u32::MAX, u32::MAX)], 1),
        ] {
            assert_eq!(holders(&claims), count, "{claims:?}");
        }
    }
}
