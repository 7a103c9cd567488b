//! The contract below the engine: the promises of `Backend` itself.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{
    AfterRelease, Attempt, Backend, Grant, LockInfo, Query, Release, Renewal, Validity,
};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Token};

use super::Fixture;
use super::support::{eventually, within};

/// Longer than any wait in this file.
const TTL: Duration = Duration::from_secs(60);

type Store = Arc<dyn Backend>;

fn claim(f: &impl Fixture, name: &str) -> Arc<Claim> {
    let (key, token) = (Key::new(&f.key(name)).unwrap(), Token::random().unwrap());
    let terms = ClaimOptions::new(TTL).retry_interval(Duration::from_millis(10));
    Arc::new(Claim::new(key, token, terms))
}

async fn granted(store: &Store, claim: &Arc<Claim>) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Held(holder) => panic!("held by {holder}"),
    }
}

async fn is_held(store: &Store, claim: &Arc<Claim>) -> bool {
    matches!(store.try_acquire(claim).await.unwrap(), Attempt::Held(_))
}

async fn renewals(store: &Store, leases: &[Arc<Lease>]) -> Vec<Option<Renewal>> {
    crate::intercept::renewals(&**store, leases).await
}

async fn lease(store: &Store, claim: &Arc<Claim>) -> Arc<Lease> {
    let grant = granted(store, claim).await;
    Arc::new(Lease::new(claim.clone(), grant, store.clock()))
}

async fn infos(store: &Store, claim: &Arc<Claim>) -> Vec<LockInfo> {
    store.operator().unwrap().inspect(&Query::Key(claim.key().clone())).await.unwrap()
}

/// A19, t28: a claim that is sent again is granted again, with no lower fence, and needs only one release.
pub async fn granted_twice_is_granted_once<F: Fixture>(f: &F) {
    let (store, one, rival) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let first = granted(&store, &one).await;
    assert!(granted(&store, &one).await.fence >= first.fence);
    assert!(within("a grant", store.acquire(&one)).await.unwrap().fence >= first.fence);
    let lease = Arc::new(Lease::new(one, first, store.clock()));
    assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::Freed);
    granted(&store, &rival).await;
    store.abandon(&rival).await.unwrap();
}

/// A19: a second release returns `NotHeld`, and does not affect a later holder.
pub async fn released_twice_is_not_held<F: Fixture>(f: &F) {
    let (store, rival) = (f.backend().await, claim(f, "k"));
    let lease = lease(&store, &claim(f, "k")).await;
    assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::Freed);
    assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    granted(&store, &rival).await;
    assert_eq!(store.release(&lease, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    assert!(is_held(&store, &claim(f, "k")).await, "the rival's lock is intact");
    store.abandon(&rival).await.unwrap();
}

/// A renewal after the release is `Lost`, and does not restore the lock.
pub async fn renewed_after_release_is_lost<F: Fixture>(f: &F) {
    let (store, rival) = (f.backend().await, claim(f, "k"));
    let lease = lease(&store, &claim(f, "k")).await;
    store.release(&lease, AfterRelease::Free).await.unwrap();
    for _ in 0..2 {
        let answers = renewals(&store, std::slice::from_ref(&lease)).await;
        assert!(matches!(answers[..], [Some(Renewal::Lost(_))]), "{answers:?}");
    }
    assert!(infos(&store, lease.claim()).await.is_empty());
    granted(&store, &rival).await;
    store.abandon(&rival).await.unwrap();
}

/// A14: a renewal never shortens what the server keeps, also if it asks for less: the holder may still rely on
/// the ttl that it was granted.
pub async fn a_renewal_never_shortens<F: Fixture>(f: &F) {
    let (store, long) = (f.backend().await, claim(f, "k"));
    let grant = granted(&store, &long).await;
    let terms = ClaimOptions::new(Duration::from_secs(3));
    let short = Arc::new(Claim::new(long.key().clone(), long.token(), terms));
    let lease = Arc::new(Lease::new(short, grant, store.clock()));
    for _ in 0..2 {
        let answers = renewals(&store, std::slice::from_ref(&lease)).await;
        assert!(matches!(answers[..], [Some(Renewal::Renewed { .. })]), "{answers:?}");
        let left = infos(&store, &long).await[0].holders[0].holder.lease_left;
        assert_eq!(left.is_some(), store.capabilities().expires);
        // All other steps of this test together take less than the rest.
        assert!(left.is_none_or(|left| left > TTL / 2), "{left:?} left of {TTL:?}");
    }
    store.release(&lease, AfterRelease::Free).await.unwrap();
}

/// Each renewal gets its own answer, under the right index, also when some are lost.
pub async fn renewals_are_answered_in_order<F: Fixture>(f: &F) {
    let store = f.backend().await;
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        leases.push(lease(&store, &claim(f, name)).await);
    }
    store.release(&leases[1], AfterRelease::Free).await.unwrap();
    let before = store.clock().now();
    let answers = renewals(&store, &leases).await;
    let [
        Some(Renewal::Renewed { validity, .. }),
        Some(Renewal::Lost(_)),
        Some(Renewal::Renewed { .. }),
    ] = &answers[..]
    else {
        panic!("{answers:?}");
    };
    match (store.capabilities().expires, *validity) {
        (true, Validity::Lease { from, ttl }) => assert!(from >= before && ttl <= TTL),
        (expires, term) => assert!(!expires && term == Validity::Unbounded),
    }
    for lease in [&leases[0], &leases[2]] {
        store.release(lease, AfterRelease::Free).await.unwrap();
    }
}

