//! Asking for a lock, once or until it is had.
//!
//! In: a claim. Out: a grant, or who or what is in the way.
//!
//! The claims on a lock stand in the order in which their keys were created, and the oldest has it. One
//! that waits watches the claim right before it and nothing else, and looks once more if anything happened
//! before the watch began; when that claim has gone, it looks again. A slow look besides finds
//! out what no watch told. A look is a read that the cluster agrees on.
//!
//! An attempt whose answer was lost is resolved by asking again: a claim's key is its own.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Attempt, Fault, FaultKind, Grant, Loss};
use tenure_core::fence::SERVER_FENCE_MAX;
use tenure_core::time::Time;
use tenure_core::{Claim, Holder, Sight};

use crate::backend::Shared;
use crate::jitter::jittered;
use crate::link::Watching;
use crate::proto::{
    Filter, KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest,
};
use crate::seat::{self, Now, Seat, View};
use crate::session::Lasts;
use crate::sessions::Debt;
use crate::trouble::{Cause, Trouble};
use crate::value;

/// How many more intervals than one connect time-out an unreachable cluster is waited for.
const RETRIES_WHILE_DOWN: u32 = 5;
/// How often one that waits looks again without being told.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// When one that waits on a new watch looks once more: a server that wrote something while the watch began tells of
/// what comes next only at its next round, up to a tenth of a second later.
const LOOK_AFTER_BEGIN: Duration = Duration::from_millis(15);
/// When one that waits looks who holds the lock and for how long, for people: whoever has the lock by
/// then has no use for it.
const LOOK_CLOSER: Duration = Duration::from_millis(200);
/// How often an attempt is repeated that another claim's undoing made void.
const VOID_MAX: u32 = 16;

/// Why asking ends: for good, or perhaps not.
pub(crate) enum Stop {
    Fault(Fault),
    Trouble(Trouble),
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Stop::Trouble(trouble)
    }
}

impl From<Stop> for Fault {
    fn from(stop: Stop) -> Fault {
        match stop {
            Stop::Fault(fault) => fault,
            Stop::Trouble(trouble) => trouble.into(),
        }
    }
}

impl Shared {
    /// One attempt; "held by another" is an answer.
    pub(crate) async fn ask_once(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.refuse_unsupported(claim)?;
        match self.attempt(claim).await {
            // Whatever the first request has got is found by the second.
            Err(Stop::Trouble(trouble)) if trouble.cause() == Cause::Cut => {
                Ok(self.attempt(claim).await?)
            }
            answer => Ok(answer?),
        }
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt, Stop> {
        // A session of its own is made only for a lock that seems to be free.
        if self.seats.get(claim.token()).is_none()
            && !self.sessions.shares(claim)
            && let Some(first) = self.first(&self.keys.queue(claim.key())).await?
        {
            return Ok(Attempt::Held(Box::new(self.busy(&first).await?)));
        }
        let seat = self.seat(claim).await?;
        for _ in 0..VOID_MAX {
            let now = seat.now();
            let lasts = now.session.lasts(self.clock.now());
            let answer = self.send(&seat, seat.try_it(&now)).await?;
            let (revision, term, done) = (answer.revision(), answer.term(), answer.succeeded);
            let mut found = answer.ranges();
            let (first, guard, epoch) = (found.next(), found.next(), found.next());
            let first = first.and_then(|first| first.kvs.into_iter().next());
            let (created, written) = match first {
                _ if done => (revision, revision),
                Some(first) if first.key == now.name && seat.owns(&first) => {
                    (first.create_revision, first.mod_revision)
                }
                Some(first) => {
                    self.give_way(&seat);
                    return Ok(Attempt::Held(Box::new(self.busy(&first).await?)));
                }
                None => {
                    self.see_void(&seat, &now, (guard, epoch), revision).await?;
                    continue;
                }
            };
            seat.found(created, written);
            let (before, first, count) = (None, None, 1);
            let view = View { created, revision, term, before, count, first, lasts };
            return Ok(Attempt::Granted(self.confirmed(claim, &seat, view).await?));
        }
        Err(self.trouble(Cause::NotNow, "too many claims were given up meanwhile", "").into())
    }

    /// Another has it: nothing of ours is left at the server.
    fn give_way(&self, seat: &Arc<Seat>) {
        match seat.now().stray {
            // An earlier request may yet find the lock free.
            true => self.owe(Debt::Undo(seat.clone())),
            false => {
                self.seats.remove(seat.token);
                self.let_end(&seat.session());
            }
        }
    }

    /// Whoever has the lock; and of one that is only kept closed, for how long.
    async fn busy(&self, first: &KeyValue) -> Result<Holder, Stop> {
        let mut holder = self.in_the_way(first)?;
        if holder.closing {
            holder.lease_left = self.left_of(first.lease).await?;
        }
        Ok(holder)
    }

    /// A grant is only said of a lease that is known to live.
    async fn confirmed(&self, claim: &Claim, seat: &Seat, view: View) -> Result<Grant, Stop> {
        let mut view = view;
        loop {
            if let Some(grant) = self.confirm(claim, seat, &view, false).await? {
                return Ok(grant);
            }
            view = self.look(seat).await?.ok_or_else(|| self.vanished(seat))?;
        }
    }

    /// Waits until the lock is granted, or it is plain that waiting is of no use.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Grant, Fault> {
        self.refuse_unsupported(claim)?;
        let mut patience = Patience::default();
        loop {
            let stop = match self.stand(claim, &mut patience).await {
                Ok(grant) => return Ok(grant),
                Err(Stop::Fault(fault)) => return Err(fault),
                Err(Stop::Trouble(trouble)) => trouble,
            };
            let pause = self.see_trouble(claim, stop, &mut patience)?;
            self.clock.sleep(pause).await;
        }
    }

