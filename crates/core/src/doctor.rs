//! Checks whether locks are safe on an engine, before a program relies on them.
//!
//! In: a backend, and the ttl of its locks. Out: one [`Finding`] per check: what was tried, what was seen,
//! and advice. Each engine has its own checks: [`Operator::diagnose`](crate::backend::Operator::diagnose).
//! This module has the common parts: the types, the check of the latency, and the self-test.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::backend::Backend;
use crate::claim::{Claim, ClaimOptions};
use crate::fault::Fault;
use crate::fence::Fence;
use crate::grant::{AfterRelease, Attempt, Capabilities, Release, Renewal};
use crate::key::Key;
use crate::lease::Lease;
use crate::time::UnixMillis;
use crate::token::Token;

/// The result of one check.
///
/// The texts are for people and may change; `check` and `verdict` are for programs and stay the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the check, such as `eviction` or `clock`.
    pub check: &'static str,
    /// What was checked: the address of a server, a directory, or the whole engine.
    pub target: String,
    /// What was tried.
    pub tried: String,
    /// What was seen.
    pub seen: String,
    /// How serious the result is.
    pub verdict: Verdict,
    /// What to do about it, if anything.
    pub advice: Option<String>,
}

/// How serious a finding is, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing to do.
    Good,
    /// The check was not possible, for example without the rights to ask the server. Neither good nor bad.
    Unknown,
    /// Locks work, but guarantee less than they could.
    Warning,
    /// Locks do not work here, or two holders can have the same lock without any failure.
    Unsafe,
}

impl Verdict {
    /// The worst verdict of all findings; `Good` if there are none.
    pub fn worst(findings: &[Finding]) -> Verdict {
        findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good)
    }

    /// The verdict as one word: `good`, `unknown`, `warning`, `unsafe`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Unknown => "unknown",
            Verdict::Warning => "warning",
            Verdict::Unsafe => "unsafe",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A check without a result yet.
#[derive(Clone, Debug)]
#[must_use = "a check says nothing until it has a verdict"]
pub struct Check {
    name: &'static str,
    target: String,
    tried: String,
}

impl Check {
    /// The check `name` of `target`; `tried` describes what it does.
    pub fn new(name: &'static str, target: impl fmt::Display, tried: impl Into<String>) -> Self {
        Check { name, target: target.to_string(), tried: tried.into() }
    }

    /// Ends the check with [`Verdict::Good`].
    pub fn good(self, seen: impl Into<String>) -> Finding {
        self.found(Verdict::Good, seen.into(), None)
    }

    /// Ends the check with [`Verdict::Unknown`].
    pub fn unknown(self, seen: impl Into<String>) -> Finding {
        self.found(Verdict::Unknown, seen.into(), None)
    }

    /// Ends the check with [`Verdict::Warning`].
    pub fn warning(self, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        self.found(Verdict::Warning, seen.into(), Some(advice.into()))
    }

    /// Ends the check with [`Verdict::Unsafe`].
    pub fn critical(self, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        self.found(Verdict::Unsafe, seen.into(), Some(advice.into()))
    }

    fn found(self, verdict: Verdict, seen: String, advice: Option<String>) -> Finding {
        let Check { name: check, target, tried } = self;
        Finding { check, target, tried, seen, verdict, advice }
    }
}

/// A ttl of fewer round trips is unsafe: a renewal is due at a third of the ttl, and its reply would be too
/// late.
const ROUND_TRIPS_LEAST: u32 = 3;
/// A ttl of fewer round trips is a warning: a round trip takes more than a tenth of the time between two
/// renewals.
const ROUND_TRIPS_GOOD: u32 = 30;

/// Judges round trips of these lengths for locks with this ttl.
pub fn latency(check: Check, mut trips: Vec<Duration>, ttl: Duration) -> Finding {
    trips.sort_unstable();
    let (count, middle) = (trips.len(), trips.len() / 2);
    let (Some(&median), Some(&slowest)) = (trips.get(middle), trips.last()) else {
        return check.unknown("nothing was measured");
    };
    let fits = ttl.as_secs_f64() / median.as_secs_f64().max(f64::MIN_POSITIVE);
    let seen = format!(
        "median {median:.1?}, slowest {slowest:.1?} of {count}; a ttl of {ttl:?} is {fits:.0} times the median"
    );
    let advice = format!(
        "bring the server nearer, or choose a ttl of at least {:.1?}",
        median * ROUND_TRIPS_GOOD
    );
    match median {
        slow if slow * ROUND_TRIPS_LEAST > ttl => check.critical(seen, advice),
        slow if slow * ROUND_TRIPS_GOOD > ttl => check.warning(seen, advice),
        _ => check.good(seen),
    }
}

