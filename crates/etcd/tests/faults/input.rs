//! Invalid input: refused with the reason, before anything is sent.

use std::time::Duration;

use tenure_core::Renew;
use tenure_testkit::servers::EtcdServer;

use crate::support::{LONG, SHORT, locker, whole};

/// The methods that a client can call at the server.
const METHODS: [&str; 5] = ["Txn", "Range", "Put", "LeaseGrant", "Watch"];

fn asked(server: &EtcdServer) -> u64 {
    let metrics = server.metrics();
    METHODS.iter().map(|method| metrics.calls(method)).sum()
}

/// t55, t57, t58, t67: invalid input is refused before anything is sent.
#[tokio::test]
async fn t55_t57_t58_t67_nothing_is_sent() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let before = asked(&server);
    let ms = Duration::from_millis;
    let ttls = [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(999),
        ms(1_000),
        ms(1_999),
        ms(2_500),
        SHORT + Duration::from_nanos(1),
        LONG + ms(1),
        Duration::from_secs(9_000_000_001),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for ttl in ttls {
        let error = a.lock("k").ttl(ttl).await.unwrap_err();
        assert!(error.is_invalid(), "{ttl:?}: {error:?}");
        assert!(a.try_lock("k").ttl(ttl).await.unwrap_err().is_invalid(), "{ttl:?}");
    }
    let late = a.lock("k").ttl(LONG).renew(Renew::Every(LONG / 2)).await;
    assert!(late.unwrap_err().is_invalid());
    for name in ["", "a\nb", "\u{1b}[2J"] {
        assert!(a.lock(name).await.unwrap_err().is_invalid());
    }
    assert_eq!(asked(&server), before);
}

/// t67: the refusal of a ttl contains the reason and a valid ttl.
#[tokio::test]
async fn t67_the_refusal_names_a_valid_ttl() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    for (ttl, nearest) in [(Duration::from_millis(500), "2s"), (Duration::from_millis(7_400), "7s")]
    {
        let text = whole(&a.lock("k").ttl(ttl).await.unwrap_err());
        assert!(text.contains(nearest), "{ttl:?}: {text}");
        assert!(text.contains("second"), "{ttl:?}: {text}");
    }
}

/// t58: names that are special elsewhere are plain names here, and none contains another.
#[tokio::test]
async fn t58_odd_names() {
    let server = EtcdServer::start();
    let (a, b) = (locker(&server.url()).await, locker(&server.url()).await);
    let names =
        ["a", "a/b", "a/", "/", "a%2Fb", "%", "{}", "a}b{c", "*", "[x]", "..", "ü 🔒", "a:b", "\\"];
    let mut held = Vec::new();
    for name in names {
        let free = a.try_lock(name).await.unwrap();
        held.push(free.unwrap_or_else(|| panic!("`{name}` is another's")));
    }
    for name in names {
        assert!(b.try_lock(name).await.unwrap().is_none(), "`{name}` is held");
        assert_eq!(b.inspect(name).await.unwrap().unwrap().key.as_str(), name);
    }
    assert_eq!(b.list("*").await.unwrap().len(), names.len());
    for guard in held {
        guard.release().await.unwrap();
    }
    assert!(b.list("*").await.unwrap().is_empty());
}

/// t21: locks under different prefixes are different locks.
#[tokio::test]
async fn t21_prefixes_are_apart() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let other = crate::support::builder(&server.url()).prefix("other");
    let other = tenure_core::Locker::new(other.connect().await.unwrap());
    let _guard = a.lock("k").await.unwrap();
    let _other = other.try_lock("k").await.unwrap().expect("another prefix");
    assert_eq!(a.list("*").await.unwrap().len(), 1);
}

/// A17, shared owners, is refused with the reason.
#[tokio::test]
async fn a_shared_owner_is_refused() {
    let server = EtcdServer::start();
    let a = locker(&server.url()).await;
    let error = a.lock("k").owner(tenure_core::Owner::shared("run")).await.unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
}
