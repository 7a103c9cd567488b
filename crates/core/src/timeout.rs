//! A time limit for work that nearly always finishes long before it.
//!
//! In: a future and a limit. Out: the future's output, or `None` if the limit came first.
//!
//! A timer of the runtime costs more than the rest of a lock's path through this process: it is set and
//! cancelled under a mutex that all workers share. Here one ticker thread checks all limits. No limit is
//! shorter than the ticker's longest sleep, so a new limit does not have to wake it. Shorter limits get a
//! timer of their own.
//!
//! The ticker is a thread, not a task: a runtime that exists but is not driven any more would stop its tasks,
//! and with them the limits of everyone else.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::sync::SHUTTLE;
use crate::time::{Clock, Time};

/// How long the ticker sleeps while an expired entry is still there, and always with a manual clock.
const TICK: Duration = Duration::from_millis(10);
/// Shorter limits get a timer of their own. The ticker never sleeps longer than this, so it sees a new entry
/// in time.
const COARSE_MIN: Duration = Duration::from_millis(200);
/// The ticker's shortest sleep: no limit needs to be kept more precisely.
const SHORTEST: Duration = Duration::from_millis(1);
/// After this many checks without an entry the ticker parks until it is woken. Waking it costs more than a
/// check.
const EMPTY_LOOKS: u32 = 5;
/// A ticker that is parked for this long ends. The next limit starts another one.
const IDLE: Duration = Duration::from_secs(10);

/// Entries are kept in this many parts. Each thread has its part, so that concurrent threads seldom contend
/// for a mutex.
const PARTS: usize = 8;

/// Time limits that are checked by one ticker thread. Cheap to clone; clones share the ticker.
#[derive(Clone, Debug)]
pub struct TimeoutWheel {
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    parts: [Part; PARTS],
    ticker: Mutex<Ticker>,
    /// Whether the ticker is checking. Read at every wait, without the mutex.
    looks: AtomicBool,
    /// Notified when a parked ticker gets an entry.
    entered: Condvar,
}

/// Aligned to a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    timers: Vec<Option<Timer>>,
    free: Vec<usize>,
}

/// The state of the ticker thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ticker {
    #[default]
    Gone,
    Looks,
    /// Parked, because there is no entry to check.
    Rests,
}

#[derive(Debug)]
struct Timer {
    until: Time,
    waker: Waker,
}

/// Where an entry is kept.
#[derive(Clone, Copy)]
struct Registration {
    part: usize,
    timer: usize,
}

impl TimeoutWheel {
    /// Limits measured by `clock`. All that use the system clock share one ticker per process.
    pub fn new(clock: Clock) -> Self {
        let shared = if clock.is_manual() { Arc::default() } else { Shared::of_process() };
        TimeoutWheel { clock, shared }
    }

    /// Runs `work` for at most `longest`; returns `None` if it did not finish. Pin `work` where it is
    /// created: each function that it is passed through by value would reserve space for it again.
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
        Within { wheel: self, longest, registration: None, work }.await
    }

    fn enter(&self, until: Time, waker: &Waker) -> Registration {
        let part = own_part();
        Registration { part, timer: self.shared.part(part).enter(until, waker) }
    }

    /// Starts or wakes the ticker if it is not checking. Call this after `enter`: a ticker that is about to
    /// park sets its state before it checks for the last time.
    fn ensure_ticker(&self) {
        if SHUTTLE || self.shared.looks.load(Ordering::SeqCst) {
            return;
        }
        let mut ticker = self.shared.ticker();
        match *ticker {
            Ticker::Looks => {}
            Ticker::Rests => self.shared.entered.notify_one(),
            Ticker::Gone => {
                let wheel = self.clone();
                let thread = std::thread::Builder::new().name("tenure-timeouts".into());
                if thread.spawn(move || wheel.tick()).is_err() {
                    // No thread could be started; the next poll of any entry tries again.
                    return;
                }
            }
        }
        self.shared.set(&mut ticker, Ticker::Looks);
    }

    /// Checks the limits until there have been none for a while.
    fn tick(&self) {
        let mut empty_looks = 0;
        loop {
            empty_looks = if self.shared.is_empty() { empty_looks + 1 } else { 0 };
            if empty_looks > EMPTY_LOOKS && !self.shared.park() {
                return;
            }
            let now = self.clock.now();
            let (due, pause) = self.shared.expired(now);
            due.into_iter().for_each(Waker::wake);
            std::thread::sleep(if self.clock.is_manual() { TICK } else { pause });
        }
    }
}

/// The part of this thread.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    OWN.try_with(|own| *own).unwrap_or(0)
}

impl Shared {
    /// The instance of this process. A forked child gets another one, since it has no threads of its parent.
    fn of_process() -> Arc<Self> {
        static SHARED: Mutex<Option<(u32, Arc<Shared>)>> = Mutex::new(None);
        let process = std::process::id();
        // Never block here: the mutex may be locked by a thread that does not exist after a fork. Then this
        // caller gets an instance of its own.
        let Ok(mut shared) = SHARED.try_lock() else { return Arc::default() };
        match &*shared {
            Some((of, shared)) if *of == process => shared.clone(),
            _ => shared.insert((process, Arc::default())).1.clone(),
        }
    }

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

