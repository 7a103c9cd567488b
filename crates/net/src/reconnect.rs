//! Connecting again: one attempt at a time, and a pause after a failure.
//!
//! In: how to connect. Out: a connection, or the error of an attempt that is recent enough. The caller keeps the
//! connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Clock, Time};
use tokio::runtime::Handle;

use crate::jittered;

/// The pause after a failure to connect: it doubles from PAUSE_MIN up to PAUSE_MAX.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The attempts to connect of one link.
#[derive(Debug)]
pub struct Reconnect<E> {
    clock: Clock,
    /// How long connecting may take.
    longest: Duration,
    state: Mutex<State<E>>,
    /// Held while connecting, so that only one call connects.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State<E> {
    failed: Option<Failed<E>>,
    /// The runtime of new connections; without it, the runtime of the caller that makes one.
    runtime: Option<Handle>,
}

/// The last failure, when it happened, and for how long it is the result of other calls.
#[derive(Debug)]
struct Failed<E> {
    error: E,
    at: Time,
    pause: Duration,
    /// The epoch in which it failed: it does not count for another server.
    epoch: u64,
}

impl<E: Clone> Reconnect<E> {
    /// No attempt so far. Each may take up to `longest`.
    pub fn new(clock: Clock, longest: Duration) -> Self {
        let (state, connecting) = (State { failed: None, runtime: None }, Default::default());
        Reconnect { clock, longest, state: Mutex::new(state), connecting }
    }

    /// Connections run on this runtime from now on.
    pub fn pin_to_runtime(&self, runtime: Handle) {
        self.state().runtime = Some(runtime);
    }

    /// The connection that another call has made meanwhile, or a new one. The error of an attempt that ended
    /// after this call began, or a moment before it, counts for this call too, unless the address leads to
    /// another server since: then `epoch` has changed.
    ///
    /// # Errors
    ///
    /// That of `connect`, now or a moment ago.
    pub async fn run<C>(
        &self,
        epoch: impl Fn() -> u64,
        current: impl Fn() -> Option<C>,
        connect: impl Future<Output = Result<C, E>>,
    ) -> Result<C, E> {
        let asked_at = self.clock.now();
        let known = || current().map(Ok).or_else(|| self.recent(asked_at, epoch()).map(Err));
        if let Some(known) = known() {
            return known;
        }
        // The task that connects may be on a runtime that is not driven: we wait as long as connecting may
        // take, and no longer.
        let _one = tokio::time::timeout(self.longest, self.connecting.lock()).await;
        if let Some(known) = known() {
            return known;
        }
        let made = connect.await;
        match &made {
            Ok(_) => self.state().failed = None,
            Err(error) => self.fail(error.clone(), epoch()),
        }
        made
    }

    /// The last failure, if it is recent enough.
    fn recent(&self, asked_at: Time, epoch: u64) -> Option<E> {
        let state = self.state();
        let failed = state.failed.as_ref().filter(|failed| failed.epoch == epoch)?;
        let recent = failed.at >= asked_at || self.clock.now() < failed.at.after(failed.pause);
        recent.then(|| failed.error.clone())
    }

    fn fail(&self, error: E, epoch: u64) {
        let mut state = self.state();
        let last = state.failed.as_ref().filter(|failed| failed.epoch == epoch);
        let last = last.map_or(PAUSE_MIN / 2, |failed| failed.pause);
        let pause = jittered((last * 2).clamp(PAUSE_MIN, PAUSE_MAX));
        state.failed = Some(Failed { error, at: self.clock.now(), pause, epoch });
    }

    /// Connects on the pinned runtime, or here if there is none or it has ended.
    pub async fn on_runtime<T: Send + 'static, F>(&self, connect: impl Fn() -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let runtime = self.state().runtime.clone();
        if let Some(runtime) = runtime
            && let Ok(made) = runtime.spawn(connect()).await
        {
            return made;
        }
        connect().await
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A failure is the result of other calls until its pause is over or the epoch changes; a connection ends it.
    #[tokio::test]
    async fn a_failure_is_shared_for_a_while() {
        let (clock, epoch, tried) = (Clock::manual(), Cell::new(0), Cell::new(0));
        let reconnect = Reconnect::new(clock.clone(), Duration::from_secs(1));
        let call = async |made: Result<u32, u32>| {
            let connect = async {
                tried.set(tried.get() + 1);
                made
            };
            (reconnect.run(|| epoch.get(), || None, connect).await, tried.get())
        };
        assert_eq!(call(Err(1)).await, (Err(1), 1));
        clock.advance(PAUSE_MIN / 2);
        assert_eq!(call(Err(2)).await, (Err(1), 1), "within the pause");
        clock.advance(PAUSE_MIN);
        assert_eq!(call(Err(3)).await, (Err(3), 2), "after the pause");
        clock.advance(PAUSE_MIN);
        assert_eq!(call(Err(4)).await, (Err(3), 2), "the second pause is longer");
        epoch.set(1);
        assert_eq!(call(Err(5)).await, (Err(5), 3), "another server");
        clock.advance(PAUSE_MIN * 2);
        assert_eq!(call(Ok(6)).await, (Ok(6), 4));
        assert_eq!(call(Err(7)).await, (Err(7), 5), "no failure is known any more");
    }

    /// A connection that another call has made meanwhile is used.
    #[tokio::test]
    async fn one_connection_for_all() {
        let (reconnect, made) =
            (Reconnect::new(Clock::manual(), Duration::from_secs(1)), Cell::new(None));
        let call = |number: u32| {
            reconnect.run(|| 0, || made.get(), async move {
                tokio::task::yield_now().await;
                Ok::<_, ()>(number)
            })
        };
        let first = async { call(1).await.inspect(|number| made.set(Some(*number))) };
        assert_eq!(tokio::join!(first, call(2)), (Ok(1), Ok(1)));
    }

    /// Connections are made on the pinned runtime, and here once it has ended.
    #[tokio::test]
    async fn connects_on_the_pinned_runtime() {
        let reconnect = Reconnect::<()>::new(Clock::manual(), Duration::from_secs(1));
        let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        reconnect.pin_to_runtime(other.handle().clone());
        let here = Handle::current().id();
        let id = || async { Handle::current().id() };
        assert_ne!(reconnect.on_runtime(id).await, here);
        other.shutdown_background();
        assert_eq!(reconnect.on_runtime(id).await, here);
    }
}
