//! The acquire loop: the one way by which a lock is had.
//!
//! In: an [`Ask`] from `request.rs`. Out: a [`Hold`] for `guard.rs`.
//! On the way: `gate.rs` for the other tasks of this process, then the backend.
//!
//! Absent on purpose: no clock arithmetic (`time.rs`), no knowledge of any server.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, FaultKind, Grant};
use crate::claim::{Claim, Holder, Sight};
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::gate::{Entry, Hold, Lead, Patience, Ticket, Turn};
use crate::lease::Lease;
use crate::options::{Renew, Wait};
use crate::request::{Ask, Cancel};
use crate::time::{Clock, Time};

/// Waits for the lock within the bounds that the ask sets.
pub(crate) async fn lock(
    engine: &Arc<Engine>,
    ask: &Arc<Ask>,
    cancel: Option<Cancel>,
) -> Result<Hold, Error> {
    let mut bounds = Bounds::new(engine, ask, cancel);
    let got = match (ask.options.attempts, ask.options.wait) {
        // Boxed, as is all that is rare here: the future of one who waits for its turn is small.
        (Some(most), _) => Box::pin(by_attempts(engine, ask, &mut bounds, most)).await,
        (None, Wait::For(Duration::ZERO)) => Box::pin(at_once(engine, ask)).await,
        (None, _) => in_turn(engine, ask, &mut bounds).await,
    };
    let waited = bounds.elapsed();
    match &got {
        Ok(hold) => engine.observe.acquired(ask, hold, waited, bounds.contended),
        Err(error) => engine.observe.not_acquired(ask, error, waited),
    }
    got
}

/// Asks once; `None` if another holds it.
pub(crate) async fn try_lock(engine: &Arc<Engine>, ask: &Arc<Ask>) -> Result<Option<Hold>, Error> {
    let started = engine.clock.now();
    let tried = attempt(engine, ask).await;
    let took = engine.clock.now().since(started);
    match &tried {
        Ok(Tried::Got(hold)) => engine.observe.acquired(ask, hold, took, false),
        Ok(Tried::Busy(_)) => engine.observe.busy(ask, took),
        Err(error) => engine.observe.not_acquired(ask, error, took),
    }
    tried.map(Tried::hold)
}

/// Stands in the queue, first the process's, then the server's.
async fn in_turn(engine: &Arc<Engine>, ask: &Arc<Ask>, bounds: &mut Bounds) -> Result<Hold, Error> {
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
        // A lease that was lost on its way here was never ours: ask again.
        if let Some(hold) = Box::pin(freshen_within(bounds, engine, ask, hold)).await? {
            return Ok(hold);
        }
    }
}

/// Enters the gate, and waits there if need be.
async fn next_turn(
    engine: &Arc<Engine>,
    ask: &Arc<Ask>,
    bounds: &mut Bounds,
) -> Result<Turn, Error> {
    let mut ticket = loop {
        match engine.gates.enter(engine, ask, Patience::Queue)? {
            Entry::Hold(hold) => return Ok(Turn::Hold(hold)),
            Entry::Lead(lead) => return Ok(Turn::Lead(lead)),
            Entry::Busy(holder) => return Err(Error::busy(&ask.key, Waited::Not, holder)),
            Entry::Stale(lease) => engine.deal_with_loss(&lease),
            Entry::Wait(ticket) => break ticket,
        }
    };
    let _waiting = bounds.begin_waiting(engine);
    // No need to look for a shutdown: it tells those in the queue itself.
    let told = bounds.within(ticket.turn(), pending()).await;
    told.map_err(|end| bounds.error_seen(ask, end, engine.gates.sight(&ask.key)))
}