    /// Stands in the queue until the lock is ours, or something is wrong.
    async fn stand(&self, claim: &Claim, patience: &mut Patience) -> Result<Grant, Stop> {
        let seat = self.seat(claim).await?;
        let (mut view, mut waited) = (self.enter(&seat).await?, false);
        loop {
            patience.down_since = None;
            let Some(before) = view.before.clone() else {
                if let Some(grant) = self.confirm(claim, &seat, &view, waited).await? {
                    return Ok(grant);
                }
                waited = false;
                view = self.look_or_enter(&seat).await?;
                continue;
            };
            // Boxed, as is all that is rare here: what is made for every lock is to be small.
            let seen = Box::pin(self.wait_behind(claim, &seat, &before, &view)).await?;
            waited = true;
            view = match seen {
                Some(seen) => seen,
                None => self.look_or_enter(&seat).await?,
            };
        }
    }

    async fn look_or_enter(&self, seat: &Seat) -> Result<View, Stop> {
        match self.look(seat).await? {
            Some(view) => Ok(view),
            // Somebody has deleted our key: at the end of the queue there is a new place.
            None => self.enter(seat).await,
        }
    }

    /// Puts the claim's key in the queue, unless it is there.
    async fn enter(&self, seat: &Seat) -> Result<View, Stop> {
        for _ in 0..VOID_MAX {
            let now = seat.now();
            let lasts = now.session.lasts(self.clock.now());
            // What is likely to be enough; the second does for any lock.
            let entered = match self.wanted.by_others(&seat.queue) {
                false => Entered::at_once(&self.send(seat, seat.take(&now)).await?, lasts),
                true => match self.send(seat, seat.stand(&now)).await? {
                    stands if stands.succeeded => Entered::stands(&now, stands, lasts),
                    _ => Entered::not(seat, self.calls.call(seat.why_not(&now)).await?),
                },
            };
            match entered {
                Entered::Now(view) => {
                    self.wanted.seen(&seat.queue, view.count > 1);
                    seat.found(view.created, view.created);
                    return Ok(view);
                }
                Entered::Not => self.wanted.seen(&seat.queue, true),
                Entered::Before(mine) => {
                    seat.found(mine.create_revision, mine.mod_revision);
                    if let Some(view) = self.look(seat).await? {
                        return Ok(view);
                    }
                }
                Entered::Taken => self.see_name_taken(seat, &now).await?,
                Entered::Void(found, revision) => {
                    self.see_void(seat, &now, found, revision).await?;
                }
            }
        }
        Err(self.trouble(Cause::NotNow, "too many claims were given up meanwhile", "").into())
    }

    /// Another claim's key has our name: we need another, unless a request of ours may yet create a key of
    /// this one. That is shut out first, and what it did meanwhile is then seen.
    async fn see_name_taken(&self, seat: &Seat, now: &Now) -> Result<(), Stop> {
        if now.stray {
            self.renew_guard(&now.session).await?;
            seat.no_strays();
        } else {
            seat.rename(self.seats.another_name(&self.keys, &seat.queue));
        }
        Ok(())
    }

    /// Who is right before us; `None` if our key is not there any more.
    pub(crate) async fn look(&self, seat: &Seat) -> Result<Option<View>, Stop> {
        let now = seat.now();
        let lasts = now.session.lasts(self.clock.now());
        let found = self.calls.call(seat.look(now.created)).await?;
        let header = found.header.unwrap_or_default();
        let (revision, term) = (header.revision, header.raft_term);
        let view = seat::before(&now.name, now.created, &found).map(|before| {
            let (created, count) = (now.created, found.count);
            View { created, revision, term, before, count, first: None, lasts }
        });
        Ok(view)
    }

