//! Row 70: which requests are refused, and what is never shown.

use axum::body::Body;
use axum::http::Request;
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, HOST, ORIGIN, WWW_AUTHENTICATE};
use tenure::{Locker, Memory};
use tenure_dashboard::Dashboard;
use tenure_testkit::servers::RedisServer;

use crate::support::{Answer, Site, field, form, get, post, release_link};

const PATHS: [&str; 8] = [
    "/now",
    "/lock?key=k",
    "/contention",
    "/doctor",
    "/live",
    "/api/locks",
    "/metrics",
    "/tenure.css",
];

fn is(answer: &Answer, status: StatusCode, text: &str) {
    assert_eq!((answer.status, answer.body.as_str()), (status, text));
}

/// t70: a `Host` that is not ours is refused on every path (DNS rebinding); a host that was allowed is not.
#[tokio::test]
async fn t70_foreign_hosts_are_refused() {
    let page =
        Dashboard::new(Locker::new(Memory::space("page-hosts"))).allow_host("ops.example.com");
    let site = Site(page.router());
    let from = |host: &str, path: &str| {
        Request::builder().uri(path).header(HOST, host).body(Body::empty()).unwrap()
    };
    let why = "tenure: host `evil.example:8377` is not allowed; allow it with `--allow-host` or `Dashboard::allow_host`\n";
    for path in PATHS {
        is(&site.ask(from("evil.example:8377", path)).await, StatusCode::FORBIDDEN, why);
    }
    let nowhere = Request::builder().uri("/now").body(Body::empty()).unwrap();
    is(&site.ask(nowhere).await, StatusCode::BAD_REQUEST, "tenure: the request names no host\n");
    for host in [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1:8377",
        "[::1]:8377",
        "ops.example.com",
        "OPS.example.com:443",
    ] {
        assert_eq!(site.ask(from(host, "/now")).await.status, StatusCode::OK, "{host}");
    }
    for host in ["localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80:localhost"] {
        assert_eq!(site.ask(from(host, "/now")).await.status, StatusCode::FORBIDDEN, "{host}");
    }
}

/// t70: a form of another site is refused before it is read, and the lock stays held.
#[tokio::test]
async fn t70_posts_from_other_sites_are_refused() {
    let locker = Locker::new(Memory::space("page-cross-site"));
    let held = locker.lock("k").await.unwrap();
    let site = Site::releasing(&locker);
    let page = site.page(&release_link(&site.shows("/lock?key=k", "release?").await)).await;
    let all = [
        ("key", "k"),
        ("claim", field(&page, "claim")),
        ("csrf", field(&page, "csrf")),
        ("typed", "k"),
    ];
    let why = "tenure: the request comes from a page of another site\n";
    for origin in ["https://evil.example", "null", "http://127.0.0.1:9999", "127.0.0.1:8377"] {
        let request = post(&all).header(ORIGIN, origin).body(form(&all)).unwrap();
        is(&site.ask(request).await, StatusCode::FORBIDDEN, why);
    }
    for fetched in ["cross-site", "same-site"] {
        let request = post(&all).header("sec-fetch-site", fetched).body(form(&all)).unwrap();
        is(&site.ask(request).await, StatusCode::FORBIDDEN, why);
    }
    // What a page of another site would load, and a link that somebody follows.
    let load =
        get("/api/locks").header("sec-fetch-site", "cross-site").header("sec-fetch-mode", "cors");
    is(&site.ask(load.body(Body::empty()).unwrap()).await, StatusCode::FORBIDDEN, why);
    let link =
        get("/now").header("sec-fetch-site", "cross-site").header("sec-fetch-mode", "navigate");
    assert_eq!(site.ask(link.body(Body::empty()).unwrap()).await.status, StatusCode::OK);
    assert!(held.is_held() && locker.is_locked("k").await.unwrap());
    let ours = post(&all).header(ORIGIN, "http://127.0.0.1:8377").body(form(&all)).unwrap();
    assert_eq!(site.ask(ours).await.status, StatusCode::OK);
}

/// t70: a form without the value of our page is refused.
#[tokio::test]
async fn t70_posts_without_the_value_of_the_page_are_refused() {
    let locker = Locker::new(Memory::space("page-csrf"));
    let held = locker.lock("k").await.unwrap();
    let site = Site::releasing(&locker);
    let page = site.page(&release_link(&site.shows("/lock?key=k", "release?").await)).await;
    let (claim, csrf) = (field(&page, "claim"), field(&page, "csrf"));
    let why = "tenure: the form is not from this page, or the page was restarted: load it again\n";
    for value in ["", "0", &csrf[1..], &format!("{csrf}0"), claim] {
        let fields = [("key", "k"), ("claim", claim), ("csrf", value), ("typed", "k")];
        is(&site.post(&fields).await, StatusCode::FORBIDDEN, why);
    }
    let other = Site::releasing(&locker);
    let fields = [("key", "k"), ("claim", claim), ("csrf", csrf), ("typed", "k")];
    is(&other.post(&fields).await, StatusCode::FORBIDDEN, why);
    assert!(held.is_held());
}

