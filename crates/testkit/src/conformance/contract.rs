//! The contract below the engine: what `Backend` itself promises.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{
    Attempt, Backend, Grant, LockInfo, Query, Release, Renewal, Term, Then,
};
use tenure_core::{Claim, Key, Lease, Terms, Token};

use super::Fixture;
use super::support::{eventually, within};

/// Longer than anything is waited for.
const TTL: Duration = Duration::from_secs(60);

type Store = Arc<dyn Backend>;

fn claim(f: &impl Fixture, name: &str) -> Arc<Claim> {
    let (key, token) = (Key::new(&f.key(name)).unwrap(), Token::random().unwrap());
    let terms = Terms::new(TTL).retry_interval(Duration::from_millis(10));
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
    crate::meddle::renewals(&**store, leases).await
}

async fn lease(store: &Store, claim: &Arc<Claim>) -> Arc<Lease> {
    let grant = granted(store, claim).await;
    Arc::new(Lease::new(claim.clone(), grant, store.clock()))
}

async fn infos(store: &Store, claim: &Arc<Claim>) -> Vec<LockInfo> {
    store.inspect(&Query::Key(claim.key().clone())).await.unwrap()
}

/// A19, t28: a claim that is sent again is granted again, with no lower fence, and only once.
pub async fn granted_twice_is_granted_once<F: Fixture>(f: &F) {
    let (store, one, rival) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let first = granted(&store, &one).await;
    assert!(granted(&store, &one).await.fence >= first.fence);
    assert!(within("a grant", store.acquire(&one)).await.unwrap().fence >= first.fence);
    let lease = Arc::new(Lease::new(one, first, store.clock()));
    assert_eq!(store.release(&lease, Then::Free).await.unwrap(), Release::Freed);
    granted(&store, &rival).await;
    store.abandon(&rival).await.unwrap();
}

/// A19: a second release answers `NotHeld`, and touches nobody.
pub async fn released_twice_is_not_held<F: Fixture>(f: &F) {
    let (store, rival) = (f.backend().await, claim(f, "k"));
    let lease = lease(&store, &claim(f, "k")).await;
    assert_eq!(store.release(&lease, Then::Free).await.unwrap(), Release::Freed);
    assert_eq!(store.release(&lease, Then::Free).await.unwrap(), Release::NotHeld);
    granted(&store, &rival).await;
    assert_eq!(store.release(&lease, Then::Free).await.unwrap(), Release::NotHeld);
    assert!(is_held(&store, &claim(f, "k")).await, "the rival's lock is intact");
    store.abandon(&rival).await.unwrap();
}

/// A renewal after the release is `Lost`, and does not bring the lock back.
pub async fn renewed_after_release_is_lost<F: Fixture>(f: &F) {
    let (store, rival) = (f.backend().await, claim(f, "k"));
    let lease = lease(&store, &claim(f, "k")).await;
    store.release(&lease, Then::Free).await.unwrap();
    for _ in 0..2 {
        let answers = renewals(&store, std::slice::from_ref(&lease)).await;
        assert!(matches!(answers[..], [Some(Renewal::Lost(_))]), "{answers:?}");
    }
    assert!(infos(&store, lease.claim()).await.is_empty());
    granted(&store, &rival).await;
    store.abandon(&rival).await.unwrap();
}

/// Renewals are answered one by one and in order, also when some are lost.
pub async fn renewals_are_answered_in_order<F: Fixture>(f: &F) {
    let store = f.backend().await;
    let mut leases = Vec::new();
    for name in ["a", "b", "c"] {
        leases.push(lease(&store, &claim(f, name)).await);
    }
    store.release(&leases[1], Then::Free).await.unwrap();
    let before = store.clock().now();
    let answers = renewals(&store, &leases).await;
    let [
        Some(Renewal::Renewed { term, .. }),
        Some(Renewal::Lost(_)),
        Some(Renewal::Renewed { .. }),
    ] = &answers[..]
    else {
        panic!("{answers:?}");
    };
    match (store.capabilities().expires, *term) {
        (true, Term::Lease { from, ttl }) => assert!(from >= before && ttl <= TTL),
        (expires, term) => assert!(!expires && term == Term::Endless),
    }
    for lease in [&leases[0], &leases[2]] {
        store.release(lease, Then::Free).await.unwrap();
    }
}

