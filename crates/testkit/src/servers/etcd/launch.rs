//! How a server is started: ports, directory, command line, and until it answers.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use super::metrics::get;
use crate::process::Program;
use crate::servers::reaper::Reaper;
use crate::wait::eventually_blocking;

/// Times that suit a server alone: nobody can be elected but itself, and that at once.
pub(super) const ALONE: [&str; 2] = ["--heartbeat-interval=20", "--election-timeout=200"];
/// Times that suit three on a busy machine of two cores: the server's own. With them it grants no
/// lease below two seconds.
pub(super) const TOGETHER: [&str; 2] = ["--heartbeat-interval=100", "--election-timeout=1000"];

/// Papers for a server that speaks TLS: paths of PEM files.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Its certificate, which `etcdctl` shows too.
    pub cert: PathBuf,
    /// The key of that.
    pub key: PathBuf,
    /// Who signed it, and must have signed those of clients.
    pub ca: PathBuf,
    /// Whether clients need one.
    pub clients_too: bool,
}

/// All that a server is started with.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) name: String,
    pub(super) client: u16,
    peer: u16,
    pub(super) metrics: u16,
    /// Where the others find it, if not at its own port.
    peer_url: String,
    /// Everybody's name and address, and whether that is new; `None` for itself alone.
    pub(super) cluster: Mutex<Option<(String, &'static str)>>,
    pub(super) tls: Option<EtcdTls>,
    args: Vec<String>,
    dir: TempDir,
}

/// A server that runs, and what ends it if we do.
#[derive(Debug)]
pub(super) struct Running {
    // In this order: nobody else may get its process id before the reaper is called off.
    reaper: Option<Reaper>,
    pub(super) program: Program,
}

impl Setup {
    pub(super) fn new(name: &str, args: &[&str], tls: Option<EtcdTls>) -> Self {
        let [client, peer, metrics] = free_ports();
        Setup {
            name: name.into(),
            client,
            peer,
            metrics,
            peer_url: format!("http://127.0.0.1:{peer}"),
            cluster: Mutex::default(),
            tls,
            args: args.iter().map(|arg| (*arg).into()).collect(),
            dir: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    /// Has the others come to `port` instead of its own.
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

    /// `name=address`, as it stands in a list of members.
    pub(super) fn entry(&self) -> String {
        format!("{}={}", self.name, self.peer_url)
    }

    /// Who it is among whom.
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
        // A killed process loses nothing that it has written; only a machine would.
        command.args(["--unsafe-no-fsync", "--strict-reconfig-check=false"]);
        let cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        command.args(cluster.iter().map(|(_, state)| format!("--initial-cluster-state={state}")));
        if let Some(tls) = &self.tls {
            command.arg("--cert-file").arg(&tls.cert).arg("--key-file").arg(&tls.key);
            if tls.clients_too {
                // Named at all, it means that clients must show a certificate.
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            }
        }
        // Some of its parts do not know of the log.
        let log = std::fs::File::options().create(true).append(true).open(self.log());
        command.args(&self.args).stderr(log.expect("a file of ours"));
        command
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// All that it had to say.
    pub(super) fn words(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// The last that it had to say.
    pub(super) fn last_words(&self) -> String {
        let log = self.words();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// Whether it serves: it knows a leader, and reads through it.
    pub(super) fn is_healthy(&self) -> bool {
        get(self.metrics, "/health").is_ok_and(|said| said.contains("\"health\":\"true\""))
    }

    /// Waits until it serves; `false` if it has ended.
    pub(super) fn is_up(&self, running: &mut Running) -> bool {
        let mut ended = false;
        let what = "etcd to serve";
        eventually_blocking(what, || {
            ended = !running.program.is_running();
            ended || self.is_healthy()
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

/// A program without what our environment says to it (`ETCD_…`, `ETCDCTL_…`).
pub(super) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path);
    command
}

/// Three at once, so that none is given twice.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("a bound address").port())
}
