//! Background work on the engine's thread: keep-alives, cleanups, and watches for forced releases.
//!
//! In: sessions, queued cleanups, changes by other processes. Out: sessions that are kept alive or known to
//! have ended, and notices for the engine.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Loss, Notice, Notifier};
use tenure_core::time::Time;
use tenure_net::jittered;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::claim_key::{ClaimKey, ClaimKeys};
use crate::cleanup::Cleanups;
use crate::epoch::Epoch;
use crate::error::EngineError;
use crate::keys::Keys;
use crate::link::Link;
use crate::modes;
use crate::position::Position;
use crate::proto::{Filter, RangeRequest, TxnRequest, WatchCreateRequest, WatchResponse, end_of};
use crate::release::Releaser;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::value;

/// The pause between attempts to run the queued cleanups.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a watch has failed.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) keys: Arc<Keys>,
    pub(crate) renewals: Arc<Link>,
    pub(crate) epoch: Arc<Epoch>,
    pub(crate) claim_keys: Arc<ClaimKeys>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) cleanups: Arc<Cleanups>,
    pub(crate) releaser: Arc<Releaser>,
    /// Held claims with waiting tasks in this process: for these, it watches whether other processes wait too.
    pub(crate) contention_watches: broadcast::Sender<Arc<ClaimKey>>,
    pub(crate) notifier: Notifier,
    pub(crate) closed: CancellationToken,
}

