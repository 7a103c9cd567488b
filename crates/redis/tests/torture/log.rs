//! What those who run the application are told: rows whose promise is a line in the log.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::locker;

/// t11, t12: a server's clock that is set forward or back is told, once, with the server's address.
#[tokio::test]
async fn t11_t12_a_clock_that_is_set_is_told() {
    let (log, server) = (Log::listen(), RedisServer::start_with_clock(&[]));
    let locker = locker(&server).await;
    let server_is = format!("127.0.0.1:{}", server.port());
    for (offset, told) in [
        ("+60s", "the server's clock was set forward, by "),
        ("-60s", "the server's clock was set back, by "),
    ] {
        locker.lock("k").await.unwrap().release().await.unwrap();
        assert_eq!(log.lines([told, &server_is]).len(), 0);
        server.clock().set(offset);
        eventually("a word about it", || async {
            locker.lock("k").await.unwrap().release().await.unwrap();
            !log.lines([told, &server_is]).is_empty()
        })
        .await;
        let lines = log.lines([told, &server_is]);
        assert!(lines.len() == 1 && lines[0].contains("WARN"), "{lines:#?}");
    }
}

/// t40: a holder whose server is busy with a script is warned at each renewal that fails, and more strongly when less than
/// a third of the lease is left; then the lock is lost by the clock.
#[tokio::test(flavor = "multi_thread")]
async fn t40_a_holder_is_warned() {
    let (log, server) = (Log::listen(), RedisServer::start_with(&["--busy-reply-threshold", "50"]));
    let locker = locker(&server).await;
    let guard = locker.lock("t40:busy").ttl(Duration::from_secs(3)).await.unwrap();
    let mut slow = server.client();
    let endless = std::thread::spawn(move || slow.command(&["EVAL", "while true do end", "0"]));
    within("less than a third", guard.endangered(Duration::from_secs(1))).await;
    assert!(guard.is_held(), "warned before, not after");
    let told = |texts| !log.lines(texts).is_empty();
    eventually("the warning", || async {
        told(["renewal failed, the lock is nearly lost", "t40:busy"])
    })
    .await;
    assert!(told(["WARN tenure_core::observe: renewal failed component", "key=t40:busy"]));
    assert!(log.lines(["renewal failed", "t40:busy"]).iter().any(|line| line.contains("BUSY")));
    within("the loss", guard.lost()).await;
    eventually("the loss to be told", || async {
        told(["ERROR tenure_core::observe: lock lost", "t40:busy"])
    })
    .await;
    eventually("the script to be ended", || async {
        server.client().command(&["SCRIPT", "KILL"]) != Reply::Nil && endless.is_finished()
    })
    .await;
}

/// What is logged, by all tests of this process: tell them apart by their keys.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Listens from now on.
    fn listen() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let writer = log.clone();
            let builder = tracing_subscriber::fmt().with_ansi(false);
            let builder = builder.with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
            builder.with_writer(move || writer.clone()).init();
            log
        })
    }

    /// The lines that contain all of `texts`.
    fn lines(&self, texts: [&str; 2]) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = all.lines().filter(|line| texts.iter().all(|text| line.contains(text)));
        lines.map(Into::into).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
