//! The blocking API, for threads.

use std::convert::Infallible;
use std::sync::mpsc;
use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::{Locker, Owner, Released, RunError, blocking};

use super::Fixture;
use super::support::{becomes_free, can_be_had, hold, within};

/// Runs `work` on a thread outside any runtime.
async fn on_a_thread<T: Send + 'static>(
    locker: &Locker,
    work: impl FnOnce(blocking::Locker) -> T + Send + 'static,
) -> T {
    let (locker, (done, result)) =
        (blocking::Locker::new(locker.clone()), tokio::sync::oneshot::channel());
    std::thread::spawn(move || drop(done.send(work(locker))));
    within("the thread", result).await.expect("the thread did not panic")
}

/// A thread locks, keeps others out, and releases.
pub async fn a_thread_locks_and_releases<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (name, (held, is_held)) = (key.clone(), tokio::sync::oneshot::channel());
    let (go_on, released) = mpsc::channel::<()>();
    let work = on_a_thread(&a, move |a| {
        let guard = a.lock(&name).acquire().unwrap();
        assert!(guard.is_held() && guard.key().as_str() == name);
        held.send(()).unwrap();
        // `recv` fails when the sender is dropped.
        released.recv().unwrap_err();
        guard.release()
    });
    let look = async {
        within("the thread's lock", is_held).await.unwrap();
        assert!(!can_be_had(&b, &key).await);
        drop(go_on);
    };
    let (released, ()) = tokio::join!(work, look);
    assert_eq!(released.unwrap(), Released::Freed);
    assert!(can_be_had(&b, &key).await);
}

/// An attempt on a busy lock returns `None`, also after a bounded wait; an unbounded wait gets the lock when
/// it is released.
pub async fn a_thread_waits_its_turn<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let guard = hold(&a, &key).await;
    let name = key.clone();
    let tries = move |b: blocking::Locker| {
        // Long enough for a busy server to report the holder.
        let later = b.try_lock(&name).wait(Duration::from_secs(1)).acquire();
        [b.try_lock(&name).acquire(), later].map(|tried| tried.unwrap().is_some())
    };
    assert_eq!(on_a_thread(&b, tries).await, [false; 2]);
    let name = key.clone();
    let releasing = tokio::spawn(async move { guard.release().await });
    assert!(on_a_thread(&b, move |b| b.lock(name).acquire().unwrap().is_held()).await);
    releasing.await.unwrap().unwrap();
}

/// A guard that a thread drops is released.
pub async fn a_thread_drops_its_guard<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let name = key.clone();
    on_a_thread(&a, move |a| drop(a.lock(name).acquire().unwrap())).await;
    becomes_free(&b, &key).await;
}

/// G2: a thread re-enters a lock that it holds, with a count; other threads and other owners are kept out.
pub async fn a_thread_reenters<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let name = key.clone();
    on_a_thread(&a, move |a| {
        let outer = a.lock(&name).acquire().unwrap();
        let inner = a.lock(&name).acquire().unwrap();
        let tried = a.try_lock(&name).acquire().unwrap().expect("a re-entry is never busy");
        assert_eq!([outer.depth(), inner.depth(), tried.depth()], [1, 2, 3]);
        let others = std::thread::scope(|scope| {
            let other = || (a.try_lock(&name).acquire().unwrap().is_some(), a.holds(&name));
            scope.spawn(other).join().unwrap()
        });
        assert_eq!((a.holds(&name), others), (true, (false, false)));
        assert!(a.try_lock(&name).owner(Owner::new()).acquire().unwrap().is_none());
        assert_eq!(tried.release().unwrap(), Released::StillHeld(2));
        assert_eq!(inner.release().unwrap(), Released::StillHeld(1));
        assert_eq!(outer.release().unwrap(), Released::Freed);
        assert!(!a.holds(&name));
    })
    .await;
    assert!(can_be_had(&b, &key).await);
}

/// A11: `run` returns the result of its body; the body can re-enter. The lock is free afterwards, also after
/// a panic.
pub async fn a_thread_runs_a_body<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    for owner in [None, Some(Owner::new())] {
        let name = key.clone();
        let depth = on_a_thread(&a, move |a| {
            let request = a.lock(&name);
            let request = owner.into_iter().fold(request, |request, owner| request.owner(owner));
            request.run(|_| a.lock(&name).acquire().map(|again| again.depth())).unwrap().unwrap()
        });
        assert_eq!(depth.await, 2);
        becomes_free(&b, &key).await;
    }
    let name = key.clone();
    let failed = on_a_thread(&a, move |a| a.lock(&name).run(|_| Err::<(), _>("its own")).unwrap());
    assert_eq!(failed.await, Err("its own"));
    let name = key.clone();
    on_a_thread(&a, move |a| {
        let body = || drop(a.lock(&name).run::<(), Infallible>(|_| panic!("on purpose")));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_err();
    })
    .await;
    becomes_free(&b, &key).await;
}

