//! Elections on an engine that lacks something, or shows the past.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::backend::{
    Answers, Backend, BoxFuture, Capabilities, Fault, FaultKind, Grant, Hints, Holding, LockInfo,
    Operator, Query, Renewal, Validity,
};
use tenure_core::{Claim, Error, Fence, Holder, Key, Lease, Locker, Memory, Token};
use tenure_testkit::intercept::Interceptor;
use tenure_testkit::wait::within;

use crate::support::{meddled, still};

/// An engine that cannot change a label.
struct Rigid;

impl Interceptor for Rigid {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut can = inner.capabilities();
        can.relabels = false;
        can
    }
}

/// B5: an engine that cannot change a label refuses a new value by name, and the first one stands.
#[tokio::test]
async fn b5_an_engine_refuses_a_new_value() {
    let (_clock, memory) = still();
    let election = meddled(&memory, &Arc::new(Rigid)).election("k");
    let leader = election.campaign("one").await.unwrap();
    let error = leader.proclaim("two").await.unwrap_err();
    assert!(error.is_unsupported());
    assert_eq!(
        error.to_string(),
        "lock `k`: not supported by this engine: `memory:` cannot change the value that a leader has proclaimed"
    );
    assert!(leader.is_held());
    leader.renew().await.unwrap();
    assert_eq!(election.leader().await.unwrap().unwrap().value, "one");
}

/// An engine that shows these terms, one after the other; zero for nobody. The last one stays.
struct Shows(Mutex<VecDeque<u64>>);

impl Interceptor for Shows {
    fn inspect<'a>(
        &'a self,
        _inner: &'a dyn Operator,
        _query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        let mut terms = self.0.lock().unwrap();
        let now = if terms.len() > 1 { terms.pop_front() } else { terms.front().copied() };
        let holding = Holding::new(Holder::unknown(), now.map(Fence::from_server), None);
        let info = LockInfo::new(Key::new("k").unwrap(), vec![holding], None);
        Box::pin(async move { Ok(if now == Some(0) { vec![] } else { vec![info] }) })
    }

    fn change_hints<'a>(
        &'a self,
        _inner: &'a dyn Operator,
        _query: &'a Query,
    ) -> BoxFuture<'a, Result<Option<Hints>, Fault>> {
        Box::pin(async { Ok(None) })
    }
}

/// t111: a leader with an older term than the last one, as a failover may show it, is nobody to an observer. A newer
/// one is seen, and so is the last one if it comes back.
#[tokio::test]
async fn t111_an_older_term_is_nobody() {
    let memory = Memory::space("older-terms");
    let shows = Shows(Mutex::new([8, 8, 7, 6, 8, 0, 8, 9].into()));
    let election = meddled(&memory, &Arc::new(shows)).election("k");
    let mut observer = election.observe().await.unwrap();
    let mut seen = Vec::new();
    while seen.last() != Some(&Some(9)) {
        let now = within("a change", observer.next()).await.unwrap();
        seen.push(now.map(|now| now.term.unwrap().server()));
    }
    assert_eq!(seen, [Some(8), None, Some(8), None, Some(8), Some(9)]);
}

/// Counts inspections.
#[derive(Default)]
struct Inspections(AtomicU32);

impl Interceptor for Inspections {
    fn inspect<'a>(
        &'a self,
        inner: &'a dyn Operator,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        self.0.fetch_add(1, Ordering::AcqRel);
        inner.inspect(query)
    }
}

/// B5: an observer on `memory:` inspects its key when that changes, and not otherwise.
#[tokio::test]
async fn b5_an_observer_is_notified_of_its_key() {
    let (memory, inspections) = (Memory::space("observed"), Arc::new(Inspections::default()));
    let made = || inspections.0.load(Ordering::Acquire);
    let (ours, theirs) = (Locker::new(memory.clone()), meddled(&memory, &inspections));
    let mut observe = theirs.election("k").observe().await.unwrap();
    assert_eq!(within("the first answer", observe.next()).await.unwrap(), None);
    let before = made();
    ours.lock("other").await.unwrap().release().await.unwrap();
    let quiet = tokio::time::timeout(Duration::from_millis(500), observe.next()).await;
    assert!(quiet.is_err() && made() == before, "{quiet:?} after {} looks", made() - before);
    let leader = ours.election("k").campaign("me").await.unwrap();
    let seen = within("the leader", observe.next()).await.unwrap();
    assert_eq!((seen.and_then(|seen| seen.term), made()), (Some(leader.term()), before + 1));
}

/// The first grant has less than half its ttl left, and no answer to a renewal that would confirm it arrives.
#[derive(Default)]
struct Unconfirmed(OnceLock<Token>);

impl Interceptor for Unconfirmed {
    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(async move {
            let mut grant = inner.acquire(claim).await?;
            if let (Ok(()), Validity::Lease { from, ttl }) =
                (self.0.set(claim.token()), grant.validity)
            {
                grant.validity = Validity::Lease { from: from.before(ttl * 6 / 10), ttl };
            }
            Ok(grant)
        })
    }

    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        if leases.iter().all(|lease| self.0.get() != Some(&lease.claim().token())) {
            return inner.renew(leases, answers);
        }
        let fault = Fault::new(FaultKind::Unknown, "the reply was lost");
        (0..leases.len()).for_each(|at| answers(at, Renewal::Unknown(fault.clone())));
        Box::pin(async {})
    }
}

/// B5: `lead` goes on after a campaign with an unknown result.
#[tokio::test]
async fn b5_an_unknown_answer_does_not_end_lead() {
    let (memory, unconfirmed) = (Memory::space("unconfirmed"), Arc::new(Unconfirmed::default()));
    let election = meddled(&memory, &unconfirmed).election("k");
    let campaign = election.campaign("me").retry_interval(Duration::from_millis(20));
    let led = campaign.lead(async |leading| Ok::<_, Error>(leading.is_held()));
    assert!(within("a leadership", led).await.unwrap().unwrap());
}
