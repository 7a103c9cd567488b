//! The checks of `tenure doctor`, for all browsers together.
//!
//! In: a `Locker`. Out: the findings, at most a minute old. The checks acquire a lock for a moment, so they run no more
//! often, and only if somebody asks for them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::Locker;
use tenure_core::doctor::{Finding, Verdict};
use tenure_core::time::UnixMillis;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::secrets;

/// Older findings are not shown; the checks run again.
const FRESH: Duration = Duration::from_secs(60);
/// How long a page waits for the checks.
const PATIENCE: Duration = Duration::from_secs(3);

/// The result of the checks.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    pub(crate) at: UnixMillis,
    pub(crate) list: Vec<Finding>,
    pub(crate) worst: Verdict,
    done: Instant,
}

/// The newest findings, and whether the checks run.
#[derive(Debug, Default)]
pub(crate) struct Checkup {
    running: Mutex<Option<watch::Receiver<()>>>,
    newest: Arc<Mutex<Option<Findings>>>,
}

impl Checkup {
    /// The findings; `None` if the checks still run after some seconds.
    pub(crate) async fn findings(&self, locker: &Locker) -> Option<Findings> {
        if let Some(fresh) = self.fresh() {
            return Some(fresh);
        }
        let mut running = self.start(locker);
        // The sender is dropped at the end of the checks, which is the error that is waited for.
        let _ = timeout(PATIENCE, running.changed()).await;
        self.fresh()
    }

    fn fresh(&self) -> Option<Findings> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.clone().filter(|findings| findings.done.elapsed() < FRESH)
    }

    fn start(&self, locker: &Locker) -> watch::Receiver<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Some(running) if running.has_changed().is_ok() => running.clone(),
            _ => running.insert(self.spawn(locker.clone())).clone(),
        }
    }

    fn spawn(&self, locker: Locker) -> watch::Receiver<()> {
        let (running, end) = watch::channel(());
        let newest = self.newest.clone();
        tokio::spawn(async move {
            let findings = locker.diagnose().await.map(Findings::new).ok();
            *newest.lock().unwrap_or_else(PoisonError::into_inner) = findings;
            drop(running);
        });
        end
    }
}

impl Findings {
    fn new(mut list: Vec<Finding>) -> Self {
        for finding in &mut list {
            finding.seen = secrets::scrub(&finding.seen).into_owned();
            finding.tried = secrets::scrub(&finding.tried).into_owned();
            finding.target = secrets::scrub(&finding.target).into_owned();
        }
        let worst = Verdict::worst(&list);
        Findings { at: UnixMillis::now(), list, worst, done: Instant::now() }
    }
}
