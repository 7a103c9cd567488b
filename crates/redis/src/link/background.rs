//! A task in the background that follows the servers: it notices another master, or another owner of a slot.
//!
//! In: who needs the task, and on which runtime. Out: one such task at a time. It ends when its owner is dropped.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

#[derive(Debug, Default)]
pub(crate) struct BackgroundTask(Mutex<Option<AbortHandle>>);

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.end();
    }
}

impl BackgroundTask {
    /// Starts the task on this runtime, unless it already runs, here or elsewhere. Without a runtime, or
    /// where there is no such task, it does nothing.
    pub(crate) fn keep<F>(&self, task: impl FnOnce() -> Option<F>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = self.running();
        if running.as_ref().is_none_or(AbortHandle::is_finished) {
            *running = spawn(task);
        }
    }

    /// Moves the task to this runtime, wherever it ran before. Nobody can start it elsewhere in between: on
    /// the runtime of an application that blocks, it would follow nothing.
    pub(crate) fn move_here<F>(&self, task: impl FnOnce() -> Option<F>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = self.running();
        running.take().inspect(AbortHandle::abort);
        *running = spawn(task);
    }

    pub(crate) fn end(&self) {
        self.running().take().inspect(AbortHandle::abort);
    }

    fn running(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spawn<F>(task: impl FnOnce() -> Option<F>) -> Option<AbortHandle>
where
    F: Future<Output = ()> + Send + 'static,
{
    let here = Handle::try_current().ok()?;
    task().map(|task| here.spawn(task).abort_handle())
}

#[cfg(test)]
mod tests {
    use std::future::{Pending, pending};
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// t122: the thread of an engine moves the task to itself while the application connects; the application
    /// does not get it back.
    #[test]
    fn t122_the_application_does_not_take_the_task_back() {
        let (task, over) = (BackgroundTask::default(), AtomicBool::new(false));
        let started_by_application = AtomicU32::new(0);
        let application =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let engine = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let never = || -> Option<Pending<()>> { Some(pending()) };
        task.keep(|| None::<Pending<()>>);
        let entered = engine.enter();
        task.move_here(never);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _entered = application.enter();
                while !over.load(Ordering::Relaxed) {
                    task.keep(|| {
                        started_by_application.fetch_add(1, Ordering::Relaxed);
                        never()
                    });
                }
            });
            (0..20_000).for_each(|_| task.move_here(never));
            over.store(true, Ordering::Relaxed);
        });
        drop(entered);
        assert_eq!(started_by_application.into_inner(), 0);
    }
}