impl Background {
    pub(crate) async fn run(self: &Arc<Self>) {
        self.renewals.pin_to_runtime(tokio::runtime::Handle::current());
        // Dropped when this future is dropped, and the tasks end with it.
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().watch_forced());
        tasks.spawn(self.clone().run_cleanups());
        let mut contention_watches = self.contention_watches.subscribe();
        loop {
            let due = self.sessions.all().iter().map(|session| session.due()).min();
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.sessions.changed.notified() => {}
                () = self.renewals.clock().sleep_until(due.unwrap_or(Time::NEVER)) => {}
                Ok(claim_key) = contention_watches.recv() => drop(tasks.spawn(self.clone().watch_contention(claim_key))),
                Some(_) = tasks.join_next() => {}
            }
            for session in self.sessions.all() {
                self.maintain(&session, &mut tasks);
            }
        }
    }

    /// Keeps a session alive when that is due, and removes a session that has ended.
    fn maintain(self: &Arc<Self>, session: &Arc<Session>, tasks: &mut JoinSet<()>) {
        let now = self.renewals.now();
        if session.is_overdue(now) {
            self.sessions.lose(session, Loss::Expired);
        }
        if !session.is_single() && !session.set_watched() {
            tasks.spawn(self.clone().watch_for_end(session.clone()));
        }
        if session.loss().is_some() {
            self.sessions.remove(session);
        } else if session.is_kept() && session.due() <= now {
            // No second keep-alive before this one is answered or has failed.
            session.retry(now.after(session.keep_alive_timeout()));
            tasks.spawn(self.clone().keep_alive_once(session.clone()));
        }
    }

    /// Watches for the end of a session. If an operator or a faulty server ends the lease, the session's own
    /// key is deleted with it. So holders on this session are notified at once, not only at the next renewal.
    async fn watch_for_end(self: Arc<Self>, session: Arc<Session>) {
        let watch = async {
            while !self.has_ended(&session).await.unwrap_or(false) {
                self.renewals.clock().sleep(jittered(PAUSE)).await;
            }
            self.sessions.lose(&session, Loss::Session);
        };
        tokio::select! {
            () = session.ended() => {}
            () = watch => {}
        }
    }

    /// Waits until the session's own key is deleted. Returns whether the lease is gone too.
    async fn has_ended(&self, session: &Session) -> Result<bool, EngineError> {
        let (key, filters) = (session.key(), vec![Filter::NoPut.into()]);
        let create = WatchCreateRequest { key, filters, ..Default::default() };
        let mut watch = self.renewals.watch(create).await?;
        while watch.next().await?.events.is_empty() {}
        let within = self.sessions.timeout(session);
        let left = self.renewals.time_to_live(session.lease(), within).await?;
        Ok(left.ttl < 0)
    }

    async fn keep_alive_once(self: Arc<Self>, session: Arc<Session>) {
        if let Err(error) = self.sessions.keep_alive(&session, &self.renewals).await {
            session.retry(self.renewals.now());
            tracing::debug!(component = "tenure", %error, "a keep-alive was not answered");
        }
        self.sessions.changed.notify_one();
    }

    /// Runs queued cleanups, and repeats them until they are done.
    async fn run_cleanups(self: Arc<Self>) {
        loop {
            for cleanup in self.cleanups.pending() {
                if self.releaser.clean_up(&cleanup, &self.renewals).await.is_ok() {
                    self.cleanups.done(&cleanup);
                }
            }
            // Cleanups that failed are repeated after a pause.
            let now = self.renewals.now();
            let none_left = self.cleanups.pending().is_empty();
            let again = if none_left { Time::NEVER } else { now.after(jittered(CLEANUP_INTERVAL)) };
            tokio::select! {
                () = self.cleanups.queued.notified() => {}
                () = self.renewals.clock().sleep_until(again) => {}
            }
        }
    }

    /// Notifies holders in this process of forced releases, and records new bases of fences. If an event is
    /// missed, the next renewal or the next claim finds it.
    async fn watch_forced(self: Arc<Self>) {
        let mut next = 0;
        loop {
            if self.watch_notes_from(&mut next).await.is_err() {
                next = 0;
            }
            self.renewals.clock().sleep(jittered(PAUSE)).await;
        }
    }

    async fn watch_notes_from(&self, next: &mut i64) -> Result<(), EngineError> {
        let create = WatchCreateRequest {
            key: self.keys.epoch(),
            range_end: end_of(&self.keys.all_forced()),
            start_revision: *next,
            filters: vec![Filter::NoDelete.into()],
            prev_kv: false,
        };
        let mut watch = self.renewals.watch(create).await?;
        loop {
            let response = watch.next().await?;
            *next = response.header.map_or(0, |header| header.revision + 1);
            self.apply_notes(&response);
        }
    }

    fn apply_notes(&self, response: &WatchResponse) {
        for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            if kv.key == self.keys.epoch() {
                self.epoch.record_base(&kv.value);
            }
            let claim_key =
                self.keys.parse_forced(&kv.key).and_then(|token| self.claim_keys.get(token));
            if let Some(claim_key) = claim_key.filter(|claim_key| claim_key.is_held()) {
                self.notifier.send(Notice::Lost {
                    key: claim_key.key.clone(),
                    token: claim_key.token,
                    loss: value::forced(&kv.value),
                });
            }
        }
    }

    /// Sends a notice when another process waits for the lock that `claim_key` holds.
    async fn watch_contention(self: Arc<Self>, claim_key: Arc<ClaimKey>) {
        tokio::select! {
            () = claim_key.wait_until_ended() => {}
            () = async {
                while self.until_contended(&claim_key).await.is_err() {
                    self.renewals.clock().sleep(jittered(PAUSE)).await;
                }
                // First: after the notice, the next watch may be asked for at once.
                claim_key.set_watched(false);
                self.notifier.send(Notice::Contended { key: claim_key.key.clone(), token: claim_key.token });
            } => {}
        }
    }

    /// Waits until a read shows that another claim waits. Reads again whenever one comes that may have to wait.
    async fn until_contended(&self, claim_key: &ClaimKey) -> Result<(), EngineError> {
        let Some(free_at) = self.uncontended_at(claim_key).await? else { return Ok(()) };
        let name = claim_key.snapshot().name;
        let RangeRequest { key, range_end, .. } =
            modes::in_the_way(&claim_key.queue, &claim_key.mode);
        let (start_revision, filters) = (free_at + 1, vec![Filter::NoDelete.into()]);
        let create = WatchCreateRequest { key, range_end, start_revision, filters, prev_kv: false };
        let mut watch = self.renewals.watch(create).await?;
        loop {
            let response = watch.next().await?;
            let mut put = response.events.iter().filter_map(|event| event.kv.as_ref());
            if put.any(|kv| kv.key != name) && self.uncontended_at(claim_key).await?.is_none() {
                return Ok(());
            }
        }
    }

    /// The revision at which no other claim waits; `None` if one does.
    async fn uncontended_at(&self, claim_key: &ClaimKey) -> Result<Option<i64>, EngineError> {
        let state = claim_key.snapshot();
        let read = TxnRequest::read(claim_key.reads(&state.name, state.created));
        let answer = self.renewals.call(read).await?;
        let revision = answer.revision();
        let found = answer.ranges().collect();
        let position = Position::of(claim_key, &state.name, state.created, found);
        Ok((!position.is_some_and(|position| position.contended)).then_some(revision))
    }
}
