//! The end of a program: releases that are under way when the last handle is dropped.
//!
//! In: the drop of the last [`Locker`](crate::Locker), or of a guard that outlives it. Out: the releases have
//! reached the server, or `flush_timeout` has passed.
//!
//! A connection belongs to the runtime that opened it. So a thread that drives a runtime must not wait here:
//! in a task, on a current-thread runtime and during a panic, the wait is postponed until the thread ends.
//! The runtime is gone by then, and the background thread opens a connection of its own.
//!
//! All waits of an engine share one deadline: on a server that hangs, a program with a thousand guards ends as soon as
//! one with a single guard. The deadline is forgotten once no background work is left.
//!
//! The installed locker is never dropped. Its flush happens when the thread that installed it ends.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::engine::{Engine, FlushDeadline};

/// The engine of a `Locker`. Counts the lockers that share it.
#[derive(Debug)]
pub(crate) struct CountedEngine(Arc<Engine>);

impl CountedEngine {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        engine.lockers.fetch_add(1, Ordering::Relaxed);
        CountedEngine(engine)
    }
}

impl Clone for CountedEngine {
    fn clone(&self) -> Self {
        CountedEngine::new(self.0.clone())
    }
}

impl Deref for CountedEngine {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for CountedEngine {
    fn drop(&mut self) {
        self.0.lockers.fetch_sub(1, Ordering::AcqRel);
        self.0.flush_if_last();
    }
}

impl Engine {
    /// Waits for pending releases if no locker is left: the program may be about to end.
    pub(crate) fn flush_if_last(&self) {
        if self.lockers.load(Ordering::Acquire) > 0 {
            return;
        }
        match self.flush() {
            Some(flush) if must_not_wait() => flush.put_off(),
            Some(flush) => flush.wait(),
            None => {}
        }
    }

    /// The background work to wait for, if there is any and waiting is allowed.
    fn flush(&self) -> Option<Flush> {
        let bound = self.defaults.flush_timeout;
        if bound.is_zero() || self.is_forked() {
            return None;
        }
        let (deadline, process) = (self.flush_deadline.clone(), std::process::id());
        self.when_idle().map(|done| Flush { done, bound, deadline, process })
    }

    /// Waits for pending releases when this thread ends.
    pub(crate) fn flush_at_thread_end(self: &Arc<Self>) {
        let _ = AT_THREAD_END.try_with(|late| late.installed.replace(Some(self.clone())));
    }
}

/// Whether this thread may be driving a connection, or is panicking.
fn must_not_wait() -> bool {
    let drives = |here: Handle| here.runtime_flavor() == RuntimeFlavor::CurrentThread;
    std::thread::panicking()
        || tokio::task::try_id().is_some()
        || Handle::try_current().is_ok_and(drives)
}

/// Releases that are under way.
struct Flush {
    /// Disconnects when no background work is left.
    done: Receiver<()>,
    bound: Duration,
    deadline: Arc<FlushDeadline>,
    process: u32,
}

impl Flush {
    /// The time that is left of the engine's deadline, which this call sets if no other has. `None` if there is nothing
    /// to wait for.
    fn left(&self) -> Option<Duration> {
        // A forked child has no background thread that could finish anything.
        let waits = std::process::id() == self.process && !self.is_done();
        waits.then(|| self.deadline.start(self.bound))
    }

    fn wait(&self) {
        let ended = self.left().map(|left| self.done.recv_timeout(left));
        // If the work was done just before the deadline was set, nobody else clears it.
        if ended == Some(Err(RecvTimeoutError::Disconnected)) {
            self.deadline.clear();
        }
    }

    fn is_done(&self) -> bool {
        self.done.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits when this thread ends. Does not wait if the thread is already ending.
    fn put_off(self) {
        let _ = AT_THREAD_END.try_with(|late| {
            let mut late = late.flushes.borrow_mut();
            // This flush also covers the earlier work of its engine.
            late.retain(|flush| !flush.is_done() && !Arc::ptr_eq(&flush.deadline, &self.deadline));
            late.push(self);
        });
    }
}

thread_local! {
    static AT_THREAD_END: Late =
        const { Late { flushes: RefCell::new(Vec::new()), installed: RefCell::new(None) } };
}

/// The flushes to wait for when the thread ends.
struct Late {
    flushes: RefCell<Vec<Flush>>,
    /// The engine of the installed locker, if this thread installed it.
    installed: RefCell<Option<Arc<Engine>>>,
}

impl Drop for Late {
    fn drop(&mut self) {
        let of_installed = self.installed.get_mut().as_ref().and_then(|engine| engine.flush());
        let flushes = self.flushes.get_mut();
        flushes.extend(of_installed);
        // The deadlines of several engines run at the same time.
        for flush in &*flushes {
            flush.left();
        }
        flushes.iter().for_each(Flush::wait);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::runtime::Builder;
    use tokio::sync::oneshot;

    use super::*;
    use crate::memory::Memory;
    use crate::options::Defaults;

    /// Waits share a deadline while the background has work. Once it has none, the next wait has the full time again.
    #[test]
    fn waits_share_a_deadline_until_the_background_is_idle() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let bound = Duration::from_millis(50);
        let defaults = Defaults { flush_timeout: bound, ..Defaults::default() };
        let engine = Engine::new(Arc::new(Memory::space("flush")), defaults);
        engine.run_background_on(runtime.handle().clone());
        let (end, ended) = oneshot::channel::<()>();
        engine.spawn(async { drop(ended.await) });
        engine.flush().unwrap().wait();
        let second = engine.flush().unwrap();
        assert_eq!(second.left(), Some(Duration::ZERO));
        drop(end);
        let idle = second.done.recv_timeout(Duration::from_secs(30));
        assert_eq!((idle, second.left()), (Err(RecvTimeoutError::Disconnected), None));
        engine.spawn(pending());
        assert_eq!(engine.flush().unwrap().left(), Some(bound));
    }
}
