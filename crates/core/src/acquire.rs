//! The acquire loop: every lock is acquired here.
//!
//! In: a [`Request`] from `request.rs`. Out: a [`Hold`] for `guard.rs`. In between: `gate/` for the other
//! tasks of this process, then the backend.
//!
//! Deadlines are checked here; how validity is counted is in `time.rs`. No server is known here.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop;
use tracing::Instrument;

use crate::claim::Claim;
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::fault::{Fault, FaultKind};
use crate::gate::{Entry, Hold, Lead, Queueing, Ticket, Turn};
use crate::grant::{Attempt, Grant};
use crate::holder::{Holder, WaitStatus};
use crate::lease::Lease;
use crate::observe;
use crate::options::{Renew, Wait};
use crate::request::{Cancel, Request};
use crate::time::{Clock, Time};

/// After this time a task is warned that it waits for a lock that it acquired itself. Other branches of a
/// `join!` have mostly finished by then.
const OWN_WAIT_WARNED_AFTER: Duration = Duration::from_secs(1);

/// Waits for the lock within the limits of the request.
pub(crate) async fn lock(
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    cancel: Option<Cancel>,
) -> Result<Hold, Error> {
    let mut bounds = WaitLimits::new(engine, ask, cancel);
    lock_within(engine, ask, &mut bounds).await
}

/// Waits for the lock within `bounds`, which may have begun with a wait for another key.
pub(crate) async fn lock_within(
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    bounds: &mut WaitLimits,
) -> Result<Hold, Error> {
    ask.set_asker();
    let_others_run().await;
    let span = observe::acquire_span(ask);
    let ways = async {
        match (ask.options.attempts, ask.options.wait) {
            // Rare paths are boxed, so that the future of a queued waiter stays small.
            (Some(most), _) => Box::pin(by_attempts(engine, ask, bounds, most)).await,
            (None, Wait::For(Duration::ZERO)) => Box::pin(at_once(engine, ask)).await,
            (None, _) => in_turn(engine, ask, bounds).await,
        }
    };
    let got = ways.instrument(span.clone()).await;
    observe::end_of_acquire(&span, got.as_ref().map(Some));
    drop(span);
    let waited = bounds.elapsed();
    match &got {
        Ok(hold) => engine.observe.acquired(ask, hold, waited, bounds.contended),
        Err(error) => engine.observe.not_acquired(ask, error, waited),
    }
    got
}

/// A grant in memory waits for nothing: without this, a task that locks in a loop would never let other tasks run.
async fn let_others_run() {
    coop::consume_budget().await;
}

/// Tries once, or waits if the request sets a wait. Returns `None` if another holder has the lock.
pub(crate) async fn try_lock(
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
) -> Result<Option<Hold>, Error> {
    if ask.options.wait != Wait::For(Duration::ZERO) {
        return match Box::pin(lock(engine, ask, None)).await {
            Err(error) if error.is_busy() => Ok(None),
            other => other.map(Some),
        };
    }
    try_once(engine, ask).await.map(Tried::hold)
}

/// Tries once, and says who has the lock if it is not granted.
pub(crate) async fn try_once(engine: &Arc<Engine>, ask: &Arc<Request>) -> Result<Tried, Error> {
    ask.set_asker();
    let_others_run().await;
    let (started, span) = (engine.clock.now(), observe::acquire_span(ask));
    let tried = attempt(engine, ask).instrument(span.clone()).await;
    observe::end_of_acquire(&span, tried.as_ref().map(Tried::as_hold));
    drop(span);
    let took = engine.clock.now().since(started);
    match &tried {
        Ok(Tried::Got(hold)) => engine.observe.acquired(ask, hold, took, false),
        Ok(Tried::Busy(_)) => engine.observe.busy(ask, took),
        Err(error) => engine.observe.not_acquired(ask, error, took),
    }
    tried
}

/// Waits in the queue, first in that of the process, then in that of the server.
async fn in_turn(
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    bounds: &mut WaitLimits,
) -> Result<Hold, Error> {
    engine.start(&ask.key)?;
    loop {
        let hold = match next_turn(engine, ask, bounds).await? {
            Turn::Hold(hold) => hold,
            Turn::Lead(lead) => Box::pin(ask_server(lead, engine, ask, bounds)).await?,
            Turn::Refused(error) => return Err(error),
        };
        if is_fresh(ask, &hold) {
            return Ok(hold);
        }
        // A lease that was lost before it reached this task was never ours: ask again.
        if let Some(hold) = Box::pin(refresh_within(bounds, engine, ask, hold)).await? {
            return Ok(hold);
        }
    }
}

