//! Renewal: keeps held leases alive, and sees the others end.
//!
//! In: leases with the time at which each must be looked at. Out: renewals, sent together; losses.
//!
//! Leases that are due wait in `ready` until the backend has room, and leave it in small batches, the
//! earliest end first. Sent all at once, they would wait for each other's replies: a term counts from
//! before its request, so on a busy machine each would be used up by the time it took to renew them all.
//!
//! Runs on the engine's own thread. A lock taken and given back costs no wake-up of that thread:
//! it looks at the schedule every second while there is anything to do, so only a lease that is due
//! before its next look has to wake it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Notice, Notices, Renewal};
use crate::engine::Engine;
use crate::lease::Lease;
use crate::time::{Clock, Time};

/// Leases due within this time are renewed together: a renewal that comes a little early is free,
/// a wake-up is not.
const TOGETHER: Duration = Duration::from_millis(20);
/// The most leases in one call to a backend.
const BATCH_MAX: usize = 64;
/// The most leases whose replies are awaited at a time. A server that manages 2,000 renewals a second
/// answers so many in half a second; one that is 100 ms away is sent 10,000 a second.
const IN_FLIGHT_MAX: usize = 1_024;
/// How often the thread looks while there may be something to do.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After so many looks at an empty schedule the thread sleeps until it is woken.
const IDLE_LOOKS: u32 = 10;

/// Which lease must be looked at when.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    wake: Notify,
    /// Told when nothing waits to be renewed any more.
    caught_up: Notify,
    /// Held by the one that waits for that.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<(Time, usize), Arc<Lease>>,
    /// Leases to renew as soon as there is room, by the end of their term.
    ready: BTreeMap<(Time, usize), Arc<Lease>>,
    in_flight: InFlight,
    /// When the thread will look by itself. Zero until it runs: it looks first thing.
    asleep_until: Option<Time>,
    idle_looks: u32,
}

/// Batches under way, by number: how many leases of each have no answer yet.
#[derive(Debug, Default)]
struct InFlight {
    batches: BTreeMap<u64, usize>,
    next: u64,
    /// The latest batch that the server has answered. One server answers in order, so what is still
    /// missing from earlier batches is another shard's: a shard that hangs must not use up the room.
    answered: u64,
    /// How long the last batch took.
    took: Duration,
}

impl InFlight {
    fn begin(&mut self, many: usize) -> u64 {
        self.next += 1;
        self.batches.insert(self.next, many);
        self.next
    }

    fn has_room(&self) -> bool {
        self.batches.range(self.answered..).map(|(_, many)| many).sum::<usize>() < IN_FLIGHT_MAX
    }
}

impl State {
    /// Whether there is something to renew, and room for it.
    fn may_send(&self) -> bool {
        !self.ready.is_empty() && self.in_flight.has_room()
    }

    /// The next lease to renew: the first to end of those that a reply can still reach `in_time`. Where
    /// there is more to do than can be done, the others would all be lost with the ones before them.
    fn take_ready(&mut self, in_time: Time) -> Option<Arc<Lease>> {
        let first = self.ready.range((in_time, 0)..).next().map(|(at, _)| *at);
        match first {
            Some(at) => self.ready.remove(&at),
            None => self.ready.pop_first().map(|(_, lease)| lease),
        }
    }

    fn take_out(&mut self, lease: &Arc<Lease>) {
        let due = Time::from_nanos(lease.due.load(Ordering::Relaxed));
        self.due.remove(&(due, address(lease)));
    }
}

/// Tells leases apart; one in the schedule is not freed.
fn address(lease: &Arc<Lease>) -> usize {
    Arc::as_ptr(lease).addr()
}

impl Schedule {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the lease looked at when `at` comes, and not at the time set before.
    pub(crate) fn set(&self, lease: &Arc<Lease>, at: Time) {
        let mut state = self.state();
        state.take_out(lease);
        // A lease that has ended was taken out for good.
        if lease.is_over() {
            return;
        }
        lease.due.store(at.as_nanos(), Ordering::Relaxed);
        state.due.insert((at, address(lease)), lease.clone());
        if state.asleep_until.is_some_and(|until| at < until) {
            state.asleep_until = None;
            self.wake.notify_one();
        }
    }

    pub(crate) fn remove(&self, lease: &Arc<Lease>) {
        self.state().take_out(lease);
    }

    /// Everything that must be looked at by `now`.
    fn take_due(&self, now: Time) -> Vec<Arc<Lease>> {
        let mut state = self.state();
        let later = state.due.split_off(&(now.after(TOGETHER), 0));
        std::mem::replace(&mut state.due, later).into_values().collect()
    }

    /// Has the lease renewed when there is room.
    fn make_ready(&self, lease: &Arc<Lease>) {
        self.state().ready.insert((lease.valid_until(), address(lease)), lease.clone());
    }