/// Asks the server on behalf of the gate, and waits.
async fn ask_server(
    mut lead: Lead,
    engine: &Arc<Engine>,
    ask: &Arc<Ask>,
    bounds: &mut Bounds,
) -> Result<Hold, Error> {
    if let Some(at) = lead.not_before() {
        let paused = bounds.within(engine.clock.sleep_until(at), engine.closing.cancelled()).await;
        paused.map_err(|end| bounds.error(ask, end, None))?;
    }
    let claim = lead.claim(ask)?;
    let asked = {
        let _waiting = engine.observe.waiting();
        let closed = claim.closed(|| engine.gates.answer_tries(&ask.key));
        bounds.within(engine.backend.acquire(&claim), closed).await
    };
    if claim.sees_a_holder() {
        bounds.count_contention(engine);
    }
    // When a bound ends the wait, the lead is dropped, and with it goes the claim: to the next
    // local waiter, or away.
    let answer = asked.map_err(|end| bounds.error_seen(ask, end, engine.gates.sight(&ask.key)))?;
    match answer {
        Ok(grant) => settle(lead, engine, ask, claim, grant),
        Err(fault) => {
            let unreachable = matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Unknown);
            let error = Error::backend(Some(&ask.key), fault);
            if unreachable {
                lead.fail_all(&error);
            }
            Err(error)
        }
    }
}

/// Makes a grant a lease and the asker its holder, unless it came too late.
fn settle(
    lead: Lead,
    engine: &Arc<Engine>,
    ask: &Arc<Ask>,
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
    engine.reschedule(&hold.lease);
    // Told before the grant arrived: rare, and not worth a look at the gate otherwise.
    if hold.lease.claim().loss().is_some() {
        engine.take_note_of_loss(&ask.key);
    }
    Ok(hold)
}

/// Tries `most` times, a jittered `retry_interval` apart, without a place in any queue.
async fn by_attempts(
    engine: &Arc<Engine>,
    ask: &Arc<Ask>,
    bounds: &mut Bounds,
    most: u32,
) -> Result<Hold, Error> {
    let (mut made, mut sight) = (1, Sight::nothing_heard());
    loop {
        let tried = bounds.within(attempt(engine, ask), engine.closing.cancelled()).await;
        let holder = match tried.map_err(|end| bounds.error_seen(ask, end, sight))?? {
            Tried::Got(hold) => return Ok(hold),
            Tried::Busy(holder) => holder,
        };
        let _waiting = bounds.begin_waiting(engine);
        if made == most {
            let waited = Waited::Attempts { made, elapsed: bounds.elapsed() };
            return Err(Error::busy(&ask.key, waited, holder));
        }
        let pause = engine.clock.sleep(jittered(ask.options.retry_interval));
        bounds
            .within(pause, engine.closing.cancelled())
            .await
            .map_err(|end| bounds.error(ask, end, holder))?;
        (made, sight) = (made + 1, Sight::default());
    }
}

/// A wait of no time at all is one attempt.
async fn at_once(engine: &Arc<Engine>, ask: &Arc<Ask>) -> Result<Hold, Error> {
    match attempt(engine, ask).await? {
        Tried::Got(hold) => Ok(hold),
        Tried::Busy(holder) => {
            engine.observe.contended();
            Err(Error::busy(&ask.key, Waited::Not, holder))
        }
    }
}

enum Tried {
    Got(Hold),
    Busy(Option<Holder>),
}

impl Tried {
    fn hold(self) -> Option<Hold> {
        match self {
            Tried::Got(hold) => Some(hold),
            Tried::Busy(_) => None,
        }
    }
}

async fn attempt(engine: &Arc<Engine>, ask: &Arc<Ask>) -> Result<Tried, Error> {
    engine.start(&ask.key)?;
    let turn = loop {
        match engine.gates.enter(engine, ask, Patience::Try)? {
            Entry::Hold(hold) => break Turn::Hold(hold),
            Entry::Lead(lead) => break Turn::Lead(lead),
            Entry::Busy(holder) => return Ok(Tried::Busy(holder)),
            Entry::Stale(lease) => engine.deal_with_loss(&lease),
            Entry::Wait(ticket) => break Box::pin(first_news(engine, ask, ticket)).await?,
        }
    };
    match turn {
        Turn::Hold(hold) => freshen(ask, hold).await?.map(Tried::Got).ok_or_else(|| gone(ask)),
        Turn::Lead(lead) => ask_server_once(lead, engine, ask).await,
        Turn::Refused(error) if error.is_busy() => Ok(Tried::Busy(error.holder().cloned())),
        Turn::Refused(error) => Err(error),
    }
}

/// Another task of this process is asking: waits for what it hears first.
async fn first_news(engine: &Engine, ask: &Ask, mut ticket: Ticket<'_>) -> Result<Turn, Error> {
    let news = engine.bounded(pin!(async { Ok(ticket.turn().await) })).await;
    news.map_err(|fault| Error::backend(Some(&ask.key), fault))
}

