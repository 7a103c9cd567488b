//! The verbs beyond D2 and D3: many keys, sorted sets, any command.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tenure_redis::kv::Bytes;
use tenure_redis::{Client, Config, KvExt};
use tenure_testkit::servers::{RedisServer, Reply, SentinelSet};

use crate::support::{LONG, User, ann, calls, client, pttl, raw};

/// `set_many` writes all values with one ttl, and `get_many` reads them in order, with `None` for absent keys.
#[tokio::test]
async fn many_values() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let bob = User { id: 2, name: "Bob".into() };
    redis.set_many([("user:1", ann()), ("user:2", bob.clone())]).ttl(LONG).await.unwrap();
    assert_eq!(raw(&server, "tenure:user:2").unwrap(), r#"{"id":2,"name":"Bob"}"#);
    assert!(pttl(&server, "tenure:user:1") > 0 && pttl(&server, "tenure:user:2") > 0);
    let users: Vec<Option<User>> = redis.get_many(["user:2", "none", "user:1"]).await.unwrap();
    assert_eq!(users, [Some(bob), None, Some(ann())]);
    redis.set_many(HashMap::from([("n".to_owned(), 1_u8)])).await.unwrap();
    assert_eq!(pttl(&server, "tenure:n"), -1, "for ever unless said");
    let keys = vec![String::from("n"); 3];
    assert_eq!(redis.get_many::<u8>(&keys).await.unwrap(), [Some(1); 3]);
}

/// A call with no keys sends no request.
#[tokio::test]
async fn many_of_none() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let before = calls(&server, "exec");
    assert!(redis.get_many::<u8>([""; 0]).await.unwrap().is_empty());
    redis.set_many([("", 1); 0]).await.unwrap();
    assert_eq!(calls(&server, "exec"), before);
}

/// `set_many` and `get_many` are atomic: a reader never sees some of the values without the others, although
/// they are too large to arrive at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_one_moment() {
    let server = RedisServer::start();
    let (writer, reader) = (patient(&server).await, patient(&server).await);
    let (keys, last) = (["a", "b", "c"], 60);
    let value = |round: u32| format!("{round:0>60000}");
    writer.set_many(keys.map(|key| (key, value(0)))).await.unwrap();
    let writing = tokio::spawn(async move {
        for round in 1..=last {
            writer.set_many(keys.map(|key| (key, value(round)))).await.unwrap();
        }
    });
    loop {
        let seen = reader.get_many::<u32>(keys).await.unwrap();
        assert!(seen.iter().all(|round| *round == seen[0]), "{seen:?}");
        if seen[0] == Some(last) {
            break;
        }
    }
    writing.await.unwrap();
}

async fn patient(server: &RedisServer) -> Client {
    let longest = Duration::from_secs(4);
    let builder = Client::builder(&server.url()).response_timeout(longest);
    builder.connect_timeout(longest).client().await.unwrap()
}

/// An error names its key, and a key of another type is not treated as absent.
#[tokio::test]
async fn many_say_which_key() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.sadd("set", &1).await.unwrap();
    let error = redis.get_many::<u8>(["a", "set"]).await.unwrap_err();
    assert!(error.is_wrong_type() && error.key() == Some(b"set"), "{error}");
    assert!(error.to_string().starts_with("get_many `set`: redis `"), "{error}");
    redis.set("text", "x").await.unwrap();
    let error = redis.get_many::<u8>(["text"]).await.unwrap_err();
    assert!(error.is_undecodable(), "{error}");
    let error = redis.set_many([("a", 1), ("lock:a", 2)]).await.unwrap_err();
    assert!(error.is_invalid() && error.key() == Some(b"lock:a"), "{error}");
    assert!(!redis.exists("a").await.unwrap(), "nothing was asked");
    server.kill();
    let _ = redis.get_many::<u8>(["a"]).await.unwrap_err();
    let error = redis.get_many::<u8>(["a"]).await.unwrap_err();
    assert!(error.to_string().starts_with("get_many: server unavailable: "), "{error}");
}

/// `incr_by` adds any number, and an overflow is refused.
#[tokio::test]
async fn incr_by() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert_eq!(redis.incr_by("n", 5).await.unwrap(), 5);
    assert_eq!(redis.incr_by("n", -7).await.unwrap(), -2);
    let sum = redis.pipeline(|p| p.incr_by("n", 3)).await.unwrap();
    assert_eq!(sum, 1);
    assert!(redis.incr_by("n", i64::MAX).await.unwrap_err().is_refused());
}

