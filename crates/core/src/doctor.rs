//! What can be found out about an engine before it is relied on.
//!
//! In: a backend, and the ttl that its locks will have. Out: [`Finding`]s, one for each check: what was
//! tried, what was seen, what to do. What is particular to an engine is checked there
//! ([`Backend::examine`]); here is what goes for all of them: the words, the round trip, a lock on trial.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::backend::{Attempt, Backend, Capabilities, Fault, Release, Renewal, Then};
use crate::claim::{Claim, Terms, Token};
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::Lease;

/// What a check has found.
///
/// The words are for people and may change; `check` and `verdict` are for programs and do not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Which check: `eviction`, `clock`.
    pub check: &'static str,
    /// What was looked at: the address of a server, a directory, or the engine as a whole.
    pub place: String,
    /// What was tried.
    pub tried: String,
    /// What was seen.
    pub seen: String,
    /// What that means.
    pub verdict: Verdict,
    /// What to do about it, where there is something to do.
    pub advice: Option<String>,
}

/// What a finding means, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing to do.
    Good,
    /// It could not be found out: the server may not be asked. Neither good nor bad.
    Unknown,
    /// Locks work, and promise less than they could.
    Warning,
    /// Locks do not work here, or two can hold the same one while everything runs as it is meant to.
    Unsafe,
}

impl Verdict {
    /// The worst of all; good if there are none.
    pub fn worst(findings: &[Finding]) -> Verdict {
        findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Good)
    }

    /// The one word for it.
    pub fn word(self) -> &'static str {
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
        f.write_str(self.word())
    }
}

/// A check of which it is not known yet how it ends.
#[derive(Clone, Debug)]
#[must_use = "a check says nothing until it has a verdict"]
pub struct Check {
    name: &'static str,
    place: String,
    tried: String,
}

impl Check {
    /// The check `name` of `place`, for which `tried` is tried.
    pub fn new(name: &'static str, place: impl fmt::Display, tried: impl Into<String>) -> Self {
        Check { name, place: place.to_string(), tried: tried.into() }
    }

    /// All is well.
    pub fn good(self, seen: impl Into<String>) -> Finding {
        self.found(Verdict::Good, seen.into(), None)
    }

    /// It could not be found out.
    pub fn unknown(self, seen: impl Into<String>) -> Finding {
        self.found(Verdict::Unknown, seen.into(), None)
    }

    /// It works, and could be better.
    pub fn warning(self, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        self.found(Verdict::Warning, seen.into(), Some(advice.into()))
    }

    /// It is not to be relied on: [`Verdict::Unsafe`].
    pub fn danger(self, seen: impl Into<String>, advice: impl Into<String>) -> Finding {
        self.found(Verdict::Unsafe, seen.into(), Some(advice.into()))
    }

    fn found(self, verdict: Verdict, seen: String, advice: Option<String>) -> Finding {
        let Check { name: check, place, tried } = self;
        Finding { check, place, tried, seen, verdict, advice }
    }
}

/// A renewal comes at a third of the ttl. One whose round trip takes as long as that is never in time.
const ROUND_TRIPS_LEAST: u32 = 3;
/// From here on a slow server costs some of what a lock is good for: a tenth of the time between two
/// renewals.
const ROUND_TRIPS_GOOD: u32 = 30;

/// What round trips of these lengths mean for locks of `ttl`.
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
        slow if slow * ROUND_TRIPS_LEAST > ttl => check.danger(seen, advice),
        slow if slow * ROUND_TRIPS_GOOD > ttl => check.warning(seen, advice),
        _ => check.good(seen),
    }
}

/// The longest ttl on trial: if we die meanwhile, this is how long something is left.
const TRIAL_TTL_MAX: Duration = Duration::from_secs(10);

/// Takes a lock that nobody else knows of, finds it closed to another claim, renews it and gives it
/// back. Nothing is left of it.
pub async fn trial<B: Backend + ?Sized>(backend: &B, ttl: Duration) -> Finding {
    let tried = "take a lock of our own, ask for it again, renew it, give it back";
    let check = Check::new("lock", backend.capabilities().engine, tried);
    let clock = backend.clock();
    let start = clock.now();
    match take_and_return(backend, ttl).await {
        Ok(fence) => {
            let took = clock.now().since(start);
            check.good(format!("granted with fence {fence}, renewed and released in {took:.1?}"))
        }
        Err(flaw) => check.danger(flaw, "no lock can be relied on here until this is mended"),
    }
}

