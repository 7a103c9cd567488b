//! Logs and metrics: every event and every name is here.
//!
//! Keys are in the logs, but never in a label of a metric; tokens are in neither. Metrics are looked up once
//! per name: install the recorder before the first lock.
//!
//! A busy key or an outage must not flood the log. Short waits are logged at `debug`. Long waits, and failures that
//! an outage repeats for every lock, are logged once a second ([`OncePerSecond`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use tracing::Span;
use tracing::field::Empty;

use crate::error::Error;
use crate::fault::{Fault, Loss};
use crate::gate::Hold;
use crate::grant::{Release, Renewal};
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::mode::Mode;
use crate::owner::Owner;
use crate::request::Request;
use crate::time::UnixMillis;

/// The label of locks without a name.
const UNNAMED: &str = "unnamed";
/// How many names of a mode a `Locker` has metrics for. Without this limit, callers that use keys as names would create
/// one series per key.
const NAMES_MAX: usize = 1_000;
/// The label of locks whose name is beyond the limit.
const OTHER_NAMES: &str = "other";
/// A renewal is logged as a warning if less than one third of the ttl remains.
const MARGIN_SHORT: u32 = 3;
/// Waits from this length on are logged at `info`: a person notices them. A busy key has thousands of shorter
/// waits a second.
const NOTICEABLE: Duration = Duration::from_millis(100);

/// Limits a log line to one a second.
#[derive(Debug, Default)]
pub struct OncePerSecond {
    second: AtomicU64,
    untold: AtomicU64,
}

impl OncePerSecond {
    /// A limiter that has let no line through yet.
    pub const fn new() -> Self {
        OncePerSecond { second: AtomicU64::new(0), untold: AtomicU64::new(0) }
    }

    /// `Some` if a line may be logged now, with the number of lines that were suppressed since the last one,
    /// or `None` for zero. `None` if the line must be suppressed.
    pub fn due(&self) -> Option<Option<u64>> {
        let second = UnixMillis::now().0 / 1_000;
        if self.second.swap(second, Ordering::Relaxed) == second {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Some(self.untold.swap(0, Ordering::Relaxed)).filter(|untold| *untold > 0))
    }
}

/// Logs an event that an outage or a busy key repeats: one a second at `level`, with the number of
/// suppressed ones; the others as `debug`.
macro_rules! once_per_second {
    ($level:ident, $once:expr, $($fields:tt)*) => {
        match $once.due() {
            Some(left_out) => tracing::$level!(component = "tenure", left_out, $($fields)*),
            None => tracing::debug!(component = "tenure", $($fields)*),
        }
    };
}

/// The metrics of one `Locker`.
#[derive(Default)]
pub(crate) struct Observe {
    /// By [`number_of`] the mode.
    modes: [OfMode; 3],
    renewals_late: OncePerSecond,
    renewals_failed: OncePerSecond,
    nearly_lost: OncePerSecond,
    releases_failed: OncePerSecond,
    out_of_order: OncePerSecond,
    losses: Losses,
}

/// Limits the lines about losses: an outage or a restart of the server loses all locks at once. One limit per
/// reason, so that no reason hides another.
#[derive(Default)]
struct Losses {
    expired: OncePerSecond,
    gone: OncePerSecond,
    session: OncePerSecond,
    max_hold: OncePerSecond,
}

impl Losses {
    /// `None` for a loss that is always logged, or never an error.
    fn limit(&self, loss: &Loss) -> Option<&OncePerSecond> {
        match loss {
            Loss::Expired => Some(&self.expired),
            Loss::Gone => Some(&self.gone),
            Loss::Session => Some(&self.session),
            Loss::MaxHold => Some(&self.max_hold),
            Loss::Forced(_) | Loss::Shutdown => None,
        }
    }
}

/// The metrics of the claims of one mode.
#[derive(Default)]
struct OfMode {
    totals: OnceLock<Totals>,
    unnamed: OnceLock<Series>,
    named: Mutex<HashMap<Arc<str>, Arc<Series>>>,
}

/// One number for each text of [`Mode::as_str`].
fn number_of(mode: &Mode) -> usize {
    match mode {
        Mode::Exclusive | Mode::SharedOwner(_) => 0,
        Mode::Read => 1,
        Mode::Permits { .. } => 2,
    }
}

