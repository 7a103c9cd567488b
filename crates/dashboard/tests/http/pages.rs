//! What the pages show, on engines that can tell more or less.

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use serde_json::Value;
use tenure::{FileLocks, Locker, Memory};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::within;

use crate::support::{Site, get};

/// F2: the first page names the lock that most claims wait for, its holder, whether it is alive, and what to type.
#[tokio::test]
async fn f2_the_first_page_says_who_and_what_to_type() {
    let server = RedisServer::start();
    let (ours, theirs) = (connect(&server.url()).await, connect(&server.url()).await);
    let _quiet = ours.lock("quiet").await.unwrap();
    let _held = ours.lock("db-migrate").reason("release 41").await.unwrap();
    let waiter = tokio::spawn(async move { theirs.lock("db-migrate").await.map(drop) });
    let site = Site::of(&ours);
    let page = site.shows("/now", "<strong>1</strong> waiting").await;
    let us = tenure::Process::this_process();
    let first = page.split("class=\"cards\"").next().unwrap();
    for part in [
        "Most waited for",
        "lock?key=db%2Dmigrate",
        &format!("{}@{}", us.user, us.host),
        "alive</span>: granted",
        "Reason: “<bdi>release 41</bdi>”",
        "<code>tenure show db-migrate</code>",
    ] {
        assert!(first.contains(part), "{part} is missing in {first}");
    }
    let (worst, other) = (page.rfind(">db-migrate<").unwrap(), page.rfind(">quiet<").unwrap());
    assert!(worst < other, "the most waiters come first");
    waiter.abort();
}

async fn connect(url: &str) -> Locker {
    tenure::connect(url).await.unwrap()
}

