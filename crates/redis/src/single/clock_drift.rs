//! Whether the server's clock runs like ours.
//!
//! In: grants, whose fences follow the server's clock. Out: one warning if that clock was set back or
//! forward.
//!
//! Nothing depends on it: leases are counted by our own clock, and fences rise whatever the server's clock
//! does. But if the clock was set back, a lock whose holder died is kept longer by that much, and the warning
//! explains why.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::fence::PER_MILLI;
use tenure_core::time::{Clock, Time};

/// How far the clocks may drift apart between two samples: more than any slewing does.
const TOLERANCE: Duration = Duration::from_secs(1);
/// At most one sample is taken in this time; a grant in between costs one comparison. It must be longer than
/// [`TOLERANCE`]. Otherwise a clock that stands still would not be noticed: after a clock was set back, its
/// fences hardly move until it has caught up.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct ClockDrift {
    next_sample: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Sample>,
    /// The clock was set back and has not caught up; the warning was logged.
    behind: bool,
}

/// A fence, and the times between which it was drawn.
#[derive(Clone, Copy, Debug)]
struct Sample {
    fence: u64,
    after: Time,
    before: Time,
}

/// What happened to the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockStep {
    Back(Duration),
    Forward(Duration),
}

impl ClockDrift {
    /// Records a fence that was drawn after `asked`.
    pub(crate) fn note(&self, server: &dyn fmt::Display, clock: &Clock, asked: Time, fence: u64) {
        if fence == 0 || asked.as_nanos() < self.next_sample.load(Ordering::Relaxed) {
            return;
        }
        self.next_sample.store(asked.after(SAMPLE_INTERVAL).as_nanos(), Ordering::Relaxed);
        let step = self.add(Sample { fence, after: asked, before: clock.now() });
        if let Some(step) = step {
            tracing::warn!(component = "tenure", %server, "{step}");
        }
    }

    /// A step of the clock that was not reported yet.
    fn add(&self, now: Sample) -> Option<ClockStep> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // If two grants were answered at once, the older one adds nothing.
        if state.last.is_some_and(|last| now.fence <= last.fence) {
            return None;
        }
        let step = state.last.replace(now).and_then(|last| step(last, now));
        // Fences hardly move until a clock that was set back has caught up: one warning is enough.
        let behind = matches!(step, Some(ClockStep::Back(_)));
        let was_behind = std::mem::replace(&mut state.behind, behind);
        step.filter(|_| !(behind && was_behind))
    }
}

/// How much more or less the fences moved than time can have passed.
fn step(last: Sample, now: Sample) -> Option<ClockStep> {
    let moved = Duration::from_millis((now.fence - last.fence) / PER_MILLI);
    let (least, most) = (now.after.since(last.before), now.before.since(last.after));
    if moved > most + TOLERANCE {
        return Some(ClockStep::Forward(moved - most));
    }
    (moved + TOLERANCE < least).then(|| ClockStep::Back(least - moved))
}

impl fmt::Display for ClockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // At least this much: fences only show that the clock is behind.
            ClockStep::Back(by) => {
                write!(f, "the server's clock was set back, by {by:.0?} or more")
            }
            ClockStep::Forward(by) => write!(f, "the server's clock was set forward, by {by:.0?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(fence_secs: u64, after: u64, before: u64) -> Sample {
        let at = |secs: u64| Time::from_nanos(secs * 1_000_000_000);
        Sample { fence: fence_secs * 1000 * PER_MILLI, after: at(after), before: at(before) }
    }

    /// A clock that runs like ours causes no warning, however long replies take.
    #[test]
    fn t12_an_honest_clock() {
        let drift = ClockDrift::default();
        for (fence, after, before) in [(100, 0, 1), (110, 10, 10), (150, 20, 51), (160, 60, 60)] {
            assert_eq!(drift.add(sample(fence, after, before)), None, "{fence}");
        }
    }

    /// t11, t12: a clock that is set is reported once, in either direction, and again if it is set again.
    #[test]
    fn t11_t12_a_clock_that_is_set() {
        let (drift, secs) = (ClockDrift::default(), Duration::from_secs);
        assert_eq!(drift.add(sample(100, 0, 0)), None);
        assert_eq!(drift.add(sample(170, 10, 10)), Some(ClockStep::Forward(secs(60))));
        assert_eq!(drift.add(sample(180, 20, 20)), None);
        let mut still = sample(180, 30, 30);
        still.fence += 1;
        assert_eq!(drift.add(still), Some(ClockStep::Back(secs(10))));
        still = Sample { fence: still.fence + 1, ..sample(0, 40, 40) };
        assert_eq!(drift.add(still), None, "reported already");
        assert_eq!(drift.add(sample(190, 50, 50)), None, "it goes on");
        assert_eq!(drift.add(sample(260, 60, 60)), Some(ClockStep::Forward(secs(60))));
        still = Sample { fence: sample(260, 0, 0).fence + 1, ..sample(0, 70, 70) };
        assert_eq!(drift.add(still), Some(ClockStep::Back(secs(10))), "and back at once");
    }
}
