//! Users from a slow database, cached in Redis: one load for all concurrent requests.
//!
//! ```text
//! cargo run -p tenure-examples --bin user_cache
//! ```
//!
//! A Redis on this machine is enough; `tenure.toml` or `TENURE_REDIS_HOST` names another. Start it several
//! times at once: one instance loads each user, the others find it in the cache.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure::Locker;
use tenure::redis::kv::Error;
use tenure::redis::{Config, Kv, KvExt, Redis};
use tokio::task::JoinSet;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct User {
    id: u64,
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = Config::read()?.prefix("user-cache").connect().await?;
    let health = redis.health().await?;
    println!("redis {} answers within {:?}", health.version, health.round_trip);
    let locker = Locker::new(Redis::with(&redis));
    let started = Instant::now();
    let mut asking = JoinSet::new();
    for _ in 0..100 {
        let (redis, locker) = (redis.clone(), locker.clone());
        asking.spawn(async move { greet(&redis, &locker, 1).await });
    }
    let greetings = asking.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    println!("{} ({} times, {:?})", greetings[0], greetings.len(), started.elapsed());
    count(&redis).await?;
    rename(&redis, &locker).await?;
    locker.shutdown(Duration::from_secs(5)).await;
    redis.close();
    Ok(())
}

/// Business code: uses the trait, and does not depend on a server.
async fn greet(redis: &dyn Kv, locker: &Locker, id: u64) -> Result<String, Error> {
    let (key, ttl) = (format!("user:{id}"), Duration::from_secs(60));
    let user: User = redis.remember(&key, ttl, || load(id)).jitter(0.1).across(locker).await?;
    Ok(format!("hello, {}", user.name))
}

/// Slow work that should not be done a hundred times.
async fn load(id: u64) -> Result<User, std::io::Error> {
    println!("loading user {id} from the database");
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(User { id, name: format!("user number {id}") })
}

/// Several commands in one round trip, without other commands in between.
async fn count(redis: &dyn Kv) -> Result<(), Error> {
    let (today, all) = redis
        .pipeline(|p| {
            let counts = (p.incr("visits:today"), p.incr("visits:all"));
            p.expire("visits:today", Duration::from_secs(24 * 3600));
            counts
        })
        .atomic()
        .await?;
    println!("visit {today} of today, {all} in all");
    Ok(())
}

/// A write that only the present holder can do: a late write of an earlier holder is rejected.
async fn rename(redis: &dyn Kv, locker: &Locker) -> Result<(), Box<dyn std::error::Error>> {
    let first = locker.lock("user:1").await?;
    let stale = first.fence();
    first.release().await?;
    let guard = locker.lock("user:1").await?;
    let ann = User { id: 1, name: "Ann".into() };
    redis.set("user:1", &ann).ttl(Duration::from_secs(60)).fenced(guard.fence()).await?;
    let late = redis.set("user:1", &ann).fenced(stale).await;
    println!("too late: {}", late.err().map_or("accepted?".into(), |error| error.to_string()));
    guard.release().await?;
    Ok(())
}
