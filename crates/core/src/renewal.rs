//! Renewal: keeps held leases alive, and sees the others end.
//!
//! In: leases with the time at which each must be looked at. Out: renewals, sent together; losses.
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

use crate::backend::{Notice, Notices};
use crate::engine::Engine;
use crate::lease::Lease;
use crate::time::{Clock, Time};

/// Leases due within this time are renewed together: a renewal that comes a little early is free,
/// a wake-up is not.
const TOGETHER: Duration = Duration::from_millis(20);
/// The most leases in one call to a backend.
const BATCH_MAX: usize = 256;
/// How often the thread looks while there may be something to do.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After so many looks at an empty schedule the thread sleeps until it is woken.
const IDLE_LOOKS: u32 = 10;

/// Which lease must be looked at when.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<(Time, usize), Arc<Lease>>,
    /// When the thread will look by itself. Zero until it runs: it looks first thing.
    asleep_until: Option<Time>,
    idle_looks: u32,
}

impl State {
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
            let (renewed, others) =
                all.into_iter().partition(|lease| lease.next_renewal() != Time::NEVER);
            renew_all(engine, renewed);
            look_at(engine, others);
        }
    }
}

/// Looks at leases that are due: some have ended, the others are renewed together.
fn look_at(engine: &Arc<Engine>, due: Vec<Arc<Lease>>) {
    let soon = engine.clock.now().after(TOGETHER);
    let mut to_renew = Vec::new();
    for lease in due {
        engine.deal_with_loss(&lease);
        if lease.ended().is_some() {
            continue;
        }
        if lease.next_renewal() <= soon {
            to_renew.push(lease);
        } else {
            engine.reschedule(&lease);
        }
    }
    renew_all(engine, to_renew);
}

fn renew_all(engine: &Arc<Engine>, leases: Vec<Arc<Lease>>) {
    for batch in leases.chunks(BATCH_MAX) {
        let batch: Vec<_> = batch.iter().filter(|lease| begin(engine, lease)).cloned().collect();
        if !batch.is_empty() {
            let work = renew(engine.clone(), batch);
            engine.spawn(work);
        }
    }
}

/// Marks a renewal as under way. Meanwhile the lease is looked at only to see it end.
fn begin(engine: &Arc<Engine>, lease: &Arc<Lease>) -> bool {
    engine.schedule.set(lease, lease.valid_until());
    !lease.renewing.swap(true, Ordering::AcqRel)
}

async fn renew(engine: Arc<Engine>, leases: Vec<Arc<Lease>>) {
    let unanswered = Unanswered { engine: &engine, leases: &leases };
    let sent = engine.clock.now();
    let last = leases.iter().map(|lease| lease.valid_until()).max().unwrap_or(sent);
    let answer = |index: usize, answer| {
        if let Some(lease) = leases.get(index) {
            engine.take_answer(lease, answer, sent);
        }
    };
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
    leases: &'a [Arc<Lease>],
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for lease in self.leases {
            if lease.renewing.swap(false, Ordering::AcqRel) {
                self.engine.schedule.set(lease, lease.next_retry());
            }
        }
    }
}
