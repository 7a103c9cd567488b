//! An `etcd` process, alone or one of a cluster, and what its operator can do to it.
//!
//! In: more arguments, papers for TLS. Out: a server that serves when `start` returns and is gone
//! with its handle, or with the process that has the handle.
//!
//! Starting one takes a quarter of a second and 130 MB of disk: [`EtcdServer::shared`] is one for
//! all tests of a program. A cluster takes a second or two.
//!
//! | file | what |
//! |---|---|
//! | `launch.rs` | how one is started |
//! | `ctl.rs` | `etcdctl`: keys, leases, compaction, users, backups |
//! | `look.rs` | what keys there are, cheaply |
//! | `past.rs` | what keys there were |
//! | `log.rs` | who had which lease end |
//! | `words.rs` | what it complains of |
//! | `metrics.rs` | what it counts |
//! | `cluster.rs` | three of them, with a network that can be parted |

mod cluster;
mod ctl;
mod launch;
mod log;
mod look;
mod metrics;
mod past;
#[cfg(test)]
mod tests;
mod words;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use cluster::EtcdCluster;
pub use ctl::Backup;
pub use launch::EtcdTls;
pub use log::{Asker, Ending};
pub use look::Look;
pub use metrics::Metrics;
pub use past::{Gone, Past};

use launch::{ALONE, Running, Setup};

/// An etcd server of a test's own. It keeps its data when killed. Gone when dropped.
#[derive(Debug)]
pub struct EtcdServer {
    running: Mutex<Running>,
    setup: Setup,
    /// Who `etcdctl` is: `name:password`.
    user: Mutex<Option<String>>,
}

impl EtcdServer {
    /// Starts one, and waits until it serves.
    ///
    /// # Panics
    ///
    /// If there is no `etcd`, or it does not serve in time.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more arguments, as on its command line: `["--quota-backend-bytes=1000000"]`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_as(args, None)
    }

    /// Starts one that speaks TLS.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with_tls(tls: EtcdTls) -> Self {
        Self::start_as(&[], Some(tls))
    }

    /// The one that all tests of this program share: each must keep to keys of its own, and leave
    /// the server alone.
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
        // Another process may take a port between our looking and the server's binding.
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

    /// Where it listens to clients.
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

    /// What it is called in its cluster.
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// A directory for a test's files, gone with the server.
    pub fn dir(&self) -> &std::path::Path {
        self.setup.dir()
    }

    /// What it has counted so far.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    pub fn metrics(&self) -> Metrics {
        Metrics::read(self.setup.metrics).expect("the server tells its metrics")
    }

    /// Whether it serves: it knows a leader, and can read through it.
    pub fn is_healthy(&self) -> bool {
        self.setup.is_healthy()
    }

    /// Whether it leads, by its own word; one that is cut off may say so for a while.
    pub fn is_leader(&self) -> bool {
        let metrics = Metrics::read(self.setup.metrics);
        metrics.is_ok_and(|metrics| metrics.sum("etcd_server_is_leader", "") > 0.0)
    }

    /// Whether its process is there, be it stopped.
    pub fn is_running(&self) -> bool {
        self.running().program.is_running()
    }

    /// Stops it in its tracks (`SIGSTOP`): connections stay, nothing is answered.
    pub fn pause(&self) {
        self.running().program.stop();
    }

    /// Lets it go on (`SIGCONT`).
    pub fn go_on(&self) {
        self.running().program.go_on();
    }

    /// Ends it without giving it a say (`SIGKILL`).
    pub fn kill(&self) {
        self.running().kill();
    }

    /// Starts it again after a [`kill`](Self::kill), with its data, and does not wait for it.
    pub fn start_again(&self) {
        *self.running() = self.setup.launch();
    }

    /// Kills it and starts it again with its data; waits until it serves.
    ///
    /// # Panics
    ///
    /// If it does not in time.
    pub fn restart(&self) {
        self.restart_after(|| ());
    }

    /// Kills it and starts it again with nothing of what it knew; waits until it serves. One of a
    /// cluster is [replaced](EtcdCluster::replace) instead.
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