/// Enters the gate, and waits there if necessary.
async fn next_turn(
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    bounds: &mut WaitLimits,
) -> Result<Turn, Error> {
    let mut ticket = loop {
        match engine.gates.enter(engine, ask, Queueing::Queue)? {
            Entry::Hold(hold) => return Ok(Turn::Hold(hold)),
            Entry::Lead(lead) => return Ok(Turn::Lead(lead)),
            Entry::Busy(holder) => return Err(Error::busy(&ask.key, Waited::Not, holder)),
            Entry::Stale(lease) => engine.handle_loss(&lease),
            Entry::Wait(ticket) => break ticket,
        }
    };
    let _waiting = bounds.begin_waiting(engine, ask);
    let turn = async {
        match ticket.own {
            true => Box::pin(turn_behind_itself(engine, ask, &mut ticket)).await,
            false => ticket.turn().await,
        }
    };
    // No need to watch for a shutdown here: it refuses all waiters of the queue itself.
    let silent = server_is_silent(engine, ask, bounds.started);
    let told = bounds.within(turn, silent).await;
    told.map_err(|end| bounds.error_seen(ask, end, engine.gates.wait_status(&ask.key)))
}

/// Waits until the server has left the task that asks for the gate without an answer for as long as `ask` allows. The
/// time from before `started`, when this wait began, does not count.
async fn server_is_silent(engine: &Engine, ask: &Request, started: Time) -> End {
    match ask.options.longest_silence() {
        // Boxed: rare, and most waits have no such limit.
        Some(longest) => Box::pin(silent_for(longest, engine, ask, started)).await,
        None => pending().await,
    }
}

async fn silent_for(longest: Duration, engine: &Engine, ask: &Request, started: Time) -> End {
    loop {
        let now = engine.clock.now();
        // While the server answers, it is enough to look again after `longest`.
        let since = match engine.gates.silence(&ask.key) {
            Some((since, fault)) if now >= since.max(started).after(longest) => {
                return End::Unavailable(fault);
            }
            Some((since, _)) => since.max(started),
            None => now,
        };
        engine.clock.sleep_until(since.after(longest)).await;
    }
}

/// Waits like [`Ticket::turn`], and warns once if the task may be waiting for itself.
async fn turn_behind_itself(engine: &Engine, ask: &Request, ticket: &mut Ticket<'_>) -> Turn {
    tokio::select! {
        biased;
        turn = ticket.turn() => return turn,
        () = engine.clock.sleep(OWN_WAIT_WARNED_AFTER) => {}
    }
    if engine.gates.is_own(ask) {
        engine.observe.waits_for_itself(ask);
    }
    ticket.turn().await
}

/// Asks the server on behalf of the gate, and waits.
async fn ask_server(
    mut lead: Lead,
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    bounds: &mut WaitLimits,
) -> Result<Hold, Error> {
    if let Some(at) = lead.not_before() {
        let paused = bounds.within(engine.clock.sleep_until(at), closed(engine)).await;
        paused.map_err(|end| bounds.error_seen(ask, end, engine.gates.wait_status(&ask.key)))?;
    }
    let mut trouble = None;
    loop {
        let claim = lead.claim(ask)?;
        // The previous claim failed. Its wait status carries over, so that the outage counts from its
        // beginning.
        trouble.into_iter().for_each(|sight| claim.report_wait(sight));
        let asked = {
            let _waiting = engine.observe.waiting(ask);
            let no_use = no_use(engine, ask, &claim, bounds.started);
            bounds.within(engine.backend.acquire(&claim), no_use).await
        };
        if claim.sees_a_holder() {
            bounds.count_contention(engine, ask);
        }
        // When the wait ends otherwise, the lead is dropped. Its claim goes to the next local waiter or is
        // abandoned.
        let fault = match asked {
            Ok(Ok(grant)) => return settle(lead, engine, ask, claim, grant),
            Ok(Err(fault)) => fault,
            Err(Useless::Handed(hold)) => return Ok(*hold),
            Err(Useless::Ended(end)) => {
                return Err(bounds.error_seen(ask, end, engine.gates.wait_status(&ask.key)));
            }
        };
        let passes = matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Unknown);
        let error = Error::backend(Some(&ask.key), fault.clone());
        if passes {
            lead.fail(&error);
        }
        let now = engine.clock.now();
        claim.report_wait(WaitStatus::unanswered(fault, now));
        let sight = claim.wait_status();
        if !passes || !ask.options.rides_out() || ask.options.give_up(&sight, &engine.can, now) {
            return Err(error);
        }
        trouble = Some(sight);
        let pause = engine.clock.sleep(jittered(ask.options.retry_interval));
        let paused = bounds.within(pause, closed(engine)).await;
        paused.map_err(|end| bounds.error_seen(ask, end, claim.wait_status()))?;
    }
}

