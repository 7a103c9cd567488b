//! Waiting behind another claim.
//!
//! In: the claims that ours waits for, in a [`View`] of the queue. Out: the moment at which they are not in the way
//! any more, or may not be.
//!
//! A waiter watches only the newest claim that it waits for: the one right before it, or for a reader the last that is
//! no reader. Only a permit that waits for other permits watches the whole queue, and counts those that go. If
//! anything was written before the watch began, the waiter reads once more. When it has seen enough, it reads again.
//! It also reads at a slow interval, in case a watch missed an event.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::{Claim, WaitStatus};
use tenure_net::jittered;

use crate::claim_key::ClaimKey;
use crate::error::EngineError;
use crate::link::{Link, Watch};
use crate::position::Before;
use crate::proto::{Filter, RangeRequest, WatchCreateRequest, end_of};
use crate::queue::{Queue, View};
use crate::sessions::Sessions;
use crate::watch_cache::WatchCache;

/// How often a waiter reads the queue without an event.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// When a waiter with a new watch reads once more. If the server wrote something while the watch began, it
/// sends the next event only in its next round, up to a tenth of a second later.
const READ_AFTER_WATCH: Duration = Duration::from_millis(15);
/// When a waiter reads who holds the lock and for how long, for its wait status. A claim that is granted
/// sooner does not need this.
const STATUS_AFTER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) calls: Arc<Link>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) watches: WatchCache,
}

impl Waiter {
    /// Waits until the claims before us are not in the way any more, or may not be. Returns the state of the queue, if
    /// it was read.
    pub(crate) async fn wait(
        &self,
        claim: &Claim,
        claim_key: &ClaimKey,
        before: &Before,
        view: &View,
    ) -> Result<Option<View>, EngineError> {
        let session = claim_key.session();
        if !session.is_kept() {
            session.keep(true);
            self.sessions.changed.notify_one();
        }
        if let Some((first, count)) = &view.first {
            let position = u64::try_from(count - 1).ok();
            claim.report_wait(WaitStatus::of(self.queue.holder(first)?, position));
        }
        tokio::select! {
            seen = self.wait_and_report(claim, claim_key, before, view) => seen,
            () = session.ended() => Err(EngineError::session_expired(claim.key())),
        }
    }

    async fn wait_and_report(
        &self,
        claim: &Claim,
        claim_key: &ClaimKey,
        before: &Before,
        view: &View,
    ) -> Result<Option<View>, EngineError> {
        let mut gone = pin!(self.watch_before(claim, claim_key, before, view));
        // On the time-out wheel of the link: for each timer of its own, a runtime wakes itself (`timeout.rs`).
        if let Some(seen) = self.calls.timeouts().within(STATUS_AFTER, &mut gone).await {
            return seen;
        }
        let report = async {
            // If the read fails, the wait status is not updated.
            let _ = self.report_status(claim, claim_key, view.created).await;
            std::future::pending().await
        };
        tokio::select! {
            seen = gone => seen,
            seen = report => seen,
        }
    }

    /// Waits until the claims before us, as they were in `view`, are known not to be in the way any more, or may be.
    ///
    /// A new watch starts at the server's present revision. From an earlier revision, the server would send
    /// the event up to a tenth of a second later. If something was written between `view` and the start of
    /// the watch, the queue is read again.
    async fn watch_before(
        &self,
        claim: &Claim,
        claim_key: &ClaimKey,
        before: &Before,
        view: &View,
    ) -> Result<Option<View>, EngineError> {
        let (queue, key, clock) = (&claim_key.queue, &before.watched, self.calls.clock());
        // A cached watch has missed nothing since then.
        if let Some(mut kept) = self.watches.take(queue, key)
            && let Ok(seen) =
                self.next_event(claim_key, before, view, &mut kept, jittered(POLL_INTERVAL)).await?
        {
            self.watches.keep(queue, key.clone(), kept, clock);
            return Ok(seen);
        }
        let (key, filters) = (key.clone(), vec![Filter::NoPut.into()]);
        let range_end = if key == *queue { end_of(&key) } else { Bytes::new() };
        let create = WatchCreateRequest { key, range_end, filters, ..Default::default() };
        let mut watch = self.calls.watch(create).await?;
        match self.next_event(claim_key, before, view, &mut watch, READ_AFTER_WATCH).await? {
            Ok(seen) => {
                self.watches.keep(queue, before.watched.clone(), watch, clock);
                Ok(seen)
            }
            // The watch failed: the caller reads after a pause.
            Err(_) => {
                clock.sleep(jittered(claim.retry_interval())).await;
                Ok(None)
            }
        }
    }

    /// Waits until the watch reports that the claims before us, as they were in `view`, are not in the way any more,
    /// or until `timeout` is over and it is time to read. The watch continues in both cases.
    async fn next_event(
        &self,
        claim_key: &ClaimKey,
        before: &Before,
        view: &View,
        watch: &mut Watch,
        timeout: Duration,
    ) -> Result<Result<Option<View>, EngineError>, EngineError> {
        let mut left = before.clone();
        loop {
            let next = pin!(watch.next());
            let Some(response) = self.calls.timeouts().within(timeout, next).await else {
                return Ok(Ok(None));
            };
            match response {
                Ok(response) if response.created => {
                    let begun = response.header.map_or(i64::MAX, |header| header.revision);
                    if begun <= view.revision {
                        continue;
                    }
                    let seen = self.queue.read_or_enter(claim_key).await?;
                    if seen.created != view.created || seen.before.as_ref() != Some(before) {
                        return Ok(Ok(Some(seen)));
                    }
                }
                Ok(response) => {
                    let mut news = response.events.iter();
                    if news.any(|event| event.revision() > view.revision && left.note(event)) {
                        return Ok(Ok(None));
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Reports who holds the lock, for how long, and how far from the front of the queue we are.
    async fn report_status(
        &self,
        claim: &Claim,
        claim_key: &ClaimKey,
        created: i64,
    ) -> Result<(), EngineError> {
        let queue = &claim_key.queue;
        let Some(first) = self.calls.oldest_under(queue.clone()).await? else { return Ok(()) };
        let range = RangeRequest::under(queue.clone()).created_by(created).keys_only();
        let found = self.calls.call(range).await?;
        let position = u64::try_from(found.kvs.len()).ok().and_then(|all| all.checked_sub(1));
        let mut holder = self.queue.holder(&first)?;
        holder.lease_left = self.calls.lease_left(first.lease).await?;
        claim.report_wait(WaitStatus::of(holder, position));
        Ok(())
    }
}
