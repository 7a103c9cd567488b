//! Health, metrics and logs (D10).

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tenure_redis::{Client, KvExt};
use tenure_testkit::servers::RedisServer;

use crate::support::{SLACK, User, client};

/// D10: `health` reports the round trip, the role and the version of the server.
#[tokio::test]
async fn d10_health() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    let health = redis.health().await.unwrap();
    assert!(health.round_trip > Duration::ZERO && health.round_trip < SLACK);
    assert_eq!(health.role, "master");
    assert!(health.version.split('.').count() == 3, "{}", health.version);
    server.kill();
    let _ = redis.health().await.unwrap_err();
    assert!(redis.health().await.unwrap_err().is_unavailable());
}

/// D10: `health` shows that the server became a replica, and a write fails as unavailable.
#[tokio::test]
async fn d10_health_of_a_replica() {
    let server = RedisServer::start();
    let redis = client(&server).await;
    server.client().command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(redis.health().await.unwrap().role, "slave");
    assert!(redis.set("k", &1).await.unwrap_err().is_unavailable());
}

/// D10: count and latency by command and outcome, and errors by kind. No key is a label.
#[tokio::test]
async fn d10_metrics() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let server = RedisServer::start();
    let redis = client(&server).await;
    redis.set("secret-key", "x").await.unwrap();
    redis.get::<String>("secret-key").await.unwrap();
    redis.get::<String>("secret-key").await.unwrap();
    redis.lpop::<String>("secret-key").await.unwrap_err();
    redis.pipeline(|p| p.incr("n")).await.unwrap();
    redis.get_many::<u8>(["n"]).await.unwrap();
    redis.set_many([("n", 1)]).await.unwrap();
    redis.set_if_absent("n", &1).await.unwrap();
    redis.zadd("z", "m", 1.0).await.unwrap();
    redis.scan::<String>("").next().await.unwrap();
    redis.command::<i64>("STRLEN").key("n").await.unwrap();
    let mut seen = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
        let count = match value {
            DebugValue::Histogram(samples) => samples.len() as u64,
            DebugValue::Counter(count) => count,
            DebugValue::Gauge(_) => continue,
        };
        if count > 0 {
            seen.push(format!("{} {} {count}", key.key().name(), labels.join(" ")));
        }
    }
    seen.sort();
    assert_eq!(
        seen,
        [
            "tenure_redis_command_duration_seconds command ok 1",
            "tenure_redis_command_duration_seconds get ok 2",
            "tenure_redis_command_duration_seconds get_many ok 1",
            "tenure_redis_command_duration_seconds lpop error 1",
            "tenure_redis_command_duration_seconds pipeline ok 1",
            "tenure_redis_command_duration_seconds scan ok 1",
            "tenure_redis_command_duration_seconds set ok 1",
            "tenure_redis_command_duration_seconds set_if_absent ok 1",
            "tenure_redis_command_duration_seconds set_many ok 1",
            "tenure_redis_command_duration_seconds zadd ok 1",
            "tenure_redis_command_errors_total lpop wrong_type 1",
        ]
    );
}

/// The log of all tests in this process; tests tell their lines apart by key. (A recorder per thread would
/// miss events that another thread logged first.)
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Starts to record, if no other test has.
    pub(crate) fn listen() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            let builder = tracing_subscriber::fmt().with_ansi(false);
            let builder = builder.with_max_level(tracing::Level::DEBUG);
            builder.with_writer(move || writer.clone()).init();
            log
        })
    }

    /// The lines that contain all of `texts`.
    pub(crate) fn lines(&self, texts: [&str; 2]) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = all.lines().filter(|line| texts.iter().all(|text| line.contains(text)));
        lines.map(Into::into).collect()
    }
}

/// D9: `debug` logs each command with its key, and never the value.
#[tokio::test]
async fn d9_debug_logs_commands() {
    let server = RedisServer::start();
    let log = Log::listen();
    for debug in [false, true] {
        let redis = Client::builder(&server.url()).debug(debug).client().await.unwrap();
        redis.set("debugged", &User { id: 1, name: "hunter2".into() }).await.unwrap();
        let lines = log.lines(["redis command", "debugged"]);
        assert_eq!(lines.len(), usize::from(debug), "{lines:?}");
    }
    let line = &log.lines(["redis command", "debugged"])[0];
    assert!(line.contains("DEBUG") && line.contains("command=\"set\""), "{line}");
    assert!(line.contains("key=\"debugged\"") && !line.contains("hunter2"), "{line}");
}