struct Totals {
    contentions: Counter,
    renewed: Histogram,
    renewal_lost: Histogram,
    renewal_unknown: Histogram,
}

/// The metrics of one name, for one mode.
#[derive(Debug)]
pub(crate) struct Series {
    name: String,
    mode: &'static str,
    active: Gauge,
    waiters: Gauge,
    acquired: Histogram,
    busy: Histogram,
    timeout: Histogram,
    error: Histogram,
    held: Histogram,
    /// Limits the lines about long waits: one name with many waiters must not hide the others.
    long_waits: OncePerSecond,
}

impl Totals {
    fn new(mode: &'static str) -> Self {
        let renewal = |outcome| metrics::histogram!("tenure_lock_renewal_duration_seconds", "outcome" => outcome, "mode" => mode);
        Totals {
            contentions: metrics::counter!("tenure_lock_contentions_total", "mode" => mode),
            renewed: renewal("renewed"),
            renewal_lost: renewal("lost"),
            renewal_unknown: renewal("unknown"),
        }
    }
}

impl Series {
    fn new(name: &str, mode: &'static str) -> Self {
        let acquire = |outcome| metrics::histogram!("tenure_lock_acquire_duration_seconds", "name" => name.to_string(), "outcome" => outcome, "mode" => mode);
        Series {
            name: name.to_owned(),
            mode,
            active: metrics::gauge!("tenure_lock_active", "name" => name.to_string(), "mode" => mode),
            waiters: metrics::gauge!("tenure_lock_waiters", "name" => name.to_string(), "mode" => mode),
            acquired: acquire("acquired"),
            busy: acquire("busy"),
            timeout: acquire("timeout"),
            error: acquire("error"),
            held: metrics::histogram!("tenure_lock_hold_duration_seconds", "name" => name.to_string(), "mode" => mode),
            long_waits: OncePerSecond::new(),
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
    fn totals(&self, mode: &Mode) -> &Totals {
        self.modes[number_of(mode)].totals.get_or_init(|| Totals::new(mode.as_str()))
    }

    /// The metrics of the request's mode and name, looked up once per request.
    fn series<'a>(&'a self, ask: &'a Request) -> &'a Series {
        let (of_mode, mode) = (&self.modes[number_of(&ask.mode)], ask.mode.as_str());
        match &ask.name {
            Some(name) => ask.series.get_or_init(|| of_mode.named(name, mode)),
            None => of_mode.unnamed.get_or_init(|| Series::new(UNNAMED, mode)),
        }
    }

    /// A lock was acquired after `waited`.
    pub(crate) fn acquired(&self, ask: &Request, hold: &Hold, waited: Duration, contended: bool) {
        let (fence, series) = (hold.fence.get(), self.series(ask));
        if contended && waited >= NOTICEABLE {
            once_per_second!(info, series.long_waits, key = %ask.key, owner = owner(ask), label = label(ask), result = "acquired", ?waited, fence, "lock acquired after a wait");
        } else {
            tracing::debug!(component = "tenure", key = %ask.key, owner = owner(ask), label = label(ask), result = "acquired", ?waited, fence, "lock acquired");
        }
        series.acquired.record(waited);
    }

    /// `try_lock` found the lock held.
    pub(crate) fn busy(&self, ask: &Request, waited: Duration) {
        tracing::debug!(component = "tenure", key = %ask.key, owner = owner(ask), result = "busy", ?waited, "lock busy");
        self.series(ask).busy.record(waited);
        self.contended(ask);
    }

    /// A task has waited for some time for a lock that it acquired itself, without an owner.
    pub(crate) fn waits_for_itself(&self, ask: &Request) {
        tracing::warn!(component = "tenure", key = %ask.key, owner = owner(ask), label = label(ask), "still waiting for a lock that this process itself holds: the same task acquired it, without an owner to re-enter by");
    }

    /// A request for several keys waits for one that is smaller than a key that its task holds besides.
    pub(crate) fn out_of_order(&self, ask: &Request, held: &Key) {
        once_per_second!(warn, self.out_of_order, key = %ask.key, owner = owner(ask), label = label(ask), %held, "several keys are asked for while the same task holds a larger one: two such tasks can wait for each other; ask for all keys in one request");
    }

    /// A lock was not acquired.
    pub(crate) fn not_acquired(&self, ask: &Request, error: &Error, waited: Duration) {
        let result = result_of(error);
        self.series(ask).not_acquired(result).record(waited);
        tracing::debug!(component = "tenure", key = %ask.key, owner = owner(ask), result, ?waited, %error, "lock not acquired");
    }

    /// A request had to wait.
    pub(crate) fn contended(&self, ask: &Request) {
        self.totals(&ask.mode).contentions.increment(1);
    }

    /// Counts a waiter for as long as the returned value lives.
    pub(crate) fn waiting<'a>(&'a self, ask: &'a Request) -> impl Drop + use<'a> {
        Waiting::new(&self.series(ask).waiters)
    }

    /// A lease is held.
    pub(crate) fn holding(&self, ask: &Request) {
        self.series(ask).active.increment(1.0);
    }

    /// A lease is no longer held.
    pub(crate) fn freed(&self, ask: &Request) {
        self.series(ask).active.decrement(1.0);
    }

    /// A lease is handed from one task to the next, whose name may be different.
    pub(crate) fn passed(&self, from: &Request, to: &Request) {
        if from.name != to.name {
            self.freed(from);
            self.holding(to);
        }
    }

    /// Records how long a holder held the lock, whatever the result of its release. Re-entries are not
    /// counted.
    pub(crate) fn held(&self, ask: &Request, held: Duration) {
        self.series(ask).held.record(held);
    }

    /// A lease was handed over by `owner` to the next task.
    pub(crate) fn handed_over(&self, lease: &Lease, owner: Option<Owner>) {
        tracing::debug!(component = "tenure", key = %lease.claim().key(), owner = shown(owner), result = "handed_over", "lock released");
    }

    /// A release was answered, or failed.
    pub(crate) fn released(&self, lease: &Lease, answer: &Result<Release, Fault>) {
        let key = lease.claim().key();
        match answer {
            Ok(answer) => {
                tracing::debug!(component = "tenure", %key, owner = shown(lease.owner()), result = ?answer, "lock released")
            }
            Err(fault) => {
                once_per_second!(warn, self.releases_failed, %key, owner = shown(lease.owner()), result = "unknown", %fault, "release failed")
            }
        }
    }

    /// A renewal was answered, or failed.
    pub(crate) fn renewed(&self, lease: &Lease, answer: &Renewal, took: Duration) {
        let (key, left) = (lease.claim().key(), lease.remaining());
        let totals = self.totals(lease.claim().mode());
        // If the lock was released meanwhile, nothing remains of the lease, and that is fine.
        let short = left < lease.ttl() / MARGIN_SHORT && lease.ended() != Some(Ended::Released);
        match answer {
            Renewal::Renewed { .. } if short => {
                once_per_second!(warn, self.renewals_late, %key, owner = shown(lease.owner()), result = "renewed", ?left, "lock renewed late");
                totals.renewed.record(took);
            }
            Renewal::Renewed { .. } => {
                tracing::debug!(component = "tenure", %key, owner = shown(lease.owner()), result = "renewed", ?left, "lock renewed");
                totals.renewed.record(took);
            }
            Renewal::Lost(_) => totals.renewal_lost.record(took),
            Renewal::Unknown(fault) => {
                let (once, event) = match short && lease.ended().is_none() {
                    true => (&self.nearly_lost, "renewal failed, the lock is nearly lost"),
                    false => (&self.renewals_failed, "renewal failed"),
                };
                once_per_second!(warn, once, %key, owner = shown(lease.owner()), result = "unknown", ?left, %fault, "{event}");
                totals.renewal_unknown.record(took);
            }
        }
    }

    /// A held lock was lost. The end by a shutdown is intended, and not logged as an error.
    pub(crate) fn lost(&self, lease: &Lease, loss: &Loss) {
        let (key, owner) = (lease.claim().key(), shown(lease.owner()));
        match (loss, self.losses.limit(loss)) {
            (Loss::Shutdown, _) => {
                tracing::info!(component = "tenure", %key, owner, result = "shutdown", "lock ended by the shutdown of its locker")
            }
            (_, Some(once)) => {
                once_per_second!(error, once, %key, owner, result = "lost", reason = loss.as_str(), "lock lost: {loss}")
            }
            (_, None) => {
                tracing::error!(component = "tenure", %key, owner, result = "lost", reason = loss.as_str(), "lock lost: {loss}")
            }
        }
    }

    /// Counts the loss under the name of its holder. A shutdown does not count.
    pub(crate) fn count_loss(&self, ask: &Request, loss: &Loss) {
        if *loss == Loss::Shutdown {
            return;
        }
        let Series { name, mode, .. } = self.series(ask);
        metrics::counter!("tenure_lock_losses_total", "name" => name.clone(), "reason" => loss.as_str(), "mode" => *mode)
            .increment(1);
    }
}

impl OfMode {
    fn named(&self, name: &Arc<str>, mode: &'static str) -> Arc<Series> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let known = named.len() < NAMES_MAX || named.contains_key(name);
        let name = if known { name.clone() } else { OTHER_NAMES.into() };
        named.entry(name).or_insert_with_key(|name| Arc::new(Series::new(name, mode))).clone()
    }
}

/// The span of [`LockRequest::run`](crate::LockRequest::run), `#[lock]` and the layers: it contains the wait,
/// the body and the release.
pub(crate) fn run_span(name: Option<&str>, key: &str) -> Span {
    tracing::debug_span!("lock", name, key)
}

/// The span of one acquisition. `result` and `fence` are recorded at its end.
pub(crate) fn acquire_span(ask: &Request) -> Span {
    let (name, key) = (ask.name.as_deref(), ask.key.as_str());
    tracing::debug_span!("acquire", name, key, owner = owner(ask), result = Empty, fence = Empty)
}

/// Records the result of the acquisition in the span; `Ok(None)` is a `try_lock` that found the lock held.
pub(crate) fn end_of_acquire(span: &Span, got: Result<Option<&Hold>, &Error>) {
    let result = match got {
        Ok(Some(hold)) => {
            span.record("fence", hold.fence.get());
            "acquired"
        }
        Ok(None) => "busy",
        Err(error) => result_of(error),
    };
    span.record("result", result);
}

fn result_of(error: &Error) -> &'static str {
    match error {
        error if error.is_timeout() => "timeout",
        error if error.is_busy() => "busy",
        _ => "error",
    }
}

fn owner(ask: &Request) -> Option<String> {
    shown(ask.owner.clone())
}

fn shown(owner: Option<Owner>) -> Option<String> {
    owner.map(|owner| owner.to_string())
}

fn label(ask: &Request) -> Option<&str> {
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
pub(crate) mod tests {
    use std::io;

    use tracing::subscriber::NoSubscriber;

    use super::*;
    use crate::claim::{Claim, ClaimOptions};
    use crate::fault::FaultKind;
    use crate::grant::{Grant, Validity};
    use crate::time::Clock;
    use crate::token::Token;

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

    /// The log lines of `f`, at `debug` and above.
    fn logged(f: impl FnOnce()) -> String {
        let log = Log::default();
        let writer = log.clone();
        let to = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
        let to = to.with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG).finish();
        log_to(to, f);
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    /// Runs `f` with a log of its own. A second log exists meanwhile: with only one, a thread without it that is the
    /// first to reach an event switches that event off for all threads.
    pub(crate) fn log_to(log: impl Into<tracing::Dispatch>, f: impl FnOnce()) {
        let (log, second) = (log.into(), tracing::Dispatch::new(NoSubscriber::default()));
        tracing::dispatcher::with_default(&log, f);
        drop(second);
    }

    /// A lease of 30 s that was granted `passed` ago.
    fn lease(passed: Duration) -> Lease {
        let (clock, ttl) = (Clock::manual(), Duration::from_secs(30));
        let (key, token) = (Key::new("k").unwrap(), Token::random().unwrap());
        let grant = Grant::new(1, Validity::Lease { from: clock.now(), ttl });
        let claim = Arc::new(Claim::new(key, token, ClaimOptions::new(ttl)));
        let lease = Lease::new(claim, grant, clock.clone());
        clock.advance(passed);
        lease
    }

    /// E4: a renewal without an answer warns that the lock is nearly lost if little of the lease remains, but
    /// not if the lock is lost already.
    #[test]
    fn e4_what_is_lost_is_not_nearly_lost() {
        let said = [11, 21, 31].map(|seconds| {
            let lease = lease(Duration::from_secs(seconds));
            let answer = Renewal::Unknown(Fault::new(FaultKind::Unknown, "no answer"));
            logged(|| Observe::default().renewed(&lease, &answer, Duration::ZERO))
        });
        assert!(said.iter().all(|line| line.contains("WARN") && line.contains("renewal failed")));
        assert_eq!(said.map(|line| line.contains("nearly lost")), [false, true, false]);
    }

    /// E4: an outage is one line of each kind a second, whatever the number of locks; the others are at `debug`.
    #[test]
    fn e4_an_outage_is_one_line_a_second() {
        const LOCKS: usize = 1_000;
        let observe = Observe::default();
        let fault = || Fault::new(FaultKind::Unknown, "no answer");
        let events: [(&str, &dyn Fn()); 6] = [
            ("lock lost: no renewal", &|| observe.lost(&lease(Duration::ZERO), &Loss::Expired)),
            ("lock lost: the engine", &|| observe.lost(&lease(Duration::ZERO), &Loss::Gone)),
            ("release failed", &|| observe.released(&lease(Duration::ZERO), &Err(fault()))),
            ("renewal failed", &|| {
                let answer = Renewal::Unknown(fault());
                observe.renewed(&lease(Duration::ZERO), &answer, Duration::ZERO);
            }),
            ("nearly lost", &|| {
                let answer = Renewal::Unknown(fault());
                observe.renewed(&lease(Duration::from_secs(21)), &answer, Duration::ZERO);
            }),
            ("renewed late", &|| {
                let late = lease(Duration::from_secs(21));
                let validity = Validity::Lease { from: Clock::manual().now(), ttl: late.ttl() };
                let answer = Renewal::Renewed { validity, contended: false };
                observe.renewed(&late, &answer, Duration::ZERO);
            }),
        ];
        for (event, happen) in events {
            let start = std::time::Instant::now();
            let said = logged(|| (0..LOCKS).for_each(|_| happen()));
            // The run may touch one second more at each end.
            let most = start.elapsed().as_secs() as usize + 2;
            let count =
                |level| said.lines().filter(|l| l.contains(level) && l.contains(event)).count();
            let (warned, quiet) = (count("WARN") + count("ERROR"), count("DEBUG"));
            assert!((1..=most).contains(&warned), "{event}: {warned}, and {quiet} at debug");
            assert_eq!(warned + quiet, LOCKS, "{event}");
        }
        let by_force = Loss::Forced("ann".into());
        let forced =
            logged(|| (0..3).for_each(|_| observe.lost(&lease(Duration::ZERO), &by_force)));
        assert_eq!(forced.matches("ERROR").count(), 3, "each is the act of a person");
    }

    /// A line contains the number of lines suppressed since the last one.
    #[test]
    fn what_is_left_out_is_counted() {
        let once = OncePerSecond::new();
        assert_eq!(once.due(), Some(None));
        let mut left_out = 0;
        let next = loop {
            match once.due() {
                None => left_out += 1,
                Some(line) => break line,
            }
        };
        assert_eq!(next, Some(left_out).filter(|count| *count > 0));
    }

    /// E5: the number of series is limited, whatever names callers use.
    #[test]
    fn e5_names_are_bounded() {
        let all = OfMode::default();
        let name =
            |number: usize| all.named(&format!("order:{number}").into(), "shared").name.clone();
        assert_eq!(name(0), "order:0");
        let last = (1..NAMES_MAX + 2).map(name).last();
        assert_eq!(last.as_deref(), Some(OTHER_NAMES));
        assert_eq!(name(0), "order:0", "a name that is known stays");
        assert_eq!(all.named.lock().unwrap().len(), NAMES_MAX + 1);
    }
}
