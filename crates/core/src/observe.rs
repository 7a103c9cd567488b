//! What is told to logs and metrics. One place for every event and every name.
//!
//! The key is in the logs, never in a metric's label; the token is in neither.
//! Handles of metrics are looked up once per name: install the recorder before the first lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::backend::{Fault, Loss, Release, Renewal};
use crate::error::Error;
use crate::gate::Hold;
use crate::lease::{Ended, Lease};
use crate::owner::Owner;
use crate::request::Ask;

/// Label of locks for which the caller gave no name.
const UNNAMED: &str = "unnamed";
/// A renewal that leaves less than this part of the ttl is worth a warning.
const MARGIN_SHORT: u32 = 3;

/// The metrics of one `Locker`.
#[derive(Default)]
pub(crate) struct Observe {
    totals: OnceLock<Totals>,
    unnamed: OnceLock<Series>,
    named: Mutex<HashMap<Arc<str>, Arc<Series>>>,
}

struct Totals {
    active: Gauge,
    waiters: Gauge,
    contentions: Counter,
    renewed: Histogram,
    renewal_lost: Histogram,
    renewal_unknown: Histogram,
}

/// The metrics of one name.
struct Series {
    acquired: Histogram,
    busy: Histogram,
    timeout: Histogram,
    error: Histogram,
    held: Histogram,
}

impl Totals {
    fn new() -> Self {
        let renewal = |outcome| metrics::histogram!("tenure_lock_renewal_duration_seconds", "outcome" => outcome);
        Totals {
            active: metrics::gauge!("tenure_lock_active"),
            waiters: metrics::gauge!("tenure_lock_waiters"),
            contentions: metrics::counter!("tenure_lock_contentions_total"),
            renewed: renewal("renewed"),
            renewal_lost: renewal("lost"),
            renewal_unknown: renewal("unknown"),
        }
    }
}

impl Series {
    fn new(name: &str) -> Self {
        let acquire = |outcome| metrics::histogram!("tenure_lock_acquire_duration_seconds", "name" => name.to_string(), "outcome" => outcome);
        Series {
            acquired: acquire("acquired"),
            busy: acquire("busy"),
            timeout: acquire("timeout"),
            error: acquire("error"),
            held: metrics::histogram!("tenure_lock_hold_duration_seconds", "name" => name.to_string()),
        }
    }

    fn not_acquired(&self, result: &str) -> &Histogram {
        match result {
            "timeout" => &self.timeout,
            "busy" => &self.busy,
            _ => &self.error,
        }
    }
}

impl Observe {
    fn totals(&self) -> &Totals {
        self.totals.get_or_init(Totals::new)
    }

    /// Records with the handles of the ask's name.
    fn record(&self, ask: &Ask, record: impl FnOnce(&Series)) {
        let Some(name) = &ask.name else {
            return record(self.unnamed.get_or_init(|| Series::new(UNNAMED)));
        };
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let series =
            named.entry(name.clone()).or_insert_with(|| Arc::new(Series::new(name))).clone();
        drop(named);
        record(&series);
    }

    /// A lock was granted after `waited`.
    pub(crate) fn acquired(&self, ask: &Ask, hold: &Hold, waited: Duration, contended: bool) {
        let fence = hold.fence.get();
        if contended {
            tracing::info!(component = "tenure", key = %ask.key, owner = owner(ask), label = label(ask), result = "acquired", ?waited, fence, "lock acquired after a wait");
        } else {
            tracing::debug!(component = "tenure", key = %ask.key, owner = owner(ask), label = label(ask), result = "acquired", ?waited, fence, "lock acquired");
        }
        self.record(ask, |series| series.acquired.record(waited));
    }

    /// `try_lock` found it held.
    pub(crate) fn busy(&self, ask: &Ask, waited: Duration) {
        tracing::debug!(component = "tenure", key = %ask.key, owner = owner(ask), result = "busy", ?waited, "lock busy");
        self.record(ask, |series| series.busy.record(waited));
        self.contended();
    }

    /// A lock was not granted.
    pub(crate) fn not_acquired(&self, ask: &Ask, error: &Error, waited: Duration) {
        let result = match error {
            error if error.is_timeout() => "timeout",
            error if error.is_busy() => "busy",
            _ => "error",
        };
        self.record(ask, |series| series.not_acquired(result).record(waited));
        tracing::debug!(component = "tenure", key = %ask.key, owner = owner(ask), result, ?waited, %error, "lock not acquired");
    }

    /// Somebody had to wait.
    pub(crate) fn contended(&self) {
        self.totals().contentions.increment(1);
    }

