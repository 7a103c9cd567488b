//! What happens to locks is told to whoever watches.

use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{Attempt, Release};
use tenure_core::watch::{Event, What};
use tenure_core::{Claim, Client, Holder, Key, Locker, Terms, Token, Watch};

use super::Fixture;
use super::support::{hold, look, start, waiters_are, within};
use crate::wait::lapse;

async fn watch(f: &impl Fixture, locker: &Locker) -> Watch {
    locker.watch(&format!("{}:*", f.namespace())).await.unwrap()
}

async fn next(watch: &mut Watch) -> Event {
    within("an event", watch.next()).await.unwrap()
}

fn is_ours(holder: &Option<Holder>) -> bool {
    holder.as_ref().and_then(|holder| holder.client.as_ref()) == Some(Client::this_process())
}

/// For longer than a short ttl.
async fn nothing_is_told(f: &impl Fixture, watch: &mut Watch) {
    let quiet = tokio::time::timeout(f.short_ttl() * 2, watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

/// A lock that is taken and given back is told, with its holder; one that does not match is not.
pub async fn acquired_and_released<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let already = hold(&a, &f.key("already")).await;
    let mut watch = watch(f, &b).await;
    assert_eq!(watch.held(), 1);
    let other = hold(&a, "elsewhere").await;
    let guard = a.lock(&key).label("trace-7").await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!((event.key.as_str(), &event.what), (key.as_str(), &What::Acquired));
    assert!(is_ours(&event.holder) && event.from.is_none());
    assert_eq!(event.holder.unwrap().label.as_deref(), Some("trace-7"));
    assert!(event.waiters.is_none_or(|waiters| waiters == 0));
    guard.release().await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!((event.key.as_str(), &event.what), (key.as_str(), &What::Released));
    assert!(is_ours(&event.holder));
    assert_eq!(event.holder.unwrap().lease_left, None, "nothing is left of it");
    already.release().await.unwrap();
    assert_eq!(next(&mut watch).await.key.as_str(), f.key("already"));
    other.release().await.unwrap();
}

/// A lock that goes to the next who waits is told once, with both.
pub async fn handed_over<F: Fixture>(f: &F) {
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let guard = a.lock(&key).label("first").await.unwrap();
    let next_one = start(b.lock(&key).label("second").into_future()).await;
    let waiter = tokio::spawn(next_one);
    waiters_are(&c, &key, 1).await;
    let mut watch = watch(f, &c).await;
    guard.release().await.unwrap();
    let guard = within("the turn", waiter).await.unwrap().unwrap();
    let labels = |event: &Event| {
        [&event.from, &event.holder].map(|holder| holder.as_ref().and_then(|h| h.label.clone()))
    };
    let event = next(&mut watch).await;
    let (first, second) = (Some("first".to_string()), Some("second".to_string()));
    match event.what {
        What::HandedOver => assert_eq!(labels(&event), [first, second]),
        // Where waiters ask again and again, it may be seen free in between.
        What::Released if !f.capabilities().await.fifo => {
            assert_eq!(labels(&event), [None, first]);
            let event = next(&mut watch).await;
            assert_eq!((&event.what, labels(&event)), (&What::Acquired, [None, second]));
        }
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Released);
}

/// A lease that nobody renews is told as lost when it ends; one that has no end does not.
pub async fn lost<F: Fixture>(f: &F) {
    let (store, b, key) = (f.backend().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    let terms = Terms::new(f.short_ttl()).renewed(false);
    let claim = Claim::new(Key::new(&key).unwrap(), Token::random().unwrap(), terms);
    let granted = store.try_acquire(&Arc::new(claim)).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
    assert_eq!(next(&mut watch).await.what, What::Acquired);
    if !f.capabilities().await.expires {
        return nothing_is_told(f, &mut watch).await;
    }
    let event = next(&mut watch).await;
    assert_eq!((event.what, is_ours(&event.holder)), (What::Lost, true));
}

/// A renewed lock outlives its ttl without an event.
pub async fn renewals_are_no_events<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    let guard = a.lock(&key).ttl(f.short_ttl()).await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Acquired);
    nothing_is_told(f, &mut watch).await;
    assert!(guard.is_held(), "it was renewed");
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Released);
}

/// A lock that an operator takes away is told with who did so; where that cannot be done, nothing is.
pub async fn forced<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let mut watch = watch(f, &b).await;
    let token = look(&b, &key).await.unwrap().holders[0].token.unwrap();
    let answer = f.locker().await.force_release(&key, token, "ann: stuck").await;
    if !f.capabilities().await.forcible {
        assert!(answer.unwrap_err().is_unsupported());
        return nothing_is_told(f, &mut watch).await;
    }
    assert_eq!(answer.unwrap(), Release::Freed);
    let event = next(&mut watch).await;
    assert_eq!((event.what, is_ours(&event.holder)), (What::Forced("ann: stuck".into()), true));
}

/// What is kept closed has been released, and its opening is no event.
pub async fn closed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    let guard = a.lock(&key).at_least(f.short_ttl()).await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Acquired);
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Released);
    nothing_is_told(f, &mut watch).await;
}

/// Dropping a wait for the next event loses none.
pub async fn a_dropped_wait_loses_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    // So long that no renewal makes up for what was lost.
    let guard = a.lock(&key).ttl(Duration::from_secs(600)).await.unwrap();
    let mut seen = None;
    for polls in 1.. {
        seen = after_polls(&mut watch, polls).await;
        if seen.is_some() {
            break;
        }
    }
    assert_eq!(seen, Some(What::Acquired));
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, What::Released);
}

/// What is told within so many polls; the wait is dropped after them.
async fn after_polls(watch: &mut Watch, polls: usize) -> Option<What> {
    let mut next = Box::pin(watch.next());
    for _ in 0..polls {
        // Whatever wakes it has time to arrive.
        lapse(Duration::from_millis(2)).await;
        let polled = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
        if let Poll::Ready(event) = polled {
            return Some(event.unwrap().what);
        }
    }
    None
}

/// A26: a shutdown ends the watch, and there is none afterwards.
pub async fn ends_with_the_locker<F: Fixture>(f: &F) {
    let b = f.locker().await;
    let mut watch = watch(f, &b).await;
    let waits = tokio::spawn(async move { watch.next().await });
    b.shutdown(Duration::ZERO).await;
    assert!(within("the end", waits).await.unwrap().unwrap_err().is_closed());
    assert!(b.watch("*").await.unwrap_err().is_closed());
}
