//! An `etcd` process, alone or in a cluster, and the operations on it.
//!
//! In: additional arguments, certificates for TLS. Out: a server that serves when `start` returns, and ends
//! with its handle or with the process that owns the handle.
//!
//! A start takes a quarter of a second and 130 MB of disk, so [`EtcdServer::shared`] is one server for all
//! tests of a program. A cluster takes a second or two.
//!
//! | file | contents |
//! |---|---|
//! | `launch.rs` | the start of a server |
//! | `etcdctl.rs` | `etcdctl`: keys, leases, compaction, users, backups |
//! | `keys.rs` | the current keys, read cheaply |
//! | `metrics.rs` | metrics |
//! | `cluster.rs` | three servers, with a network that can be partitioned |

mod cluster;
mod etcdctl;
mod launch;
mod keys;
mod metrics;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use cluster::EtcdCluster;
pub use etcdctl::Backup;
pub use launch::EtcdTls;
pub use metrics::Metrics;

use launch::{ALONE, Running, Setup};

/// An etcd server of one test. It keeps its data when killed. It ends when this is dropped.
#[derive(Debug)]
pub struct EtcdServer {
    running: Mutex<Running>,
    setup: Setup,
    /// The user of `etcdctl`: `name:password`.
    user: Mutex<Option<String>>,
}

impl EtcdServer {
    /// Starts a server, and waits until it serves.
    ///
    /// # Panics
    ///
    /// If there is no `etcd`, or it does not serve in time.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional arguments of its command line: `["--quota-backend-bytes=1000000"]`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_as(args, None)
    }

    /// Starts a server with TLS.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with_tls(tls: EtcdTls) -> Self {
        Self::start_as(&[], Some(tls))
    }

    /// The server that all tests of this program share: each test must use its own keys, and must not stop or
    /// change the server.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<EtcdServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    fn start_as(args: &[&str], tls: Option<EtcdTls>) -> Self {
        let args = [&ALONE, args].concat();
        let mut last_words = String::new();
        // Another process may take a port between our check and the server's bind.
        for _ in 0..10 {
            let setup = Setup::new("alone", &args, tls.clone());
            let mut running = setup.launch();
            if setup.is_up(&mut running) {
                return Self::of(setup, running);
            }
            last_words = setup.last_words();
        }
        panic!("etcd ended at once, ten times; its arguments: {args:?}\n{last_words}");
    }

    fn of(setup: Setup, running: Running) -> Self {
        EtcdServer { running: Mutex::new(running), setup, user: Mutex::default() }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.setup.client
    }

    /// `etcd://127.0.0.1:PORT`, or `etcds://…` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.setup.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// `http://127.0.0.1:PORT`, or `https://…` with TLS: as in `ETCDCTL_ENDPOINTS`.
    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.setup.scheme(), self.port())
    }

    /// The name of the member in its cluster.
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// A directory for a test's files, which is deleted with the server.
    pub fn dir(&self) -> &std::path::Path {
        self.setup.dir()
    }

    /// The current metrics.
    ///
    /// # Panics
    ///
    /// If the server does not reply.
    pub fn metrics(&self) -> Metrics {
        Metrics::read(self.setup.metrics).expect("the server tells its metrics")
    }

    /// Whether the server serves: it knows a leader, and can read through it.
    pub fn is_healthy(&self) -> bool {
        self.setup.is_healthy()
    }

    /// Whether the server considers itself the leader; an isolated leader may do so for a while.
    pub fn is_leader(&self) -> bool {
        let metrics = Metrics::read(self.setup.metrics);
        metrics.is_ok_and(|metrics| metrics.sum("etcd_server_is_leader", "") > 0.0)
    }

    /// Whether the process exists, running or stopped.
    pub fn is_running(&self) -> bool {
        self.running().program.is_running()
    }

    /// Pauses the server (`SIGSTOP`): connections stay open, without replies.
    pub fn pause(&self) {
        self.running().program.stop();
    }

    /// Continues the server (`SIGCONT`).
    pub fn go_on(&self) {
        self.running().program.go_on();
    }

    /// Kills the server (`SIGKILL`).
    pub fn kill(&self) {
        self.running().kill();
    }

    /// Starts the server again after a [`kill`](Self::kill), with its data, and does not wait for it.
    pub fn start_again(&self) {
        *self.running() = self.setup.launch();
    }

    /// Kills the server and starts it again with its data; waits until it serves.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub fn restart(&self) {
        self.restart_after(|| ());
    }

    /// Kills the server and starts it again without its data; waits until it serves. Use
    /// [`replace`](EtcdCluster::replace) for a member of a cluster.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub fn restart_empty(&self) {
        self.restart_after(|| {
            std::fs::remove_dir_all(self.setup.data()).expect("a directory of ours");
        });
    }

    fn restart_after(&self, deed: impl FnOnce()) {
        let mut running = self.running();
        running.kill();
        deed();
        *running = self.setup.launch();
        assert!(self.setup.is_up(&mut running), "etcd ended:\n{}", self.setup.last_words());
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn user(&self) -> MutexGuard<'_, Option<String>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
