//! Which Sentinels are trusted: not one with outdated state; Sentinels that do not reply are skipped.

use tenure_testkit::servers::SentinelSet;
use tenure_testkit::wait::{eventually, within};

use crate::support::{LONG, ask, clients, lock, locker_at, redis_at, whole};

/// The Sentinels of two sets in one URL, those of `first` first.
fn joined(first: &SentinelSet, then: &SentinelSet) -> String {
    let hosts = |set: &SentinelSet| {
        let ports = set.sentinels().iter().map(|one| format!("127.0.0.1:{}", one.port()));
        ports.collect::<Vec<_>>().join(",")
    };
    format!("redis+sentinel://{},{}/locks", hosts(first), hosts(then))
}

/// t38: a Sentinel that names a former master, which still considers itself a master, is not trusted: neither
/// beside other Sentinels nor when it is the last one that replies.
#[tokio::test(flavor = "multi_thread")]
async fn t38_a_sentinel_that_is_behind() {
    let (behind, set) = (SentinelSet::start_small(), SentinelSet::start());
    tokio::task::block_in_place(|| set.fail_over());
    let url = joined(&behind, &set);
    let a = locker_at(&url).await;
    let held = a.lock("k").ttl(LONG).await.unwrap();
    let (right, wrong) = (set.master(), behind.master());
    assert!(lock(right, "k").is_some() && lock(wrong, "k").is_none());
    for sentinel in set.sentinels() {
        sentinel.kill();
    }
    for _ in 0..5 {
        ask(right, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let again = within("a lock", a.lock("other").ttl(LONG).into_future()).await.unwrap();
        assert!(lock(right, "other").is_some());
        let _ = again.release().await;
    }
    assert!(held.is_held());
    assert_eq!((clients(wrong), lock(wrong, "other")), (0, None));
}

/// Sentinels that are dead or paused do not block the way to the master, and are used again when they are back.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_do_not_answer() {
    let set = SentinelSet::start();
    let [first, second, _] = set.sentinels() else { panic!("three") };
    first.kill();
    second.pause();
    let a = locker_at(&set.url()).await;
    let held = a.lock("k").ttl(LONG).await.unwrap();
    second.go_on();
    tokio::task::block_in_place(|| {
        first.restart();
        set.wait_until_whole();
        set.fail_over();
    });
    eventually("it to be known to the new master", || async { lock(set.master(), "k").is_some() })
        .await;
    assert!(held.is_held());
    held.release().await.unwrap();
    assert_eq!(lock(set.master(), "k"), None);
}

/// If no Sentinel replies, the error names each of them and its problem.
#[tokio::test]
async fn no_sentinel_answers() {
    let error = redis_at("redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/locks").await;
    let error = error.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = whole(&error);
    assert!(text.contains("redis `locks`: no Sentinel names its master: "), "{text}");
    assert!(text.contains("`127.0.0.1:1`: ") && text.contains("`127.0.0.1:2`: "), "{text}");
    assert!(!text.contains("hunter2"));
}

/// A Sentinel used as a server for locks, or a server used as a Sentinel, is refused with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn servers_of_the_wrong_kind() {
    let set = SentinelSet::start_small();
    let sentinel = set.sentinels()[0].port();
    let error = redis_at(&format!("redis://127.0.0.1:{sentinel}")).await.unwrap_err();
    assert!(error.is_unsupported() && whole(&error).contains("sentinel mode"), "{}", whole(&error));
    let server = set.master().port();
    let error = redis_at(&format!("redis+sentinel://127.0.0.1:{server}/locks")).await.unwrap_err();
    assert!(error.is_refused(), "{}", whole(&error));
    let error = redis_at(&set.url().replace("/locks", "/other")).await.unwrap_err();
    let text = whole(&error);
    assert!(error.is_refused() && text.contains("the Sentinel knows no service `other`"), "{text}");
}
