//! Read, or load and store: one load at a time (D5, D6).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::Locker;
use tenure_redis::kv::Error;
use tenure_redis::{Client, KvExt, Redis};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::observe::Log;
use crate::support::{LONG, User, ann, client, pttl, raw};

/// A loader that counts its calls and can be blocked.
#[derive(Clone)]
struct Source {
    loads: Arc<AtomicUsize>,
    open: Arc<Semaphore>,
}

#[derive(Debug, PartialEq)]
struct Broken(u8);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no database {}", self.0)
    }
}

impl std::error::Error for Broken {}

impl Source {
    /// A loader that lets `open` loads finish.
    fn new(open: usize) -> Self {
        Source { loads: Arc::default(), open: Arc::new(Semaphore::new(open)) }
    }

    /// How many loads were started.
    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    async fn begun(&self, loads: usize) {
        eventually("the loads to begin", || async { self.loads() == loads }).await;
    }

    async fn load(&self) -> Result<User, Broken> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.open.acquire().await.unwrap().forget();
        Ok(ann())
    }

    /// `count` tasks that all want the same value.
    fn callers(&self, redis: &Client, count: usize) -> Vec<JoinHandle<Loaded>> {
        self.callers_of("user:1", redis, count)
    }

    fn callers_of(
        &self,
        key: &'static str,
        redis: &Client,
        count: usize,
    ) -> Vec<JoinHandle<Loaded>> {
        let caller = |_| {
            let (redis, source) = (redis.clone(), self.clone());
            tokio::spawn(async move { redis.remember(key, LONG, || source.load()).await })
        };
        (0..count).map(caller).collect()
    }
}

type Loaded = Result<User, Error>;

/// Waits until the server has reported so many missing keys.
async fn missed(server: &RedisServer, times: u64) {
    looked(server, "keyspace_misses:", times).await;
}

async fn looked(server: &RedisServer, stat: &str, times: u64) {
    let count = || {
        let info = server.client().text(&["INFO", "stats"]).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(stat));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    eventually("all to have looked", || async { count() >= times }).await;
}

/// Waits until all tasks with a reply on this connection have run.
async fn settled(redis: &Client) {
    // Replies arrive in order, so theirs arrived before this one.
    redis.exists("none").await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// D5: `remember` reads the value, or loads it, stores it for the ttl and returns it.
#[tokio::test]
async fn d5_loads_once_and_keeps() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let source = Source::new(9);
    for _ in 0..3 {
        let user = redis.remember("user:1", LONG, || source.load()).await.unwrap();
        assert_eq!(user, ann());
    }
    assert_eq!(source.loads(), 1);
    assert_eq!(raw(&server, "tenure:user:1").unwrap(), r#"{"id":1,"name":"Ann"}"#);
    let left = pttl(&server, "tenure:user:1");
    assert!(left > 500_000 && left <= 600_000, "{left}");
}

/// D5: a hundred callers cause one load.
#[tokio::test]
async fn d5_one_load_for_all() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let source = Source::new(0);
    let callers = source.callers(&redis, 100);
    source.begun(1).await;
    missed(&server, 100).await;
    settled(&redis).await;
    source.open.add_permits(100);
    for caller in callers {
        assert_eq!(within("a value", caller).await.unwrap().unwrap(), ann());
    }
    assert_eq!(source.loads(), 1);
}

/// D5: different keys load at the same time.
#[tokio::test]
async fn d5_keys_do_not_wait_for_each_other() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let source = Source::new(0);
    let (one, two) = (|| source.load(), || source.load());
    let go = async {
        source.begun(2).await;
        source.open.add_permits(2);
    };
    let (one, two, ()) = tokio::join!(
        redis.remember("a", LONG, one).into_future(),
        redis.remember("b", LONG, two).into_future(),
        go
    );
    assert_eq!((one.unwrap(), two.unwrap()), (ann(), ann()));
}

/// D5: if the first caller is cancelled, the next one loads, still one at a time.
#[tokio::test]
async fn d5_a_cancelled_load_is_taken_over() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let source = Source::new(0);
    let first = source.callers(&redis, 1).remove(0);
    source.begun(1).await;
    let others = source.callers(&redis, 20);
    missed(&server, 21).await;
    settled(&redis).await;
    first.abort();
    source.begun(2).await;
    source.open.add_permits(20);
    for other in others {
        assert_eq!(within("a value", other).await.unwrap().unwrap(), ann());
    }
    assert_eq!(source.loads(), 2);
}