/// Waits until it is of no use to wait with `claim`: another task of this process has handed its permit over, the
/// locker is shut down, or the server has not answered for as long as the caller allows. A request that is under way
/// does not delay that. The time from before `started`, when this wait began, does not count.
async fn no_use(engine: &Engine, ask: &Request, claim: &Claim, started: Time) -> Useless {
    let longest = ask.options.longest_silence();
    let silent = longest.and_then(|_| engine.gates.silence(&ask.key));
    let asked = silent.map_or(started, |(since, _)| since.max(started));
    let gives_up = || engine.gates.on_wait_report(engine, ask).map(End::Unavailable);
    loop {
        if let Some(hold) = engine.gates.take_handed(claim) {
            return Useless::Handed(Box::new(hold));
        }
        let since = claim.unanswered_since(asked);
        let due = longest.zip(since).map(|(longest, since)| since.after(longest));
        let end = tokio::select! {
            biased;
            closed = claim.news() => if closed { Some(End::Closed) } else { gives_up() },
            () = at(&engine.clock, due) => {
                claim.report_silence(asked);
                gives_up()
            }
        };
        if let Some(end) = end {
            return Useless::Ended(end);
        }
    }
}

pub(crate) async fn closed(engine: &Engine) -> End {
    engine.closing.cancelled().await;
    End::Closed
}

/// Turns a grant into a lease and makes the requesting task its holder, unless the grant came too late.
fn settle(
    lead: Lead,
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    claim: Arc<Claim>,
    grant: Grant,
) -> Result<Hold, Error> {
    let lease = Arc::new(Lease::new(claim, grant, engine.clock.clone()));
    let now = engine.clock.now();
    if lease.ended_by(now).is_some() {
        let took = now.since(lease.valid_until()) + ask.options.ttl;
        lead.give_up();
        return Err(Error::too_late(&ask.key, ask.options.ttl, took));
    }
    let fence = lease.fence();
    let hold = lead.settle(ask, lease, fence, now)?;
    // A connection was lost before the lease was in the schedule: it is confirmed at once.
    match hold.lease.is_doubted() {
        true => engine.schedule.set(&hold.lease, now),
        false => engine.reschedule(&hold.lease),
    }
    // The loss notice may have arrived before the grant. That is rare, so the gate is checked only in this
    // case.
    if hold.lease.claim().loss().is_some() {
        engine.apply_pending_loss(&ask.key);
    }
    Ok(hold)
}

/// Tries up to `most` times, a jittered `retry_interval` apart, without entering a queue.
async fn by_attempts(
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
    bounds: &mut WaitLimits,
    most: u32,
) -> Result<Hold, Error> {
    let (mut made, mut sight) = (1, WaitStatus::nothing_heard());
    loop {
        let tried = bounds.within(attempt(engine, ask), closed(engine)).await;
        let holder = match tried.map_err(|end| bounds.error_seen(ask, end, sight))?? {
            Tried::Got(hold) => return Ok(hold),
            Tried::Busy(holder) => holder,
        };
        let _waiting = bounds.begin_waiting(engine, ask);
        if made == most {
            let waited = Waited::Attempts { made, elapsed: bounds.elapsed() };
            return Err(Error::busy(&ask.key, waited, holder));
        }
        let pause = engine.clock.sleep(jittered(ask.options.retry_interval));
        bounds.within(pause, closed(engine)).await.map_err(|end| bounds.error(ask, end, holder))?;
        (made, sight) = (made + 1, WaitStatus::default());
    }
}

/// A wait of zero is one attempt.
async fn at_once(engine: &Arc<Engine>, ask: &Arc<Request>) -> Result<Hold, Error> {
    match attempt(engine, ask).await? {
        Tried::Got(hold) => Ok(hold),
        Tried::Busy(holder) => {
            engine.observe.contended(ask);
            Err(Error::busy(&ask.key, Waited::Not, holder))
        }
    }
}