/// Abandoning is idempotent: what was granted is freed, what never was is left alone.
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

/// Abandoning a claim that waits takes it out of the queue; it is never granted afterwards.
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
    store.release(&held, Then::Free).await.unwrap();
    assert!(infos(&store, &one).await.is_empty(), "nobody holds and nobody waits");
}

/// A claim that waits sees who is in the way, and is granted when it is free.
pub async fn a_wait_sees_and_ends<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    // A client that goes away may take its locks along, so this one stays.
    let other = f.backend().await;
    let (client, waiter) = (other.clone(), two.clone());
    let waiting = tokio::spawn(async move { client.acquire(&waiter).await });
    eventually("the holder to be seen", || async { two.sight().holder.is_some() }).await;
    store.release(&held, Then::Free).await.unwrap();
    let grant = within("the waiting claim's grant", waiting).await.unwrap().unwrap();
    assert!(tenure_core::fence::SERVER_FENCE_MAX >= grant.fence && grant.fence > 0);
    assert!(is_held(&store, &claim(f, "k")).await);
    other.abandon(&two).await.unwrap();
}

/// A wait that was dropped goes on when it is called again.
pub async fn a_wait_can_be_taken_up_again<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    for _ in 0..3 {
        let mut waiting = store.acquire(&two);
        assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
    }
    store.release(&held, Then::Free).await.unwrap();
    within("the grant", store.acquire(&two)).await.unwrap();
    store.abandon(&two).await.unwrap();
    assert!(infos(&store, &two).await.is_empty());
}

/// A28: a lock released as closed is nobody's and nobody can have it; a second release does not open it.
pub async fn closed_is_closed<F: Fixture>(f: &F) {
    let (store, one, two) = (f.backend().await, claim(f, "k"), claim(f, "k"));
    let held = lease(&store, &one).await;
    let closed = Then::Closed(Duration::from_secs(20));
    assert_eq!(store.release(&held, closed).await.unwrap(), Release::Freed);
    assert_eq!(store.release(&held, Then::Free).await.unwrap(), Release::NotHeld);
    assert!(is_held(&store, &two).await);
    let shown = infos(&store, &one).await;
    assert!(shown[0].holders[0].holder.closing);
}

/// What one client grants, every client sees, and none but the claim's token ends it.
pub async fn clients_share_a_store<F: Fixture>(f: &F) {
    let (here, there) = (f.backend().await, f.backend().await);
    let (one, stranger) = (claim(f, "k"), claim(f, "k"));
    let grant = granted(&here, &one).await;
    assert!(is_held(&there, &stranger).await);
    let forged = Arc::new(Lease::new(stranger.clone(), grant, there.clock()));
    assert_eq!(there.release(&forged, Then::Free).await.unwrap(), Release::NotHeld);
    there.abandon(&stranger).await.unwrap();
    let answers = renewals(&there, &[forged]).await;
    assert!(matches!(answers[..], [Some(Renewal::Lost(_))]), "{answers:?}");
    assert!(is_held(&there, &stranger).await, "still the first claim's");
    here.abandon(&one).await.unwrap();
}

/// A grant's time counts from before it was asked for.
pub async fn times_are_honest<F: Fixture>(f: &F) {
    let (store, one) = (f.backend().await, claim(f, "k"));
    let before = store.clock().now();
    let grant = granted(&store, &one).await;
    let after = store.clock().now();
    match grant.term {
        Term::Lease { from, ttl } => {
            assert!(store.capabilities().expires);
            assert!((before..=after).contains(&from) && ttl <= TTL);
        }
        Term::Endless => assert!(!store.capabilities().expires),
    }
    store.abandon(&one).await.unwrap();
}