/// `set_if_absent` writes once, with its ttl; of many callers exactly one writes.
#[tokio::test]
async fn set_if_absent() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert!(redis.set_if_absent("k", "first").ttl(LONG).await.unwrap());
    assert!(pttl(&server, "tenure:k") > 0);
    assert!(!redis.set_if_absent("k", "second").await.unwrap());
    assert_eq!(raw(&server, "tenure:k").unwrap(), "first");
    let tasks = (0..20).map(|task| {
        let redis = redis.clone();
        tokio::spawn(async move { redis.set_if_absent("one", &task).await.unwrap() })
    });
    let mut written = 0;
    for task in tasks.collect::<Vec<_>>() {
        written += u32::from(task.await.unwrap());
    }
    assert_eq!(written, 1);
    let (old, new) = redis
        .pipeline(|p| {
            (p.set_if_absent("k", &1).pending(), p.set_if_absent("new", &1).ttl(LONG).pending())
        })
        .await
        .unwrap();
    assert!(!old && new && pttl(&server, "tenure:new") > 0);
}

/// Sorted sets: members by score, with every verb, also in a pipeline.
#[tokio::test]
async fn sorted_sets() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    assert!(redis.zadd("board", "ann", 3.0).await.unwrap());
    assert!(!redis.zadd("board", "ann", 2.5).await.unwrap(), "the score is changed");
    assert!(redis.zadd("board", "bob", f64::NEG_INFINITY).await.unwrap());
    assert_eq!(redis.zincr_by("board", "eve", 1e300).await.unwrap(), 1e300);
    assert_eq!(redis.zscore("board", "ann").await.unwrap(), Some(2.5));
    assert_eq!(redis.zscore("board", "none").await.unwrap(), None);
    let all = redis.zrange::<String>("board", 0, -1).await.unwrap();
    let text = |name: &str| name.to_owned();
    assert_eq!(all, [(text("bob"), f64::NEG_INFINITY), (text("ann"), 2.5), (text("eve"), 1e300)]);
    let some = redis.zrange_by_score::<String>("board", 0.0, f64::INFINITY).await.unwrap();
    assert_eq!(some, all[1..]);
    assert!(
        redis.zrem("board", "bob").await.unwrap() && !redis.zrem("board", "bob").await.unwrap()
    );
    assert!(redis.zrange::<String>("none", 0, -1).await.unwrap().is_empty());
    let (new, score, top, none) = redis
        .pipeline(|p| {
            p.zrem("board", "ann");
            let new = p.zadd("users", &ann(), 1.0);
            p.zincr_by("users", &ann(), 0.5);
            let between = p.zrange_by_score::<User>("users", 2.0, 3.0);
            (new, p.zscore("users", &ann()), p.zrange::<User>("users", -1, -1), between)
        })
        .atomic()
        .await
        .unwrap();
    assert!(new && score == Some(1.5) && top == [(ann(), 1.5)] && none.is_empty());
}

/// A score that is not a number is refused before anything is sent.
#[tokio::test]
async fn a_score_is_checked() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let error = redis.zadd("z", "m", f64::NAN).await.unwrap_err();
    assert_eq!(error.to_string(), "zadd `z`: a score must be a number, not NaN");
    assert!(redis.zrange_by_score::<u8>("z", f64::NAN, 1.0).await.unwrap_err().is_invalid());
    assert!(redis.pipeline(|p| p.zincr_by("z", "m", f64::NAN)).await.unwrap_err().is_invalid());
}

/// Any command: keys get the prefix, and the reply has the requested type.
#[tokio::test]
async fn any_command() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("user:1", &ann()).await.unwrap();
    let left: i64 = redis.command("PTTL").key("user:1").await.unwrap();
    assert_eq!(left, -1);
    let user: Option<User> = redis.command("getdel").key("user:1").await.unwrap();
    assert_eq!(user, Some(ann()));
    let user: Option<User> = redis.command("GETDEL").key("user:1").await.unwrap();
    assert_eq!(user, None);
    let done: () = redis.command("MSET").key("a").arg(&1).key("b").arg("x").await.unwrap();
    let both: Vec<Option<String>> =
        redis.command("MGET").key("a").key("none").key("b").await.unwrap();
    assert_eq!((done, both), ((), vec![Some("1".into()), None, Some("x".into())]));
    assert_eq!(raw(&server, "tenure:b").unwrap(), "x");
    redis.zadd("z", "m", 1.5).await.unwrap();
    let scored: Vec<(String, f64)> =
        redis.command("ZRANGE").key("z").arg(&0).arg(&-1).arg("WITHSCORES").await.unwrap();
    assert_eq!(scored, [("m".into(), 1.5)]);
    redis.hset("h", "f", &7).await.unwrap();
    let all: BTreeMap<String, u8> = redis.command("HGETALL").key("h").await.unwrap();
    assert_eq!(all, BTreeMap::from([("f".into(), 7)]));
    let gone: bool = redis.command("HDEL").key("h").arg("f").await.unwrap();
    assert!(gone);
    let pong: String = redis.command("PING").await.unwrap();
    assert_eq!(pong, "PONG");
    let memory: HashMap<String, String> =
        redis.command("CONFIG GET").arg("maxmemory").await.unwrap();
    assert_eq!(memory["maxmemory"], "0");
    let bytes: Bytes = redis.command("ECHO").arg(&Bytes(vec![0xff, 0])).await.unwrap();
    assert_eq!(bytes.0, [0xff, 0]);
    let script = "return {redis.call('GET', KEYS[1]), ARGV[1]}";
    let pair: (u8, String) =
        redis.command("EVAL").arg(script).arg(&1).key("a").arg("v").await.unwrap();
    assert_eq!(pair, (1, "v".into()));
}