    /// Sends a request that may create the claim's key.
    async fn send(&self, seat: &Seat, ask: TxnRequest) -> Result<TxnResponse, Stop> {
        let (sending, base) = (seat.sending(), seat.now().base);
        // Before sending: what comes back is of later than that, unless the cluster has lost what it knew.
        let highest = self.epoch.highest();
        let answer = self.calls.call(ask).await;
        match &answer {
            Err(trouble) if trouble.is_unknown() => {}
            _ => sending.answered(),
        }
        match answer {
            Err(trouble) if trouble.cause() == Cause::NoLease => Err(self.without_lease(seat)),
            Ok(done) if done.succeeded => {
                let number = base.saturating_add(done.revision());
                self.epoch.saw(number);
                if number < highest { Err(self.went_back(seat)) } else { Ok(done) }
            }
            answer => Ok(answer?),
        }
    }

    /// The server does not know our session. One that nothing hung on yet is replaced.
    pub(crate) fn without_lease(&self, seat: &Seat) -> Stop {
        let (session, now) = (seat.session(), seat.now());
        self.lose(&session, Loss::Session);
        self.seats.remove(seat.token);
        match now.created == 0 && !now.stray {
            true => self.trouble(Cause::NotNow, "the session has ended", "").into(),
            false => Stop::Fault(session_expired(&seat.key)),
        }
    }

    /// The cluster has granted under a lower number than it had reached: a backup was put back. The session ends, and
    /// the next one writes a higher base.
    fn went_back(&self, seat: &Seat) -> Stop {
        self.epoch.forget();
        self.lose(&seat.session(), Loss::Session);
        self.seats.remove(seat.token);
        self.trouble(Cause::NotNow, "the cluster has lost what it knew: its revision is lower", "")
            .into()
    }

    /// Our key has gone between two answers.
    fn vanished(&self, seat: &Seat) -> Stop {
        match seat.session().lasts(self.clock.now()) {
            Some(_) => self.trouble(Cause::Cut, "the claim was deleted by somebody", "").into(),
            None => Stop::Fault(session_expired(&seat.key)),
        }
    }

    /// The claim's seat: the one it has, or a new one on a session that is alive.
    async fn seat(&self, claim: &Claim) -> Result<Arc<Seat>, Stop> {
        if let Some(seat) = self.seats.get(claim.token()) {
            let (session, now) = (seat.session(), seat.now());
            if session.lasts(self.clock.now()).is_some() {
                return Ok(seat);
            }
            self.lose(&session, Loss::Expired);
            self.seats.remove(claim.token());
            if now.sent {
                return Err(Stop::Fault(session_expired(claim.key())));
            }
        }
        let session = self.session_for(claim).await?;
        let base = self.epoch.base();
        let seat = Seat::new(&self.seats, &self.keys, &self.author, claim, session, base);
        let seat = Arc::new(seat);
        self.seats.add(seat.clone());
        Ok(seat)
    }

    /// The grant, if the session is known to live now: kept alive not long ago, and under the leader
    /// whose cluster has just shown us our key. If not, it is kept alive, and the caller looks again.
    async fn confirm(
        &self,
        claim: &Claim,
        seat: &Seat,
        view: &View,
        waited: bool,
    ) -> Result<Option<Grant>, Stop> {
        let (session, now) = (seat.session(), self.clock.now());
        let (Some(_), Some(lasts)) = (session.lasts(now), view.lasts) else {
            self.lose(&session, Loss::Expired);
            return Err(Stop::Fault(session_expired(claim.key())));
        };
        // One that will not be renewed is to have the whole of its ttl.
        let whole = claim.renewed() || !waited;
        if lasts.term != view.term || now >= lasts.from.after(lasts.ttl / 2) || !whole {
            let kept = self.keep_alive(&session, &self.calls).await;
            return match kept {
                Err(trouble) if trouble.cause() == Cause::NoLease => {
                    Err(Stop::Fault(session_expired(claim.key())))
                }
                kept => Ok(kept.map(|()| None)?),
            };
        }
        session.keep(false);
        seat.set_held();
        let number = seat.now().base.saturating_add(view.created);
        let number = u64::try_from(number).ok().filter(|number| *number <= SERVER_FENCE_MAX);
        let Some(number) = number.filter(|number| *number > 0) else {
            let what =
                "the base of fences at the server is no number that a clock could have reached";
            return Err(Stop::Fault(Fault::new(FaultKind::Refused, what)));
        };
        Ok(Some(Grant::new(number, lasts.as_term()).contended(view.count > 1)))
    }

