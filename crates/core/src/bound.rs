//! A bound on how long something may take, for what is nearly always done long before.
//!
//! In: a future and a bound. Out: what it came to, or `None` if the bound came first.
//!
//! A timer of the runtime's costs more than the rest of a lock's way through this process: it is set and
//! taken back under a mutex that all workers share. Here one ticker looks after all bounds. No bound is
//! shorter than it sleeps at most, so that nobody has to wake it for one; short ones get a timer of their own.
//!
//! The ticker is a thread, not a task: a runtime that is kept and not driven any more would keep its
//! tasks, and with them everybody else's bounds.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::time::{Clock, Time};

/// How often one is looked at whose time has come and who has not left yet; and a clock that is moved
/// by hand.
const TICK: Duration = Duration::from_millis(10);
/// Bounds below this have a timer of their own. The ticker sleeps no longer: whoever comes meanwhile
/// is seen in time.
const COARSE_MIN: Duration = Duration::from_millis(200);
/// The shortest sleep: nobody needs a bound to be kept better.
const SHORTEST: Duration = Duration::from_millis(1);
/// After so many looks at nothing the ticker sleeps until it is woken, which costs more than a look.
const EMPTY_LOOKS: u32 = 5;
/// With nothing to look at for so long the ticker ends; the next bound starts another.
const IDLE: Duration = Duration::from_secs(10);

/// In how many parts bounds are kept: each thread has its own, so that those that work at the same time do
/// not meet.
const PARTS: usize = 8;

/// Bounds that one ticker looks after. Cheap to clone; clones share the ticker.
#[derive(Clone, Debug)]
pub struct Bounds {
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    parts: [Part; PARTS],
    ticker: Mutex<Ticker>,
    /// Whether it looks: to be read at every wait.
    looks: AtomicBool,
    /// Told when a ticker that has nothing to look at gets something.
    entered: Condvar,
}

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
}

/// What the ticker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ticker {
    #[default]
    Gone,
    Looks,
    /// There is nothing to look at.
    Rests,
}

#[derive(Debug)]
struct Slot {
    until: Time,
    waker: Waker,
}

/// Where a bound is kept.
#[derive(Clone, Copy)]
struct Place {
    part: usize,
    slot: usize,
}

impl Bounds {
    /// Bounds by `clock`.
    pub fn new(clock: Clock) -> Self {
        Bounds { clock, shared: Arc::default() }
    }

    /// Runs `work` for at most `longest`; `None` if that was not enough. Pin it where it is made: each
    /// function that it is passed through would make room for it again.
    pub async fn within<T>(
        &self,
        longest: Duration,
        work: impl Future<Output = T> + Unpin,
    ) -> Option<T> {
        if longest < COARSE_MIN {
            // Boxed: a timer is large, and rare here.
            let mut over = Box::pin(self.clock.sleep(longest));
            return tokio::select! {
                biased;
                done = work => Some(done),
                () = &mut over => None,
            };
        }
        Within { bounds: self, longest, place: None, work }.await
    }

    fn enter(&self, until: Time, waker: &Waker) -> Place {
        let part = own_part();
        Place { part, slot: self.shared.part(part).enter(until, waker) }
    }

    /// Has somebody look, if nobody does. To be asked after entering: a ticker that is about to rest
    /// says so before it looks for the last time.
    fn see_to_ticking(&self) {
        if self.shared.looks.load(Ordering::SeqCst) {
            return;
        }
        let mut ticker = self.shared.ticker();
        match *ticker {
            Ticker::Looks => {}
            Ticker::Rests => self.shared.entered.notify_one(),
            Ticker::Gone => {
                let bounds = self.clone();
                let thread = std::thread::Builder::new().name("tenure-bounds".into());
                if thread.spawn(move || bounds.tick()).is_err() {
                    // Without a thread to be had the next poll of anybody tries again.
                    return;
                }
            }
        }
        self.shared.set(&mut ticker, Ticker::Looks);
    }

    /// Looks at the bounds until there have been none for a while.
    fn tick(&self) {
        let mut empty_looks = 0;
        loop {
            empty_looks = if self.shared.is_empty() { empty_looks + 1 } else { 0 };
            if empty_looks > EMPTY_LOOKS && !self.shared.rest() {
                return;
            }
            let now = self.clock.now();
            let (due, pause) = self.shared.look(now);
            due.into_iter().for_each(Waker::wake);
            std::thread::sleep(if self.clock.is_manual() { TICK } else { pause });
        }
    }
}

/// This thread's part.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    OWN.try_with(|own| *own).unwrap_or(0)
}

impl Shared {
    fn part(&self, part: usize) -> MutexGuard<'_, State> {
        self.parts[part].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parts(&self) -> impl Iterator<Item = MutexGuard<'_, State>> {
        (0..PARTS).map(|part| self.part(part))
    }

    fn is_empty(&self) -> bool {
        self.parts().all(|part| part.is_empty())
    }

    fn ticker(&self) -> MutexGuard<'_, Ticker> {
        self.ticker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, ticker: &mut Ticker, to: Ticker) {
        *ticker = to;
        self.looks.store(to == Ticker::Looks, Ordering::SeqCst);
    }

    /// Those whose time has come, and how long to sleep then.
    fn look(&self, now: Time) -> (Vec<Waker>, Duration) {
        let look = |(mut due, pause): (Vec<_>, Duration), part: MutexGuard<'_, State>| {
            due.extend(part.due(now));
            (due, pause.min(part.pause(now)))
        };
        self.parts().fold((Vec::new(), COARSE_MIN), look)
    }

    /// Sleeps until somebody comes; whether anybody did.
    fn rest(&self) -> bool {
        let mut ticker = self.ticker();
        self.set(&mut ticker, Ticker::Rests);
        // What a crowd needed is not kept for ever.
        self.parts().filter(|part| part.is_empty()).for_each(|mut part| *part = State::default());
        if self.is_empty() {
            let rests = |ticker: &mut Ticker| *ticker == Ticker::Rests;
            let rested = self.entered.wait_timeout_while(ticker, IDLE, rests);
            ticker = rested.unwrap_or_else(PoisonError::into_inner).0;
            if *ticker == Ticker::Rests {
                self.set(&mut ticker, Ticker::Gone);
                return false;
            }
        }
        self.set(&mut ticker, Ticker::Looks);
        true
    }
}