/// The longest ttl of the self-test: if the process dies meanwhile, its lock stays for this long.
const TRIAL_TTL_MAX: Duration = Duration::from_secs(10);

/// How far the fence of a grant may be ahead of our clock: a second, by which clocks may differ, and 50 ms of a quorum.
const FENCE_AHEAD_MAX: Duration = Duration::from_millis(1_050);

/// Acquires a lock with a random key, checks that a second claim is refused, renews the lock and releases it.
/// Nothing is left behind. A failure is a finding with [`Verdict::Unsafe`]; a fence that is ahead of our clock is a
/// warning, because the fences of another engine would be lower. If the future is dropped, the
/// lock stays for its ttl, normally at most 10 s.
pub async fn self_test<B: Backend + ?Sized>(backend: &B, ttl: Duration) -> Finding {
    let tried = "acquire a lock of our own, ask for it again, renew and release it";
    let check = Check::new("lock", backend.capabilities().engine, tried);
    let clock = backend.clock();
    let start = clock.now();
    match take_and_return(backend, ttl).await {
        Ok(fence) => {
            let took = clock.now().since(start);
            let seen = format!("granted with fence {fence}, renewed and released in {took:.1?}");
            judge_fence(check, seen, fence.ahead_of(UnixMillis::now()))
        }
        Err(flaw) => check.critical(flaw, "no lock can be relied on here until this is mended"),
    }
}

/// Judges a lock that works. A fence that is `ahead` of our clock does no harm on this engine.
fn judge_fence(check: Check, seen: String, ahead: Duration) -> Finding {
    if ahead <= FENCE_AHEAD_MAX {
        return check.good(seen);
    }
    check.warning(
        format!("{seen}; the fence is {ahead:.0?} ahead of our clock"),
        "set the clocks right; before you move to another engine wait for so long, or its fences are lower",
    )
}

async fn take_and_return<B: Backend + ?Sized>(backend: &B, ttl: Duration) -> Result<Fence, String> {
    let ttl = fitting(ttl, &backend.capabilities());
    let (first, second) = claims(ttl)?;
    let lived = live_through(backend, &first, &second).await;
    // Both claims are abandoned in every case, so that nothing is left behind.
    let undone = [backend.abandon(&second).await, backend.abandon(&first).await];
    let fence = lived?;
    undone.into_iter().collect::<Result<Vec<()>, _>>().map_err(|fault| error_chain(&fault))?;
    Ok(fence)
}

async fn live_through<B: Backend + ?Sized>(
    backend: &B,
    first: &Arc<Claim>,
    second: &Arc<Claim>,
) -> Result<Fence, String> {
    let grant = match backend.try_acquire(first).await.map_err(|fault| error_chain(&fault))? {
        Attempt::Granted(grant) => grant,
        Attempt::Held(_) => return Err("a random key is held by another".into()),
    };
    let lease = Arc::new(Lease::new(first.clone(), grant, backend.clock()));
    if let Attempt::Granted(_) =
        backend.try_acquire(second).await.map_err(|fault| error_chain(&fault))?
    {
        return Err("it was granted to two claims at a time".into());
    }
    renew(backend, &lease).await?;
    match backend.release(&lease, AfterRelease::Free).await.map_err(|fault| error_chain(&fault))? {
        Release::Freed => Ok(lease.fence()),
        other => Err(format!("it could not be released: {other:?}")),
    }
}

async fn renew<B: Backend + ?Sized>(backend: &B, lease: &Arc<Lease>) -> Result<(), String> {
    let answer = Mutex::new(None);
    let leases = [lease.clone()];
    let keep = |_: usize, renewal| {
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewal);
    };
    backend.renew(&leases, &keep).await;
    match answer.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(Renewal::Renewed { .. }) => Ok(()),
        Some(Renewal::Lost(loss)) => Err(format!("it was lost at once: {loss}")),
        Some(Renewal::Unknown(fault)) => {
            Err(format!("it could not be renewed: {}", error_chain(&fault)))
        }
        None => Err("it could not be renewed: no answer".into()),
    }
}

