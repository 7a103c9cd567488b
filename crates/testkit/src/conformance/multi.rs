//! Several keys at once: all of them, or none.

use std::convert::Infallible;
use std::future::{IntoFuture, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::{
    Error, GuardAll, Held, KEYS_MAX, LockAll, Locker, Owner, Renew, RunError, blocking,
};

use super::Fixture;
use super::support::{
    becomes_free, can_be_had, eventually, hold, look, passes, refused, start, waiters_are, within,
};

/// Acquires all keys of `request`, which become free soon.
async fn gets(request: LockAll) -> GuardAll {
    within("several keys", request.into_future()).await.expect("all keys are granted")
}

/// Makes the holder learn of a release by force soon, also on an engine that tells it at a renewal.
const SOON_TOLD: Renew = Renew::Every(Duration::from_millis(200));

/// The keys `a`, `b` and `c` of a test, in this order.
fn three<F: Fixture>(f: &F) -> [String; 3] {
    ["a", "b", "c"].map(|name| f.key(name))
}

/// Waits until each of `keys` can be acquired.
async fn all_become_free<const N: usize>(locker: &Locker, keys: [&String; N]) {
    for key in keys {
        becomes_free(locker, key).await;
    }
}

/// Removes the holder of `key` by force.
async fn force(operator: &Locker, key: &str) {
    let token = look(operator, key).await.expect("it is held").holders[0].token;
    let token = token.expect("a forcible engine shows the token");
    operator.force_release(key, token, "ann: stuck").await.expect("it is released by force");
}

/// Waits until a request that waits for `busy` holds the key before it.
async fn waits_between(locker: &Locker, held: &str, busy: &str) {
    let is_held =
        || async { look(locker, held).await.is_some_and(|info| !info.holders.is_empty()) };
    eventually("the smaller key to be held", is_held).await;
    waiters_are(locker, busy, 1).await;
}

/// B4, G8: all keys are held together, in order and with a fence each, and are released together.
pub async fn all_or_nothing<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let guard = gets(one.lock_all([&c, &a, &b])).await;
    assert!(guard.is_held() && guard.held().is_held());
    assert!(guard.keys().map(|key| key.as_str()).eq([&a, &b, &c]));
    assert_eq!(guard.fence("another"), None);
    let fence = guard.fence(&b).expect("b is one of them");
    for key in [&a, &b, &c] {
        assert!(!can_be_had(&other, key).await);
    }
    let view = guard.held();
    guard.release().await.unwrap();
    assert!(!view.is_held() && view.get(&a).is_some());
    for key in [&a, &b, &c] {
        assert!(can_be_had(&other, key).await);
    }
    let again = gets(other.lock_all([&a, &b])).await;
    assert!(again.fence(&b) > Some(fence));
    drop(again);
    all_become_free(&one, [&a, &b]).await;
}

/// B4: if one key is busy, no key is left: with `try_lock_all`, with a wait of zero, and after several attempts.
pub async fn one_busy_key_is_enough<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let busy = hold(&other, &b).await;
    assert!(one.try_lock_all([&a, &b, &c]).await.unwrap().is_none());
    assert!(can_be_had(&other, &a).await && can_be_had(&other, &c).await);
    // What a round releases again was never held, so it does not stay closed either.
    let at_once = one.lock_all([&a, &b, &c]).min_hold(Duration::from_secs(3600));
    let error = refused(at_once.wait(Duration::ZERO)).await;
    assert!(error.is_busy() && !error.is_timeout(), "{error:?}");
    assert!(can_be_had(&other, &a).await && can_be_had(&other, &c).await);
    let attempts = one.lock_all([&a, &b, &c]).attempts(2).retry_interval(Duration::from_millis(10));
    let error = refused(attempts).await;
    assert!(error.to_string().contains("after 2 attempts"), "{error}");
    assert!(can_be_had(&other, &a).await && can_be_had(&other, &c).await);
    busy.release().await.unwrap();
    assert!(one.try_lock_all([&a, &b, &c]).await.unwrap().is_some());
}

