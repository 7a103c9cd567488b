//! How several keys are acquired.
//!
//! In: one request per key, in the order of the keys. Out: one hold per key, all valid at that moment.
//!
//! Each round tries all missing keys at once. If some are busy, the first of them is waited for in its queue, with the
//! smaller keys held and the larger ones released. So every task waits only for a key that is larger than those it
//! holds, and no circle of tasks can wait for each other. A lease that was lost meanwhile is missing in the next round,
//! under the same rule.
//!
//! All state is [`Hold`]s: a future that is dropped releases them in the background.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{self, Tried, WaitLimits};
use crate::engine::Engine;
use crate::error::{Error, Waited};
use crate::fault::{Fault, FaultKind};
use crate::gate::Hold;
use crate::guard;
use crate::holder::{Holder, WaitStatus};
use crate::join::Joined;
use crate::key::Key;
use crate::options::Wait;
use crate::request::{Cancel, Request};
use crate::time::Time;

/// Acquires the keys of `asks`, which has at least one request and is in the order of the keys. All have the same
/// options.
pub(super) async fn lock(
    engine: &Arc<Engine>,
    asks: &[Arc<Request>],
    cancel: Option<Cancel>,
) -> Result<Vec<Hold>, Error> {
    let bounds = WaitLimits::new(engine, &asks[0], cancel);
    let held = asks.iter().map(|_| None).collect();
    let mut rounds = Rounds { engine, asks, held, bounds, failed: 0 };
    loop {
        if let Some(busy) = rounds.try_missing().await? {
            rounds.get_past(busy).await?;
        } else if rounds.confirm().await? {
            return Ok(rounds.report());
        }
    }
}

struct Rounds<'a> {
    engine: &'a Arc<Engine>,
    asks: &'a [Arc<Request>],
    /// The keys that are held, each at the position of its request.
    held: Vec<Option<Hold>>,
    bounds: WaitLimits,
    /// How many rounds have found a busy key.
    failed: u32,
}

/// The first key of a round that was not granted.
struct Busy {
    at: usize,
    /// Who holds it, or why that is not known.
    sight: WaitStatus,
}