    /// The wakers of all expired entries, and how long to sleep afterwards.
    fn expired(&self, now: Time) -> (Vec<Waker>, Duration) {
        let look = |(mut due, pause): (Vec<_>, Duration), part: MutexGuard<'_, State>| {
            due.extend(part.due(now));
            (due, pause.min(part.pause(now)))
        };
        self.parts().fold((Vec::new(), COARSE_MIN), look)
    }

    /// Parks until an entry is added; returns `false` if none was added for [`IDLE`].
    fn park(&self) -> bool {
        let mut ticker = self.ticker();
        self.set(&mut ticker, Ticker::Rests);
        // Free the memory that a burst of entries needed.
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

/// A future with a time limit.
struct Within<'a, F> {
    wheel: &'a TimeoutWheel,
    longest: Duration,
    /// The entry with the waker; made at the first poll that is pending.
    registration: Option<Registration>,
    work: F,
}

impl<F: Future + Unpin> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(done) = Pin::new(&mut self.work).poll(cx) {
            return Poll::Ready(Some(done));
        }
        let (wheel, now) = (self.wheel, self.wheel.clock.now());
        match self.registration {
            None => self.registration = Some(wheel.enter(now.after(self.longest), cx.waker())),
            Some(Registration { part, timer }) => {
                if wheel.shared.part(part).is_over(timer, now, cx.waker()) {
                    return Poll::Ready(None);
                }
            }
        }
        wheel.ensure_ticker();
        Poll::Pending
    }
}

impl<F> Drop for Within<'_, F> {
    fn drop(&mut self) {
        if let Some(Registration { part, timer }) = self.registration {
            self.wheel.shared.part(part).leave(timer);
        }
    }
}

impl State {
    fn enter(&mut self, until: Time, waker: &Waker) -> usize {
        let timer = Some(Timer { until, waker: waker.clone() });
        match self.free.pop() {
            Some(index) => {
                self.timers[index] = timer;
                index
            }
            None => {
                self.timers.push(timer);
                self.timers.len() - 1
            }
        }
    }

    /// Whether the entry has expired. Also stores the waker for the next check.
    fn is_over(&mut self, index: usize, now: Time, waker: &Waker) -> bool {
        let Some(Some(timer)) = self.timers.get_mut(index) else { return true };
        timer.waker.clone_from(waker);
        timer.until <= now
    }

    fn leave(&mut self, index: usize) {
        if let Some(timer) = self.timers.get_mut(index) {
            *timer = None;
            self.free.push(index);
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.timers.len()
    }

    /// How long until the first entry expires, between [`SHORTEST`] and [`COARSE_MIN`]; [`TICK`] if one has expired.
    fn pause(&self, now: Time) -> Duration {
        let left = |timer: &Timer| match timer.until.since(now) {
            Duration::ZERO => TICK,
            left => left.clamp(SHORTEST, COARSE_MIN),
        };
        self.timers.iter().flatten().map(left).min().unwrap_or(COARSE_MIN)
    }

    /// The wakers of entries that have expired.
    fn due(&self, by: Time) -> impl Iterator<Item = Waker> {
        let due = self.timers.iter().flatten().filter(move |timer| timer.until <= by);
        due.map(|timer| timer.waker.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn coarse() -> Duration {
        COARSE_MIN
    }

    /// A wheel whose ticker no other test uses.
    fn alone() -> TimeoutWheel {
        TimeoutWheel { clock: Clock::system(), shared: Arc::default() }
    }

    /// Work that finishes in time returns its output; other work is dropped soon after its limit.
    #[tokio::test]
    async fn bounds_are_kept() {
        let (wheel, clock) = (alone(), Clock::system());
        assert_eq!(wheel.within(coarse(), ready(7)).await, Some(7));
        for longest in [Duration::from_millis(5), coarse()] {
            let start = clock.now();
            assert_eq!(wheel.within(longest, Box::pin(pending::<()>())).await, None);
            assert!(clock.now().since(start) >= longest);
        }
        assert!(wheel.shared.is_empty());
    }

    /// A limit follows the clock that it was made with.
    #[tokio::test]
    async fn bounds_follow_a_manual_clock() {
        let clock = Clock::manual();
        let wheel = TimeoutWheel::new(clock.clone());
        let waiting =
            tokio::spawn(async move { wheel.within(coarse(), Box::pin(pending::<()>())).await });
        while !waiting.is_finished() {
            tokio::task::yield_now().await;
            clock.advance(TICK);
        }
        assert_eq!(waiting.await.unwrap(), None);
    }

    /// The ticker sleeps until the first limit, and never so long that it could miss one.
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

    /// A limit is kept even if the runtime that used the wheel first is not driven any more.
    #[tokio::test]
    async fn a_runtime_that_stands_still_keeps_nobody() {
        let wheel = alone();
        let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let first = wheel.clone();
        other.spawn(async move { first.within(coarse() * 100, Box::pin(pending::<()>())).await });
        std::thread::scope(|scope| {
            scope.spawn(|| other.block_on(tokio::task::yield_now()));
        });
        assert!(!wheel.shared.is_empty(), "the other runtime waits");
        assert_eq!(wheel.within(coarse(), Box::pin(pending::<()>())).await, None);
        other.shutdown_background();
    }

    /// Without entries the ticker parks; a new entry wakes it.
    #[tokio::test]
    async fn a_resting_ticker_is_woken() {
        let wheel = alone();
        for _ in 0..2 {
            assert_eq!(wheel.within(coarse(), Box::pin(pending::<()>())).await, None);
            while *wheel.shared.ticker() != Ticker::Rests {
                tokio::time::sleep(TICK).await;
            }
        }
    }
}
