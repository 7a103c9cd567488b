//! A server's own metrics: `/metrics`, read and summed up.
//!
//! In: the port of the metrics. Out: [`Metrics`] of one moment; the difference of two shows what happened in
//! between. Reading them does not count as a call of a client.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The time-out of a read: a slow server replies within this time, and a stopped one does not reply.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends a GET request for `path`, in plain HTTP.
pub(super) fn get(port: u16, path: &str) -> io::Result<String> {
    // In HTTP/1.0 the response ends with the connection.
    ask(port, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

/// Posts `body` to `path`.
pub(super) fn post(port: u16, path: &str, body: &str) -> io::Result<String> {
    let length = body.len();
    ask(port, &format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"))
}

fn ask(port: u16, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// The metrics of one moment.
#[derive(Clone, Debug)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    pub(super) fn read(port: u16) -> io::Result<Self> {
        Ok(Self::parse(&get(port, "/metrics")?))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let split = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Metrics(lines.filter_map(split).collect())
    }

    /// The sum of all series of `name` whose labels contain `label`; all of them for `""`.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let is_meant = |series: &str| {
            let rest = series.strip_prefix(name).filter(|rest| !rest.starts_with('_'));
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('{') && rest.contains(label)
            })
        };
        self.0.iter().filter(|(series, _)| is_meant(series)).map(|(_, value)| value).sum()
    }

    /// The number of calls of `method` (`Txn`, `LeaseGrant`, …) by clients.
    pub fn calls(&self, method: &str) -> u64 {
        self.count("grpc_server_started_total", method)
    }

    /// The number of messages from clients for `method`: on a stream there are more messages than calls.
    pub fn messages(&self, method: &str) -> u64 {
        self.count("grpc_server_msg_received_total", method)
    }

    /// The current revision: each write that changed something increments it.
    pub fn writes(&self) -> u64 {
        whole(self.sum("etcd_debugging_mvcc_current_revision", ""))
    }

    /// The number of leases that this member has revoked because they expired, as a leader does.
    pub fn leases_ended(&self) -> u64 {
        whole(self.sum("etcd_debugging_server_lease_expired_total", ""))
    }

    /// The number of watches.
    pub fn watchers(&self) -> u64 {
        whole(self.sum("etcd_debugging_mvcc_watcher_total", ""))
    }

    fn count(&self, name: &str, method: &str) -> u64 {
        whole(self.sum(name, &format!("grpc_method=\"{method}\"")))
    }
}

/// Counts are small integers, in a format that has only floating-point numbers.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP grpc_server_started_total RPCs
grpc_server_started_total{grpc_method=\"Txn\",grpc_type=\"unary\"} 3
grpc_server_started_total{grpc_method=\"Range\",grpc_type=\"unary\"} 4
etcd_server_is_leader 1
etcd_server_is_leader_not 5
";

    /// Series are distinguished by name and label.
    #[test]
    fn series_are_told_apart() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!((metrics.calls("Txn"), metrics.calls("Watch")), (3, 0));
        assert_eq!(metrics.sum("grpc_server_started_total", "").to_string(), "7");
        assert_eq!(metrics.sum("etcd_server_is_leader", "").to_string(), "1");
    }
}