/// B4: the error of a wait names the key in the way and its holder, and all other keys become free.
pub async fn the_key_in_the_way_is_named<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let _busy = hold(&other, &b).await;
    let about_b = |error: &Error| error.key().is_some_and(|key| key.as_str() == b);
    let error = refused(one.lock_all([&a, &b, &c]).wait(Duration::from_secs(1))).await;
    assert!(error.is_timeout() && about_b(&error), "{error:?}");
    assert!(error.to_string().contains("within 1s: held by"), "{error}");
    assert!(one.try_lock_all([&a, &b]).wait(Duration::from_millis(100)).await.unwrap().is_none());
    all_become_free(&other, [&a, &c]).await;
    waiters_are(&other, &b, 0).await;

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let signal = async move { drop(stopped.await) };
    let mut waiting = start(one.lock_all([&a, &b, &c]).cancel_on(signal)).await;
    waiting.until(waits_between(&other, &a, &b)).await;
    stop.send(()).unwrap();
    let error = refused(waiting).await;
    assert!(error.is_cancelled() && about_b(&error), "{error:?}");
    all_become_free(&other, [&a, &c]).await;
    waiters_are(&other, &b, 0).await;

    let mut waiting = start(one.lock_all([&a, &b, &c])).await;
    waiting.until(waits_between(&other, &a, &b)).await;
    let ((), error) =
        tokio::join!(async { drop(one.shutdown(Duration::ZERO).await) }, refused(waiting));
    assert!(error.is_closed() && about_b(&error), "{error:?}");
    all_become_free(&other, [&a, &c]).await;
}

/// B4: while it waits for a key, a request holds the smaller keys only.
pub async fn it_waits_upwards_only<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let (first, second) = (hold(&other, &a).await, hold(&other, &b).await);
    let mut waiting = start(one.lock_all([&c, &b, &a])).await;
    waiting.until(waiters_are(&other, &a, 1)).await;
    waiting.until(becomes_free(&other, &c)).await;
    waiting.until(async { first.release().await.unwrap() }).await;
    waiting.until(waits_between(&other, &a, &b)).await;
    waiting.until(becomes_free(&other, &c)).await;
    waiting.until(async { assert!(!can_be_had(&other, &a).await, "a is smaller than b") }).await;
    second.release().await.unwrap();
    let guard = within("all three", waiting).await.unwrap();
    assert!(guard.is_held());
}

/// B4, t91: a key that is lost while another one is waited for is asked for again before anything is reported, and
/// every larger key is released before that.
pub async fn a_lost_key_is_asked_for_again<F: Fixture>(f: &F) {
    if !f.capabilities().await.force_release {
        return;
    }
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let last = hold(&other, &c).await;
    let mut waiting = start(one.lock_all([&a, &b, &c]).renew(SOON_TOLD)).await;
    waiting.until(waits_between(&other, &b, &c)).await;
    waiting.until(force(&other, &a)).await;
    waiting.until(eventually("the notice", || async { !one.holds(&a) })).await;
    let first = waiting.until(hold(&other, &a)).await;
    waiting.until(async { last.release().await.unwrap() }).await;
    waiting.until(waiters_are(&other, &a, 1)).await;
    waiting.until(becomes_free(&other, &b)).await;
    waiting.until(becomes_free(&other, &c)).await;
    first.release().await.unwrap();
    let guard = within("all three", waiting).await.unwrap();
    assert!(guard.is_held());
    for key in [&a, &b, &c] {
        assert!(!can_be_had(&other, key).await);
    }
}

/// B4: with `attempts` no key is held during the pause.
pub async fn attempts_pause_with_nothing<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let busy = hold(&other, &b).await;
    let request =
        one.lock_all([&a, &b, &c]).attempts(100).retry_interval(Duration::from_millis(300));
    let mut trying = start(request).await;
    trying.until(becomes_free(&other, &a)).await;
    trying.until(becomes_free(&other, &c)).await;
    assert!(look(&other, &b).await.unwrap().waiters.is_none_or(|waiters| waiters.is_empty()));
    // An attempt may succeed before this release has its answer.
    busy.release().await.unwrap();
    assert!(within("a later attempt", trying).await.unwrap().is_held());
}

/// What requests ask for, in the order of the caller: a letter for each key, upper-case to read it.
const SETS: [&str; 9] = ["abc", "cba", "bd", "da", "c", "a", "aB", "CbA", "A"];

/// How many read each of the keys `a` to `d`, or `WRITTEN`.
type InUse = [AtomicU32; 4];
/// More than ever read.
const WRITTEN: u32 = 1_000;

