//! Logs and metrics about commands. All events and names are defined here.
//!
//! | metric | labels |
//! |---|---|
//! | `tenure_redis_command_duration_seconds` | `command`, `outcome` (`ok`, `error`) |
//! | `tenure_redis_command_errors_total` | `command`, `kind` |
//!
//! The key is in the logs, never in a label; the value is in neither. Metric handles are looked up once for
//! each command name: install the recorder before the first command.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::Histogram;

use super::error::{Error, ErrorKind, shown};

/// The name of a batch of commands.
pub(super) const PIPELINE: &str = "pipeline";
/// Every name that a command has in metrics.
const NAMES: [&str; 28] = [
    "get",
    "set",
    "delete",
    "exists",
    "expire",
    "incr",
    "decr",
    "hset",
    "hget",
    "hget_all",
    "lpush",
    "rpush",
    "lpop",
    "lrange",
    "sadd",
    "smembers",
    PIPELINE,
    "set_if_absent",
    "get_many",
    "set_many",
    "scan",
    "command",
    "zadd",
    "zincr_by",
    "zscore",
    "zrem",
    "zrange",
    "zrange_by_score",
];

/// The metrics of one client, and whether it logs every command.
#[derive(Default)]
pub struct Meters {
    series: [OnceLock<Series>; NAMES.len()],
    debug: bool,
}

struct Series {
    ok: Histogram,
    error: Histogram,
}

impl Series {
    fn new(command: &'static str) -> Self {
        let duration = |outcome| metrics::histogram!("tenure_redis_command_duration_seconds", "command" => command, "outcome" => outcome);
        Series { ok: duration("ok"), error: duration("error") }
    }
}

impl Meters {
    /// With `debug`, every command is logged.
    pub fn new(debug: bool) -> Self {
        Meters { debug, ..Self::default() }
    }

    /// Records that a command ended after `took`.
    pub fn note(&self, command: &'static str, key: &[u8], took: Duration, failed: Option<&Error>) {
        if let Some(series) = self.series(command) {
            let outcome = if failed.is_none() { &series.ok } else { &series.error };
            outcome.record(took);
        }
        if let Some(error) = failed {
            metrics::counter!("tenure_redis_command_errors_total", "command" => command, "kind" => kind(error)).increment(1);
        }
        if self.debug {
            let error = failed.map(tracing::field::display);
            tracing::debug!(
                component = "tenure",
                command,
                key = shown(key),
                ?took,
                error,
                "redis command"
            );
        }
    }

    fn series(&self, command: &'static str) -> Option<&Series> {
        let at = NAMES.iter().position(|name| *name == command)?;
        Some(self.series[at].get_or_init(|| Series::new(command)))
    }
}

fn kind(error: &Error) -> &'static str {
    match error.kind() {
        Some(ErrorKind::Unavailable) => "unavailable",
        Some(ErrorKind::Unknown) => "unknown",
        Some(ErrorKind::WrongType) => "wrong_type",
        Some(ErrorKind::Full) => "full",
        Some(ErrorKind::Denied) => "denied",
        Some(ErrorKind::Refused) => "refused",
        Some(ErrorKind::Invalid) => "invalid",
        None if error.is_stale_fence() => "stale_fence",
        None => "other",
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").field("debug", &self.debug).finish_non_exhaustive()
    }
}