/// A11, A15: if the lock is lost while the body blocks, the loss is reported with the body's value; an error
/// of the body is not hidden by the loss.
pub async fn a_loss_keeps_the_bodys_value<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let name = key.clone();
    let lost = on_a_thread(&a, move |a| {
        let request = a.lock(&name).max_hold(Duration::from_millis(50));
        request.run(|held| {
            while held.is_held() {
                std::thread::yield_now();
            }
            Ok::<_, Infallible>("receipt")
        })
    });
    match lost.await {
        Err(RunError::Lost { value: Some("receipt"), error }) => assert!(error.is_lost()),
        other => panic!("{other:?}"),
    }
    let name = key.clone();
    let failed = on_a_thread(&a, move |a| {
        let request = a.lock(&name).max_hold(Duration::from_millis(50));
        request.run(|held| {
            while held.is_held() {
                std::thread::yield_now();
            }
            Err::<(), _>("its own")
        })
    });
    assert_eq!(failed.await.unwrap(), Err("its own"));
}

/// A thread renews its lease, and waits for its loss, with and without a time-out.
pub async fn a_thread_renews_and_is_notified_of_its_loss<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let name = key.clone();
    on_a_thread(&a, move |a| {
        let guard = a.lock(&name).acquire().unwrap();
        guard.renew().unwrap();
        assert_eq!(guard.lost(Duration::from_millis(20)).unwrap(), None);
        guard.release().unwrap();
        let guard = a.lock(&name).max_hold(Duration::from_millis(50)).acquire().unwrap();
        // A second thread waits, by reference.
        let loss = std::thread::scope(|all| all.spawn(|| guard.lost(Duration::MAX)).join());
        assert_eq!(loss.unwrap().unwrap(), Some(Loss::MaxHold));
        assert!(guard.renew().unwrap_err().is_lost());
    })
    .await;
}

/// On a worker thread of a runtime, calls return an error instead of blocking, and leave no lock behind.
pub async fn on_a_worker_it_errs<F: Fixture>(f: &F) {
    let (a, key) = (f.locker().await, f.key("k"));
    let (blocking, name) = (blocking::Locker::new(a.clone()), key.clone());
    let tries = move || {
        assert!(blocking.lock(&name).acquire().map(drop).unwrap_err().is_invalid());
        assert!(blocking.try_lock(&name).acquire().map(drop).unwrap_err().is_invalid());
        let run = blocking.lock(&name).run(|_| Ok::<_, Infallible>(()));
        assert!(run.unwrap_err().error().is_invalid());
    };
    // In the future of `block_on`, and in a task.
    tries();
    within("the task", tokio::spawn(async move { tries() })).await.unwrap();
    assert!(can_be_had(&a, &key).await);
}

/// On a thread of a runtime where blocking is allowed, calls block: in `spawn_blocking` and in
/// `block_in_place`.
pub async fn where_a_runtime_lets_it_block<F: Fixture>(f: &F) {
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (blocking, name) = (blocking::Locker::new(a.clone()), key.clone());
    let work = move || {
        let guard = blocking.lock(&name).acquire().unwrap();
        guard.renew().unwrap();
        assert!(guard.is_held() && blocking.holds(&name));
        guard.release().unwrap()
    };
    let again = work.clone();
    let released = within("the thread", tokio::task::spawn_blocking(work)).await.unwrap();
    assert_eq!(released, Released::Freed);
    let in_place = tokio::spawn(async move { tokio::task::block_in_place(again) });
    assert_eq!(within("the worker", in_place).await.unwrap(), Released::Freed);
    assert!(can_be_had(&b, &key).await);
}

/// B2, G2: a thread reads and writes, and learns that another thread waits. An engine without readers refuses them.
pub async fn a_thread_reads_and_writes<F: Fixture>(f: &F) {
    let (a, key, readers) = (f.locker().await, f.key("k"), f.capabilities().await.readers);
    on_a_thread(&a, move |a| {
        let read = a.read(&key).acquire();
        if !readers {
            assert!(read.map(drop).unwrap_err().is_unsupported());
            return;
        }
        let reader = read.unwrap();
        assert!(a.try_read(&key).acquire().unwrap().is_some() && reader.is_held());
        assert!(a.try_write(&key).acquire().unwrap_err().is_already_held(), "this thread reads");
        assert!(!reader.contended(Duration::from_millis(20)).unwrap());
        std::thread::scope(|all| {
            let writer = all.spawn(|| a.write(&key).acquire().map(|writer| writer.is_held()));
            assert!(reader.contended(Duration::MAX).unwrap());
            reader.release().unwrap();
            assert!(writer.join().unwrap().unwrap());
        });
    })
    .await;
}

/// B3, G2: a thread takes permits, with a number and by number. An engine without permits refuses them.
pub async fn a_thread_takes_permits<F: Fixture>(f: &F) {
    let (a, key, permits) = (f.locker().await, f.key("k"), f.capabilities().await.permits);
    on_a_thread(&a, move |a| {
        let semaphore = a.semaphore(&key, 3);
        let first = semaphore.acquire().numbered().acquire();
        if !permits {
            assert!(first.map(drop).unwrap_err().is_unsupported());
            return;
        }
        let first = first.unwrap();
        assert_eq!((first.slot(), semaphore.available_permits().unwrap()), (Some(0), 2));
        let two = semaphore.acquire_many(2).acquire().unwrap();
        assert_eq!(two.num_permits(), 2);
        assert!(semaphore.try_acquire_many(2).acquire().unwrap().is_none());
        let more = semaphore.with_capacity(4).try_acquire().numbered().acquire().unwrap();
        assert_eq!(more.expect("a fourth permit").num_permits(), 1);
    })
    .await;
}
