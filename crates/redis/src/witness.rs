//! Making sure that replicas have a grant before it counts.
//!
//! In: a lock that was just granted. Out: whether enough replicas have acknowledged it, or how many
//! did.
//!
//! `WAIT` blocks its connection, and counts only what was written on it. So there is a connection for
//! this alone, which renews the lock (replicas that have that have the grant before it) and then waits.
//! A renewal creates nothing: one that comes late, after the lock was given up, leaves no orphan.
//!
//! Those who come while others are waited for share the next `WAIT`.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::oneshot;

use crate::link::{Link, Server};
use crate::scripts::{self, Renewed, Run};
use crate::trouble::{Cause, Trouble};

/// By how much more than its ttl a lock is renewed here. A renewal that would change nothing is not
/// written, and then replicas have nothing to acknowledge.
pub(crate) const MORE: Duration = Duration::from_millis(1);

/// The connection on which replicas are waited for.
#[derive(Debug)]
pub(crate) struct Witness {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    wanted: NonZeroUsize,
    waiting: Mutex<Vec<Waiting>>,
    /// Held by the task that asks on behalf of all.
    asking: tokio::sync::Mutex<()>,
}

/// A lock to be renewed, and who wants to know.
struct Waiting {
    run: Run,
    within: Duration,
    told: oneshot::Sender<Result<(), Trouble>>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

impl Witness {
    pub(crate) fn new(server: &Arc<Server>, wanted: NonZeroUsize) -> Self {
        let (link, (waiting, asking)) = (Link::new(server.clone()), Default::default());
        Witness { shared: Arc::new(Shared { link, wanted, waiting, asking }) }
    }

    /// Lets go of the connection, until somebody asks for something again.
    pub(crate) fn close(&self) {
        self.shared.link.close();
    }

    /// Makes sure that enough replicas have what `run` renews, which lasts for `ttl`.
    pub(crate) async fn see(&self, run: Run, ttl: Duration) -> Result<(), Trouble> {
        let (told, heard) = oneshot::channel();
        let response = self.shared.link.response_timeout();
        // Half, so that who wanted it learns that too few have it, and not that nobody answered.
        let within = (response / 2).min(ttl / 3);
        self.shared.waiting().push(Waiting { run, within, told });
        // A task, since others rely on it: it goes on if this future is dropped or no longer polled.
        tokio::spawn(self.shared.clone().ask_in_turn(within));
        let longest = self.shared.link.connect_timeout() + response * 2;
        match tokio::time::timeout(longest, heard).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(self.shared.cut())),
            Err(_) => Err(self.shared.silent(longest)),
        }
    }
}

impl Shared {
    /// Asks when the task before this one is done. That task may be on a runtime that stands still, so
    /// the turn is waited for only as long as one `WAIT` may take.
    async fn ask_in_turn(self: Arc<Self>, within: Duration) {
        let _turn = tokio::time::timeout(within, self.asking.lock()).await;
        self.ask().await;
    }

    /// Asks for all that wait now, and tells each.
    async fn ask(&self) {
        let (runs, others): (Vec<_>, Vec<_>) = std::mem::take(&mut *self.waiting())
            .into_iter()
            .map(|waiting| (waiting.run, (waiting.within, waiting.told)))
            .unzip();
        let Some(within) = others.iter().map(|(within, _)| *within).min() else { return };
        let answers = match self.renew_and_wait(&runs, within).await {
            Ok(answers) => answers,
            Err(trouble) => vec![Err(trouble); others.len()],
        };
        for ((_, told), answer) in others.into_iter().zip(answers) {
            // Whoever does not wait any more gives the lock up.
            let _ = told.send(answer);
        }
    }

    async fn renew_and_wait(
        &self,
        runs: &[Run],
        within: Duration,
    ) -> Result<Vec<Result<(), Trouble>>, Trouble> {
        let live = self.link.live().await?;
        let renewed = scripts::run_all_on(&self.link, &live, runs, within * 2).await?;
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wanted.get()).arg(u64::try_from(within.as_millis()).unwrap_or(1).max(1));
        let reply = self.link.call(&live, wait).await?;
        let Value::Int(count) = reply else { return Err(self.link.out_of_turn(&live)) };
        Ok(renewed.into_iter().map(|renewed| self.judge(renewed, count, within)).collect())
    }

    fn judge(
        &self,
        renewed: Result<Renewed, Trouble>,
        count: i64,
        within: Duration,
    ) -> Result<(), Trouble> {
        let Renewed::Yes { .. } = renewed? else {
            return Err(self.link.trouble(Cause::Cut, "the lock was gone before replicas had it"));
        };
        let wanted = self.wanted;
        if usize::try_from(count).is_ok_and(|count| count >= wanted.get()) {
            return Ok(());
        }
        let what = format!(
            "{count} of {wanted} replicas had the lock within {within:?}; it was given back"
        );
        Err(self.link.trouble(Cause::TooFew, what))
    }

    fn cut(&self) -> Trouble {
        self.link.trouble(Cause::Cut, "nobody waited for the replicas any more")
    }

    fn silent(&self, longest: Duration) -> Trouble {
        self.link.trouble(Cause::Silent, format_args!("no word of the replicas within {longest:?}"))
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