impl Rounds<'_> {
    /// Tries every key that is not held.
    async fn try_missing(&mut self) -> Result<Option<Busy>, Error> {
        let (engine, asks) = (self.engine, self.asks);
        let missing: Vec<usize> = (0..asks.len()).filter(|at| self.held[*at].is_none()).collect();
        let mut tries = Joined::new(missing.iter().map(|at| acquire::try_once(engine, &asks[*at])));
        let began = engine.clock.now();
        let tried = match self.bounds.within(&mut tries, acquire::closed(engine)).await {
            Ok(tried) => tried,
            Err(end) => {
                let (first, sight) = in_the_way(tries.outputs());
                return Err(self.bounds.error_seen(&asks[missing[first]], end, sight));
            }
        };
        let mut busy = None;
        for (at, tried) in missing.into_iter().zip(tried) {
            let sight = match tried {
                Ok(Tried::Got(hold)) => {
                    self.keep(at, hold);
                    continue;
                }
                Ok(Tried::Busy(holder)) => seen(holder),
                // A wait goes on while the engine does not answer, for as long as the caller allows.
                Err(error) => {
                    let Some(fault) = passing(&error) else { return Err(error) };
                    let sight = WaitStatus::unanswered(fault, began);
                    if asks[at].options.give_up(&sight, &engine.can, engine.clock.now()) {
                        return Err(error);
                    }
                    sight
                }
            };
            busy.get_or_insert(Busy { at, sight });
        }
        Ok(busy)
    }

    /// Waits for a busy key. A request that does not wait fails, or pauses before the next round with nothing held.
    async fn get_past(&mut self, Busy { at, sight }: Busy) -> Result<(), Error> {
        let (engine, ask) = (self.engine, &self.asks[at]);
        let waits = ask.options.attempts.is_none() && ask.options.wait != Wait::For(Duration::ZERO);
        // Without this, two tasks that hold each other's next key would wait for ever.
        self.release_from(if waits { at + 1 } else { 0 }, ask, &sight).await?;
        if waits {
            self.warn_of_larger(ask);
            let hold = acquire::lock_within(engine, ask, &mut self.bounds).await?;
            self.keep(at, hold);
            return Ok(());
        }
        self.failed += 1;
        let Some(most) = ask.options.attempts else { return Err(Error::at_once(&ask.key, sight)) };
        if let Some(fault) = sight.fault {
            return Err(Error::backend(Some(&ask.key), fault));
        }
        if self.failed == most {
            let waited = Waited::Attempts { made: most, elapsed: self.bounds.elapsed() };
            return Err(Error::busy(&ask.key, waited, sight.holder));
        }
        let pause = engine.clock.sleep(acquire::jittered(ask.options.retry_interval));
        let paused = self.bounds.within(pause, acquire::closed(engine)).await;
        paused.map_err(|end| self.bounds.error_seen(ask, end, sight))
    }

    /// Warns of a key outside of this request: only keys that are asked for together are taken in order.
    fn warn_of_larger(&self, busy: &Request) {
        let asked = |key: &Key| self.asks.iter().any(|ask| ask.key == *key);
        let out_of_order = |key: &Key| *key > busy.key && !asked(key);
        if let Some(held) = self.engine.gates.held_by_asker(busy, out_of_order) {
            self.engine.observe.out_of_order(busy, &held);
        }
    }

    /// Releases the keys from position `at` on, and waits for the replies. The error is about `busy`, the key in the
    /// way. A release that fails is retried in the background, or there was nothing left to release.
    async fn release_from(
        &mut self,
        at: usize,
        busy: &Request,
        sight: &WaitStatus,
    ) -> Result<(), Error> {
        let larger = self.held[at..].iter_mut().filter_map(Option::take);
        let releases = Joined::new(larger.map(guard::release));
        let released = self.bounds.within(releases, acquire::closed(self.engine)).await;
        released.map(drop).map_err(|end| self.bounds.error_seen(busy, end, sight.clone()))
    }

    /// Keeps a hold for the report. Its `max_hold` has not begun.
    fn keep(&mut self, at: usize, hold: Hold) {
        if limits_hold(&self.asks[at], &hold) {
            hold.lease.set_hold_until(Time::NEVER);
        }
        self.held[at] = Some(hold);
    }

    /// Renews the leases with too little time left, and drops those that are lost. Returns whether all keys are
    /// held.
    async fn confirm(&mut self) -> Result<bool, Error> {
        let stale: Vec<(usize, &Hold)> =
            self.held.iter().flatten().enumerate().filter(|(_, hold)| is_stale(hold)).collect();
        if let Some((first, _)) = stale.first() {
            let first = &self.asks[*first];
            let renewals = Joined::new(stale.iter().map(|(_, hold)| {
                let (engine, lease) = (hold.engine.clone(), hold.lease.clone());
                async move { engine.renew_now(&lease).await }
            }));
            let renewed = self.bounds.within(renewals, acquire::closed(self.engine)).await;
            let renewed = renewed
                .map_err(|end| self.bounds.error_seen(first, end, WaitStatus::nothing_heard()))?;
            let failed = renewed.into_iter().filter_map(Result::err).find(|error| !error.is_lost());
            failed.map_or(Ok(()), Err)?;
        }
        // Nothing is awaited between this check and the report.
        for slot in &mut self.held {
            slot.take_if(|hold| !hold.is_valid());
        }
        Ok(self.held.iter().all(Option::is_some))
    }

    /// All keys are held: what the request says about the time of the hold applies from now on.
    fn report(self) -> Vec<Hold> {
        let now = self.engine.clock.now();
        for (ask, hold) in self.asks.iter().zip(self.held.iter().flatten()) {
            hold.lease.keep_min_hold(ask.options.min_hold);
            if let Some(longest) = ask.options.max_hold.filter(|_| limits_hold(ask, hold)) {
                hold.lease.set_hold_until(now.after(longest));
                self.engine.reschedule(&hold.lease);
            }
        }
        self.held.into_iter().flatten().collect()
    }
}

fn seen(holder: Option<Holder>) -> WaitStatus {
    WaitStatus { holder, ..WaitStatus::default() }
}

/// The first key that is not granted in a round that was cut short, and what is known about it.
fn in_the_way<'a>(
    tries: impl Iterator<Item = Option<&'a Result<Tried, Error>>>,
) -> (usize, WaitStatus) {
    let mut others = tries.enumerate().filter_map(|(number, tried)| match tried {
        Some(Ok(Tried::Got(_))) => None,
        Some(Ok(Tried::Busy(holder))) => Some((number, seen(holder.clone()))),
        Some(Err(_)) | None => Some((number, WaitStatus::nothing_heard())),
    });
    others.next().unwrap_or_default()
}

/// Whether `max_hold` of the request applies to the lease. A hold inside another one of its owner leaves it to that.
fn limits_hold(ask: &Request, hold: &Hold) -> bool {
    ask.options.max_hold.is_some() && hold.depth == 1
}

/// Whether a lease that was held during a wait must be renewed before it is reported.
fn is_stale(hold: &Hold) -> bool {
    let (lease, now) = (&hold.lease, hold.engine.clock.now());
    let is_short = !lease.is_unbounded() && lease.granted_left(now) < lease.ttl() / 2;
    lease.is_valid() && (is_short || lease.is_doubted())
}

/// The fault of an engine that may answer later.
fn passing(error: &Error) -> Option<Fault> {
    let kinds = [FaultKind::Unavailable, FaultKind::Unknown];
    error.fault().filter(|fault| kinds.contains(&fault.kind())).cloned()
}
