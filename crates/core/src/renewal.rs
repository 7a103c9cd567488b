//! Renewal: extends held leases, and detects their end.
//!
//! In: leases, each with the time at which it is due. Out: renewals in batches, and losses.
//!
//! Due leases wait in `ready` until the backend has room. They leave it in small batches, the earliest end
//! first. A lease is counted from the moment before its request is sent. If thousands were sent at once, the
//! last replies would come so late that little of those leases would be left.
//!
//! Runs on the engine's own thread. The thread sleeps until the first lease is due. With no leases it wakes
//! every second, and after ten looks it sleeps until it is woken. A new lease wakes it only if it is due
//! before the thread would wake anyway. So most acquires and releases do not wake it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Notice, Notices};
use crate::engine::Engine;
use crate::grant::Renewal;
use crate::lease::Lease;
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Time};

/// Leases due within this time are renewed together: renewing a little early costs nothing, a wake-up does.
const TOGETHER: Duration = Duration::from_millis(20);
/// The most leases in one call to a backend.
const BATCH_MAX: usize = 64;
/// The most leases that wait for a reply at the same time. A server that manages 2,000 renewals a second
/// answers this many in half a second. A server that is 100 ms away receives 10,000 a second.
const IN_FLIGHT_MAX: usize = 1_024;
/// How long the thread sleeps while the schedule is empty.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After this many checks of an empty schedule the thread sleeps until it is woken.
const IDLE_LOOKS: u32 = 10;

/// The times at which leases are due.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    wake: Notify,
    /// Notified when `ready` becomes empty.
    caught_up: Notify,
    /// Held by the task that waits for `caught_up`: one at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<(Time, usize), Arc<Lease>>,
    /// Leases to renew as soon as there is room, ordered by the end of their validity.
    ready: BTreeMap<(Time, usize), Arc<Lease>>,
    in_flight: InFlight,
    /// When the thread will wake by itself. `None` while the thread is awake: it reads the schedule before it
    /// sleeps.
    asleep_until: Option<Time>,
    idle_looks: u32,
}

/// Batches under way by number, each with its count of unanswered leases.
#[derive(Debug, Default)]
struct InFlight {
    batches: BTreeMap<u64, usize>,
    next: u64,
    /// The latest batch that the server has answered. One server answers in order, so replies still missing
    /// from earlier batches must come from another shard. A shard that hangs must not use up the room.
    answered: u64,
    /// How long the last finished batch took.
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
    /// Whether there is a lease to renew, and room for it.
    fn may_send(&self) -> bool {
        !self.ready.is_empty() && self.in_flight.has_room()
    }

    /// Removes the next lease to renew: the first to end among those that a reply can still reach `in_time`.
    /// Under overload, starting with the leases that are too late would lose all the others too.
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

/// Identifies a lease. The address is unique, since a lease in the schedule is not freed.
fn address(lease: &Arc<Lease>) -> usize {
    Arc::as_ptr(lease).addr()
}

impl Schedule {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the time at which the lease is due; replaces an earlier one.
    pub(crate) fn set(&self, lease: &Arc<Lease>, at: Time) {
        let mut state = self.state();
        state.take_out(lease);
        // A lease that has ended stays out of the schedule.
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

    /// Removes and returns every lease that is due by `now`, or within `TOGETHER` after it.
    fn take_due(&self, now: Time) -> Vec<Arc<Lease>> {
        let mut state = self.state();
        let later = state.due.split_off(&(now.after(TOGETHER), 0));
        std::mem::replace(&mut state.due, later).into_values().collect()
    }

    /// Queues the lease for renewal.
    fn make_ready(&self, lease: &Arc<Lease>) {
        self.state().ready.insert((lease.valid_until(), address(lease)), lease.clone());
    }

    /// The next leases to renew and their batch number, if there are leases and there is room.
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

    /// Waits until no lease waits for renewal: on a busy machine renewals come first. Callers continue one
    /// after the other; renewals that became due meanwhile are sent in between.
    pub(crate) async fn spare_time(&self) {
        let _turn = self.turn.lock().await;
        while !self.state().ready.is_empty() {
            self.caught_up.notified().await;
        }
    }

    /// One lease of a batch has a result; `by_server` if the result came from the server.
    fn answered(&self, batch: u64, by_server: bool) {
        let mut state = self.state();
        if let Some(left) = state.in_flight.batches.get_mut(&batch) {
            *left = left.saturating_sub(1);
        }
        if by_server {
            state.in_flight.answered = state.in_flight.answered.max(batch);
        }
        self.wake_to_send(&mut state);
    }

    /// A batch is over: no more replies are expected.
    fn finished(&self, batch: u64, took: Duration) {
        let mut state = self.state();
        state.in_flight.batches.remove(&batch);
        state.in_flight.took = took;
        self.wake_to_send(&mut state);
    }

    /// Wakes the thread if it sleeps and a batch can be sent.
    fn wake_to_send(&self, state: &mut State) {
        if state.asleep_until.is_some() && state.may_send() {
            state.asleep_until = None;
            self.wake.notify_one();
        }
    }

    /// Removes and returns every lease, due or not.
    fn take_all(&self) -> Vec<Arc<Lease>> {
        std::mem::take(&mut self.state().due).into_values().collect()
    }

    /// When the thread has to wake next.
    fn next_wake(&self, now: Time) -> Time {
        let mut state = self.state();
        let first = state.due.keys().next().map(|(at, _)| *at);
        state.idle_looks = if first.is_some() { 0 } else { state.idle_looks.saturating_add(1) };
        let until = match first {
            _ if state.may_send() => now,
            Some(at) => at,
            None if state.idle_looks < IDLE_LOOKS => now.after(POLL_INTERVAL),
            None => Time::NEVER,
        };
        state.asleep_until = Some(until);
        until
    }
}

/// What the thread sleeps on. Does not keep the engine alive, so that the engine can be dropped meanwhile.
pub(crate) struct Listener {
    schedule: Arc<Schedule>,
    clock: Clock,
    notices: Notices,
}

impl Listener {
    pub(crate) fn new(engine: &Engine) -> Self {
        let (schedule, clock) = (engine.schedule.clone(), engine.clock.clone());
        Listener { schedule, clock, notices: engine.backend.subscribe(engine.defaults.plain.ttl) }
    }
}

/// Runs the renewals until `stop`. Restarts them after a panic: a bug elsewhere must not cost a lock.
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
                // In its own task: the panic may have come from the log.
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
        let until = schedule.next_wake(clock.now());
        let mut heard = None;
        tokio::select! {
            () = stop.cancelled() => return,
            () = schedule.wake.notified() => {}
            () = clock.sleep_until(until) => {}
            notice = notices.next(), if listening => (listening, heard) = (notice.is_some(), notice),
        }
        let Some(engine) = weak.upgrade() else { return };
        if let Some(notice) = heard {
            apply_notice(&engine, notice);
        }
        process_due(&engine, schedule.take_due(clock.now()));
        if let Some((number, batch)) = schedule.next_batch(clock.now()) {
            engine.spawn(renew(engine.clone(), number, batch));
            // Read replies that have arrived before sending more.
            tokio::task::yield_now().await;
        }
    }
}