async fn take_and_return<B: Backend + ?Sized>(backend: &B, ttl: Duration) -> Result<Fence, String> {
    let ttl = fitting(ttl, &backend.capabilities());
    let (first, second) = claims(ttl)?;
    let lived = live_through(backend, &first, &second).await;
    // Whatever happened, nothing is to be left.
    let undone = [backend.abandon(&second).await, backend.abandon(&first).await];
    let fence = lived?;
    undone.into_iter().collect::<Result<Vec<()>, _>>().map_err(|fault| said(&fault))?;
    Ok(fence)
}

async fn live_through<B: Backend + ?Sized>(
    backend: &B,
    first: &Arc<Claim>,
    second: &Arc<Claim>,
) -> Result<Fence, String> {
    let grant = match backend.try_acquire(first).await.map_err(|fault| said(&fault))? {
        Attempt::Granted(grant) => grant,
        Attempt::Held(_) => return Err("a key that nobody can know is held by another".into()),
    };
    let lease = Arc::new(Lease::new(first.clone(), grant, backend.clock()));
    if let Attempt::Granted(_) = backend.try_acquire(second).await.map_err(|fault| said(&fault))? {
        return Err("it was granted to two claims at a time".into());
    }
    renew(backend, &lease).await?;
    match backend.release(&lease, Then::Free).await.map_err(|fault| said(&fault))? {
        Release::Freed => Ok(lease.fence()),
        other => Err(format!("it could not be given back: {other:?}")),
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
        Some(Renewal::Unknown(fault)) => Err(format!("it could not be renewed: {}", said(&fault))),
        None => Err("it could not be renewed: no answer".into()),
    }
}

/// The shortest time that is a ttl here and at least `ttl`, if that is not too long.
fn fitting(ttl: Duration, can: &Capabilities) -> Duration {
    let unit = can.ttl_unit.max(Duration::from_millis(1));
    let units = ttl.min(TRIAL_TTL_MAX).max(can.ttl_min).as_nanos().div_ceil(unit.as_nanos());
    unit * u32::try_from(units).unwrap_or(u32::MAX)
}

/// Two on the same key.
fn claims(ttl: Duration) -> Result<(Arc<Claim>, Arc<Claim>), String> {
    let token = || Token::random().map_err(|error| format!("no random numbers: {error}"));
    let name = format!("tenure-doctor:{}", &token()?.digits()[..16]);
    let key = Key::new(&name).map_err(|error| error.to_string())?;
    let claim = |token| Arc::new(Claim::new(key.clone(), token, Terms::new(ttl)));
    Ok((claim(token()?), claim(token()?)))
}

/// A fault with its causes, in one line.
fn said(fault: &Fault) -> String {
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
    use crate::memory::Memory;

    fn check() -> Check {
        Check::new("latency", "h:1", "PING")
    }

    /// The worst finding is what counts; what could not be found out is no fault.
    #[test]
    fn verdicts_in_order() {
        let (good, unknown) = (check().good("x"), check().unknown("x"));
        let (warning, danger) = (check().warning("x", "y"), check().danger("x", "y"));
        assert_eq!(Verdict::worst(&[]), Verdict::Good);
        assert_eq!(Verdict::worst(&[unknown.clone(), good.clone()]), Verdict::Unknown);
        assert_eq!(Verdict::worst(&[warning.clone(), unknown, good]), Verdict::Warning);
        assert_eq!(Verdict::worst(&[danger, warning]), Verdict::Unsafe);
    }

    /// A round trip is judged by the ttl that it has to fit into.
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

    /// A ttl on trial is one that the engine takes.
    #[test]
    fn ttls_that_fit() {
        let mut can = Capabilities::full("x");
        (can.ttl_unit, can.ttl_min) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(fitting(Duration::from_millis(2_100), &can), Duration::from_secs(3));
        assert_eq!(fitting(Duration::from_millis(1), &can), Duration::from_secs(2));
        assert_eq!(fitting(Duration::from_secs(3_600), &can), TRIAL_TTL_MAX);
    }

    /// A trial leaves nothing behind, and says with which fence it was granted.
    #[tokio::test]
    async fn a_trial() {
        let memory = Memory::space("doctor-trial");
        let found = trial(&memory, Duration::from_secs(30)).await;
        assert_eq!(found.verdict, Verdict::Good, "{found:?}");
        assert!(found.seen.starts_with("granted with fence "), "{found:?}");
        let all = crate::backend::Query::Glob("*".into());
        assert!(memory.inspect(&all).await.unwrap().is_empty());
    }
}