    /// The leases to renew next and the number of their batch, if there are any and there is room.
    fn next_batch(&self, now: Time) -> Option<(u64, Vec<Arc<Lease>>)> {
        let mut state = self.state();
        if !state.may_send() {
            return None;
        }
        let in_time = now.after(state.in_flight.took);
        let next = std::iter::from_fn(|| state.take_ready(in_time));
        let batch: Vec<_> = next.take(BATCH_MAX).collect();
        if state.ready.is_empty() {
            self.caught_up.notify_one();
        }
        Some((state.in_flight.begin(batch.len()), batch))
    }

    /// Waits until nothing waits to be renewed: on a busy machine renewals come first. Those who wait
    /// for this go on one after the other, with the renewals that became due meanwhile in between.
    pub(crate) async fn spare_time(&self) {
        let _turn = self.turn.lock().await;
        while !self.state().ready.is_empty() {
            self.caught_up.notified().await;
        }
    }

    /// One lease of a batch has an answer; `told` if it is the server's.
    fn answered(&self, batch: u64, told: bool) {
        let mut state = self.state();
        if let Some(left) = state.in_flight.batches.get_mut(&batch) {
            *left = left.saturating_sub(1);
        }
        if told {
            state.in_flight.answered = state.in_flight.answered.max(batch);
        }
        self.wake_to_send(&mut state);
    }

    /// Nothing more is awaited of a batch.
    fn finished(&self, batch: u64, took: Duration) {
        let mut state = self.state();
        state.in_flight.batches.remove(&batch);
        state.in_flight.took = took;
        self.wake_to_send(&mut state);
    }

    /// Wakes the thread if it sleeps and there is room for more.
    fn wake_to_send(&self, state: &mut State) {
        if state.asleep_until.is_some() && state.may_send() {
            state.asleep_until = None;
            self.wake.notify_one();
        }
    }

    /// Everything, due or not.
    fn take_all(&self) -> Vec<Arc<Lease>> {
        std::mem::take(&mut self.state().due).into_values().collect()
    }

    /// Until when the thread may sleep.
    fn plan(&self, now: Time) -> Time {
        let mut state = self.state();
        let first = state.due.keys().next().map(|(at, _)| *at);
        state.idle_looks = if first.is_some() { 0 } else { state.idle_looks.saturating_add(1) };
        let until = match first {
            _ if state.may_send() => now,
            Some(at) => at,
            None if state.idle_looks < IDLE_LOOKS => now.after(LOOK_EVERY),
            None => Time::NEVER,
        };
        state.asleep_until = Some(until);
        until
    }
}

/// What the thread sleeps on. Holds no engine, which must be free to end meanwhile.
pub(crate) struct Listener {
    schedule: Arc<Schedule>,
    clock: Clock,
    notices: Notices,
}

impl Listener {
    pub(crate) fn new(engine: &Engine) -> Self {
        let (schedule, clock) = (engine.schedule.clone(), engine.clock.clone());
        Listener { schedule, clock, notices: engine.backend.notices() }
    }
}

/// Runs the renewals until `stop`, also after a panic: a lock must not be lost to a bug elsewhere.
pub(crate) async fn supervise(
    engine: Weak<Engine>,
    stop: CancellationToken,
    mut listener: Listener,
) {
    loop {
        match tokio::spawn(run(engine.clone(), stop.clone(), listener)).await {
            Ok(()) => return,
            Err(panic) => {
                let Some(engine) = engine.upgrade() else { return };
                listener = Listener::new(&engine);
                let leases = engine.gates.leases(engine.clock.now());
                leases.iter().for_each(|(lease, _)| engine.reschedule(lease));
                // In a task of its own: it may have been the log that panicked.
                tokio::spawn(async move {
                    tracing::error!(component = "tenure", %panic, "renewal panicked, restarted");
                });
            }
        }
    }
}

async fn run(weak: Weak<Engine>, stop: CancellationToken, listener: Listener) {
    let Listener { schedule, clock, mut notices } = listener;
    let mut listening = true;
    loop {
        let until = schedule.plan(clock.now());
        let mut heard = None;
        tokio::select! {
            () = stop.cancelled() => return,
            () = schedule.wake.notified() => {}
            () = clock.sleep_until(until) => {}
            notice = notices.next(), if listening => (listening, heard) = (notice.is_some(), notice),
        }
        let Some(engine) = weak.upgrade() else { return };
        if let Some(notice) = heard {
            heed(&engine, notice);
        }
        look_at(&engine, schedule.take_due(clock.now()));
        if let Some((number, batch)) = schedule.next_batch(clock.now()) {
            engine.spawn(renew(engine.clone(), number, batch));
            // Replies that have come are read before more is sent.
            tokio::task::yield_now().await;
        }
    }
}