    /// Waits until the claim before us has gone, or may have; how things stand then, if that was looked at.
    async fn wait_behind(
        &self,
        claim: &Claim,
        seat: &Seat,
        before: &Bytes,
        view: &View,
    ) -> Result<Option<View>, Stop> {
        let session = seat.session();
        if !session.is_kept() {
            session.keep(true);
            self.sessions.news.notify_one();
        }
        if let Some(first) = &view.first {
            let place = u64::try_from(view.count - 1).ok();
            claim.saw(Sight::of(self.in_the_way(first)?, place));
        }
        let turn = async {
            let mut gone = pin!(self.gone(claim, seat, before, view));
            // By the ticker of the calls: each timer of the runtime's is a message to itself (`bound.rs`).
            if let Some(seen) = self.calls.bounds().within(LOOK_CLOSER, &mut gone).await {
                return seen;
            }
            let closer = async {
                // What cannot be seen is not shown.
                let _ = self.look_closer(claim, seat, view.created).await;
                std::future::pending().await
            };
            tokio::select! {
                seen = gone => seen,
                seen = closer => seen,
            }
        };
        tokio::select! {
            seen = turn => seen,
            () = session.ended() => Err(Stop::Fault(session_expired(claim.key()))),
        }
    }

    /// Waits until the key of the claim before us, as it was in `view`, is known to have been deleted, or
    /// may have been.
    ///
    /// A new watch starts at whatever revision the server is at: from an earlier one, the server would tell
    /// of it only a tenth of a second later. Where something happened in between, we look.
    async fn gone(
        &self,
        claim: &Claim,
        seat: &Seat,
        key: &Bytes,
        view: &View,
    ) -> Result<Option<View>, Stop> {
        // One that was kept has missed nothing since.
        if let Some(mut kept) = self.ears.take(&seat.queue, key)
            && let Ok(seen) = self.hear(seat, key, view, &mut kept, jittered(LOOK_EVERY)).await?
        {
            self.ears.keep(&seat.queue, key.clone(), kept, &self.clock);
            return Ok(seen);
        }
        let filters = vec![Filter::NoPut.into()];
        let create = WatchCreateRequest { key: key.clone(), filters, ..Default::default() };
        let mut watching = self.calls.watch(create).await?;
        match self.hear(seat, key, view, &mut watching, LOOK_AFTER_BEGIN).await? {
            Ok(seen) => {
                self.ears.keep(&seat.queue, key.clone(), watching, &self.clock);
                Ok(seen)
            }
            // What cannot be watched is found by looking.
            Err(_) => {
                self.clock.sleep(jittered(claim.retry_interval())).await;
                Ok(None)
            }
        }
    }

    /// Waits for the watch to tell that the claim before us, as it was in `view`, has gone, or until it is time
    /// to look without being told: the watch goes on.
    async fn hear(
        &self,
        seat: &Seat,
        key: &Bytes,
        view: &View,
        watching: &mut Watching,
        patience: Duration,
    ) -> Result<Result<Option<View>, Trouble>, Stop> {
        loop {
            let next = pin!(watching.next());
            let Some(told) = self.calls.bounds().within(patience, next).await else {
                return Ok(Ok(None));
            };
            match told {
                Ok(told) if told.created => {
                    let begun = told.header.map_or(i64::MAX, |header| header.revision);
                    if begun <= view.revision {
                        continue;
                    }
                    let seen = self.look_or_enter(seat).await?;
                    if seen.created != view.created || seen.before.as_ref() != Some(key) {
                        return Ok(Ok(Some(seen)));
                    }
                }
                Ok(told) if told.is_of_after(view.revision) => return Ok(Ok(None)),
                Ok(_) => {}
                Err(trouble) => return Ok(Err(trouble)),
            }
        }
    }

    /// Who holds the lock, for how long, and how far from the front we are.
    async fn look_closer(&self, claim: &Claim, seat: &Seat, created: i64) -> Result<(), Stop> {
        let Some(first) = self.first(&seat.queue).await? else { return Ok(()) };
        let queue = RangeRequest::under(seat.queue.clone()).created_by(created).keys_only();
        let found = self.calls.call(queue).await?;
        let place = u64::try_from(found.kvs.len()).ok().and_then(|all| all.checked_sub(1));
        let mut holder = self.in_the_way(&first)?;
        holder.lease_left = self.left_of(first.lease).await?;
        claim.saw(Sight::of(holder, place));
        Ok(())
    }