    /// Counts a waiter as long as the value lives.
    pub(crate) fn waiting(&self) -> impl Drop + use<'_> {
        Waiting::new(&self.totals().waiters)
    }

    /// A lease is held.
    pub(crate) fn holding(&self) {
        self.totals().active.increment(1.0);
    }

    /// A lease is not held any more.
    pub(crate) fn freed(&self) {
        self.totals().active.decrement(1.0);
    }

    /// A holder is done, whatever its release comes to. Re-entries are not counted.
    pub(crate) fn held(&self, ask: &Ask, held: Duration) {
        self.record(ask, |series| series.held.record(held));
    }

    /// A lease was handed by `owner` to the next task.
    pub(crate) fn handed_over(&self, lease: &Lease, owner: Option<Owner>) {
        tracing::debug!(component = "tenure", key = %lease.claim().key(), owner = shown(owner), result = "handed_over", "lock released");
    }

    /// A lease was given back, or not.
    pub(crate) fn released(&self, lease: &Lease, answer: &Result<Release, Fault>) {
        let key = lease.claim().key();
        match answer {
            Ok(answer) => {
                tracing::debug!(component = "tenure", %key, owner = shown(lease.owner()), result = ?answer, "lock released")
            }
            Err(fault) => {
                tracing::warn!(component = "tenure", %key, owner = shown(lease.owner()), result = "unknown", %fault, "release failed")
            }
        }
    }

    /// A renewal was answered, or not.
    pub(crate) fn renewed(&self, lease: &Lease, answer: &Renewal, took: Duration) {
        let (key, left) = (lease.claim().key(), lease.remaining());
        // One that was given back meanwhile has nothing left, and needs nothing.
        let short = left < lease.ttl() / MARGIN_SHORT && lease.ended() != Some(Ended::Released);
        match answer {
            Renewal::Renewed { .. } if short => {
                tracing::warn!(component = "tenure", %key, owner = shown(lease.owner()), result = "renewed", ?left, "lock renewed late");
                self.totals().renewed.record(took);
            }
            Renewal::Renewed { .. } => {
                tracing::debug!(component = "tenure", %key, owner = shown(lease.owner()), result = "renewed", ?left, "lock renewed");
                self.totals().renewed.record(took);
            }
            Renewal::Lost(_) => self.totals().renewal_lost.record(took),
            Renewal::Unknown(fault) => {
                let event = if short && lease.ended().is_none() {
                    "renewal failed, the lock is nearly lost"
                } else {
                    "renewal failed"
                };
                tracing::warn!(component = "tenure", %key, owner = shown(lease.owner()), result = "unknown", ?left, %fault, "{event}");
                self.totals().renewal_unknown.record(took);
            }
        }
    }

    /// A held lock is lost.
    pub(crate) fn lost(&self, lease: &Lease, loss: &Loss) {
        tracing::error!(component = "tenure", key = %lease.claim().key(), owner = shown(lease.owner()), result = "lost", reason = loss.word(), "lock lost: {loss}");
        metrics::counter!("tenure_lock_losses_total", "reason" => loss.word()).increment(1);
    }
}

fn owner(ask: &Ask) -> Option<String> {
    shown(ask.owner.clone())
}

fn shown(owner: Option<Owner>) -> Option<String> {
    owner.map(|owner| owner.to_string())
}

fn label(ask: &Ask) -> Option<&str> {
    ask.label.as_deref()
}

struct Waiting<'a>(&'a Gauge);

impl<'a> Waiting<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.increment(1.0);
        Waiting(gauge)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::backend::{FaultKind, Grant, Term};
    use crate::claim::{Claim, Terms, Token};
    use crate::key::Key;
    use crate::time::Clock;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged of a renewal without an answer, `passed` after the grant.
    fn logged(passed: Duration) -> String {
        let (clock, ttl, log) = (Clock::manual(), Duration::from_secs(30), Log::default());
        let (key, token) = (Key::new("k").unwrap(), Token::random().unwrap());
        let grant = Grant::new(1, Term::Lease { from: clock.now(), ttl });
        let claim = Arc::new(Claim::new(key, token, Terms::new(ttl)));
        let lease = Lease::new(claim, grant, clock.clone());
        clock.advance(passed);
        let writer = log.clone();
        let log_to = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let answer = Renewal::Unknown(Fault::new(FaultKind::Unknown, "no answer"));
        tracing::subscriber::with_default(log_to, || {
            Observe::default().renewed(&lease, &answer, Duration::ZERO);
        });
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    /// E4: a renewal without an answer is a warning that the lock is nearly lost while little is left of it,
    /// and not when the lock is lost already.
    #[test]
    fn e4_what_is_lost_is_not_nearly_lost() {
        let said = [11, 21, 31].map(|seconds| logged(Duration::from_secs(seconds)));
        assert!(said.iter().all(|line| line.contains("renewal failed")), "{said:?}");
        assert_eq!(said.map(|line| line.contains("nearly lost")), [false, true, false]);
    }
}
