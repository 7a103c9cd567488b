//! Whether the server's clock runs like ours.
//!
//! In: grants, whose fences follow the server's clock. Out: one warning when that was set back or forward.
//!
//! Nothing depends on it: leases are counted by our own clock, and fences rise whatever the server's does. But a
//! lock whose holder died is kept for as much longer as the clock was set back, and somebody will want to know why.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::fence::PER_MILLI;
use tenure_core::time::{Clock, Time};

/// How far the clocks may move apart between two looks: more than any slewing does.
const TOLERANCE: Duration = Duration::from_secs(1);
/// The least time between two looks: a grant in between costs one comparison. Well above the tolerance: while a clock
/// that was set back catches up, its fences stand still, and that is to be seen from one look to the next.
const LOOK_EVERY: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct Pace {
    next_look: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Sight>,
    /// It was set back and has not caught up, which has been said.
    behind: bool,
}

/// A fence, and between which moments it was given.
#[derive(Clone, Copy, Debug)]
struct Sight {
    fence: u64,
    after: Time,
    before: Time,
}

/// What the server's clock did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    Back(Duration),
    Forward(Duration),
}

impl Pace {
    /// Takes note of a fence that was given after `asked`.
    pub(crate) fn note(&self, server: &dyn fmt::Display, clock: &Clock, asked: Time, fence: u64) {
        if fence == 0 || asked.as_nanos() < self.next_look.load(Ordering::Relaxed) {
            return;
        }
        self.next_look.store(asked.after(LOOK_EVERY).as_nanos(), Ordering::Relaxed);
        let jump = self.look(Sight { fence, after: asked, before: clock.now() });
        if let Some(jump) = jump {
            tracing::warn!(component = "tenure", %server, "{jump}");
        }
    }

    /// A jump that has not been said.
    fn look(&self, now: Sight) -> Option<Jump> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Of two that were answered at once, the older one says nothing new.
        if state.last.is_some_and(|last| now.fence <= last.fence) {
            return None;
        }
        let jump = state.last.replace(now).and_then(|last| jump(last, now));
        // Fences stand still until a clock that was set back has caught up: one warning is enough.
        let behind = matches!(jump, Some(Jump::Back(_)));
        let said = std::mem::replace(&mut state.behind, behind);
        jump.filter(|_| !(behind && said))
    }
}

/// How much more or less the fences moved than time can have passed.
fn jump(last: Sight, now: Sight) -> Option<Jump> {
    let moved = Duration::from_millis((now.fence - last.fence) / PER_MILLI);
    let (least, most) = (now.after.since(last.before), now.before.since(last.after));
    if moved > most + TOLERANCE {
        return Some(Jump::Forward(moved - most));
    }
    (moved + TOLERANCE < least).then(|| Jump::Back(least - moved))
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // By at least as much: fences only show that it is behind.
            Jump::Back(by) => write!(f, "the server's clock was set back, by {by:.0?} or more"),
            Jump::Forward(by) => write!(f, "the server's clock was set forward, by {by:.0?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(fence_secs: u64, after: u64, before: u64) -> Sight {
        let at = |secs: u64| Time::from_nanos(secs * 1_000_000_000);
        Sight { fence: fence_secs * 1000 * PER_MILLI, after: at(after), before: at(before) }
    }

    /// A clock that runs like ours is not worth a word, however long answers take.
    #[test]
    fn t12_an_honest_clock() {
        let pace = Pace::default();
        for (fence, after, before) in [(100, 0, 1), (110, 10, 10), (150, 20, 51), (160, 60, 60)] {
            assert_eq!(pace.look(sight(fence, after, before)), None, "{fence}");
        }
    }

    /// t11, t12: a clock that is set is told once, in either direction, and again if it is set again.
    #[test]
    fn t11_t12_a_clock_that_is_set() {
        let (pace, secs) = (Pace::default(), Duration::from_secs);
        assert_eq!(pace.look(sight(100, 0, 0)), None);
        assert_eq!(pace.look(sight(170, 10, 10)), Some(Jump::Forward(secs(60))));
        assert_eq!(pace.look(sight(180, 20, 20)), None);
        let mut still = sight(180, 30, 30);
        still.fence += 1;
        assert_eq!(pace.look(still), Some(Jump::Back(secs(10))));
        still = Sight { fence: still.fence + 1, ..sight(0, 40, 40) };
        assert_eq!(pace.look(still), None, "said already");
        assert_eq!(pace.look(sight(190, 50, 50)), None, "it goes on");
        assert_eq!(pace.look(sight(260, 60, 60)), Some(Jump::Forward(secs(60))));
        still = Sight { fence: sight(260, 0, 0).fence + 1, ..sight(0, 70, 70) };
        assert_eq!(pace.look(still), Some(Jump::Back(secs(10))), "and back at once");
    }
}
