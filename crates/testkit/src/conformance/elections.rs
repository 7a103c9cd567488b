//! Elections: one leads, everybody sees who, and a value belongs to the term that it was proclaimed in.

use std::convert::Infallible;
use std::future::{IntoFuture, pending};
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::{
    Election, Fence, Leader, Leadership, Leading, Locker, Observer, Owner, Released, RunError,
    VALUE_MAX, blocking,
};

use super::Fixture;
use super::multi::Polls;
use super::support::{
    becomes_free, can_be_had, eventually, hold, is_lost, look, passes, refused, start, waiters_are,
    within,
};

/// The election `leader` of a test, on a process of its own.
async fn election<F: Fixture>(f: &F) -> (Locker, Election, String) {
    let (locker, key) = (f.locker().await, f.key("leader"));
    let election = locker.election(&key);
    (locker, election, key)
}

/// Leads with `value`, if nobody else does.
async fn lead(election: &Election, value: &str) -> Leader {
    let campaign = election.campaign(value).into_future();
    within("a leadership", campaign).await.expect("a free election is won")
}

/// The value and the term.
fn pair(seen: &Leadership) -> (&str, Fence) {
    (&seen.value, seen.term.expect("the engine shows the term"))
}

/// Observes until the value and the term are these. Nobody may be seen before, and no older term after.
async fn sees(observe: &mut Observer, value: &str, term: Fence) {
    let seen = async {
        loop {
            let now = observe.next().await.expect("the engine answers");
            let known = now.as_ref().and_then(|now| now.term).is_none_or(|seen| seen <= term);
            assert!(known, "{now:?} after the term {term}");
            if now.as_ref().is_some_and(|now| pair(now) == (value, term)) {
                return;
            }
        }
    };
    within("the leader to be seen", seen).await;
}

/// Observes until nobody leads.
async fn sees_nobody(observe: &mut Observer) {
    let seen = async { while observe.next().await.expect("the engine answers").is_some() {} };
    within("nobody to be seen", seen).await;
}

/// B5, G8: one leads, with a value and a term; everybody sees both, also those who only ask. After it resigns, nobody
/// leads.
pub async fn b5_one_leads_and_all_see_it<F: Fixture>(f: &F) {
    let ((_a, ours, _), (_b, theirs, _)) = (election(f).await, election(f).await);
    let mut observe = theirs.observe().await.unwrap();
    assert_eq!(within("the first answer", observe.next()).await.unwrap(), None);
    assert_eq!(theirs.leader().await.unwrap(), None);
    let leader = lead(&ours, "10.0.0.7:80 a:b%3A\nü").await;
    assert!(leader.is_held() && leader.leading().is_held());
    sees(&mut observe, "10.0.0.7:80 a:b%3A\nü", leader.term()).await;
    let seen = theirs.leader().await.unwrap().expect("somebody leads");
    assert_eq!(pair(&seen), ("10.0.0.7:80 a:b%3A\nü", leader.term()));
    assert_eq!(seen.process.as_ref(), Some(tenure_core::Process::this_process()));
    assert!(seen.since.is_some());
    leader.resign().await.unwrap();
    assert_eq!(within("the end", observe.next()).await.unwrap(), None);
    assert_eq!(theirs.leader().await.unwrap(), None);
}

/// B5: the candidate that waits leads after the one that resigns, with a higher term; an observer never sees the first
/// one again.
pub async fn b5_terms_rise<F: Fixture>(f: &F) {
    let ((a, ours, key), (_b, theirs, _)) = (election(f).await, election(f).await);
    let first = lead(&ours, "first").await;
    let mut observe = ours.observe().await.unwrap();
    sees(&mut observe, "first", first.term()).await;
    let mut waits = start(theirs.campaign("second")).await;
    waits.until(waiters_are(&a, &key, 1)).await;
    let term = first.term();
    first.resign().await.unwrap();
    let second = within("the second leader", waits).await.unwrap();
    assert!(second.term() > term);
    sees(&mut observe, "second", second.term()).await;
    second.resign().await.unwrap();
    sees_nobody(&mut observe).await;
}

