//! What a real service has installed: a metrics recorder and a log subscriber.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::filter::LevelFilter;

use crate::error::Error;

/// How often the recorder tidies up, as a scrape would make it do.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Installs both, once. A subscriber that is there already stays. Call it inside a runtime, before the
/// first lock.
///
/// # Errors
///
/// If there is a metrics recorder already.
pub fn observe() -> Result<(), Error> {
    let recorder = PrometheusBuilder::new().install_recorder();
    let recorder = recorder.map_err(|error| Error::surprise(error.to_string()))?;
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            recorder.run_upkeep();
        }
    });
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    // An error says that the caller has chosen one already.
    let _ = log.with_max_level(LevelFilter::WARN).try_init();
    Ok(())
}
