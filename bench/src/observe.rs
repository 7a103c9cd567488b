//! A metrics recorder and a log subscriber, as a real service has.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::filter::LevelFilter;

use crate::error::Error;

/// How often the recorder does its upkeep, as a scrape would trigger it.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Installs both, once. An existing subscriber stays. Call it inside a runtime, before the first lock.
///
/// # Errors
///
/// If a metrics recorder is installed already.
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
    // An error means that the caller has installed a subscriber already.
    let _ = log.with_max_level(LevelFilter::WARN).try_init();
    Ok(())
}
