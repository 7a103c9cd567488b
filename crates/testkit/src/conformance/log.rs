//! The contents of the log.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::Fixture;
use super::support::{becomes_free, hold, is_lost, look, soon_lost, start, waiters_are};
use crate::wait::within;

/// The log lines of this process, from all cases that run in it.
#[derive(Default)]
struct Log {
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    count: usize,
    /// Lines with text that looks like a token: 32 hexadecimal digits.
    suspects: Vec<String>,
}

impl Log {
    /// Collects the log lines of our crates from now on, at every level.
    fn listen() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        static STARTED: OnceLock<()> = OnceLock::new();
        let log = LOG.get_or_init(Log::default);
        STARTED.get_or_init(|| {
            let format = tracing_subscriber::fmt().with_ansi(false).with_env_filter("tenure=trace");
            format.with_writer(move || Writer(log)).init();
        });
        log
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer(&'static Log);

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = self.0.lines();
        lines.count += 1;
        if text.split(|c: char| !c.is_ascii_hexdigit()).any(|word| word.len() == 32) {
            lines.suspects.push(text.into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// E4: no log line contains a token, at any level. Covers locks that are acquired, renewed, waited for,
/// handed over, released, lost and released by force, and waits that are given up.
pub async fn e4_no_token_is_logged<F: Fixture>(f: &F) {
    let (log, key) = (Log::listen(), f.key("k"));
    let (a, b) = (f.locker().await, f.locker().await);
    for gives_up in [false, true] {
        let guard = hold(&a, &key).await;
        guard.renew().await.unwrap();
        let mut next = start(b.lock(&key)).await;
        next.until(waiters_are(&a, &key, 1)).await;
        if gives_up {
            drop(next);
            guard.release().await.unwrap();
        } else {
            guard.release().await.unwrap();
            within("its turn", next).await.unwrap().release().await.unwrap();
        }
    }
    is_lost(&soon_lost(&a, &key).await).await;
    becomes_free(&b, &key).await;
    let guard = hold(&a, &key).await;
    let token = look(&b, &key).await.expect("it is held").holders[0].token;
    if let Some(token) = token {
        // Engines without `force_release` return an error, which is logged too.
        let _ = b.force_release(&key, token, "the test").await;
    }
    drop(guard);
    becomes_free(&b, &key).await;
    let lines = log.lines();
    assert!(lines.count > 0, "nothing was logged");
    assert_eq!(lines.suspects, Vec::<String>::new());
}
