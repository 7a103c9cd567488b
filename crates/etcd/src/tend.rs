//! What goes on by itself, on the engine's thread: sessions are kept alive, debts paid, words heard.
//!
//! In: sessions, what is still to be undone, what other processes do. Out: sessions that live, or are
//! known not to; notices for the engine.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Loss, Notice};
use tenure_core::time::Time;
use tokio::task::JoinSet;

use crate::backend::Shared;
use crate::force::forced;
use crate::jitter::jittered;
use crate::link::Link;
use crate::proto::{EventType, Filter, RangeRequest, WatchCreateRequest, WatchResponse, end_of};
use crate::seat::Seat;
use crate::session::Session;
use crate::sessions::Debt;
use crate::trouble::Trouble;

/// The pause between attempts to pay what is owed.
const PAY_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure to watch.
const PAUSE: Duration = Duration::from_millis(200);

impl Shared {
    pub(crate) async fn tend(self: &Arc<Self>) {
        self.renewals.settle_on(tokio::runtime::Handle::current());
        // Ends with this: nothing is tended that nobody uses.
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().hear_words());
        tasks.spawn(self.clone().pay());
        let mut heeding = self.heeding.subscribe();
        loop {
            let due = self.sessions.all().iter().map(|session| session.due()).min();
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.sessions.news.notified() => {}
                () = self.clock.sleep_until(due.unwrap_or(Time::NEVER)) => {}
                Ok(seat) = heeding.recv() => drop(tasks.spawn(self.clone().heed(seat))),
                Some(_) = tasks.join_next() => {}
            }
            for session in self.sessions.all() {
                self.see_to(&session, &mut tasks);
            }
        }
    }

    /// Keeps a session alive that is due, and lets one go whose time is over.
    fn see_to(self: &Arc<Self>, session: &Arc<Session>, tasks: &mut JoinSet<()>) {
        let now = self.clock.now();
        if session.is_overdue(now) {
            self.lose(session, Loss::Expired);
        }
        if !session.is_own() && !session.set_watched() {
            tasks.spawn(self.clone().watch_for_end(session.clone()));
        }
        if session.loss().is_some() {
            self.sessions.forget(session);
        } else if session.is_kept() && session.due() <= now {
            // Not again before this one is answered, or has failed.
            session.retry(now.after(session.patience()));
            tasks.spawn(self.clone().keep(session.clone()));
        }
    }

    /// A session whose lease somebody else ends, an operator or a server that errs, takes its own key along:
    /// whoever holds a lock on it hears it then, and not at the next renewal only.
    async fn watch_for_end(self: Arc<Self>, session: Arc<Session>) {
        let watch = async {
            while !self.has_ended(&session).await.unwrap_or(false) {
                self.clock.sleep(jittered(PAUSE)).await;
            }
            self.lose(&session, Loss::Session);
        };
        tokio::select! {
            () = session.ended() => {}
            () = watch => {}
        }
    }

    /// Waits until the session's own key is deleted; whether its lease has gone with it.
    async fn has_ended(&self, session: &Session) -> Result<bool, Trouble> {
        let (key, filters) = (session.key(), vec![Filter::NoPut.into()]);
        let create = WatchCreateRequest { key, filters, ..Default::default() };
        let mut watching = self.renewals.watch(create).await?;
        while watching.next().await?.events.is_empty() {}
        let within = self.patience(session);
        let left = self.ask_what_is_left(session.lease(), &self.renewals, within).await?;
        Ok(left.ttl < 0)
    }

    async fn keep(self: Arc<Self>, session: Arc<Session>) {
        if let Err(trouble) = self.keep_alive(&session, &self.renewals).await {
            session.retry(self.clock.now());
            tracing::debug!(component = "tenure", %trouble, "a keep-alive was not answered");
        }
        self.sessions.news.notify_one();
    }

    /// Undoes what was left undone, for as long as that takes.
    async fn pay(self: Arc<Self>) {
        loop {
            for debt in self.sessions.debts(self.clock.now()) {
                if self.pay_off(&debt, &self.renewals).await.is_ok() {
                    self.sessions.paid(&debt);
                }
            }
            // What could not be paid now is tried again after a pause.
            let now = self.clock.now();
            let paid_up = self.sessions.debts(now).is_empty();
            let again = if paid_up { Time::NEVER } else { now.after(jittered(PAY_EVERY)) };
            tokio::select! {
                () = self.sessions.owed.notified() => {}
                () = self.clock.sleep_until(again) => {}
            }
        }
    }

    pub(crate) async fn pay_off(&self, debt: &Debt, link: &Link) -> Result<(), Trouble> {
        match debt {
            Debt::Revoke(lease, _) => self.revoke(*lease, link).await,
            Debt::Undo(seat) => self.undo(seat, link).await,
            Debt::Release(seat, closed) => self.release_late(seat, *closed).await,
        }
    }

    /// Tells holders in this process what an operator has said of their locks, and takes note of the base of fences.
    /// What is missed is found at the next renewal, or by the next claim.
    async fn hear_words(self: Arc<Self>) {
        let mut next = 0;
        loop {
            if self.hear_words_from(&mut next).await.is_err() {
                next = 0;
            }
            self.clock.sleep(jittered(PAUSE)).await;
        }
    }

    async fn hear_words_from(&self, next: &mut i64) -> Result<(), Trouble> {
        let create = WatchCreateRequest {
            key: self.keys.epoch(),
            range_end: end_of(&self.keys.all_forced()),
            start_revision: *next,
            filters: vec![Filter::NoDelete.into()],
            prev_kv: false,
        };
        let mut watching = self.renewals.watch(create).await?;
        loop {
            let told = watching.next().await?;
            *next = told.header.map_or(0, |header| header.revision + 1);
            self.pass_words_on(&told);
        }
    }

    fn pass_words_on(&self, told: &WatchResponse) {
        for kv in told.events.iter().filter_map(|event| event.kv.as_ref()) {
            if kv.key == self.keys.epoch() {
                self.epoch.told(&kv.value);
            }
            let seat = self.keys.parse_forced(&kv.key).and_then(|token| self.seats.get(token));
            if let Some(seat) = seat.filter(|seat| seat.is_held()) {
                self.tell(Notice::Lost {
                    key: seat.key.clone(),
                    token: seat.token,
                    loss: forced(kv),
                });
            }
        }
    }

    /// Tells when another process comes to wait for what `seat` holds.
    async fn heed(self: Arc<Self>, seat: Arc<Seat>) {
        let mut from = seat.now().created + 1;
        tokio::select! {
            () = seat.over() => {}
            () = async {
                while !self.others_wait(&seat, &mut from).await.unwrap_or(false) {
                    self.clock.sleep(jittered(PAUSE)).await;
                }
                self.tell(Notice::Contended { key: seat.key.clone(), token: seat.token });
            } => {}
        }
    }

    /// Waits until somebody does; `false` where what happened from `from` on is not known any more.
    async fn others_wait(&self, seat: &Seat, from: &mut i64) -> Result<bool, Trouble> {
        let (key, name) = (seat.queue.clone(), seat.now().name);
        let create = WatchCreateRequest {
            range_end: end_of(&key),
            key,
            start_revision: *from,
            filters: vec![Filter::NoDelete.into()],
            prev_kv: false,
        };
        let mut watching = self.renewals.watch(create).await?;
        loop {
            let Ok(told) = watching.next().await else {
                return self.look_who_waits(seat, from).await;
            };
            let puts = told.events.iter().filter(|event| event.r#type() == EventType::Put);
            if puts.filter_map(|event| event.kv.as_ref()).any(|kv| kv.key != name) {
                return Ok(true);
            }
        }
    }

    async fn look_who_waits(&self, seat: &Seat, from: &mut i64) -> Result<bool, Trouble> {
        let queue = RangeRequest::under(seat.queue.clone()).limit(1).keys_only();
        let found = self.renewals.call(queue).await?;
        *from = found.header.map_or(0, |header| header.revision + 1);
        Ok(found.count > 1)
    }
}