/// D5: if the first caller's loader panics, the next one loads, and the panic stays in its own task.
#[tokio::test]
async fn d5_a_panicking_load_is_taken_over() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let source = Source::new(20);
    let (begun, panic) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let first = {
        let (redis, begun, panic) = (redis.clone(), begun.clone(), panic.clone());
        tokio::spawn(async move {
            let load = || async {
                begun.add_permits(1);
                let _when = panic.acquire().await.unwrap();
                panic!("the loader gave up");
                #[allow(unreachable_code, reason = "says the type")]
                Ok::<User, Broken>(ann())
            };
            redis.remember("user:1", LONG, load).await
        })
    };
    within("the load to begin", begun.acquire()).await.unwrap().forget();
    let others = source.callers(&redis, 20);
    missed(&server, 21).await;
    settled(&redis).await;
    panic.add_permits(1);
    assert!(within("the panic", first).await.unwrap_err().is_panic());
    for other in others {
        assert_eq!(within("a value", other).await.unwrap().unwrap(), ann());
    }
    assert_eq!(source.loads(), 1);
}

/// D5: a loader's error reaches every waiting caller, and is not stored.
#[tokio::test]
async fn d5_an_error_reaches_all_and_is_not_kept() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let (loads, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let (redis, loads, open) = (redis.clone(), loads.clone(), open.clone());
            tokio::spawn(async move {
                let load = || async {
                    loads.fetch_add(1, Ordering::SeqCst);
                    let _open = open.acquire().await.unwrap();
                    Err::<User, _>(Broken(7))
                };
                redis.remember("user:1", LONG, load).await
            })
        })
        .collect();
    missed(&server, 21).await;
    settled(&redis).await;
    open.add_permits(1);
    for caller in callers {
        let error = within("an error", caller).await.unwrap().unwrap_err();
        assert!(error.is_loader());
        assert_eq!(error.loader_error::<Broken>(), Some(&Broken(7)));
        assert_eq!(error.to_string(), "remember `user:1`: the loader failed: no database 7");
    }
    assert_eq!(loads.load(Ordering::SeqCst), 1);
    assert_eq!(raw(&server, "tenure:user:1"), None);
    let source = Source::new(1);
    assert_eq!(redis.remember("user:1", LONG, || source.load()).await.unwrap(), ann());
}

/// D5: a stored value that cannot be decoded is loaded again, with one log line for all callers.
#[tokio::test]
async fn d5_what_cannot_be_read_is_loaded_again() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let log = Log::listen();
    redis.set("odd:1", "not a user").await.unwrap();
    let source = Source::new(0);
    let callers = source.callers_of("odd:1", &redis, 20);
    source.begun(1).await;
    looked(&server, "keyspace_hits:", 21).await;
    settled(&redis).await;
    source.open.add_permits(20);
    for caller in callers {
        assert_eq!(within("a value", caller).await.unwrap().unwrap(), ann());
    }
    assert_eq!(source.loads(), 1);
    assert_eq!(redis.get("odd:1").await.unwrap(), Some(ann()));
    let lines = log.lines(["loading afresh", "odd:1"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("key=\"odd:1\""), "{}", lines[0]);
    assert!(lines[0].contains("support::User") && lines[0].contains("not a user"), "{}", lines[0]);
}

/// A full server keeps no value, and every load finds that: one warning a second, the other lines at `debug`.
#[tokio::test]
async fn a_full_server_is_one_line_a_second() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let log = Log::listen();
    server.client().command(&["CONFIG", "SET", "maxmemory", "1"]);
    let start = std::time::Instant::now();
    for number in 0..200 {
        let key = format!("unkept:{number}");
        let load = async || Ok::<_, Broken>(ann());
        assert_eq!(redis.remember(&key, LONG, load).await.unwrap(), ann());
    }
    let most = start.elapsed().as_secs() as usize + 2;
    let lines = log.lines(["could not be kept", "unkept:"]);
    let warned = lines.iter().filter(|line| line.contains("WARN")).count();
    assert!(warned <= most, "{warned} warnings of {}", lines.len());
    assert_eq!(lines.len(), 200);
}

/// D5: with two types under one key, each caller gets its own type and no error.
#[tokio::test]
async fn d5_two_types_under_one_key() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let source = Source::new(0);
    let one = source.callers(&redis, 1).remove(0);
    source.begun(1).await;
    let other = {
        let redis = redis.clone();
        tokio::spawn(async move {
            redis.remember("user:1", LONG, || async { Ok::<_, Broken>(vec![1, 2]) }).await
        })
    };
    missed(&server, 2).await;
    settled(&redis).await;
    source.open.add_permits(1);
    assert_eq!(within("a value", one).await.unwrap().unwrap(), ann());
    assert_eq!(within("a value", other).await.unwrap().unwrap(), [1, 2]);
}