async fn ask_server_once(
    mut lead: Lead,
    engine: &Arc<Engine>,
    ask: &Arc<Ask>,
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

/// [`freshen`], unless a bound of the wait is reached first.
async fn freshen_within(
    bounds: &mut Bounds,
    engine: &Engine,
    ask: &Ask,
    hold: Hold,
) -> Result<Option<Hold>, Error> {
    let fresh = bounds.within(freshen(ask, hold), engine.closing.cancelled()).await;
    fresh.map_err(|end| bounds.error(ask, end, None))?
}

/// Whether enough of the lease is left for its new holder.
fn is_fresh(ask: &Ask, hold: &Hold) -> bool {
    let lease = &hold.lease;
    lease.is_valid() && (lease.is_endless() || lease.granted_left() >= least_left(ask, hold))
}

/// Renews a lease that was handed over or re-entered, where too little of it is left for its new
/// holder. `None` if it turns out to be lost.
async fn freshen(ask: &Ask, hold: Hold) -> Result<Option<Hold>, Error> {
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

/// A holder that renews needs half its ttl, or as much as it may use. One that does not has a lease of its own, not handed over
/// by anybody, and takes what the server gave.
fn least_left(ask: &Ask, hold: &Hold) -> Duration {
    match ask.options.renew {
        Renew::Off => Duration::ZERO,
        _ => (hold.lease.ttl() / 2).min(ask.options.max_hold.unwrap_or(Duration::MAX)),
    }
}

fn gone(ask: &Ask) -> Error {
    Error::lost(&ask.key, crate::backend::Loss::Expired)
}

/// The interval, give or take a quarter, so that those who poll do not do so in step.
fn jittered(interval: Duration) -> Duration {
    let byte = getrandom::u32().unwrap_or(128) as u8;
    interval.mul_f64(0.75 + f64::from(byte) / 512.0)
}

/// What ends a wait.
#[derive(Clone, Copy)]
enum End {
    Deadline,
    Cancelled,
    Closed,
}

/// The bounds of one wait.
struct Bounds {
    clock: Clock,
    started: Time,
    limit: Option<Duration>,
    cancel: Option<Cancel>,
    contended: bool,
}

impl Bounds {
    fn new(engine: &Engine, ask: &Ask, cancel: Option<Cancel>) -> Self {
        let limit = match ask.options.wait {
            Wait::Forever => None,
            Wait::For(longest) => Some(longest),
        };
        let clock = engine.clock.clone();
        Bounds { started: clock.now(), clock, limit, cancel, contended: false }
    }

    fn elapsed(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    fn begin_waiting<'a>(&mut self, engine: &'a Engine) -> impl Drop + use<'a> {
        self.count_contention(engine);
        engine.observe.waiting()
    }

    /// One wait is one contention, however often it goes on.
    fn count_contention(&mut self, engine: &Engine) {
        if !std::mem::replace(&mut self.contended, true) {
            engine.observe.contended();
        }
    }

    /// Runs `work` until a bound is reached, or the locker is `closed`.
    async fn within<T>(
        &mut self,
        work: impl Future<Output = T>,
        closed: impl Future<Output = ()>,
    ) -> Result<T, End> {
        let Bounds { clock, started, limit, cancel, .. } = self;
        let deadline = limit.map(|limit| started.after(limit));
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = at(clock, deadline) => Err(End::Deadline),
            () = signalled(cancel) => Err(End::Cancelled),
            () = closed => Err(End::Closed),
        }
    }

    /// What the claim saw last says whether another held the lock, or nobody could be asked.
    fn error_seen(&self, ask: &Ask, end: End, sight: Sight) -> Error {
        match (end, sight.trouble) {
            (End::Deadline, Some(fault)) => Error::backend(Some(&ask.key), fault),
            (end, _) => self.error(ask, end, sight.holder),
        }
    }

    fn error(&self, ask: &Ask, end: End, holder: Option<Holder>) -> Error {
        let (limit, elapsed) = (self.limit.unwrap_or_default(), self.elapsed());
        match end {
            End::Deadline => Error::busy(&ask.key, Waited::For { limit, elapsed }, holder),
            End::Cancelled => Error::cancelled(&ask.key, elapsed),
            End::Closed => Error::closed(Some(&ask.key)),
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
