//! Logs and metrics of a `#[lock]` function. Only one test, because both are installed once per process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io;
use std::sync::{Arc, Mutex};

use metrics_util::debugging::DebuggingRecorder;
use tenure::{Error, Locker, Memory};
use tracing_subscriber::filter::LevelFilter;

#[tenure::lock(key = "order:{id}", locker = locker)]
async fn by_template(locker: &Locker, id: u64) -> Result<(), Error> {
    tracing::info!("paying");
    Ok(())
}

#[tenure::lock(key = "order:{id}", locker = locker, name = "orders")]
async fn by_name(locker: &Locker, id: u64) -> Result<(), Error> {
    Ok(())
}

/// E1, E5: the label of metrics and of the span is the template, or the name that replaces it. The key is in
/// the span and is no label.
#[tokio::test]
async fn e5_the_template_is_the_label() {
    let (recorder, log) = (DebuggingRecorder::new(), Log::default());
    let metrics = recorder.snapshotter();
    recorder.install().unwrap();
    let (format, writer) = (tracing_subscriber::fmt().with_ansi(false), log.clone());
    format.with_max_level(LevelFilter::DEBUG).with_writer(move || writer.clone()).init();

    let locker = Locker::new(Memory::space("observed"));
    by_template(&locker, 42).await.unwrap();
    by_name(&locker, 43).await.unwrap();

    let names: Vec<String> = metrics
        .snapshot()
        .into_vec()
        .iter()
        .flat_map(|(key, ..)| key.key().labels().map(|label| label.value().to_owned()))
        .collect();
    assert!(names.iter().any(|name| name == "order:{id}"), "{names:?}");
    assert!(names.iter().any(|name| name == "orders"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("42")), "{names:?}");

    let text = log.text();
    let line = |part: &str| text.lines().any(|line| line.contains(part));
    assert!(line("lock{name=\"order:{id}\" key=\"order:42\"}: observed: paying"), "{text}");
    assert!(
        line("lock{name=\"orders\" key=\"order:43\"}: tenure_core::observe: lock acq"),
        "{text}"
    );
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
