//! Health, metrics and logs (D10).

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tenure_redis::{Client, KvExt};
use tenure_testkit::servers::RedisServer;

use crate::support::{SLACK, User, client};

/// D10: how the server is.
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

/// D10: a server that became a replica says so, or is left.
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
            "tenure_redis_command_duration_seconds get ok 2",
            "tenure_redis_command_duration_seconds lpop error 1",
            "tenure_redis_command_duration_seconds pipeline ok 1",
            "tenure_redis_command_duration_seconds set ok 1",
            "tenure_redis_command_errors_total lpop wrong_type 1",
        ]
    );
}

/// What is logged.
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
    /// Listens to this thread from now on.
    pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let writer = move || log.clone();
        let builder = tracing_subscriber::fmt().with_ansi(false).with_writer(writer);
        tracing::subscriber::set_default(builder.with_max_level(tracing::Level::DEBUG).finish())
    }

    /// The lines that contain `text`.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        all.lines().filter(|line| line.contains(text)).map(Into::into).collect()
    }
}

/// D9: `debug` logs each command with its key, and never the value.
#[tokio::test]
async fn d9_debug_logs_commands() {
    let server = RedisServer::start();
    let log = Log::default();
    let _listening = log.listen();
    for debug in [false, true] {
        let redis = Client::builder(&server.url()).debug(debug).client().await.unwrap();
        redis.set("user:1", &User { id: 1, name: "hunter2".into() }).await.unwrap();
        let lines = log.lines("redis command");
        assert_eq!(lines.len(), usize::from(debug), "{lines:?}");
    }
    let line = &log.lines("redis command")[0];
    assert!(line.contains("DEBUG") && line.contains("command=\"set\""), "{line}");
    assert!(line.contains("key=\"user:1\"") && !line.contains("hunter2"), "{line}");
}