/// t70: with a token, every path but health asks for it; as a password and as a bearer it is accepted.
#[tokio::test]
async fn t70_without_the_token_nothing_is_shown() {
    let page =
        Dashboard::new(Locker::new(Memory::space("page-auth"))).auth_token("open sesame 1234");
    let site = Site(page.router());
    for path in PATHS {
        let refused = site.get(path).await;
        is(
            &refused,
            StatusCode::UNAUTHORIZED,
            "tenure: a token is needed: as the password, or as `Authorization: Bearer`\n",
        );
        assert_eq!(refused.headers[WWW_AUTHENTICATE], "Basic realm=\"tenure\", charset=\"UTF-8\"");
    }
    assert_eq!(site.page("/healthz").await, "ok\n");
    let with = |value: &str| get("/now").header(AUTHORIZATION, value).body(Body::empty()).unwrap();
    // `ann:open sesame 1234` and `open sesame 1234:x`.
    for value in
        ["Bearer open sesame 1234", "bearer open sesame 1234", "Basic YW5uOm9wZW4gc2VzYW1lIDEyMzQ="]
    {
        assert_eq!(site.ask(with(value)).await.status, StatusCode::OK, "{value}");
    }
    for value in [
        "Bearer open sesame 123",
        "Bearer",
        "Basic !",
        "Basic b3BlbiBzZXNhbWUgMTIzNDp4",
        "open sesame 1234",
    ] {
        assert_eq!(site.ask(with(value)).await.status, StatusCode::UNAUTHORIZED, "{value}");
    }
}

/// t70: a huge body is refused with 413, however it is sent, and a form may have the longest key and a reason.
#[tokio::test]
async fn t70_a_huge_body_is_refused() {
    let site = Site::releasing(&Locker::new(Memory::space("page-body")));
    let huge = "x".repeat(1024 * 1024);
    let answer = site.post(&[("key", "k"), ("claim", "c"), ("reason", &huge)]).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", answer.body);
    let (key, reason) = ("k".repeat(512), "r".repeat(200));
    let answer =
        site.post(&[("key", &key), ("claim", "c"), ("typed", &key), ("reason", &reason)]).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN, "it was read: {}", answer.body);
}

/// t70: no answer contains a token of a claim, or the password of the server.
#[tokio::test]
async fn t70_tokens_are_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "hunter2"]);
    let locker =
        tenure::connect(&format!("redis://:hunter2@127.0.0.1:{}", server.port())).await.unwrap();
    let held = locker.lock("k").await.unwrap();
    let limit = locker.semaphore("limit", 4);
    let _permits = (limit.acquire().await.unwrap(), limit.acquire().await.unwrap());
    let site = Site::releasing(&locker);
    let form = release_link(&site.shows("/lock?key=k", "release?").await);
    let infos = locker.list("*").await.unwrap();
    let tokens: Vec<_> =
        infos.iter().flat_map(|info| &info.holders).map(|h| h.token.unwrap().expose()).collect();
    assert_eq!(tokens.len(), 3);
    let paths = [
        "/now",
        "/lock?key=k",
        "/lock?key=limit",
        "/contention",
        "/doctor",
        "/api/locks",
        "/api/lock?key=limit",
        "/metrics",
        &form,
    ];
    for path in paths {
        let page = site.page(path).await;
        assert!(tokens.iter().all(|token| !page.contains(token)), "{path}: {page}");
        assert!(!page.contains("hunter2"), "{path}: {page}");
        // Of several holders the first eight digits are shown, as `tenure show` does; never more.
        assert!(tokens.iter().all(|token| !page.contains(&token[..9])), "{path}: {page}");
    }
    let page = site.page(&form).await;
    let claim = field(&page, "claim");
    assert!(
        tokens.iter().all(|token| !token.contains(&claim[..8])),
        "the name of a claim is not a part of its token"
    );
    drop(held);
}

/// t70: keys, labels and reasons that others chose are text: no markup, no invisible marks, no secrets. A key of 512
/// bytes has a page.
#[tokio::test]
async fn t70_odd_texts_stay_texts() {
    let locker = Locker::new(Memory::space("page-odd"));
    let long = "long".repeat(128);
    let keys = ["<script>alert(1)</script>", "a\u{202e}b\u{200b}c", "\"'&<>", "{{ 7*7 }}", &long];
    let mut guards = Vec::new();
    for key in keys {
        let request =
            locker.lock(key).reason("<img src=x onerror=alert(1)>").label("password=hunter2");
        guards.push(request.await.unwrap());
    }
    let site = Site::of(&locker);
    let page = site.shows("/now", "Locks: 5").await;
    assert!(!page.contains("<script>alert") && page.contains("&#60;script&#62;alert(1)"), "{page}");
    assert!(page.contains(r"a\u{202e}b\u{200b}c") && !page.contains('\u{202e}'), "{page}");
    let links: Vec<_> =
        page.split("href=\"lock?").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(links.len() >= keys.len());
    for link in links {
        let page = site.page(&format!("/lock?{link}")).await;
        assert!(
            !page.contains("<img") && page.contains("&#60;img src=x onerror=alert(1)&#62;"),
            "{page}"
        );
        assert!(
            !page.contains("hunter2") && page.contains("(hidden: it looks like a secret)"),
            "{page}"
        );
    }
    assert!(!site.page("/api/locks").await.contains("hunter2"));
    let filter = site.page("/now?filter=%22%3E%3Cscript%3Ealert(1)%3C/script%3E").await;
    assert!(!filter.contains("<script>alert"), "{filter}");
}

/// t70: every answer, also a refusal, forbids whatever is not the page's own.
#[tokio::test]
async fn t70_the_policy_is_strict() {
    let site = Site::of(&Locker::new(Memory::space("page-policy")));
    for path in ["/now", "/tenure.js", "/api/locks", "/nowhere"] {
        let answer = site.get(path).await;
        let policy = answer.headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert!(!answer.body.contains(" style=") && !answer.body.contains(" onclick="), "{path}");
    }
    is(&site.get("/nowhere").await, StatusCode::NOT_FOUND, "tenure: there is no such page\n");
}