/// The result of one attempt.
pub(crate) enum Tried {
    Got(Hold),
    Busy(Option<Holder>),
}

impl Tried {
    fn as_hold(&self) -> Option<&Hold> {
        match self {
            Tried::Got(hold) => Some(hold),
            Tried::Busy(_) => None,
        }
    }

    fn hold(self) -> Option<Hold> {
        match self {
            Tried::Got(hold) => Some(hold),
            Tried::Busy(_) => None,
        }
    }
}

/// One attempt. It ends when it has not been answered for as long as `ask` allows.
async fn attempt(engine: &Arc<Engine>, ask: &Arc<Request>) -> Result<Tried, Error> {
    let due = ask.options.longest_silence().map(|longest| engine.clock.now().after(longest));
    tokio::select! {
        biased;
        tried = answered(engine, ask) => tried,
        () = at(&engine.clock, due) => Err(Error::backend(Some(&ask.key), WaitStatus::silence())),
    }
}

async fn answered(engine: &Arc<Engine>, ask: &Arc<Request>) -> Result<Tried, Error> {
    engine.start(&ask.key)?;
    loop {
        let turn = match engine.gates.enter(engine, ask, Queueing::Try)? {
            Entry::Hold(hold) => Turn::Hold(hold),
            Entry::Lead(lead) => Turn::Lead(lead),
            Entry::Busy(holder) => return Ok(Tried::Busy(holder)),
            Entry::Stale(lease) => {
                engine.handle_loss(&lease);
                continue;
            }
            Entry::Wait(ticket) => Box::pin(first_news(engine, ask, ticket)).await?,
        };
        match turn {
            // A lease that was lost before it reached this task was never ours: ask again.
            Turn::Hold(hold) => match ensure_fresh(ask, hold).await? {
                Some(hold) => return Ok(Tried::Got(hold)),
                None => continue,
            },
            Turn::Lead(lead) => return ask_server_once(lead, engine, ask).await,
            Turn::Refused(error) if error.is_busy() => {
                return Ok(Tried::Busy(error.holder().cloned()));
            }
            Turn::Refused(error) => return Err(error),
        }
    }
}

/// Another task of this process is asking: waits for the first news that it receives.
async fn first_news(engine: &Engine, ask: &Request, mut ticket: Ticket<'_>) -> Result<Turn, Error> {
    let news = engine.bounded(pin!(async { Ok(ticket.turn().await) })).await;
    news.map_err(|fault| Error::backend(Some(&ask.key), fault))
}

async fn ask_server_once(
    mut lead: Lead,
    engine: &Arc<Engine>,
    ask: &Arc<Request>,
) -> Result<Tried, Error> {
    let claim = lead.claim(ask)?;
    match engine.bounded(engine.backend.try_acquire(&claim)).await {
        Ok(Attempt::Granted(grant)) => settle(lead, engine, ask, claim, grant).map(Tried::Got),
        Ok(Attempt::Held(holder)) => {
            lead.busy(&holder);
            Ok(Tried::Busy(Some(*holder)))
        }
        Err(fault) => {
            let error = Error::backend(Some(&ask.key), fault);
            lead.fail_tries(&error);
            Err(error)
        }
    }
}

/// [`ensure_fresh`], unless a limit of the wait is reached first.
async fn refresh_within(
    bounds: &mut WaitLimits,
    engine: &Engine,
    ask: &Request,
    hold: Hold,
) -> Result<Option<Hold>, Error> {
    let fresh = bounds.within(ensure_fresh(ask, hold), closed(engine)).await;
    // Another task has released the lock to this one. What is missing is the server's answer.
    fresh.map_err(|end| bounds.error_seen(ask, end, WaitStatus::nothing_heard()))?
}

/// Whether enough of the lease is left for its new holder.
fn is_fresh(ask: &Request, hold: &Hold) -> bool {
    let (lease, now) = (&hold.lease, hold.engine.clock.now());
    let enough = lease.is_unbounded() || lease.granted_left(now) >= least_left(ask, hold);
    enough && lease.ended_by(now).is_none()
}

/// Renews a lease that was handed over or re-entered, if too little of it is left for its new holder. Returns
/// `None` if the lease turns out to be lost.
async fn ensure_fresh(ask: &Request, hold: Hold) -> Result<Option<Hold>, Error> {
    if is_fresh(ask, &hold) {
        return Ok(Some(hold));
    }
    if !hold.is_valid() {
        return Ok(None);
    }
    match hold.engine.renew_now(&hold.lease).await {
        Ok(()) => Ok(hold.is_valid().then_some(hold)),
        Err(error) if error.is_lost() => Ok(None),
        Err(error) => Err(error),
    }
}

