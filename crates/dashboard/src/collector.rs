//! The one place that asks the engine, for all browsers together.
//!
//! In: a `Locker`. Out: the newest [`Snapshot`], and the [`History`].
//!
//! One task has one watch, and looks at all locks: every second while somebody looks at a page, soon after an event,
//! every ten seconds else. A look on a slow engine is followed by a pause of four times its duration. Requests of
//! browsers read what is there; they never reach the engine. The task starts with the first request, because a router
//! may be made outside of a runtime, and ends with the router.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::watch::Event;
use tenure_core::{Error, Locker, Watch};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::history::History;
use crate::secrets;
use crate::snapshot::Snapshot;

/// The pause between two looks while somebody looks at a page.
const WHILE_LOOKED_AT: Duration = Duration::from_secs(1);
/// The pause while nobody does: waits that last longer are seen all the same.
const IDLE: Duration = Duration::from_secs(10);
/// The pause after an event.
const AFTER_EVENT: Duration = Duration::from_millis(100);
/// The pause after a look, as a multiple of its duration: looking takes at most a fifth of the engine's time.
const PAUSE_PER_LOOK: u32 = 4;
/// A page without a stream counts as looked at for this long.
const LOOKED_AT: Duration = Duration::from_secs(15);
/// If nobody looks at a page, locks that were looked at longer ago are not shown at once.
const STALE: Duration = Duration::from_secs(3);
/// How long a page waits for a look if there is none that is fresh. Then it shows what there is.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watches the locks from the first request on.
#[derive(Debug)]
pub(crate) struct Collector {
    locker: Locker,
    board: Arc<Board>,
    task: OnceLock<AbortHandle>,
}

/// What the task writes and the requests read.
#[derive(Debug)]
pub(crate) struct Board {
    newest: watch::Sender<Arc<Snapshot>>,
    history: Mutex<History>,
    /// How many streams are open.
    streams: AtomicUsize,
    /// The last request for a page.
    asked: Mutex<Option<Instant>>,
    wake: Notify,
}

impl Collector {
    pub(crate) fn new(locker: Locker) -> Self {
        let newest = watch::Sender::new(Arc::new(Snapshot::none()));
        let history = Mutex::new(History::new());
        let (streams, asked, wake) = Default::default();
        let board = Arc::new(Board { newest, history, streams, asked, wake });
        Collector { locker, board, task: OnceLock::new() }
    }

    /// The newest snapshot, for somebody who looks at a page. It waits for a look only if there is none, or if nobody
    /// has looked for a while; then for a bounded time.
    pub(crate) async fn fresh(&self) -> Arc<Snapshot> {
        let newest = self.board.newest();
        let age = newest.tried.map(|tried| tried.elapsed());
        let is_fresh = age.is_some_and(|age| age < STALE || self.board.is_looked_at());
        self.ask();
        if is_fresh {
            return newest;
        }
        self.after(newest.number).await
    }

    /// The newest snapshot, for a program: it does not count as somebody who looks at a page.
    pub(crate) async fn newest(&self) -> Arc<Snapshot> {
        self.start();
        match self.board.newest() {
            newest if newest.tried.is_some() => newest,
            newest => self.after(newest.number).await,
        }
    }

    /// The first snapshot after this one; the newest, if none comes in time.
    async fn after(&self, number: u64) -> Arc<Snapshot> {
        let mut newest = self.board.newest.subscribe();
        // An error means that the time is over.
        let _ = timeout(PATIENCE, newest.wait_for(|snapshot| snapshot.number > number)).await;
        self.board.newest()
    }

    /// The snapshots from now on, as long as the value lives.
    pub(crate) fn stream(&self) -> Stream {
        self.ask();
        self.board.streams.fetch_add(1, Ordering::Relaxed);
        Stream { newest: self.board.newest.subscribe(), board: self.board.clone() }
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.board.history()
    }

    /// Somebody looks at a page from now on.
    fn ask(&self) {
        *lock(&self.board.asked) = Some(Instant::now());
        self.start();
        self.board.wake.notify_one();
    }