/// Acts on what the backend says unasked.
fn heed(engine: &Arc<Engine>, notice: Notice) {
    // Noted on the claim, in case the grant itself is still on its way.
    let ours = |key, token| engine.gates.claim(key).filter(|claim| claim.token() == token);
    match notice {
        Notice::Contended { key, token } => {
            if let Some(claim) = ours(&key, token) {
                claim.set_contended(engine.clock.now());
            }
        }
        Notice::Lost { key, token, loss } => {
            if let Some(claim) = ours(&key, token) {
                claim.set_lost(loss);
                engine.take_note_of_loss(&key);
            }
        }
        Notice::Reconnected => {
            let all = engine.schedule.take_all();
            all.iter().for_each(|lease| lease.doubt());
            let (renewed, others): (Vec<_>, _) =
                all.into_iter().partition(|lease| lease.next_renewal() != Time::NEVER);
            renewed.iter().for_each(|lease| begin(engine, lease));
            look_at(engine, others);
        }
    }
}

/// Looks at leases that are due: some have ended, the others are renewed together.
fn look_at(engine: &Arc<Engine>, due: Vec<Arc<Lease>>) {
    let soon = engine.clock.now().after(TOGETHER);
    for lease in due {
        engine.deal_with_loss(&lease);
        if lease.ended().is_some() {
            continue;
        }
        // One that the server may have lost is renewed until the server has answered.
        let doubted = lease.is_doubted() && lease.next_renewal() != Time::NEVER;
        if doubted || lease.next_renewal() <= soon {
            begin(engine, &lease);
        } else {
            engine.reschedule(&lease);
        }
    }
}

/// Marks a renewal as under way. Meanwhile the lease is looked at only to see it end.
fn begin(engine: &Arc<Engine>, lease: &Arc<Lease>) {
    engine.schedule.set(lease, lease.valid_until());
    if !lease.renewing.swap(true, Ordering::AcqRel) {
        engine.schedule.make_ready(lease);
    }
}

async fn renew(engine: Arc<Engine>, batch: u64, mut leases: Vec<Arc<Lease>>) {
    // Some may have been released, or have ended, while they waited for room.
    leases.retain(|lease| lease.is_valid());
    let sent = engine.clock.now();
    let unanswered = Unanswered { engine: &engine, batch, leases: &leases, sent };
    let last = leases.iter().map(|lease| lease.valid_until()).max().unwrap_or(sent);
    let answer = |index: usize, answer: Renewal| {
        if let Some(lease) = leases.get(index) {
            engine.schedule.answered(batch, !matches!(answer, Renewal::Unknown(_)));
            engine.take_answer(lease, answer, sent);
        }
    };
    if leases.is_empty() {
        return;
    }
    tokio::select! {
        biased;
        () = engine.backend.renew(&leases, &answer) => {}
        () = engine.clock.sleep_until(last) => {}
    }
    drop(unanswered);
}

/// Leases whose renewal has brought no answer, because the backend gave none or panicked: dropped,
/// they are due again soon.
struct Unanswered<'a> {
    engine: &'a Arc<Engine>,
    batch: u64,
    leases: &'a [Arc<Lease>],
    sent: Time,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for lease in self.leases {
            if lease.renewing.swap(false, Ordering::AcqRel) {
                self.engine.schedule.set(lease, lease.next_retry());
            }
        }
        let took = self.engine.clock.now().since(self.sent);
        self.engine.schedule.finished(self.batch, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Term;
    use crate::claim::{Claim, Terms, Token};
    use crate::fence::Fence;
    use crate::key::Key;

    /// Where there is more to renew than can be renewed, what no reply can reach in time comes last:
    /// otherwise each lease would be sent when it is too late for it, and all would be lost.
    #[test]
    fn what_cannot_be_saved_comes_last() {
        let (clock, schedule) = (Clock::manual(), Schedule::default());
        let lease = |secs| {
            let ttl = Duration::from_secs(secs);
            let (key, token) = (Key::new("k").unwrap(), Token::random().unwrap());
            let claim = Arc::new(Claim::new(key, token, Terms::new(ttl)));
            let term = Term::Lease { from: clock.now(), ttl };
            Arc::new(Lease::adopted(claim, Fence::NONE, term, clock.clone()))
        };
        for secs in [1, 9, 3, 2, 5] {
            schedule.make_ready(&lease(secs));
        }
        let batch = schedule.state().in_flight.begin(1);
        schedule.finished(batch, Duration::from_millis(2_500));
        let (_, sent) = schedule.next_batch(clock.now()).unwrap();
        let secs: Vec<_> = sent.iter().map(|lease| lease.ttl().as_secs()).collect();
        assert_eq!(secs, [3, 5, 9, 1, 2]);
    }
}
