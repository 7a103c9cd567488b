//! Waits until replicas have a grant, before it counts.
//!
//! In: a lock that was just granted. Out: whether enough replicas have acknowledged it, or how many did.
//!
//! `WAIT` blocks its connection, and counts only what was written on that connection. So there is a
//! connection for this alone. It renews the lock (replicas that have the renewal have the grant before it)
//! and then waits. A renewal creates nothing: if it executes late, after the lock was given up, it leaves no
//! orphan.
//!
//! Claims that come while a `WAIT` is in progress share the next one.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::oneshot;

use crate::error::{Cause, EngineError};
use crate::link::{Link, Server};
use crate::scripts::{self, RenewReply, ScriptCall};

/// A lock is renewed here for this much more than its ttl. A renewal that changes nothing is not replicated,
/// and then replicas have nothing to acknowledge.
pub(crate) const EXTRA_TTL: Duration = Duration::from_millis(1);

/// The connection for `WAIT`.
#[derive(Debug)]
pub(crate) struct ReplicationCheck {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    wanted: NonZeroUsize,
    waiting: Mutex<Vec<Waiting>>,
    /// Held by the task that sends the requests for all.
    asking: tokio::sync::Mutex<()>,
}

/// A lock to be renewed, and the receiver of the result.
struct Waiting {
    run: ScriptCall,
    within: Duration,
    reply_to: oneshot::Sender<Result<(), EngineError>>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

impl ReplicationCheck {
    pub(crate) fn new(server: &Arc<Server>, wanted: NonZeroUsize) -> Self {
        let (link, (waiting, asking)) = (Link::new(server.clone()), Default::default());
        ReplicationCheck { shared: Arc::new(Shared { link, wanted, waiting, asking }) }
    }

    /// Closes the connection; the next request makes a new one.
    pub(crate) fn close(&self) {
        self.shared.link.close();
    }

    /// Waits until enough replicas have the renewal `run`, for a lock with this `ttl`.
    pub(crate) async fn confirm(&self, run: ScriptCall, ttl: Duration) -> Result<(), EngineError> {
        let (reply_to, confirmed) = oneshot::channel();
        let response = self.shared.link.response_timeout();
        // Half, so that the caller gets "too few replicas" and not "no answer".
        let within = (response / 2).min(ttl / 3);
        self.shared.waiting().push(Waiting { run, within, reply_to });
        // In a task, since other claims rely on it: it continues if this future is dropped or not polled any
        // more.
        tokio::spawn(self.shared.clone().ask_after_others(within));
        let longest = self.shared.link.connect_timeout() + response * 2;
        match tokio::time::timeout(longest, confirmed).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(self.shared.cut())),
            Err(_) => Err(self.shared.timed_out(longest)),
        }
    }
}

impl Shared {
    /// Sends the requests after the previous task has ended. That task may be on a runtime that is not
    /// driven, so we wait for it only as long as one `WAIT` may take.
    async fn ask_after_others(self: Arc<Self>, within: Duration) {
        let _one = tokio::time::timeout(within, self.asking.lock()).await;
        self.ask().await;
    }

    /// Sends one `WAIT` for all waiting claims, and gives each its result.
    async fn ask(&self) {
        let (runs, others): (Vec<_>, Vec<_>) = std::mem::take(&mut *self.waiting())
            .into_iter()
            .map(|waiting| (waiting.run, (waiting.within, waiting.reply_to)))
            .unzip();
        let Some(within) = others.iter().map(|(within, _)| *within).min() else { return };
        let answers = match self.renew_and_wait(&runs, within).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); others.len()],
        };
        for ((_, reply_to), answer) in others.into_iter().zip(answers) {
            // A claim that does not wait any more gives the lock up.
            let _ = reply_to.send(answer);
        }
    }

    async fn renew_and_wait(
        &self,
        runs: &[ScriptCall],
        within: Duration,
    ) -> Result<Vec<Result<(), EngineError>>, EngineError> {
        let live = self.link.live().await?;
        let renewed = scripts::run_all_on(&self.link, &live, runs, within * 2).await?;
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wanted.get()).arg(u64::try_from(within.as_millis()).unwrap_or(1).max(1));
        let reply = self.link.call(&live, wait).await?;
        let Value::Int(count) = reply else { return Err(self.link.desynced(&live)) };
        Ok(renewed.into_iter().map(|renewed| self.judge(renewed, count, within)).collect())
    }

    fn judge(
        &self,
        renewed: Result<RenewReply, EngineError>,
        count: i64,
        within: Duration,
    ) -> Result<(), EngineError> {
        let RenewReply::Yes { .. } = renewed? else {
            return Err(self
                .link
                .error(Cause::Disconnected, "the lock was gone before replicas had it"));
        };
        let wanted = self.wanted;
        if usize::try_from(count).is_ok_and(|count| count >= wanted.get()) {
            return Ok(());
        }
        let what =
            format!("{count} of {wanted} replicas had the lock within {within:?}; it was released");
        Err(self.link.error(Cause::NotReplicated, what))
    }

    fn cut(&self) -> EngineError {
        self.link.error(Cause::Disconnected, "nobody waited for the replicas any more")
    }

    fn timed_out(&self, longest: Duration) -> EngineError {
        self.link
            .error(Cause::TimedOut, format_args!("no answer of the replicas within {longest:?}"))
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
