//! Calls that are dropped half-way never shift a reply to another caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_redis::{Client, KvExt};
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::within;

use crate::support::LONG;

const TASKS: u64 = 32;
const ROUNDS: u64 = 400;

#[derive(Default)]
struct Tally {
    cancelled: AtomicUsize,
    answered: AtomicUsize,
}

/// Lets other tasks run `count` times.
async fn turns(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// One random call on keys that only this task uses, so its reply is known in advance.
async fn call(redis: &Client, own: u64, dice: &mut Rng) {
    let (key, text) = (format!("own:{own}"), format!("value of {own}"));
    match dice.below(6) {
        0 => assert_eq!(redis.get(&key).await.unwrap(), Some(text)),
        1 => redis.set(&key, &text).ttl(LONG).await.unwrap(),
        2 => assert_eq!(redis.hget(&format!("hash:{own}"), &key).await.unwrap(), Some(own)),
        3 => assert_eq!(redis.lrange::<u64>(&format!("list:{own}"), 0, -1).await.unwrap(), [own]),
        4 => {
            let filled =
                redis.pipeline(|p| (p.get::<String>(&key), p.exists("none"), p.exists(&key)));
            let filled = if dice.one_in(2) { filled.atomic() } else { filled };
            assert_eq!(filled.await.unwrap(), (Some(text), false, true));
        }
        _ => {
            let load = || async { Ok::<_, String>(String::from("never")) };
            assert_eq!(redis.remember(&key, LONG, load).await.unwrap(), text);
        }
    }
}

async fn prepare(redis: &Client, own: u64) {
    let key = format!("own:{own}");
    redis.set(&key, &format!("value of {own}")).await.unwrap();
    redis.hset(&format!("hash:{own}"), &key, &own).await.unwrap();
    redis.rpush(&format!("list:{own}"), &own).await.unwrap();
}

async fn run(redis: Client, own: u64, mut dice: Rng, tally: Arc<Tally>) {
    for _ in 0..ROUNDS {
        let patience = dice.below(40);
        tokio::select! {
            biased;
            () = call(&redis, own, &mut dice) => tally.answered.fetch_add(1, Ordering::Relaxed),
            () = turns(patience) => tally.cancelled.fetch_add(1, Ordering::Relaxed),
        };
    }
    call(&redis, own, &mut dice).await;
}

/// With 32 tasks on one connection and many of their 12,800 calls dropped at random moments, each completed
/// call gets its own reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_cancels_never_shift_replies() {
    let server = RedisServer::start();
    let redis = Client::builder(&server.url()).response_timeout(Duration::from_secs(4));
    let redis = redis.client().await.unwrap();
    let (seed, _) = Rng::from_environment();
    let tally = Arc::new(Tally::default());
    let mut tasks = Vec::new();
    for own in 0..TASKS {
        prepare(&redis, own).await;
        let dice = Rng::new(seed.wrapping_add(own.wrapping_mul(0x9e37)));
        tasks.push(tokio::spawn(run(redis.clone(), own, dice, tally.clone())));
    }
    for task in tasks {
        within("the task", task).await.unwrap();
    }
    let (cancelled, answered) =
        (tally.cancelled.load(Ordering::Relaxed), tally.answered.load(Ordering::Relaxed));
    assert!(cancelled > 500 && answered > 500, "{cancelled} cancelled, {answered} answered");
}
