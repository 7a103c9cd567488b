//! The rows of `docs/testing/faults.md` that promise a line in the log.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};

use crate::support::locker;

/// t11, t12: if a server's clock is set forward or back, one warning with the server's address is logged.
#[tokio::test]
async fn t11_t12_a_clock_that_is_set_is_reported() {
    let (log, server) = (Log::listen(), RedisServer::start_with_clock(&[]));
    let locker = locker(&server).await;
    let server_is = format!("127.0.0.1:{}", server.port());
    for (offset, warning) in [
        ("+60s", "the server's clock was set forward, by "),
        ("-60s", "the server's clock was set back, by "),
    ] {
        locker.lock("k").await.unwrap().release().await.unwrap();
        assert_eq!(log.lines([warning, &server_is]).len(), 0);
        server.clock().set(offset);
        eventually("a word about it", || async {
            locker.lock("k").await.unwrap().release().await.unwrap();
            !log.lines([warning, &server_is]).is_empty()
        })
        .await;
        let lines = log.lines([warning, &server_is]);
        assert!(lines.len() == 1 && lines[0].contains("WARN"), "{lines:#?}");
    }
}

/// t40: while the server is busy with a script, each failed renewal logs a warning, and a stronger one when
/// less than a third of the lease is left. Then the lock is lost by the clock.
#[tokio::test(flavor = "multi_thread")]
async fn t40_a_holder_is_warned() {
    let (log, server) = (Log::listen(), RedisServer::start_with(&["--busy-reply-threshold", "50"]));
    let locker = locker(&server).await;
    let guard = locker.lock("t40:busy").ttl(Duration::from_secs(3)).await.unwrap();
    let mut slow = server.client();
    let endless = std::thread::spawn(move || slow.command(&["EVAL", "while true do end", "0"]));
    within("less than a third", guard.expiring(Duration::from_secs(1))).await;
    assert!(guard.is_held(), "warned before, not after");
    let warning = |texts| !log.lines(texts).is_empty();
    eventually("the warning", || async {
        warning(["renewal failed, the lock is nearly lost", "t40:busy"])
    })
    .await;
    assert!(warning(["WARN tenure_core::observe: renewal failed component", "key=t40:busy"]));
    assert!(log.lines(["renewal failed", "t40:busy"]).iter().any(|line| line.contains("BUSY")));
    within("the loss", guard.lost()).await;
    eventually("the loss to be logged", || async {
        warning(["ERROR tenure_core::observe: lock lost", "t40:busy"])
    })
    .await;
    eventually("the script to be ended", || async {
        server.client().command(&["SCRIPT", "KILL"]) != Reply::Nil && endless.is_finished()
    })
    .await;
}

/// The log of all tests in this process; tests tell their lines apart by key or address.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts to record, if no other test has.
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
