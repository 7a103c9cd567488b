//! Tests of `compare.rs`. The watch itself is tested on every engine by the conformance suite.

use super::*;
use crate::report::Holding;

const TTL: Duration = Duration::from_secs(30);

fn key() -> Key {
    Key::new("k").unwrap()
}

fn secs(n: u64) -> Time {
    Time::from_nanos(0).after(Duration::from_secs(n))
}

fn token(n: u128) -> Token {
    Token::parse(&format!("{n:032x}")).unwrap()
}

/// The state of the lock at `looked`, held by `n` with `left` of its lease.
fn held(n: u128, looked: Time, left: Option<Duration>, before: Option<&Seen>) -> Seen {
    let mut holder = Holder::unknown();
    (holder.lease_left, holder.label) = (left, Some(n.to_string()));
    let holding = Holding::new(holder, None, Some(token(n)));
    Seen::new(LockInfo::new(key(), vec![holding], Some(vec![])), looked, before)
}

fn span(from: Time, to: Time) -> Span {
    Span { from, to, forgot: false }
}

fn events(before: Option<&Seen>, after: Option<&Seen>, span: Span) -> Vec<Event> {
    Change { before, after, span, at: UnixMillis(0) }.events(&key(), |_| None)
}

fn whats(before: Option<&Seen>, after: Option<&Seen>, span: Span) -> Vec<&'static str> {
    events(before, after, span).iter().map(|event| event.what.as_str()).collect()
}

/// A lock that is gone was released if before the end of its lease, lost if after, and ended if either is
/// possible.
#[test]
fn ends_are_judged_by_the_lease() {
    let seen = held(1, secs(0), Some(TTL), None);
    let cases = [
        (secs(10), secs(10), "released"),
        (secs(0), secs(29), "released"),
        (secs(30), secs(30), "lost"),
        (secs(30), secs(60), "lost"),
        // Last seen after half of the lease, and then not inspected for a moment.
        (secs(30).before(BLINK_ISH), secs(30), "lost"),
        (secs(25), secs(31), "ended"),
        (secs(0), secs(31), "ended"),
    ];
    for (from, to, what) in cases {
        assert_eq!(whats(Some(&seen), None, span(from, to)), [what], "{from:?} {to:?}");
    }
    let forgot = Span { forgot: true, ..span(secs(1), secs(1)) };
    assert_eq!(whats(Some(&seen), None, forgot), ["ended"]);
}

const BLINK_ISH: Duration = Duration::from_millis(100);

/// A lease so short that it may have been renewed between two inspections is not reported as lost.
#[test]
fn short_leases_are_not_called_lost() {
    let millis = |n| secs(1).after(Duration::from_millis(n));
    let seen = held(1, millis(0), Some(Duration::from_millis(90)), None);
    assert_eq!(whats(Some(&seen), None, span(millis(0), millis(100))), ["ended"]);
}

/// A lease that does not expire is always reported as released.
#[test]
fn unbounded_leases_are_released() {
    let seen = held(1, secs(0), None, None);
    assert_eq!(whats(Some(&seen), None, span(secs(0), secs(1_000))), ["released"]);
}

/// A new claim is a hand-over, unless the former holder had lost the lock.
#[test]
fn hands() {
    let (one, two) = (held(1, secs(0), Some(TTL), None), held(2, secs(9), Some(TTL), None));
    assert_eq!(whats(None, Some(&one), span(secs(1), secs(1))), ["acquired"]);
    let events = events(Some(&one), Some(&two), span(secs(9), secs(9)));
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].what, EventKind::HandedOver);
    let label = |holder: &Option<Holder>| holder.as_ref().unwrap().label.clone().unwrap();
    assert_eq!((label(&events[0].holder), label(&events[0].from)), ("2".into(), "1".into()));
    assert_eq!(whats(Some(&one), Some(&two), span(secs(30), secs(30))), ["lost", "acquired"]);
    assert_eq!(whats(Some(&one), Some(&two), span(secs(0), secs(40))), ["ended", "acquired"]);
    let forced = Change {
        before: Some(&one),
        after: Some(&two),
        span: span(secs(9), secs(9)),
        at: UnixMillis(0),
    }
    .events(&key(), |_| Some(EventKind::Forced("ann".into())));
    let whats: Vec<_> = forced.into_iter().map(|event| event.what).collect();
    assert_eq!(whats, [EventKind::Forced("ann".into()), EventKind::Acquired]);
}

/// A renewal is not an event, but moves the end of the lease.
#[test]
fn renewals_are_silent() {
    let first = held(1, secs(0), Some(TTL), None);
    let renewed = held(1, secs(10), Some(TTL), Some(&first));
    assert!(whats(Some(&first), Some(&renewed), span(secs(10), secs(10))).is_empty());
    assert_eq!(whats(Some(&renewed), None, span(secs(35), secs(35))), ["released"]);
    // Seen again without a renewal: half of the lease still counts from its last renewal.
    let again = held(1, secs(26), Some(Duration::from_secs(14)), Some(&renewed));
    let moment = span(secs(40).before(BLINK_ISH), secs(40));
    assert_eq!(whats(Some(&again), None, moment), ["lost"]);
}

/// A lock that is only kept closed has no holder.
#[test]
fn closing_is_a_release() {
    let one = held(1, secs(0), Some(TTL), None);
    let mut holder = Holder::unknown();
    (holder.cooling_down, holder.lease_left) = (true, Some(TTL));
    let info = LockInfo::new(key(), vec![Holding::new(holder, None, None)], None);
    let closed = Seen::new(info, secs(5), Some(&one));
    assert_eq!(whats(Some(&one), Some(&closed), span(secs(5), secs(5))), ["released"]);
    assert!(whats(Some(&closed), None, span(secs(40), secs(40))).is_empty());
}

/// If claims of a shared lock end together, it is not known which one was lost.
#[test]
fn shares_that_end_are_not_judged() {
    let holding = |n, left| {
        let mut holder = Holder::unknown();
        holder.lease_left = Some(left);
        Holding::new(holder, None, Some(token(n)))
    };
    let lock = |holdings| Seen::new(LockInfo::new(key(), holdings, None), secs(0), None);
    let one = lock(vec![holding(1, TTL)]);
    let both = lock(vec![holding(1, TTL), holding(2, TTL)]);
    assert_eq!(whats(Some(&both), Some(&one), span(secs(1), secs(1))), ["ended"]);
    let apart = lock(vec![holding(1, TTL), holding(2, TTL * 2)]);
    assert_eq!(whats(Some(&apart), Some(&one), span(secs(1), secs(1))), ["released"]);
}
