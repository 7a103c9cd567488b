//! The service `orders`, tested over HTTP: several processes on a real Redis.

mod support;

use std::time::Duration;

use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinSet;

use support::{Bank, Service};

/// Short, so that a test of a killed instance does not take long.
const TTL: Duration = Duration::from_secs(3);

/// Of 50 concurrent payments for one order, at three instances, one succeeds. The other 49 get 409 while the
/// first one is held up at the bank. Another order is paid meanwhile. The order is paid once.
#[tokio::test]
async fn e2_fifty_payments_one_succeeds() {
    let (redis, bank) = (RedisServer::start(), Bank::open().await);
    let shops = [(); 3].map(|()| Service::start(&redis, &bank));
    shops[0].place("1", 999).await;
    shops[1].place("2", 5).await;

    let mut paying = JoinSet::new();
    for turn in 0..50 {
        let pay = shops[turn % shops.len()].post("/orders/1/pay");
        paying.spawn(pay);
    }
    let charge = bank.charge().await;
    assert_eq!(charge.what, "1 999");
    for _ in 0..49 {
        let busy = within("an answer", paying.join_next()).await.unwrap().unwrap();
        assert_eq!(busy.status, 409, "{busy:?}");
        assert_eq!(busy.header("content-type"), "application/problem+json");
        assert!(busy.header("retry-after").parse::<u64>().unwrap() >= 1);
        assert!(busy.body.contains(
            r#""detail":"lock `order:1` is held by another","instance":"/orders/1/pay""#
        ));
    }

    for shop in &shops {
        assert_eq!(shop.post("/orders/1/cancel").await.status, 409, "by its route's lock");
    }
    let other = tokio::spawn(shops[2].post("/orders/2/pay"));
    bank.charge().await.answer("ok").await;
    assert_eq!(other.await.unwrap().status, 200, "another order is not disturbed");

    charge.answer("ok").await;
    let paid = within("the payment", paying.join_next()).await.unwrap().unwrap();
    assert_eq!((paid.status, paid.body.as_str()), (200, r#"{"cents":999,"state":"paid"}"#));
    for shop in &shops {
        let again = shop.post("/orders/1/pay").await;
        assert_eq!((again.status, again.body.as_str()), (422, "the order is Paid"));
    }
    assert!(bank.is_idle().await, "nothing was charged twice");
}

/// If an instance is killed while it pays an order, the order stays locked for the rest of the ttl, and no
/// longer. Other orders are paid at once.
#[tokio::test]
async fn t32_a_killed_instance_frees_its_orders() {
    let (redis, bank) = (RedisServer::start(), Bank::open().await);
    let (mut dying, living) = (Service::start(&redis, &bank), Service::start(&redis, &bank));
    living.place("1", 999).await;
    living.place("2", 5).await;
    let lost = tokio::spawn(dying.try_post("/orders/1/pay"));
    let unanswered = bank.charge().await;
    dying.kill();
    let left = lease_left(&redis, "order:1");
    assert!(left.is_some_and(|left| left <= TTL), "{left:?}");
    assert!(lost.await.unwrap().is_err(), "nobody answers");

    assert_eq!(living.post("/orders/1/pay").await.status, 409, "it may be renewed yet");
    let other = tokio::spawn(living.post("/orders/2/pay"));
    bank.charge().await.answer("ok").await;
    assert_eq!(other.await.unwrap().status, 200);

    let paid = tokio::spawn({
        let living = living.client();
        async move {
            eventually("the order to be free", || async {
                living.post("/orders/1/pay").await.status == 200
            })
            .await;
        }
    });
    let charge = bank.charge().await;
    assert!(charge.fence > unanswered.fence, "the bank can tell them apart");
    charge.answer("ok").await;
    paid.await.unwrap();
}

/// An unreachable Redis is not a busy lock: 503, with `Retry-After`. An instance that gets SIGTERM finishes
/// its requests and releases its locks before it ends.
#[tokio::test]
async fn e2_no_server_is_503() {
    let (redis, bank) = (RedisServer::start(), Bank::open().await);
    let (mut ending, living) = (Service::start(&redis, &bank), Service::start(&redis, &bank));
    living.place("1", 999).await;
    let paying = tokio::spawn(ending.post("/orders/1/pay"));
    let charge = bank.charge().await;
    ending.terminate();
    charge.answer("ok").await;
    assert_eq!(paying.await.unwrap().status, 200, "what was begun is finished");
    ending.ended();
    assert_eq!(lease_left(&redis, "order:1"), None);

    redis.kill();
    let away = living.post("/orders/1/cancel").await;
    assert_eq!((away.status, away.header("retry-after")), (503, "2"), "{away:?}");
    assert!(
        away.body.contains(r#""kind":"unavailable""#) && !away.body.contains("127.0.0.1"),
        "{away:?}"
    );
}

/// How long the server will keep a lock that is not renewed.
fn lease_left(redis: &RedisServer, key: &str) -> Option<Duration> {
    match redis.client().command(&["PTTL", &format!("tenure:lock:{key}")]) {
        Reply::Int(left) => u64::try_from(left).ok().map(Duration::from_millis),
        other => panic!("{other:?}"),
    }
}

/// Cancelling by a `LockLayer` and paying by `#[lock]` exclude each other, because they use one key.
#[tokio::test]
async fn cancelling_and_paying_exclude_each_other() {
    let bank = Bank::open().await;
    let shop = Service::start_alone(&bank);
    shop.place("1", 999).await;
    let paying = tokio::spawn(shop.post("/orders/1/pay"));
    let charge = bank.charge().await;
    assert_eq!(shop.post("/orders/1/cancel").await.status, 409);
    charge.answer("no money").await;
    let refused = paying.await.unwrap();
    assert_eq!((refused.status, refused.body.as_str()), (502, "no money"));
    let cancelled = shop.post("/orders/1/cancel").await;
    assert_eq!(
        (cancelled.status, cancelled.body.as_str()),
        (200, r#"{"cents":999,"state":"cancelled"}"#)
    );
    assert_eq!(shop.post("/orders/3/pay").await.status, 404);
    let metrics = shop.get("/metrics").await.body;
    for line in [
        r#"tenure_lock_acquire_duration_seconds_count{name="order:{order_id}",outcome="acquired",mode="exclusive"} 4"#,
        r#"tenure_lock_acquire_duration_seconds_count{name="order:{order_id}",outcome="busy",mode="exclusive"} 1"#,
        r#"tenure_lock_active{name="order:{order_id}",mode="exclusive"} 0"#,
    ] {
        assert!(metrics.contains(line), "no `{line}` in:\n{metrics}");
    }
}