/// Limits `ttl` to `TRIAL_TTL_MAX`, and rounds it up to a valid ttl of this engine.
fn fitting(ttl: Duration, can: &Capabilities) -> Duration {
    let unit = can.ttl_unit.max(Duration::from_millis(1));
    let units = ttl.min(TRIAL_TTL_MAX).max(can.ttl_min).as_nanos().div_ceil(unit.as_nanos());
    unit * u32::try_from(units).unwrap_or(u32::MAX)
}

/// Two claims on the same key.
fn claims(ttl: Duration) -> Result<(Arc<Claim>, Arc<Claim>), String> {
    let token = || Token::random().map_err(|error| format!("no random numbers: {error}"));
    let name = format!("tenure-doctor:{}", &token()?.digits()[..16]);
    let key = Key::new(&name).map_err(|error| error.to_string())?;
    let claim = |token| Arc::new(Claim::new(key.clone(), token, ClaimOptions::new(ttl)));
    Ok((claim(token()?), claim(token()?)))
}

/// A fault with its causes, in one line.
fn error_chain(fault: &Fault) -> String {
    let mut line = fault.to_string();
    let mut cause = std::error::Error::source(fault);
    while let Some(next) = cause {
        line += &format!(": {next}");
        cause = next.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Operator as _;
    use crate::fence::{EPOCH, PER_MILLI};
    use crate::memory::Memory;

    fn check() -> Check {
        Check::new("latency", "h:1", "PING")
    }

    /// The worst finding counts; an unknown result is better than a warning.
    #[test]
    fn verdicts_in_order() {
        let (good, unknown) = (check().good("x"), check().unknown("x"));
        let (warning, danger) = (check().warning("x", "y"), check().critical("x", "y"));
        assert_eq!(Verdict::worst(&[]), Verdict::Good);
        assert_eq!(Verdict::worst(&[unknown.clone(), good.clone()]), Verdict::Unknown);
        assert_eq!(Verdict::worst(&[warning.clone(), unknown, good]), Verdict::Warning);
        assert_eq!(Verdict::worst(&[danger, warning]), Verdict::Unsafe);
    }

    /// A round trip is judged by its share of the ttl.
    #[test]
    fn latencies() {
        let of = |millis: u64, ttl| latency(check(), vec![Duration::from_millis(millis); 3], ttl);
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(of(20, second).verdict, Verdict::Good);
        assert_eq!(of(40, second).verdict, Verdict::Warning);
        assert_eq!(
            (of(400, second).verdict, of(400, minute).verdict),
            (Verdict::Unsafe, Verdict::Good)
        );
        assert_eq!(
            of(40, second).seen,
            "median 40.0ms, slowest 40.0ms of 3; a ttl of 1s is 25 times the median"
        );
        assert_eq!(
            of(40, second).advice.as_deref(),
            Some("bring the server nearer, or choose a ttl of at least 1.2s")
        );
        assert_eq!(latency(check(), vec![], second).verdict, Verdict::Unknown);
    }

    /// A fence that is more than a second ahead of our clock is a warning.
    #[test]
    fn fences_ahead() {
        let now = UnixMillis(EPOCH.0 + 1_000);
        let found = |millis: u64| {
            let fence = Fence::from_server((1_000 + millis) * PER_MILLI);
            judge_fence(check(), "granted".into(), fence.ahead_of(now))
        };
        assert_eq!(found(1_050).verdict, Verdict::Good);
        let late = found(90_000);
        assert_eq!(
            (late.verdict, &*late.seen),
            (Verdict::Warning, "granted; the fence is 90s ahead of our clock")
        );
        assert_eq!(Fence::NONE.ahead_of(now), Duration::ZERO);
    }

    /// The ttl of the self-test is valid on the engine.
    #[test]
    fn ttls_that_fit() {
        let mut can = Capabilities::full("x");
        (can.ttl_unit, can.ttl_min) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(fitting(Duration::from_millis(2_100), &can), Duration::from_secs(3));
        assert_eq!(fitting(Duration::from_millis(1), &can), Duration::from_secs(2));
        assert_eq!(fitting(Duration::from_secs(3_600), &can), TRIAL_TTL_MAX);
    }

    /// The self-test leaves nothing behind, and reports the fence of its grant.
    #[tokio::test]
    async fn a_trial() {
        let memory = Memory::space("doctor-trial");
        let found = self_test(&memory, Duration::from_secs(30)).await;
        assert_eq!(found.verdict, Verdict::Good, "{found:?}");
        assert!(found.seen.starts_with("granted with fence "), "{found:?}");
        let all = crate::backend::Query::Glob("*".into());
        assert!(memory.inspect(&all).await.unwrap().is_empty());
    }
}
