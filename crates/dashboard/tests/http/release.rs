//! Releases by force: only where it is allowed, only of the claim that was shown.

use axum::http::StatusCode;
use tenure::backend::Loss;
use tenure::{FileLocks, Locker, Memory};
use tenure_testkit::servers::RedisServer;

use crate::support::{Site, field, release_link};

/// t70: a page is read-only unless it was allowed, and an engine that cannot do it says so.
#[tokio::test]
async fn t70_read_only_unless_allowed() {
    let locker = Locker::new(Memory::space("page-read-only"));
    let _held = locker.lock("k").await.unwrap();
    let site = Site::of(&locker);
    assert!(!site.shows("/lock?key=k", "Held for").await.contains("release?"));
    let why = "tenure: this page is read-only; releases need `--allow-release` or `Dashboard::allow_release`\n";
    for answer in
        [site.get("/release?key=k&claim=0").await, site.post(&[("key", "k"), ("claim", "0")]).await]
    {
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::FORBIDDEN, why));
    }
    let dir = tempfile::tempdir().unwrap();
    let files = Site::releasing(&Locker::new(FileLocks::open(dir.path()).unwrap()));
    let why = "tenure: this engine cannot release a lock by force: end the process that holds it\n";
    let answer = files.post(&[("key", "k"), ("claim", "0")]).await;
    assert_eq!((answer.status, answer.body.as_str()), (StatusCode::FORBIDDEN, why));
}

/// t70: a release needs the key typed again; then the holder that was shown loses the lock, and learns who did it and
/// why.
#[tokio::test]
async fn t70_a_release_with_right() {
    let server = RedisServer::start();
    let (locker, other) = (
        tenure::connect(&server.url()).await.unwrap(),
        tenure::connect(&server.url()).await.unwrap(),
    );
    let held = other.lock("k").await.unwrap();
    let site = Site::releasing(&locker);
    let page = site.page(&release_link(&site.shows("/lock?key=k", "release?").await)).await;
    let (claim, csrf) = (field(&page, "claim"), field(&page, "csrf"));
    let sent = |typed| {
        [("key", "k"), ("claim", claim), ("csrf", csrf), ("typed", typed), ("reason", "stuck")]
    };
    let answer = site.post(&sent("j")).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer.body.contains("Nothing was released: the key was not typed.") && held.is_held());
    let answer = site.post(&sent("k")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert!(answer.body.contains("Released by force."), "{}", answer.body);
    let us = tenure::Process::this_process();
    let by = format!("{}@{} on the page: stuck", us.user, us.host);
    assert_eq!(tenure_testkit::wait::within("the loss", held.lost()).await, Loss::Forced(by));
}

/// t70: a claim that was shown and has ended since is not released, nor the one that came after it.
#[tokio::test]
async fn t70_a_newer_holder_is_never_hit() {
    let server = RedisServer::start();
    let locker = tenure::connect(&server.url()).await.unwrap();
    let first = locker.lock("k").await.unwrap();
    let site = Site::releasing(&locker);
    let page = site.page(&release_link(&site.shows("/lock?key=k", "release?").await)).await;
    let fields = [
        ("key", "k"),
        ("claim", field(&page, "claim")),
        ("csrf", field(&page, "csrf")),
        ("typed", "k"),
    ];
    first.release().await.unwrap();
    let second = locker.lock("k").await.unwrap();
    let answer = site.post(&fields).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(
        answer.body.contains("Nothing was released: that claim does not hold the lock any more.")
    );
    assert!(second.is_held() && locker.is_locked("k").await.unwrap());
}

/// t70: of several holders, the one that was shown is released and no other.
#[tokio::test]
async fn t70_one_of_several_holders() {
    let locker = Locker::new(Memory::space("page-several"));
    let limit = locker.semaphore("limit", 2);
    let (one, two) = (limit.acquire().await.unwrap(), limit.acquire().await.unwrap());
    let site = Site::releasing(&locker);
    let page = site.page(&release_link(&site.shows("/lock?key=limit", "2 holders").await)).await;
    let fields = [
        ("key", "limit"),
        ("claim", field(&page, "claim")),
        ("csrf", field(&page, "csrf")),
        ("typed", "limit"),
    ];
    assert_eq!(site.post(&fields).await.status, StatusCode::OK);
    tenure_testkit::wait::eventually("one of them to be lost", || async {
        one.is_held() != two.is_held()
    })
    .await;
    assert_eq!(locker.inspect("limit").await.unwrap().unwrap().holders.len(), 1);
}