    /// Starts the task, if it does not run.
    pub(crate) fn start(&self) {
        self.task.get_or_init(|| {
            tokio::spawn(collect(self.locker.clone(), self.board.clone())).abort_handle()
        });
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// The snapshots as they come; while it lives, somebody looks.
#[derive(Debug)]
pub(crate) struct Stream {
    newest: watch::Receiver<Arc<Snapshot>>,
    board: Arc<Board>,
}

impl Stream {
    /// The number of the next snapshot; `None` when the task has ended.
    pub(crate) async fn next(&mut self) -> Option<u64> {
        self.newest.changed().await.ok()?;
        Some(self.newest.borrow_and_update().number)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.board.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Board {
    fn newest(&self) -> Arc<Snapshot> {
        self.newest.borrow().clone()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    fn is_looked_at(&self) -> bool {
        let recent = |asked: &Instant| asked.elapsed() < LOOKED_AT;
        self.streams.load(Ordering::Relaxed) > 0 || lock(&self.asked).as_ref().is_some_and(recent)
    }

    fn add(&self, event: Event) {
        let before = self.newest();
        self.history().add(secrets::of_event(event), &before);
    }

    fn publish(&self, snapshot: Snapshot) {
        self.history().add_seen(&snapshot);
        self.newest.send_replace(Arc::new(snapshot));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches and looks until the locker is shut down.
async fn collect(locker: Locker, board: Arc<Board>) {
    let mut pace = Pace { done: None, took: Duration::ZERO, changed: false };
    let mut watch = None;
    loop {
        let done = tokio::select! {
            event = next(&mut watch), if watch.is_some() => {
                // After an error, the next look says what is the matter.
                pace.changed |= event.is_ok();
                event.map(|event| board.add(event))
            }
            () = sleep_until(pace.due(board.is_looked_at())) => {
                let start = Instant::now();
                let looked = look(&locker, &board, &mut watch).await;
                pace = Pace { done: Some(Instant::now()), took: start.elapsed(), changed: false };
                looked.inspect_err(|error| failed(&board, error))
            }
            () = board.wake.notified() => Ok(()),
        };
        if done.is_err_and(|error| error.is_closed()) {
            return;
        }
    }
}

/// One look at all locks. The watch begins with the first that succeeds.
async fn look(locker: &Locker, board: &Board, watch: &mut Option<Watch>) -> Result<(), Error> {
    if watch.is_none() {
        *watch = Some(locker.watch("*").await?);
    }
    let found = locker.list("*").await?;
    board.publish(board.newest().after(found, Instant::now()));
    Ok(())
}

async fn next(watch: &mut Option<Watch>) -> Result<Event, Error> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

fn failed(board: &Board, error: &Error) {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        line = format!("{line}: {next}");
        cause = next.source();
    }
    board.publish(board.newest().failed(secrets::scrub(&line).into_owned()));
}

/// When to look again.
#[derive(Debug)]
struct Pace {
    /// When the last look ended.
    done: Option<Instant>,
    took: Duration,
    /// Something has happened since.
    changed: bool,
}

impl Pace {
    fn due(&self, is_looked_at: bool) -> Instant {
        let pause = match is_looked_at {
            true if self.changed => AFTER_EVENT,
            true => WHILE_LOOKED_AT,
            false => IDLE,
        };
        self.done.map_or_else(Instant::now, |done| done + pause.max(self.took * PAUSE_PER_LOOK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F2: looks are as frequent as the page needs, and never more than a fifth of the engine's time.
    #[tokio::test]
    async fn f2_looks_have_a_pace() {
        let done = Instant::now();
        let pace = |took, changed| Pace { done: Some(done), took, changed };
        let quick = Duration::from_millis(1);
        assert_eq!(pace(quick, false).due(true), done + WHILE_LOOKED_AT);
        assert_eq!(pace(quick, true).due(true), done + AFTER_EVENT);
        assert_eq!(pace(quick, true).due(false), done + IDLE);
        assert_eq!(pace(Duration::from_secs(5), true).due(true), done + Duration::from_secs(20));
    }
}