/// B5: a leadership is never handed to another candidate in memory, nor to or from a plain lock: the engine shows the
/// value of the one that leads, and a term of its own.
pub async fn b5_each_leader_shows_its_own_value<F: Fixture>(f: &F) {
    let ((a, ours, key), (_b, theirs, _)) = (election(f).await, election(f).await);
    let first = lead(&ours, "first").await;
    let second = tokio::spawn(start(ours.campaign("second")).await);
    let (term, held) = (first.term(), first.held());
    first.resign().await.unwrap();
    let second = within("the second of the process", second).await.unwrap().unwrap();
    assert!(second.term().server() > term.server(), "a grant of its own");
    assert!(!held.is_held());
    assert_eq!(pair(&theirs.leader().await.unwrap().unwrap()), ("second", second.term()));
    let plain = tokio::spawn(start(a.lock(&key)).await);
    let term = second.term();
    second.resign().await.unwrap();
    let plain = within("a plain lock", plain).await.unwrap().unwrap();
    assert!(plain.fence().server() > term.server());
    let third = tokio::spawn(start(ours.campaign("third")).await);
    plain.release().await.unwrap();
    let third = within("the third of the process", third).await.unwrap().unwrap();
    assert_eq!(pair(&theirs.leader().await.unwrap().unwrap()), ("third", third.term()));
}

/// B5: a proclaimed value is seen under the same term, survives renewals, and does not end the leadership.
pub async fn b5_a_new_value_keeps_the_term<F: Fixture>(f: &F) {
    let ((a, ours, _), (_b, theirs, _)) = (election(f).await, election(f).await);
    let campaign = ours.campaign("one").ttl(f.short_ttl()).reason("tests").into_future();
    let leader = within("a leadership", campaign).await.unwrap();
    let mut observe = theirs.observe().await.unwrap();
    sees(&mut observe, "one", leader.term()).await;
    for value in ["two: %", "", "three"] {
        within("the proclamation", leader.proclaim(value)).await.unwrap();
        let seen = theirs.leader().await.unwrap().expect("it still leads");
        assert_eq!(pair(&seen), (value, leader.term()));
        sees(&mut observe, value, leader.term()).await;
    }
    passes(&a, f.short_ttl()).await;
    assert!(leader.is_held(), "it is renewed");
    let key = leader.key().as_str().to_owned();
    let shown = look(&a, &key).await.unwrap().holders.remove(0).holder;
    assert_eq!((shown.label.as_deref(), shown.reason.as_deref()), (Some("three"), Some("tests")));
    leader.resign().await.unwrap();
    sees_nobody(&mut observe).await;
}

/// B5: a value that is too long is refused with its size, before anything is sent; the longest one is shown in full.
pub async fn b5_values_have_a_limit<F: Fixture>(f: &F) {
    let (a, ours, key) = election(f).await;
    let (longest, long) = ("ü".repeat(VALUE_MAX), "ü".repeat(VALUE_MAX + 1));
    let message =
        format!("the value of the leader of `{key}` has 201 characters, and may have at most 200");
    let error = refused(ours.campaign(&*long)).await;
    assert!(error.is_invalid() && error.to_string() == message, "{error}");
    let leader = lead(&ours, "short").await;
    let error = leader.proclaim(&*long).await.unwrap_err();
    assert!(error.is_invalid() && error.to_string() == message, "{error}");
    assert_eq!(ours.leader().await.unwrap().unwrap().value, "short");
    leader.proclaim(&*longest).await.unwrap();
    assert_eq!(ours.leader().await.unwrap().unwrap().value, longest);
    leader.resign().await.unwrap();
    let error = a.election("").campaign("x").await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(a.election("").observe().await.unwrap_err().is_invalid());
}

/// B5, t97: a leader that was lost proclaims nothing: the value of the next leader stands.
pub async fn t97_proclaim_after_a_loss<F: Fixture>(f: &F) {
    let ((_a, ours, _), (_b, theirs, _)) = (election(f).await, election(f).await);
    let campaign = ours.campaign("old").max_hold(Duration::from_millis(50)).into_future();
    let old = within("a leadership", campaign).await.unwrap();
    let new = lead(&theirs, "new").await;
    let error = old.proclaim("late").await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    let error = old.leading().proclaim("later").await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    assert_eq!(pair(&ours.leader().await.unwrap().unwrap()), ("new", new.term()));
    assert!(new.is_held() && new.term() > old.term());
    assert!(old.resign().await.unwrap_err().is_lost());
    assert_eq!(pair(&ours.leader().await.unwrap().unwrap()), ("new", new.term()));
}

/// B5: `run` leads while its body runs, and resigns.
pub async fn b5_run_leads_for_the_body<F: Fixture>(f: &F) {
    let ((_a, ours, _), (b, theirs, key)) = (election(f).await, election(f).await);
    let led = ours.campaign("one").run(async |leading: Leading| {
        leading.proclaim("two").await.unwrap();
        let seen = theirs.leader().await.unwrap().unwrap();
        assert_eq!(pair(&seen), ("two", leading.term()));
        Ok::<_, Infallible>(leading)
    });
    let leading = within("the body", led).await.unwrap().unwrap();
    assert!(!leading.is_held());
    assert!(leading.proclaim("late").await.unwrap_err().is_lost(), "it has resigned");
    assert!(can_be_had(&b, &key).await);
    assert_eq!(theirs.leader().await.unwrap(), None);
}