/// Works under the keys of a set once, and checks that all are held and nobody else holds one that must not.
async fn takes_its_turn(locker: &Locker, set: &str, keys: &[String], in_use: &InUse) {
    let reads = |letter: char| letter.is_ascii_uppercase();
    let of = |letter: char| usize::from(letter.to_ascii_lowercase() as u8 - b'a');
    let use_of = |it: char| (&in_use[of(it)], if reads(it) { 1 } else { WRITTEN });
    let works = async |is_held: bool| {
        assert!(is_held, "`{set}` are not all held");
        for (users, ours) in set.chars().map(use_of) {
            let others = users.fetch_add(ours, Ordering::SeqCst);
            assert!(others == 0 || others + ours < WRITTEN, "`{set}`: two holders");
        }
        tokio::task::yield_now().await;
        set.chars()
            .map(use_of)
            .for_each(|(users, ours)| _ = users.fetch_sub(ours, Ordering::SeqCst));
        Ok::<_, Infallible>(())
    };
    let names = |read| set.chars().filter(move |it| reads(*it) == read).map(|it| &keys[of(it)]);
    let ran = match set {
        "A" => locker.read(&keys[0]).run(async |held: Held| works(held.is_held()).await).await,
        "a" | "c" => {
            let key = &keys[of(set.chars().next().expect("a letter"))];
            locker.lock(key).run(async |held: Held| works(held.is_held()).await).await
        }
        _ => {
            let request = locker.lock_all(names(false)).read(names(true));
            request.run(async |h| works(h.is_held() && h.keys().count() == set.len()).await).await
        }
    };
    let Ok(()) = ran.unwrap_or_else(|error| panic!("`{set}`: {error}"));
}

/// B4, t91: requests for the same keys in any order, some of them to read, beside requests for single keys, from many
/// tasks of several processes: each is served, and no two hold a key at the same time that cannot hold it together. On
/// an engine without readers all keys are locked.
pub async fn t91_no_order_dead_locks<F: Fixture>(f: &F) {
    let readers = f.capabilities().await.readers;
    let sets = SETS.map(|set| if readers { set.to_owned() } else { set.to_ascii_lowercase() });
    let keys = Arc::new(["a", "b", "c", "d"].map(|name| f.key(name)));
    let in_use = Arc::new(InUse::default());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let locker = f.locker().await;
        for number in 0..16 {
            let (set, locker) = (sets[number % sets.len()].clone(), locker.clone());
            let (keys, in_use) = (keys.clone(), in_use.clone());
            tasks.spawn(async move {
                for _ in 0..2 {
                    takes_its_turn(&locker, &set, &*keys, &in_use).await;
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("every request is served");
    }
}

/// A future that is given up when it is pending for the `left`th time.
pub(super) struct Polls<T> {
    pub(super) future: Pin<Box<dyn Future<Output = T> + Send>>,
    pub(super) left: u32,
}

impl<T> Future for Polls<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// B4, t90: a request that is dropped at any await point leaves neither a lock nor a queue entry, whether the keys are
/// free or one of them has to be waited for.
pub async fn t90_dropped_at_every_await<F: Fixture>(f: &F) {
    let (one, other, keys) = (f.locker().await, f.locker().await, three(f));
    for busy in [None, Some(&keys[1])] {
        let mut ended = false;
        for polls in 0.. {
            let releasing = match busy {
                None => None,
                Some(key) => {
                    let (guard, other) = (hold(&other, key).await, other.clone());
                    Some(tokio::spawn(async move {
                        passes(&other, Duration::from_millis(20)).await;
                        guard.release().await
                    }))
                }
            };
            let future = Box::pin(one.lock_all(&keys).into_future());
            ended = within("so many polls", Polls { future, left: polls }).await.is_some();
            if let Some(releasing) = releasing {
                releasing.await.unwrap().unwrap();
            }
            for key in &keys {
                becomes_free(&other, key).await;
                waiters_are(&other, key, 0).await;
            }
            if ended {
                break;
            }
        }
        assert!(ended);
    }
}

/// Sets a flag when it is dropped, if `locker` holds `key` at that moment.
struct Dropped<'a>(&'a Locker, &'a str, &'a AtomicBool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.2.store(self.0.holds(self.1), Ordering::SeqCst);
    }
}

/// B4, t92: if one of three keys is lost, the body of `run` is dropped while the others are still held; then they are
/// released, and the error names the key that was lost.
pub async fn t92_one_of_three_is_lost<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let by_force = f.capabilities().await.force_release;
    let (running, runs) = tokio::sync::oneshot::channel();
    let others_held = AtomicBool::new(false);
    let request = match by_force {
        true => one.lock_all([&a, &b, &c]).renew(SOON_TOLD),
        // All are lost then, and the error names one of them.
        false => one.lock_all([&a, &b, &c]).max_hold(Duration::from_millis(300)),
    };
    let ran = request.run(async |_| {
        let _dropped = Dropped(&one, &a, &others_held);
        running.send(()).unwrap();
        pending::<Result<(), Infallible>>().await
    });
    let loses = async {
        runs.await.unwrap();
        if by_force {
            force(&other, &b).await;
        }
    };
    let (ran, ()) = tokio::join!(within("the loss", ran), loses);
    let Err(RunError::Lost { value: None, error }) = ran else {
        panic!("the body was not dropped")
    };
    if by_force {
        assert_eq!(error.key().unwrap().as_str(), b);
        assert_eq!(error.loss(), Some(&Loss::Forced("ann: stuck".into())));
        assert!(others_held.load(Ordering::SeqCst), "the body is dropped first");
    } else {
        assert_eq!(error.loss(), Some(&Loss::MaxHold));
    }
    all_become_free(&other, [&a, &b, &c]).await;
}