/// Abandoning is idempotent: a granted claim is freed, and a claim that was never granted has no effect.
pub async fn abandoned_twice_is_abandoned_once<F: Fixture>(f: &F) {
    let (store, one, rival) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    store.abandon(&claim(f, "k")).await.unwrap();
    granted(&store, &one).await;
    store.abandon(&one).await.unwrap();
    granted(&store, &rival).await;
    store.abandon(&one).await.unwrap();
    assert!(is_held(&store, &claim(f, "k")).await, "the rival's lock is intact");
    store.abandon(&rival).await.unwrap();
    assert!(infos(&store, &rival).await.is_empty());
}

/// Abandoning a queued claim removes it from the queue; it is never granted afterwards.
pub async fn an_abandoned_wait_is_over<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    let mut waiting = store.acquire(&two);
    let pending = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
    assert!(pending);
    drop(waiting);
    store.abandon(&two).await.unwrap();
    let nobody = || async {
        infos(&store, &one).await.iter().all(|info| info.waiters.as_ref().is_none_or(Vec::is_empty))
    };
    eventually("the queue to be empty", nobody).await;
    store.release(&held, AfterRelease::Free).await.unwrap();
    assert!(infos(&store, &one).await.is_empty(), "nobody holds and nobody waits");
}

/// A queued claim reports the holder, and is granted when the lock is released.
pub async fn a_wait_sees_and_ends<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    // A client that is dropped may release its locks, so this one must live on.
    let other = f.backend().await;
    let (client, waiter) = (other.clone(), two.clone());
    let waiting = tokio::spawn(async move { client.acquire(&waiter).await });
    eventually("the holder to be seen", || async { two.wait_status().holder.is_some() }).await;
    store.release(&held, AfterRelease::Free).await.unwrap();
    let grant = within("the waiting claim's grant", waiting).await.unwrap().unwrap();
    assert!(tenure_core::fence::SERVER_FENCE_MAX >= grant.fence && grant.fence > 0);
    assert!(is_held(&store, &claim(f, "k")).await);
    other.abandon(&two).await.unwrap();
}

/// A wait that was dropped continues when `acquire` is called again.
pub async fn a_wait_can_be_taken_up_again<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    for _ in 0..3 {
        let mut waiting = store.acquire(&two);
        assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
    }
    store.release(&held, AfterRelease::Free).await.unwrap();
    within("the grant", store.acquire(&two)).await.unwrap();
    store.abandon(&two).await.unwrap();
    assert!(infos(&store, &two).await.is_empty());
}

/// A28: after a release with `Closed` the lock has no holder and cannot be acquired; a second release does
/// not open it.
pub async fn closed_is_closed<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    let closed = AfterRelease::Cooldown(Duration::from_secs(20));
    assert_eq!(store.release(&held, closed).await.unwrap(), Release::Freed);
    assert_eq!(store.release(&held, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    assert!(is_held(&store, &two).await);
    let shown = infos(&store, &one).await;
    assert!(shown[0].holders[0].holder.cooling_down);
}

/// All clients see a grant, and only the claim's token can end it.
pub async fn clients_share_a_store<F: Fixture>(f: &F) {
    let (here, there) = (f.backend().await, f.backend().await);
    let (one, stranger) = (claim(f, "k"), claim(f, "k"));
    let grant = granted(&here, &one).await;
    assert!(is_held(&there, &stranger).await);
    let forged = Arc::new(Lease::new(stranger.clone(), grant, there.clock()));
    assert_eq!(there.release(&forged, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    there.abandon(&stranger).await.unwrap();
    let answers = renewals(&there, &[forged]).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(_))]), "{answers:?}");
    assert!(is_held(&there, &stranger).await, "still the first claim's");
    here.abandon(&one).await.unwrap();
}

/// The validity of a grant counts from a time between request and reply, and is not longer than the ttl.
pub async fn times_are_honest<F: Fixture>(f: &F) {
    let (store, one) = (f.backend().await, claim(f, "k"));
    let before = store.clock().now();
    let grant = granted(&store, &one).await;
    let after = store.clock().now();
    match grant.validity {
        Validity::Lease { from, ttl } => {
            assert!(store.capabilities().expires);
            assert!((before..=after).contains(&from) && ttl <= TTL);
        }
        Validity::Unbounded => assert!(!store.capabilities().expires),
    }
    store.abandon(&one).await.unwrap();
}
