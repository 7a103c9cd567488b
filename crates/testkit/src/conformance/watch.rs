//! Events of locks for watchers.

use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::{Attempt, Release};
use tenure_core::watch::{Event, EventKind};
use tenure_core::{Claim, ClaimOptions, Holder, Key, Locker, Process, Token, Watch};

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
    holder.as_ref().and_then(|holder| holder.process.as_ref()) == Some(Process::this_process())
}

/// Checks that no event comes, for longer than a short ttl.
async fn nothing_is_reported(f: &impl Fixture, watch: &mut Watch) {
    let quiet = tokio::time::timeout(f.short_ttl() * 2, watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

/// A lock that is acquired and released causes events with its holder; a key that does not match causes none.
pub async fn acquired_and_released<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let already = hold(&a, &f.key("already")).await;
    let mut watch = watch(f, &b).await;
    assert_eq!(watch.held(), 1);
    let other = hold(&a, "elsewhere").await;
    let guard = a.lock(&key).label("trace-7").await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!((event.key.as_str(), &event.what), (key.as_str(), &EventKind::Acquired));
    assert!(is_ours(&event.holder) && event.from.is_none());
    assert_eq!(event.holder.unwrap().label.as_deref(), Some("trace-7"));
    assert!(event.waiters.is_none_or(|waiters| waiters == 0));
    guard.release().await.unwrap();
    let event = next(&mut watch).await;
    assert_eq!((event.key.as_str(), &event.what), (key.as_str(), &EventKind::Released));
    assert!(is_ours(&event.holder));
    assert_eq!(event.holder.unwrap().lease_left, None, "nothing is left of it");
    already.release().await.unwrap();
    assert_eq!(next(&mut watch).await.key.as_str(), f.key("already"));
    other.release().await.unwrap();
}

/// A hand-over to the next waiter is one event, with both holders.
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
        EventKind::HandedOver => assert_eq!(labels(&event), [first, second]),
        // Where waiters poll, the lock may be seen free in between.
        EventKind::Released if !f.capabilities().await.fifo => {
            assert_eq!(labels(&event), [None, first]);
            let event = next(&mut watch).await;
            assert_eq!((&event.what, labels(&event)), (&EventKind::Acquired, [None, second]));
        }
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Released);
}

/// A lease without renewal is reported as lost when it expires; a lease that does not expire is not.
pub async fn lost<F: Fixture>(f: &F) {
    let (store, b, key) = (f.backend().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    // If a busy machine delays the watch for a quarter of a second, it cannot distinguish a loss from a
    // release and reports `Ended`. It must see the loss in one of a few tries, and never report anything
    // else.
    for _ in 0..5 {
        let terms = ClaimOptions::new(f.short_ttl()).renewed(false);
        let claim = Claim::new(Key::new(&key).unwrap(), Token::random().unwrap(), terms);
        let granted = store.try_acquire(&Arc::new(claim)).await.unwrap();
        assert!(matches!(granted, Attempt::Granted(_)), "{granted:?}");
        assert_eq!(next(&mut watch).await.what, EventKind::Acquired);
        if !f.capabilities().await.expires {
            return nothing_is_reported(f, &mut watch).await;
        }
        let event = next(&mut watch).await;
        assert!(is_ours(&event.holder), "{event:?}");
        match event.what {
            EventKind::Lost => return,
            EventKind::Ended => {}
            other => panic!("a lease that ran out was reported as {other:?}"),
        }
    }
    panic!("five leases ran out, and none was reported as lost");
}

/// A renewed lock outlives its ttl without an event.
pub async fn renewals_are_no_events<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    let guard = a.lock(&key).ttl(f.short_ttl()).await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Acquired);
    nothing_is_reported(f, &mut watch).await;
    assert!(guard.is_held(), "it was renewed");
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Released);
}

/// A release by force is reported with the operator's name; if the engine does not support it, there is no
/// event.
pub async fn forced<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let _guard = hold(&a, &key).await;
    let mut watch = watch(f, &b).await;
    let token = look(&b, &key).await.unwrap().holders[0].token.unwrap();
    let answer = f.locker().await.force_release(&key, token, "ann: stuck").await;
    if !f.capabilities().await.force_release {
        assert!(answer.unwrap_err().is_unsupported());
        return nothing_is_reported(f, &mut watch).await;
    }
    assert_eq!(answer.unwrap(), Release::Freed);
    let event = next(&mut watch).await;
    assert_eq!(
        (event.what, is_ours(&event.holder)),
        (EventKind::Forced("ann: stuck".into()), true)
    );
}

/// A closed lock is reported as released, and its opening is not an event.
pub async fn closed<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    let guard = a.lock(&key).min_hold(f.short_ttl()).await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Acquired);
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Released);
    nothing_is_reported(f, &mut watch).await;
}

/// Dropping the future of `next` does not lose an event.
pub async fn a_dropped_wait_loses_nothing<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let mut watch = watch(f, &b).await;
    // So long that no renewal can make up for a lost event.
    let guard = a.lock(&key).ttl(Duration::from_secs(600)).await.unwrap();
    let mut seen = None;
    for polls in 1.. {
        seen = after_polls(&mut watch, polls).await;
        if seen.is_some() {
            break;
        }
    }
    assert_eq!(seen, Some(EventKind::Acquired));
    guard.release().await.unwrap();
    assert_eq!(next(&mut watch).await.what, EventKind::Released);
}

/// The event that arrives within this number of polls; the future is dropped after them.
async fn after_polls(watch: &mut Watch, polls: usize) -> Option<EventKind> {
    let mut next = Box::pin(watch.next());
    for _ in 0..polls {
        // Give pending wake-ups time to arrive.
        lapse(Duration::from_millis(2)).await;
        let polled = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
        if let Poll::Ready(event) = polled {
            return Some(event.unwrap().what);
        }
    }
    None
}

/// A26: a shutdown ends the watch, and no new watch can be started afterwards.
pub async fn ends_with_the_locker<F: Fixture>(f: &F) {
    let b = f.locker().await;
    let mut watch = watch(f, &b).await;
    let waits = tokio::spawn(async move { watch.next().await });
    b.shutdown(Duration::ZERO).await;
    assert!(within("the end", waits).await.unwrap().unwrap_err().is_closed());
    assert!(b.watch("*").await.unwrap_err().is_closed());
}