/// Any command works in a pipeline too, and an error names its command.
#[tokio::test]
async fn any_command_in_a_pipeline() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let (length, both) = redis
        .pipeline(|p| {
            let length = p.command::<u64>("APPEND").key("k").arg("abc").pending();
            (length, p.command::<String>("GETRANGE").key("k").arg(&0).arg(&1).pending())
        })
        .atomic()
        .await
        .unwrap();
    assert_eq!((length, both.as_str()), (3, "ab"));
    let error = redis.pipeline(|p| p.command::<()>("LLEN").key("k").pending()).await.unwrap_err();
    assert!(error.is_wrong_type() && error.position() == Some(1), "{error}");
    assert!(error.to_string().starts_with("pipeline command 1, LLEN `k`: "), "{error}");
}

/// Commands that would block or change the shared connection, or delete the locks, are refused by name, and
/// so are keys of the locks.
#[tokio::test]
async fn any_command_but_these() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    for name in [
        "BLPOP",
        "blpop",
        "BZMPOP",
        "WAIT",
        "MULTI",
        "WATCH",
        "SELECT",
        "CLIENT KILL",
        "subscribe",
        "SSUBSCRIBE",
        "MONITOR",
        "HELLO",
        "QUIT",
        "FLUSHALL",
        "flushdb",
        "SHUTDOWN",
        "",
        " ",
    ] {
        let error = redis.command::<()>(name).key("k").arg(&1).await.unwrap_err();
        assert!(error.is_invalid(), "{name}: {error}");
    }
    let error = redis.command::<()>("BLPOP").key("k").arg(&1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "BLPOP `k`: `BLPOP` blocks the connection that all calls share: use another client for it"
    );
    let read = redis.command::<()>("XREAD").arg("block").arg(&0).arg("STREAMS").key("s").arg("0");
    assert!(read.await.unwrap_err().is_invalid());
    let read = redis.command::<Option<()>>("XREAD").arg("STREAMS").key("s").arg("0").await;
    assert_eq!(read.unwrap(), None);
    for key in ["lock:a", "fence"] {
        let error = redis.command::<()>("DEL").key("a").key(key).await.unwrap_err();
        assert!(error.is_invalid(), "{error}");
    }
    let error = redis.command::<()>("NOSUCH").arg("hunter2").await.unwrap_err();
    assert!(error.is_refused() && error.key().is_none(), "{error}");
    assert!(error.to_string().starts_with("NOSUCH: refused: "), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

/// A reply of another type than requested is an error that shows both.
#[tokio::test]
async fn any_command_of_another_type() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let error = redis.command::<i64>("GET").key("none").await.unwrap_err();
    assert!(error.is_undecodable(), "{error}");
    assert_eq!(
        error.to_string(),
        "GET `none`: the value is not of type `i64`: invalid type: null, expected i64; found `nothing`"
    );
    redis.rpush("l", &1).await.unwrap();
    let error = redis.command::<String>("LRANGE").key("l").arg(&0).arg(&-1).await.unwrap_err();
    assert!(error.is_undecodable() && error.to_string().ends_with("found `[1]`"), "{error}");
}

/// The verbs work the same on a master that Sentinels name.
#[tokio::test]
async fn on_a_master_by_sentinel() {
    let set = SentinelSet::start_small();
    let redis = Client::connect(&set.url()).await.unwrap();
    redis.set_many([("a", 1), ("b", 2)]).await.unwrap();
    assert_eq!(redis.get_many::<u8>(["a", "b"]).await.unwrap(), [Some(1), Some(2)]);
    let mut keys = redis.scan::<String>("");
    let mut found = Vec::new();
    while let Some(key) = keys.next().await.unwrap() {
        found.push(key);
    }
    found.sort();
    assert_eq!(found, ["a", "b"]);
}

/// A cluster stores locks, but no values of a client: it is refused with a clear error, by its URL and by
/// what a node reports about itself.
#[tokio::test]
async fn a_cluster_is_refused() {
    let error = Client::connect("redis-cluster://127.0.0.1").await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    let text = error.to_string();
    assert!(text.contains("where locks can be (`Builder::cluster`) and values"), "{text}");
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let config = Config::default().host("127.0.0.1").port(node.port());
    let error = config.connect().await.unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert_eq!(node.client().command(&["DBSIZE"]), Reply::Int(0));
}