/// How much of the lease its new holder needs. A holder that renews needs half of the ttl, or its `max_hold`
/// if that is shorter. A holder that does not renew has a lease of its own, which was never handed over, and
/// accepts the validity that the server granted.
fn least_left(ask: &Request, hold: &Hold) -> Duration {
    match ask.options.renew {
        Renew::Off => Duration::ZERO,
        _ => (hold.lease.ttl() / 2).min(ask.options.max_hold.unwrap_or(Duration::MAX)),
    }
}

/// The interval plus or minus a quarter, so that pollers do not run in step.
pub(crate) fn jittered(interval: Duration) -> Duration {
    let byte = getrandom::u32().unwrap_or(128) as u8;
    interval.mul_f64(0.75 + f64::from(byte) / 512.0)
}

/// The reason why a wait ended early.
pub(crate) enum End {
    Deadline,
    Cancelled,
    Closed,
    /// The caller does not wait any longer for an unavailable server.
    Unavailable(Fault),
}

/// Why it is of no use to wait at the server.
enum Useless {
    Ended(End),
    /// Another task of this process has handed its permit over.
    Handed(Box<Hold>),
}

impl From<End> for Useless {
    fn from(end: End) -> Self {
        Useless::Ended(end)
    }
}

/// The limits of one wait.
pub(crate) struct WaitLimits {
    clock: Clock,
    started: Time,
    limit: Option<Duration>,
    cancel: Option<Cancel>,
    contended: bool,
}

impl WaitLimits {
    pub(crate) fn new(engine: &Engine, ask: &Request, cancel: Option<Cancel>) -> Self {
        let limit = match ask.options.wait {
            Wait::Unset | Wait::Forever => None,
            // One attempt, which has the bound of its call.
            Wait::For(Duration::ZERO) if ask.options.attempts.is_none() => None,
            Wait::For(longest) => Some(longest),
        };
        let clock = engine.clock.clone();
        WaitLimits { started: clock.now(), clock, limit, cancel, contended: false }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    fn begin_waiting<'a>(&mut self, engine: &'a Engine, ask: &'a Request) -> impl Drop + use<'a> {
        self.count_contention(engine, ask);
        engine.observe.waiting(ask)
    }

    /// A wait counts as one contention, no matter how often it resumes.
    fn count_contention(&mut self, engine: &Engine, ask: &Request) {
        if !std::mem::replace(&mut self.contended, true) {
            engine.observe.contended(ask);
        }
    }

    /// Runs `work` until a limit is reached or `ends` resolves.
    pub(crate) async fn within<T, E: From<End>>(
        &mut self,
        work: impl Future<Output = T>,
        ends: impl Future<Output = E>,
    ) -> Result<T, E> {
        let WaitLimits { clock, started, limit, cancel, .. } = self;
        let deadline = limit.map(|limit| started.after(limit));
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = at(clock, deadline) => Err(End::Deadline.into()),
            () = signalled(cancel) => Err(End::Cancelled.into()),
            end = ends => Err(end),
        }
    }

    /// The last wait status decides whether the error is that another holder has the lock, or that the server
    /// did not answer.
    pub(crate) fn error_seen(&self, ask: &Request, end: End, sight: WaitStatus) -> Error {
        match (end, sight.fault) {
            (End::Deadline, Some(fault)) => Error::backend(Some(&ask.key), fault),
            (end, _) => self.error(ask, end, sight.holder),
        }
    }

    fn error(&self, ask: &Request, end: End, holder: Option<Holder>) -> Error {
        let (limit, elapsed) = (self.limit.unwrap_or_default(), self.elapsed());
        match end {
            End::Deadline => Error::busy(&ask.key, Waited::For { limit, elapsed }, holder),
            End::Cancelled => Error::cancelled(&ask.key, elapsed),
            End::Closed => Error::closed(Some(&ask.key)),
            End::Unavailable(fault) => Error::backend(Some(&ask.key), fault),
        }
    }
}

async fn at(clock: &Clock, deadline: Option<Time>) {
    match deadline {
        // Boxed: a timer is large, and most waits have none.
        Some(deadline) => Box::pin(clock.sleep_until(deadline)).await,
        None => pending().await,
    }
}

async fn signalled(cancel: &mut Option<Cancel>) {
    match cancel {
        Some(signal) => signal.await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