    /// The oldest claim under `queue`.
    pub(crate) async fn first(&self, queue: &Bytes) -> Result<Option<KeyValue>, Trouble> {
        let oldest = RangeRequest::under(queue.clone()).oldest_first().limit(1);
        Ok(self.calls.call(oldest).await?.kvs.into_iter().next())
    }

    /// Whoever has the lock, as others see it. What has no lease would have it for ever.
    fn in_the_way(&self, first: &KeyValue) -> Result<Holder, Stop> {
        if first.lease == 0 {
            let key = String::from_utf8_lossy(&first.key);
            let shown = key.rsplit_once('/').map_or(&*key, |(start, _)| start);
            let what = format!("a key under `{shown}/` has no lease: it is no lock");
            return Err(self.trouble(Cause::Refused, &what, "").into());
        }
        Ok(value::holder(&first.value, None))
    }

    /// Notes what keeps us from asking; the pause until it may have passed, if it may at all.
    fn see_trouble(
        &self,
        claim: &Claim,
        trouble: Trouble,
        patience: &mut Patience,
    ) -> Result<Duration, Fault> {
        let now = self.clock.now();
        let since = *patience.down_since.get_or_insert(now);
        if !trouble.is_absence() {
            patience.down_since = None;
        }
        let longest = self.calls.connect_timeout() + claim.retry_interval() * RETRIES_WHILE_DOWN;
        // One that stands in the queue stays as long as its session: its place is worth waiting for.
        let seated = self.seats.get(claim.token()).is_some_and(|seat| seat.now().sent);
        let out_of_patience = trouble.is_absence() && !seated && now >= since.after(longest);
        if trouble.is_final() || out_of_patience {
            return Err(trouble.into());
        }
        claim.saw(Sight::trouble(trouble.into()));
        Ok(jittered(claim.retry_interval()))
    }
}

/// What asking for a place in the queue came to.
enum Entered {
    /// It was made now, and this is who is before it.
    Now(View),
    /// It was not: others have or want the lock, or what the attempt was bound to has changed.
    Not,
    /// It was made before.
    Before(KeyValue),
    /// Another claim's key has the name: an earlier one of ours that is kept closed, or not undone yet.
    Taken,
    /// The session's own key or the base of fences is not as we knew it, but as it was found at a revision.
    Void((Option<RangeResponse>, Option<RangeResponse>), i64),
}

impl Entered {
    /// Reads the answer to [`Seat::take`].
    fn at_once(answer: &TxnResponse, lasts: Option<Lasts>) -> Self {
        match answer.succeeded {
            true => Entered::Now(Self::view(answer, lasts)),
            false => Entered::Not,
        }
    }

    /// The lock is ours, as far as the answer itself says.
    fn view(answer: &TxnResponse, lasts: Option<Lasts>) -> View {
        let (revision, term) = (answer.revision(), answer.term());
        View { created: revision, revision, term, before: None, count: 1, first: None, lasts }
    }

    /// Reads the answer to a [`Seat::stand`] that was carried out.
    fn stands(now: &Now, answer: TxnResponse, lasts: Option<Lasts>) -> Self {
        let view = Self::view(&answer, lasts);
        let mut found = answer.ranges();
        let (first, last) = (found.next(), found.next());
        // Only what shows our key says who is before it.
        let before = last.as_ref().and_then(|last| seat::before(&now.name, view.created, last));
        let Some(before) = before else {
            return Entered::Void((None, None), view.revision);
        };
        let first = first.and_then(|first| first.kvs.into_iter().next());
        let count = last.map_or(1, |last| last.count);
        Entered::Now(View { before, first, count, ..view })
    }

    /// Reads the answer to [`Seat::why_not`].
    fn not(seat: &Seat, answer: TxnResponse) -> Self {
        let revision = answer.revision();
        let mut found = answer.ranges();
        let (guard, mine, epoch) = (found.next(), found.next(), found.next());
        match mine.and_then(|mine| mine.kvs.into_iter().next()) {
            Some(mine) if seat.owns(&mine) => Entered::Before(mine),
            Some(_) => Entered::Taken,
            None => Entered::Void((guard, epoch), revision),
        }
    }
}

/// How long nobody could be asked.
#[derive(Default)]
struct Patience {
    down_since: Option<Time>,
}

/// t30: never "acquired".
fn session_expired(key: &tenure_core::Key) -> Fault {
    let what =
        format!("the session ended while waiting for `{key}`: the place in the queue is lost");
    Fault::new(FaultKind::Unavailable, what)
}