/// F2: a lock's page has the holder in full, the ordered queue, tenures, histograms, events, and commands.
#[tokio::test]
async fn f2_a_lock_in_full() {
    let server = RedisServer::start();
    let (ours, theirs) = (connect(&server.url()).await, connect(&server.url()).await);
    let site = Site::of(&ours);
    site.page("/now").await;
    let held = ours.lock("k").label("trace 7").reason("one").await.unwrap();
    let waiting = tokio::spawn(async move { theirs.lock("k").reason("two").await.unwrap() });
    let page = site.shows("/lock?key=k", "<bdi>two</bdi>").await;
    for part in [
        "<bdi>one</bdi>",
        "<bdi>trace 7</bdi>",
        "Next first",
        "tenure watch k",
        "tenure release --force k",
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
    held.release().await.unwrap();
    let _second = within("the second to hold it", waiting).await.unwrap();
    let page = site.shows("/lock?key=k", "handed over to").await;
    for part in ["released</span>", "holds it</span>", "1 seen, ", "No renewal"] {
        assert_eq!(page.contains(part), part != "No renewal", "{part}: {page}");
    }
    assert!(page.contains("This page is read-only"), "{page}");
}

/// F2: on `file:` the page says what the engine cannot tell, and how to free a lock there.
#[tokio::test]
async fn f2_a_page_on_files() {
    let dir = tempdir();
    let locker = Locker::new(FileLocks::open(dir.path()).unwrap());
    let _held = locker.lock("k").await.unwrap();
    let site = Site::releasing(&locker);
    let page = site.shows("/now", "Held the longest").await;
    assert!(page.contains("This engine does not tell who waits."), "{page}");
    let page = site.page("/lock?key=k").await;
    for part in [
        "alive</span>: its process runs",
        "This engine does not tell who waits.",
        &format!("<code>kill {}</code>", std::process::id()),
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
    assert!(!page.contains("release?"), "{page}");
    assert!(site.page("/contention").await.contains("so this page stays empty"));
}

fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// F2: readers and permits have a line each, with their slot; who waits for whom is marked where it is a cycle.
#[tokio::test]
async fn f2_permits_and_who_waits_for_whom() {
    let locker = Locker::new(Memory::space("page-permits"));
    let limit = locker.semaphore("limit", 4);
    let one = || limit.acquire().numbered();
    let _permits = (one().await.unwrap(), one().await.unwrap());
    let _reader = locker.read("catalog").await.unwrap();
    let other = Locker::new(Memory::space("page-permits"));
    let waiting = tokio::spawn(async move { other.write("catalog").await.map(drop) });
    let site = Site::of(&locker);
    let page = site.shows("/lock?key=limit", "2 holders").await;
    assert!(page.contains("2 of 4") && page.contains("<td class=\"num\">1</td>"), "{page}");
    let page = site.shows("/contention", "<td class=\"num\">1</td>").await;
    assert!(page.contains("lock?key=catalog"), "{page}");
    waiting.abort();
}

/// F2: the checks of the doctor are the same as the command's.
#[tokio::test]
async fn f2_the_doctor_on_the_page() {
    let locker = Locker::new(Memory::space("page-doctor"));
    let page = Site::of(&locker).page("/doctor").await;
    for finding in locker.diagnose().await.unwrap() {
        assert!(page.contains(finding.check), "{} is missing in {page}", finding.check);
    }
    assert!(page.contains("good</span>") && page.contains("<code>tenure doctor</code>"), "{page}");
}

/// F2: the router works under any path: every link is relative, and the start leads to the first page.
#[tokio::test]
async fn f2_the_page_mounts_anywhere() {
    let locker = Locker::new(Memory::space("page-mounted"));
    let site = Site(Router::new().nest("/ops/locks", tenure_dashboard::router(locker)));
    let answer = site.get("/ops/locks").await;
    assert_eq!(
        (answer.status, &answer.headers[LOCATION]),
        (StatusCode::SEE_OTHER, &"locks/now".parse().unwrap())
    );
    let page = site.page("/ops/locks/now").await;
    for start in ["href=\"/", "src=\"/", "action=\"/", "://"] {
        assert!(!page.contains(start), "{start} in {page}");
    }
    for asset in ["tenure.css", "tenure.js", "tenure.svg"] {
        assert!(page.contains(asset));
        site.page(&format!("/ops/locks/{asset}")).await;
    }
    let unmounted = Site(tenure_dashboard::router(Locker::new(Memory::space("page-root"))));
    assert_eq!(unmounted.get("/").await.headers[LOCATION], "now");
}

/// F2: a page that watches at once knows what happened before anybody looked.
#[tokio::test]
async fn f2_watched_before_anybody_looks() {
    let locker = Locker::new(Memory::space("page-at-once"));
    let page = tenure_dashboard::Dashboard::new(locker.clone()).watch_at_once();
    let site = Site(page.router());
    // The first look of the watch is over when the numbers say so; they do not count as somebody who looks.
    site.shows("/metrics", "tenure_page_up 1").await;
    locker.lock("k").await.unwrap().release().await.unwrap();
    let held = locker.lock("k").await.unwrap();
    let page = site.shows("/lock?key=k", "acquired</span>").await;
    assert!(page.contains("holds it</span>"), "{page}");
    drop(held);
}

/// F2: the JSON is that of the command, with its schema; unknown locks are null, and bad keys are named.
#[tokio::test]
async fn f2_the_same_as_json() {
    let locker = Locker::new(Memory::space("page-json"));
    let _held = locker.lock("k").await.unwrap();
    let site = Site::of(&locker);
    let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let listing = parse(site.shows("/api/locks", "\"key\":\"k\"").await);
    assert_eq!(
        (&listing["schema"], &listing["total"], &listing["pages"]),
        (&1.into(), &1.into(), &1.into())
    );
    let shown = parse(site.page("/api/lock?key=k").await);
    assert_eq!(shown["lock"]["holders"][0]["pid"], std::process::id());
    assert_eq!(
        site.page("/api/lock?key=free").await,
        "{\"schema\":1,\"key\":\"free\",\"lock\":null}\n"
    );
    let refused = site.get("/api/lock?key=").await;
    assert_eq!(
        (refused.status, refused.body.as_str()),
        (StatusCode::BAD_REQUEST, "tenure: invalid key ``: it is empty\n")
    );
}

/// F2: a lock that another process takes is an event of the stream.
#[tokio::test]
async fn f2_the_stream_tells_of_a_new_lock() {
    let locker = Locker::new(Memory::space("page-stream"));
    let site = Site::of(&locker);
    site.shows("/now", "No locks.").await;
    let answer =
        tower::ServiceExt::oneshot(site.0.clone(), get("/live").body(Body::empty()).unwrap());
    let mut stream = answer.await.unwrap().into_body();
    let _held = Locker::new(Memory::space("page-stream")).lock("k").await.unwrap();
    let next = std::future::poll_fn(|cx| std::pin::Pin::new(&mut stream).poll_frame(cx));
    let frame = within("an event", next).await.unwrap().unwrap().into_data().unwrap();
    assert!(frame.starts_with(b"event: look\ndata: "), "{frame:?}");
    site.shows("/now", "lock?key=k").await;
}

/// F2: a server that cannot be reached is said on the page, with the cause, and `/readyz` is not ready. The process is
/// healthy all the same.
#[tokio::test]
async fn f2_an_engine_that_does_not_answer() {
    let locker =
        tenure::Config::default().url("redis://:hunter2@127.0.0.1:1").connect_later().unwrap();
    let site = Site::of(&locker);
    let page = site.shows("/now", "The engine does not answer.").await;
    assert!(page.contains("is from never") && !page.contains("hunter2"), "{page}");
    let ready = site.get("/readyz").await;
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "tenure: the engine does not answer\n")
    );
    assert_eq!(site.page("/healthz").await, "ok\n");
    assert!(site.page("/metrics").await.contains("\ntenure_page_up 0\n"));
}