/// B5: `lead` campaigns again after each loss, with rising terms, and ends with its body. The lost body was dropped
/// before the next one began.
pub async fn b5_lead_campaigns_again<F: Fixture>(f: &F) {
    let (_a, ours, _) = election(f).await;
    let (mut terms, short) = (Vec::new(), Duration::from_millis(50));
    let led = ours.campaign("me").max_hold(short).lead(|leading| {
        terms.push(leading.term());
        let last = terms.len() == 3;
        async move {
            match last {
                true => Ok::<_, Infallible>("done"),
                false => pending().await,
            }
        }
    });
    assert_eq!(within("the third term", led).await.unwrap().unwrap(), "done");
    assert!(terms.is_sorted_by(|one, next| one < next), "{terms:?}");
    let failed = ours.campaign("me").lead(|_| async { Err::<(), _>("failed") });
    assert_eq!(within("a body that fails", failed).await.unwrap().unwrap_err(), "failed");
    assert_eq!(ours.leader().await.unwrap(), None);
}

/// B5: the limits of a campaign: a limit on waiting, a signal, and a signal for `lead`, which does not end a
/// leadership.
pub async fn b5_a_campaign_has_limits<F: Fixture>(f: &F) {
    let ((_a, ours, _), (b, theirs, key)) = (election(f).await, election(f).await);
    let leader = lead(&ours, "one").await;
    let short = Duration::from_millis(50);
    assert!(refused(theirs.campaign("two").wait(short)).await.is_timeout());
    assert!(refused(theirs.campaign("two").cancel_on(async {})).await.is_cancelled());
    let led = theirs.campaign("two").wait(short).lead(|_| async { Ok::<_, Infallible>(()) });
    assert!(within("a limit", led).await.unwrap_err().error().is_busy());
    let led =
        theirs.campaign("two").cancel_on(async {}).lead(|_| async { Ok::<_, Infallible>(()) });
    assert!(within("a signal", led).await.unwrap_err().error().is_cancelled());
    waiters_are(&b, &key, 0).await;
    leader.resign().await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let campaign = theirs.campaign("two").cancel_on(async { drop(stopped.await) });
    let mut stop = Some(stop);
    let led = campaign.lead(|leading| {
        drop(stop.take());
        async move {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(leading.is_held())
        }
    });
    assert!(within("a body", led).await.unwrap().unwrap(), "the signal does not end a leadership");
}

/// B5, t95: a campaign that is dropped at any await point leaves no leader and no candidate, whether somebody leads or
/// not.
pub async fn t95_a_dropped_campaign_leaves_nothing<F: Fixture>(f: &F) {
    let ((_a, ours, key), (b, theirs, _)) = (election(f).await, election(f).await);
    for led in [false, true] {
        let mut ended = false;
        for polls in 0.. {
            let resigning = match led {
                false => None,
                true => {
                    let (leader, b) = (lead(&theirs, "one").await, b.clone());
                    Some(tokio::spawn(async move {
                        passes(&b, Duration::from_millis(20)).await;
                        leader.resign().await
                    }))
                }
            };
            let future = Box::pin(ours.campaign("two").into_future());
            ended = within("so many polls", Polls { future, left: polls }).await.is_some();
            if let Some(resigning) = resigning {
                resigning.await.unwrap().unwrap();
            }
            becomes_free(&b, &key).await;
            waiters_are(&b, &key, 0).await;
            if ended {
                break;
            }
        }
        assert!(ended);
    }
}

/// B5: an owner that leads cannot campaign again, and a shared owner does not share a leadership.
pub async fn b5_an_owner_leads_once<F: Fixture>(f: &F) {
    let ((_a, ours, key), (b, theirs, _)) = (election(f).await, election(f).await);
    let owner = Owner::new();
    let twice = owner.scope(async {
        let leader = lead(&ours, "one").await;
        let again = refused(ours.campaign("two")).await;
        leader.resign().await.unwrap();
        again
    });
    assert!(twice.await.is_already_held());
    let shared = Owner::shared("run-7");
    let leader = shared.scope(async { lead(&ours, "one").await }).await;
    let other = shared
        .scope(async { refused(theirs.campaign("two").wait(Duration::from_millis(50))).await });
    assert!(other.await.is_timeout(), "it waits for the leader");
    assert_eq!(look(&b, &key).await.unwrap().holders.len(), 1);
    leader.resign().await.unwrap();
}

