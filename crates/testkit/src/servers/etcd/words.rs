//! What a member complains of in its own log: leases that it could not end.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::EtcdServer;

impl EtcdServer {
    /// When, since 1970, it gave up asking for leases to be ended because nobody answered: once for each.
    pub fn gave_up_ending(&self) -> Vec<Duration> {
        self.setup.words().lines().filter_map(gave_up_ending).collect()
    }
}

fn gave_up_ending(line: &str) -> Option<Duration> {
    let said: Value = serde_json::from_str(line).ok()?;
    let is_it = said["msg"] == "failed to revoke lease"
        && said["error"].as_str()?.starts_with("etcdserver: request timed out");
    let at = humantime::parse_rfc3339(said["ts"].as_str()?).ok()?;
    at.duration_since(SystemTime::UNIX_EPOCH).ok().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what was not answered counts: a lease that is gone needs no end.
    #[test]
    fn unanswered() {
        let line = |error: &str| {
            let rest = r#""msg":"failed to revoke lease","lease-id":"1eada1e42a1e9129","error":"#;
            let line =
                r#"{"level":"warn","ts":"1970-01-01T00:00:07.458Z","caller":"server.go:1115","#;
            gave_up_ending(&format!("{line}{rest}\"{error}\"}}"))
        };
        assert_eq!(line("etcdserver: request timed out"), Some(Duration::from_millis(7_458)));
        let lost = "etcdserver: request timed out, possibly due to connection lost";
        assert_eq!(line(lost), Some(Duration::from_millis(7_458)));
        assert_eq!(line("lease not found"), None);
        assert_eq!(gave_up_ending("panic: not JSON"), None);
    }
}