/// A future under a bound.
struct Within<'a, F> {
    bounds: &'a Bounds,
    longest: Duration,
    /// Where the waker is, once it was needed.
    place: Option<Place>,
    work: F,
}

impl<F: Future + Unpin> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(done) = Pin::new(&mut self.work).poll(cx) {
            return Poll::Ready(Some(done));
        }
        let (bounds, now) = (self.bounds, self.bounds.clock.now());
        match self.place {
            None => self.place = Some(bounds.enter(now.after(self.longest), cx.waker())),
            Some(Place { part, slot }) => {
                if bounds.shared.part(part).is_over(slot, now, cx.waker()) {
                    return Poll::Ready(None);
                }
            }
        }
        bounds.see_to_ticking();
        Poll::Pending
    }
}

impl<F> Drop for Within<'_, F> {
    fn drop(&mut self) {
        if let Some(Place { part, slot }) = self.place {
            self.bounds.shared.part(part).leave(slot);
        }
    }
}

impl State {
    fn enter(&mut self, until: Time, waker: &Waker) -> usize {
        let slot = Some(Slot { until, waker: waker.clone() });
        match self.free.pop() {
            Some(place) => {
                self.slots[place] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        }
    }

    /// Whether this one's time has come; if not, who is to be woken then.
    fn is_over(&mut self, place: usize, now: Time, waker: &Waker) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(place) else { return true };
        slot.waker.clone_from(waker);
        slot.until <= now
    }

    fn leave(&mut self, place: usize) {
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = None;
            self.free.push(place);
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// How long nobody's time will come.
    fn pause(&self, now: Time) -> Duration {
        let left = |slot: &Slot| match slot.until.since(now) {
            Duration::ZERO => TICK,
            left => left.clamp(SHORTEST, COARSE_MIN),
        };
        self.slots.iter().flatten().map(left).min().unwrap_or(COARSE_MIN)
    }

    /// Those to wake because their time has come.
    fn due(&self, by: Time) -> impl Iterator<Item = Waker> {
        let due = self.slots.iter().flatten().filter(move |slot| slot.until <= by);
        due.map(|slot| slot.waker.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn coarse() -> Duration {
        COARSE_MIN
    }

    /// What is done in time is had; what is not is given up, soon after its time.
    #[tokio::test]
    async fn bounds_are_kept() {
        let (bounds, clock) = (Bounds::new(Clock::system()), Clock::system());
        assert_eq!(bounds.within(coarse(), ready(7)).await, Some(7));
        for longest in [Duration::from_millis(5), coarse()] {
            let start = clock.now();
            assert_eq!(bounds.within(longest, Box::pin(pending::<()>())).await, None);
            assert!(clock.now().since(start) >= longest);
        }
        assert!(bounds.shared.is_empty());
    }

    /// A bound follows the clock that it is by.
    #[tokio::test]
    async fn bounds_follow_a_manual_clock() {
        let clock = Clock::manual();
        let bounds = Bounds::new(clock.clone());
        let waiting =
            tokio::spawn(async move { bounds.within(coarse(), Box::pin(pending::<()>())).await });
        while !waiting.is_finished() {
            tokio::task::yield_now().await;
            clock.advance(TICK);
        }
        assert_eq!(waiting.await.unwrap(), None);
    }

    /// The ticker sleeps until the first bound, and never for so long that one could be missed.
    #[test]
    fn the_ticker_sleeps_no_longer_than_it_may() {
        let (mut state, now) = (State::default(), Time::from_nanos(1_000));
        assert_eq!(state.pause(now), COARSE_MIN);
        let mut pause_with = |bound| {
            state.enter(now.after(bound), Waker::noop());
            state.pause(now)
        };
        assert_eq!(pause_with(COARSE_MIN * 10), COARSE_MIN);
        assert_eq!(pause_with(COARSE_MIN / 2), COARSE_MIN / 2);
        assert_eq!(pause_with(Duration::ZERO), TICK);
        assert_eq!(pause_with(Duration::from_nanos(1)), SHORTEST);
    }

    /// A bound is kept while a runtime stands still that was the first to need one.
    #[tokio::test]
    async fn a_runtime_that_stands_still_keeps_nobody() {
        let bounds = Bounds::new(Clock::system());
        let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let first = bounds.clone();
        other.spawn(async move { first.within(coarse() * 100, Box::pin(pending::<()>())).await });
        std::thread::scope(|scope| {
            scope.spawn(|| other.block_on(tokio::task::yield_now()));
        });
        assert!(!bounds.shared.is_empty(), "the other runtime waits");
        assert_eq!(bounds.within(coarse(), Box::pin(pending::<()>())).await, None);
        other.shutdown_background();
    }

    /// With nothing to look at the ticker rests, and looks again when there is something.
    #[tokio::test]
    async fn a_resting_ticker_is_woken() {
        let bounds = Bounds::new(Clock::system());
        for _ in 0..2 {
            assert_eq!(bounds.within(coarse(), Box::pin(pending::<()>())).await, None);
            while *bounds.shared.ticker() != Ticker::Rests {
                tokio::time::sleep(TICK).await;
            }
        }
    }
}