/// D5: jitter only shortens a ttl, by at most its fraction, and not always by the same amount.
#[tokio::test]
async fn d5_jitter() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let mut ttls = Vec::new();
    for index in 0..40 {
        let load = || async { Ok::<_, Broken>(index) };
        redis.remember(&format!("k{index}"), LONG, load).jitter(0.5).await.unwrap();
        ttls.push(pttl(&server, &format!("tenure:k{index}")));
    }
    assert!(ttls.iter().all(|ttl| (290_000..=600_000).contains(ttl)), "{ttls:?}");
    let (least, most) = (ttls.iter().min().unwrap(), ttls.iter().max().unwrap());
    assert!(most - least > 60_000, "{ttls:?}");
    for wrong in [-0.1, 1.1, f64::NAN] {
        let load = || async { Ok::<_, Broken>(1) };
        assert!(redis.remember("k", LONG, load).jitter(wrong).await.unwrap_err().is_invalid());
    }
}

/// D5: `None` can be stored: an absent value is not loaded again.
#[tokio::test]
async fn d5_none_is_a_value() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let loads = AtomicUsize::new(0);
    for _ in 0..3 {
        let load = || async {
            loads.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Broken>(None::<User>)
        };
        assert_eq!(redis.remember("user:9", LONG, load).await.unwrap(), None);
    }
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

/// A locker whose locks outlive every deadline: a lock that becomes free was released, and did not expire.
fn patient(redis: &Client) -> Locker {
    Locker::builder(Redis::with(redis)).ttl(LONG).build().unwrap()
}

/// D6: with `across`, one of several processes loads, and the others find the stored value.
#[tokio::test]
async fn d6_one_process_loads() {
    let server = RedisServer::start();
    let source = Source::new(0);
    let mut callers = Vec::new();
    for _ in 0..5 {
        // A separate client, as another process would have.
        let redis = client(&server).await;
        let (locker, source) = (patient(&redis), source.clone());
        callers.push(tokio::spawn(async move {
            redis.remember("user:1", LONG, || source.load()).across(&locker).await
        }));
    }
    source.begun(1).await;
    missed(&server, 5).await;
    assert!(raw(&server, "tenure:lock:remember:user:1").is_some(), "there is a lock to look at");
    source.open.add_permits(5);
    for caller in callers {
        assert_eq!(within("a value", caller).await.unwrap().unwrap(), ann());
    }
    assert_eq!(source.loads(), 1);
    eventually("the lock to be free", || async {
        raw(&server, "tenure:lock:remember:user:1").is_none()
    })
    .await;
}

/// D6: if the loading process dies, another one loads.
#[tokio::test]
async fn d6_a_dead_loader_is_taken_over() {
    let server = RedisServer::start();
    let source = Source::new(0);
    let (a, b) = (client(&server).await, client(&server).await);
    let first = {
        let (locker, source, a) = (patient(&a), source.clone(), a.clone());
        tokio::spawn(
            async move { a.remember("user:1", LONG, || source.load()).across(&locker).await },
        )
    };
    source.begun(1).await;
    let locker = patient(&b);
    let second = {
        let source = source.clone();
        tokio::spawn(
            async move { b.remember("user:1", LONG, || source.load()).across(&locker).await },
        )
    };
    missed(&server, 2).await;
    first.abort();
    source.begun(2).await;
    source.open.add_permits(1);
    assert_eq!(within("a value", second).await.unwrap().unwrap(), ann());
}

/// D6: a lock that cannot be acquired is reported as an error, and nothing is loaded without it.
#[tokio::test]
async fn d6_a_busy_lock_is_reported() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let locker = Locker::builder(Redis::with(&redis)).wait(Duration::from_secs(1)).build().unwrap();
    let other = Locker::new(Redis::with(&client(&server).await));
    let _held = other.lock("remember:user:1").await.unwrap();
    let source = Source::new(1);
    let error = redis.remember("user:1", LONG, || source.load()).across(&locker).await.unwrap_err();
    assert!(error.lock_error().is_some_and(tenure_core::Error::is_busy), "{error:?}");
    assert_eq!(source.loads(), 0);
}

/// D6: if the lock is lost while loading, the caller gets its value, and a value that others stored is not replaced.
#[tokio::test]
async fn d6_a_lost_lock_keeps_nothing() {
    const LOCK: &str = "remember:user:1";
    let server = RedisServer::start();
    let redis = client(&server).await;
    let builder = Locker::builder(Redis::with(&redis)).ttl(Duration::from_millis(300));
    let (locker, source) = (builder.build().unwrap(), Source::new(0));
    let loading = {
        let (redis, locker, source) = (redis.clone(), locker.clone(), source.clone());
        tokio::spawn(async move {
            redis.remember("user:1", LONG, || source.load()).across(&locker).await
        })
    };
    source.begun(1).await;
    server.client().command(&["DEL", &format!("tenure:lock:{LOCK}")]);
    redis.set("user:1", "newer").await.unwrap();
    eventually("the loss", || async { locker.hold_count(LOCK) == 0 }).await;
    source.open.add_permits(1);
    assert_eq!(within("a value", loading).await.unwrap().unwrap(), ann());
    assert_eq!(redis.get::<String>("user:1").await.unwrap().as_deref(), Some("newer"));
}