/// B4: a loss is signalled with its key; the release reports it too, and releases the others.
pub async fn a_loss_names_its_key<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let guard = gets(one.lock_all([&a, &b, &c]).max_hold(Duration::from_millis(50))).await;
    let (key, loss) = within("the loss", guard.lost()).await;
    assert!(!guard.is_held() && [&a, &b, &c].contains(&&key.to_string()));
    assert_eq!(loss, Loss::MaxHold);
    drop(guard);
    if !f.capabilities().await.force_release {
        return;
    }
    all_become_free(&other, [&a, &b, &c]).await;
    let guard = gets(one.lock_all([&a, &b, &c]).renew(SOON_TOLD)).await;
    force(&other, &c).await;
    let (key, loss) = within("the loss", guard.lost()).await;
    assert_eq!((key.as_str(), loss), (c.as_str(), Loss::Forced("ann: stuck".into())));
    assert!(guard.held().get(&a).is_some_and(Held::is_held), "only c is lost");
    let error = refused(guard.release()).await;
    assert!(error.is_lost() && error.key().unwrap().as_str() == c, "{error:?}");
    assert!(can_be_had(&other, &a).await && can_be_had(&other, &b).await);
}

/// B4: `max_hold` begins when all keys are held. It does not end the hold of a smaller key during the wait.
pub async fn max_hold_begins_with_the_last_key<F: Fixture>(f: &F) {
    let (one, other, [a, b, _]) = (f.locker().await, f.locker().await, three(f));
    let last = hold(&other, &b).await;
    let request = one.lock_all([&a, &b]).max_hold(Duration::from_millis(300));
    let mut waiting = start(request).await;
    waiting.until(waits_between(&other, &a, &b)).await;
    waiting.until(passes(&other, Duration::from_millis(600))).await;
    waiting.until(async { assert!(!can_be_had(&other, &a).await, "a is still held") }).await;
    last.release().await.unwrap();
    let guard = within("both keys", waiting).await.unwrap();
    let (_, loss) = within("the loss", guard.lost()).await;
    assert_eq!(loss, Loss::MaxHold);
}

/// B4: some of the keys are held together with other readers; an engine without readers refuses, and nothing is left.
pub async fn some_keys_are_read<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    if !f.capabilities().await.readers {
        let error = refused(one.lock_all([&a]).read([&b])).await;
        assert!(error.is_unsupported() && error.key().unwrap().as_str() == b, "{error:?}");
        return becomes_free(&other, &a).await;
    }
    let first = gets(one.lock_all([&a]).read([&b])).await;
    let second = gets(other.lock_all([&c]).read([&b])).await;
    assert!(first.is_held() && second.is_held());
    assert!(!can_be_had(&other, &b).await);
    assert!(other.try_lock_all([&b]).read([&c]).await.unwrap().is_none());
    let mut writing = start(one.lock_all([&b, &c])).await;
    writing.until(waiters_are(&other, &b, 1)).await;
    writing.until(async { first.release().await.unwrap() }).await;
    // The writer may be ready before this release has its answer.
    second.release().await.unwrap();
    assert!(within("the writer's turn", writing).await.unwrap().is_held());
}

/// B4: a key that is given twice is locked once, and exclusively if it is asked for in both ways.
pub async fn each_key_counts_once<F: Fixture>(f: &F) {
    let (one, other, [a, b, _]) = (f.locker().await, f.locker().await, three(f));
    let guard = gets(one.lock_all([&b, &a, &b, &a]).read([&a])).await;
    assert!(guard.keys().map(|key| key.as_str()).eq([&a, &b]));
    assert_eq!((one.hold_count(&a), one.hold_count(&b)), (1, 1));
    let shown = look(&other, &a).await.unwrap();
    assert_eq!(shown.mode().as_str(), "exclusive");
    guard.release().await.unwrap();
    assert!(can_be_had(&other, &a).await && can_be_had(&other, &b).await);
}