/// B5: a leader whose owner holds the key by another guard still leads after it has resigned.
pub async fn b5_an_owner_still_leads<F: Fixture>(f: &F) {
    let (a, ours, key) = election(f).await;
    let twice = Owner::new().scope(async {
        let (leader, again) = (lead(&ours, "one").await, hold(&a, &key).await);
        assert_eq!(leader.resign().await.unwrap(), Released::StillHeld(1));
        assert_eq!(ours.leader().await.unwrap().map(|now| now.value).as_deref(), Some("one"));
        assert_eq!(again.release().await.unwrap(), Released::Freed);
    });
    twice.await;
    assert_eq!(ours.leader().await.unwrap(), None);
}

/// B5: a shutdown resigns; its observers end, and the others see that nobody leads.
pub async fn b5_a_shutdown_resigns<F: Fixture>(f: &F) {
    let ((a, ours, _), (_b, theirs, _)) = (election(f).await, election(f).await);
    let leader = lead(&ours, "one").await;
    let (mut own, mut other) = (ours.observe().await.unwrap(), theirs.observe().await.unwrap());
    sees(&mut own, "one", leader.term()).await;
    sees(&mut other, "one", leader.term()).await;
    within("the shutdown", a.shutdown(Duration::ZERO)).await;
    assert_eq!(is_lost(&leader).await, Loss::Shutdown);
    sees_nobody(&mut other).await;
    assert!(own.next().await.unwrap_err().is_closed());
    let ended = ours.campaign("two").lead(|_| async { Ok::<_, Infallible>(()) });
    match within("the end", ended).await {
        Err(RunError::NotAcquired(error)) => assert!(error.is_closed(), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(ours.leader().await.unwrap_err().is_closed());
}

/// B5, t116: a leader that is removed by force is notified, loses its leadership, and is not seen again.
pub async fn t116_a_leader_is_removed_by_force<F: Fixture>(f: &F) {
    let ((_a, ours, key), (b, theirs, _)) = (election(f).await, election(f).await);
    let leader = lead(&ours, "one").await;
    let mut observe = theirs.observe().await.unwrap();
    sees(&mut observe, "one", leader.term()).await;
    let token = look(&b, &key).await.unwrap().holders[0].token.unwrap();
    let forced = b.force_release(&key, token, "ann: stuck").await;
    if !f.capabilities().await.force_release {
        assert!(forced.unwrap_err().is_unsupported());
        assert!(leader.is_held());
        return;
    }
    forced.unwrap();
    sees_nobody(&mut observe).await;
    let loss = async {
        // Where the message is only sent to other processes, the next renewal finds it.
        let _ = leader.renew().await;
        leader.lost().await
    };
    assert_eq!(within("the loss", loss).await, Loss::Forced("ann: stuck".into()));
    assert!(leader.proclaim("late").await.unwrap_err().is_lost());
    let next = lead(&theirs, "two").await;
    assert!(next.term() > leader.term());
    sees(&mut observe, "two", next.term()).await;
}

/// B5: dropping the future of an observer loses nothing, also not that nobody leads.
pub async fn b5_a_dropped_observation_loses_nothing<F: Fixture>(f: &F) {
    let ((_a, ours, _), (_b, theirs, _)) = (election(f).await, election(f).await);
    let mut observe = theirs.observe().await.unwrap();
    assert_eq!(within("the first answer", observe.next()).await.unwrap(), None);
    let leader = lead(&ours, "one").await;
    let seen = after_drops(&mut observe).await.expect("it leads");
    assert_eq!(pair(&seen), ("one", leader.term()));
    leader.resign().await.unwrap();
    assert_eq!(after_drops(&mut observe).await, None);
}

/// What is observed next, if each future is dropped a little later than the one before.
async fn after_drops(observe: &mut Observer) -> Option<Leadership> {
    for millis in 1.. {
        let next = tokio::time::timeout(Duration::from_millis(millis), observe.next()).await;
        if let Ok(next) = next {
            return next.expect("the engine answers");
        }
    }
    unreachable!("the case ends before")
}

/// B5: threads elect a leader too.
pub async fn b5_a_thread_leads<F: Fixture>(f: &F) {
    let (locker, ours, key) = election(f).await;
    let led = tokio::task::spawn_blocking(move || {
        let election = blocking::Locker::new(locker).election(&key);
        assert!(election.leader()?.is_none());
        let leader = election.campaign("one").acquire()?;
        leader.proclaim("two")?;
        let seen = election.leader()?.expect("it leads");
        assert_eq!(pair(&seen), ("two", leader.term()));
        leader.resign()?;
        let term = election.campaign("three").run(|leading| Ok::<_, Infallible>(leading.term()));
        Ok::<_, tenure_core::Error>(term.expect("it leads").expect("it cannot fail"))
    });
    let term = within("a thread", led).await.unwrap().unwrap();
    assert!(term > Fence::NONE);
    eventually("nobody to lead", || async { ours.leader().await.unwrap().is_none() }).await;
}
