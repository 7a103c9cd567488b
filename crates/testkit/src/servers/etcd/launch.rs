//! The start of a server: ports, directory, command line, and the wait until it serves.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use super::metrics::get;
use crate::process::Program;
use crate::servers::reaper::Reaper;
use crate::servers::redis::free_port;
use crate::wait::eventually_blocking;

/// Short times for a single server, which elects itself at once.
pub(super) const ALONE: [&str; 2] = ["--heartbeat-interval=20", "--election-timeout=200"];
/// Times for three servers on a busy machine with two cores: etcd's defaults. With them it grants no ttl
/// below two seconds.
pub(super) const TOGETHER: [&str; 2] = ["--heartbeat-interval=100", "--election-timeout=1000"];

/// The certificates of a server with TLS, as paths of PEM files.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The server's certificate, which `etcdctl` presents too.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The certificate authority that signed it, and must have signed those of clients.
    pub ca: PathBuf,
    /// Whether clients must present a certificate.
    pub clients_too: bool,
}

/// The settings of a server.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) client: u16,
    peer: u16,
    pub(super) metrics: u16,
    /// The URL at which the other members reach it: its own port, or that of a proxy.
    peer_url: String,
    /// The names and addresses of all members, and the state of the cluster (`new` or `existing`); `None` for
    /// a single server.
    pub(super) cluster: Mutex<Option<(String, &'static str)>>,
    pub(super) tls: Option<EtcdTls>,
    args: Vec<String>,
    dir: TempDir,
}

/// A running server, and the reaper that ends it if our process ends.
#[derive(Debug)]
pub(super) struct Running {
    // The order matters: the reaper must be stopped before the process id can be used again.
    reaper: Option<Reaper>,
    pub(super) program: Program,
}

impl Setup {
    pub(super) fn new(name: &str, args: &[&str], tls: Option<EtcdTls>) -> Self {
        let [client, peer, metrics] = [(); 3].map(|()| free_port());
        Setup {
            name: name.into(),
            client,
            peer,
            metrics,
            peer_url: format!("http://127.0.0.1:{peer}"),
            cluster: Mutex::default(),
            tls,
            args: args.iter().map(|arg| (*arg).into()).collect(),
            dir: crate::servers::data_dir(),
        }
    }

    /// Lets the other members connect to `port` instead of its own.
    pub(super) fn found_at(mut self, port: u16) -> Self {
        self.peer_url = format!("http://127.0.0.1:{port}");
        self
    }

    pub(super) fn peer(&self) -> u16 {
        self.peer
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(super) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// `name=address`, as in a list of members.
    pub(super) fn entry(&self) -> String {
        format!("{}={}", self.name, self.peer_url)
    }

    /// The arguments that describe the member and its cluster.
    pub(super) fn founding(&self) -> Vec<String> {
        let cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (members, _) = cluster.unwrap_or_else(|| (self.entry(), "new"));
        vec![
            format!("--name={}", self.name),
            format!("--initial-cluster={members}"),
            format!("--initial-advertise-peer-urls={}", self.peer_url),
        ]
    }

    pub(super) fn launch(&self) -> Running {
        let found = clean("etcd").arg("--version").stdout(Stdio::null()).status();
        assert!(found.is_ok(), "no `etcd` found: `cargo xtask setup` installs it");
        let program = Program::spawn(&mut self.command());
        let reaper = Some(Reaper::of(program.pid(), self.dir.path()));
        Running { reaper, program }
    }

    fn command(&self) -> Command {
        let mut command = clean("etcd");
        let client = format!("{}://127.0.0.1:{}", self.scheme(), self.client);
        command.args(self.founding());
        command.arg(format!("--listen-client-urls={client}"));
        command.arg(format!("--advertise-client-urls={client}"));
        command.arg(format!("--listen-peer-urls=http://127.0.0.1:{}", self.peer));
        command.arg(format!("--listen-metrics-urls=http://127.0.0.1:{}", self.metrics));
        command.arg("--data-dir").arg(self.data());
        command.args(["--logger=zap", "--log-level=warn", "--log-outputs"]).arg(self.log());
        // A killed process does not lose what it has written; only a crash of the machine could.
        command.args(["--unsafe-no-fsync", "--strict-reconfig-check=false"]);
        let cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        command.args(cluster.iter().map(|(_, state)| format!("--initial-cluster-state={state}")));
        if let Some(tls) = &self.tls {
            command.arg("--cert-file").arg(&tls.cert).arg("--key-file").arg(&tls.key);
            if tls.clients_too {
                // The argument has no value: if present, clients must present a certificate.
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            }
        }
        // Some parts of etcd write to stderr instead of the log.
        let log = std::fs::File::options().create(true).append(true).open(self.log());
        command.args(&self.args).stderr(log.expect("a file of ours"));
        command
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The whole log of the server.
    pub(super) fn words(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// The last lines of the log.
    pub(super) fn last_words(&self) -> String {
        let log = self.words();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// Whether the server serves: it knows a leader, and can read through it.
    pub(super) fn is_healthy(&self) -> bool {
        get(self.metrics, "/health").is_ok_and(|said| said.contains("\"health\":\"true\""))
    }

    /// Waits until the server serves; `false` if it has ended.
    pub(super) fn is_up(&self, running: &mut Running) -> bool {
        let mut ended = false;
        let what = "etcd to serve";
        eventually_blocking(what, || {
            ended = !running.program.is_running();
            // Check that the port is its own: a server of another test may have taken it first, and would
            // reply.
            ended || running.program.listens_on(self.metrics) && self.is_healthy()
        });
        !ended
    }
}

impl Running {
    pub(super) fn kill(&mut self) {
        self.reaper = None;
        self.program.kill();
    }
}

/// A program without our environment variables (`ETCD_…`, `ETCDCTL_…`).
pub(super) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path);
    command
}