/// B4, t113: no key, too many keys and bad keys are refused with the reason, before anything is sent.
pub async fn bad_lists_are_refused<F: Fixture>(f: &F) {
    let (locker, [a, b, _]) = (f.locker().await, three(f));
    let none: [&str; 0] = [];
    let many = |count| (0..count).map(|number| f.key(&number.to_string())).collect::<Vec<_>>();
    let cases = [
        (locker.lock_all(none), "no key was given; ask for at least 1".to_owned()),
        (
            locker.lock_all(many(10_000)),
            "10000 keys were asked for at once; ask for at most 100".to_owned(),
        ),
        (
            locker.lock_all(many(KEYS_MAX)).read([&a]),
            "101 keys were asked for at once; ask for at most 100".to_owned(),
        ),
        (
            locker.lock_all([a.as_str(), "line\nbreak", &b, ""]),
            r"invalid key `line\nbreak`: it contains the control character `\n`".to_owned(),
        ),
        (locker.lock_all([&a, &b]).attempts(0), "attempts (0) must be at least 1".to_owned()),
    ];
    for (request, message) in cases {
        let error = refused(request).await;
        assert!(error.is_invalid(), "{error:?}");
        assert_eq!(error.to_string(), message);
    }
    assert!(refused(locker.try_lock_all(none)).await.is_invalid());
    assert!(look(&locker, &a).await.is_none());
    let all = gets(locker.lock_all(many(KEYS_MAX))).await;
    assert_eq!(all.keys().count(), KEYS_MAX);
    all.release().await.unwrap();
}

/// B4: an owner that holds one of the keys re-enters it, and so does the body of `run`.
pub async fn an_owner_reenters_each<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let owner = Owner::new();
    let outer = one.lock(&b).owner(owner.clone()).await.unwrap();
    let all = gets(one.lock_all([&a, &b, &c]).owner(owner)).await;
    assert_eq!(one.hold_count(&b), 2);
    all.release().await.unwrap();
    assert!(outer.is_held() && !can_be_had(&other, &b).await && can_be_had(&other, &a).await);
    outer.release().await.unwrap();

    let ran = one.lock_all([&a, &b]).run(async |held| {
        let again = one.lock(&a).await?;
        let all = one.lock_all([&b, &a, &c]).await?;
        assert!(held.is_held() && again.depth() == 2 && all.is_held());
        assert_eq!((one.hold_count(&a), one.hold_count(&b), one.hold_count(&c)), (3, 2, 1));
        Ok::<_, Error>(())
    });
    within("the body", ran).await.unwrap().unwrap();
    all_become_free(&other, [&a, &b, &c]).await;
}

/// B4, G2: a thread locks several keys, and runs code under them.
pub async fn a_thread_locks_several<F: Fixture>(f: &F) {
    let (one, other, [a, b, c]) = (f.locker().await, f.locker().await, three(f));
    let busy = hold(&other, &c).await;
    let (locker, keys) = (blocking::Locker::new(one), [a.clone(), b.clone(), c.clone()]);
    let (done, result) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        assert!(locker.try_lock_all(&keys).acquire().unwrap().is_none());
        let guard = locker.lock_all(&keys[..2]).acquire().unwrap();
        assert!(guard.is_held() && guard.fence(&keys[0]).is_some() && locker.holds(&keys[1]));
        assert!(locker.lock(&keys[0]).acquire().is_ok(), "the same thread: a re-entry");
        assert_eq!(guard.lost(Duration::from_millis(20)).unwrap(), None);
        guard.release().unwrap();
        let brief = locker.lock_all(&keys[..2]).max_hold(Duration::from_millis(50));
        let (lost, loss) = brief.acquire().unwrap().lost(Duration::MAX).unwrap().unwrap();
        assert!(keys.contains(&lost.to_string()) && loss == Loss::MaxHold);
        let ran = locker.lock_all(&keys[..2]).run(|held| Ok::<_, Infallible>(held.is_held()));
        done.send(ran.unwrap()).unwrap();
    });
    assert_eq!(within("the thread", result).await.unwrap(), Ok(true));
    thread.join().unwrap();
    busy.release().await.unwrap();
    all_become_free(&other, [&a, &b, &c]).await;
}