/// Acts on a notice of the backend.
pub(crate) fn apply_notice(engine: &Arc<Engine>, notice: Notice) {
    // Recorded on the claim, in case the grant is still on its way.
    let ours = |key, token| engine.gates.claim(key, token);
    match notice {
        Notice::Contended { key, token } => {
            if let Some(claim) = ours(&key, token) {
                claim.set_contended(engine.clock.now());
            }
        }
        Notice::Lost { key, token, loss } => {
            if let Some(claim) = ours(&key, token) {
                claim.set_lost(loss);
                engine.apply_pending_loss(&key);
            }
        }
        Notice::Reconnected => {
            // A lease that was granted just now is not in the schedule yet.
            engine.gates.leases(engine.clock.now()).iter().for_each(|(lease, _)| lease.doubt());
            let all = engine.schedule.take_all();
            let (renewed, others): (Vec<_>, _) =
                all.into_iter().partition(|lease| lease.next_renewal() != Time::NEVER);
            renewed.iter().for_each(|lease| begin(engine, lease));
            process_due(engine, others);
        }
    }
}

/// Processes due leases: handles those that have ended, and renews the others together.
fn process_due(engine: &Arc<Engine>, due: Vec<Arc<Lease>>) {
    let soon = engine.clock.now().after(TOGETHER);
    for lease in due {
        engine.handle_loss(&lease);
        if lease.ended().is_some() {
            continue;
        }
        // A doubted lease is renewed until the server has answered.
        let doubted = lease.is_doubted() && lease.next_renewal() != Time::NEVER;
        if doubted || lease.next_renewal() <= soon {
            begin(engine, &lease);
        } else {
            engine.reschedule(&lease);
        }
    }
}

/// Marks a renewal as under way. Until its reply, the lease is due only at its end.
fn begin(engine: &Arc<Engine>, lease: &Arc<Lease>) {
    engine.schedule.set(lease, lease.valid_until());
    if !lease.renewing.swap(true, Ordering::AcqRel) {
        engine.schedule.make_ready(lease);
    }
}

async fn renew(engine: Arc<Engine>, batch: u64, mut leases: Vec<Arc<Lease>>) {
    // Some leases may have been released, or have ended, while they waited for room.
    leases.retain(|lease| lease.is_valid());
    let sent = engine.clock.now();
    let unanswered = Unanswered { engine: &engine, batch, leases: &leases, sent };
    let last = leases.iter().map(|lease| lease.valid_until()).max().unwrap_or(sent);
    let answer = |index: usize, answer: Renewal| {
        if let Some(lease) = leases.get(index) {
            engine.schedule.answered(batch, !matches!(answer, Renewal::Unknown(_)));
            engine.apply_renewal(lease, answer, sent);
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

/// Leases of a batch. When it is dropped, those without a reply (the backend sent none, or panicked) become
/// due again soon.
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
    use crate::claim::{Claim, ClaimOptions};
    use crate::fence::Fence;
    use crate::grant::Validity;
    use crate::key::Key;
    use crate::token::Token;

    /// Under overload, leases that no reply can reach in time are renewed last. Otherwise each lease would be
    /// sent too late, and all would be lost.
    #[test]
    fn what_cannot_be_saved_comes_last() {
        let (clock, schedule) = (Clock::manual(), Schedule::default());
        let lease = |secs| {
            let ttl = Duration::from_secs(secs);
            let (key, token) = (Key::new("k").unwrap(), Token::random().unwrap());
            let claim = Arc::new(Claim::new(key, token, ClaimOptions::new(ttl)));
            let validity = Validity::Lease { from: clock.now(), ttl };
            Arc::new(Lease::adopted(claim, Fence::NONE, validity, clock.clone()))
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
