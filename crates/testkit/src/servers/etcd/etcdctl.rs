//! Operator commands: `etcdctl` with the options that it needs to reach one server.
//!
//! These are the server's own programs and not our client, so that a test of our client does not depend on
//! that client.

use std::process::{Command, Output};

use super::EtcdServer;
use crate::wait::eventually_blocking;

impl EtcdServer {
    /// Runs `etcdctl` with these arguments, and returns its output.
    ///
    /// # Panics
    ///
    /// If it is not installed, or fails.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        match self.try_ctl(words) {
            Ok(said) => said,
            Err(said) => panic!("etcdctl {words:?}: {said}"),
        }
    }

    /// Runs `etcdctl` on a server that may refuse or be down.
    ///
    /// # Errors
    ///
    /// The output of the command, if it failed.
    pub fn try_ctl(&self, words: &[&str]) -> Result<String, String> {
        let Output { status, stdout, stderr } = self.etcdctl().args(words).output().expect(MISSING);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        match status.success() {
            true => Ok(text(&stdout)),
            false => Err(text(&[stdout, stderr].concat())),
        }
    }

    pub(super) fn etcdctl(&self) -> Command {
        let mut command = super::launch::clean("etcdctl");
        command.args(["--endpoints", &self.endpoint(), "--command-timeout", "10s"]);
        if let Some(tls) = &self.setup.tls {
            command.arg("--cacert").arg(&tls.ca);
            command.arg("--cert").arg(&tls.cert).arg("--key").arg(&tls.key);
        }
        if let Some(user) = &*self.user() {
            command.args(["--user", user]);
        }
        command
    }

    /// Enables authentication, with a user `root` who may do anything. `etcdctl` uses it from now on.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn enable_auth(&self, password: &str) {
        let root = format!("root:{password}");
        self.ctl(&["user", "add", &root]);
        self.ctl(&["user", "grant-role", "root", "root"]);
        self.ctl(&["auth", "enable"]);
        *self.user() = Some(root);
    }

    /// Adds a user who may read and write keys that start with `prefix`.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn add_user(&self, name: &str, password: &str, prefix: &str) {
        self.ctl(&["user", "add", &format!("{name}:{password}")]);
        self.ctl(&["role", "add", name]);
        self.ctl(&["role", "grant-permission", name, "readwrite", prefix, "--prefix=true"]);
        self.ctl(&["user", "grant-role", name, name]);
    }

    /// The current revision.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn revision(&self) -> u64 {
        self.try_revision().expect("the server tells its revision")
    }

    pub(super) fn try_revision(&self) -> Option<u64> {
        let said = self.try_ctl(&["get", "--write-out=json", "revision"]).ok()?;
        let said: serde_json::Value = serde_json::from_str(&said).ok()?;
        said["header"]["revision"].as_u64()
    }

    /// Compacts the history up to the current revision.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn compact(&self) {
        self.ctl(&["compact", &self.revision().to_string()]);
    }

    /// [`compact`](Self::compact) on a server that may be losing its leader. Returns whether it succeeded.
    pub fn try_compact(&self) -> bool {
        let compacted = |revision: u64| self.try_ctl(&["compact", &revision.to_string()]).is_ok();
        self.try_revision().is_some_and(compacted)
    }

    /// The names of all keys that start with `prefix`.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let said = self.ctl(&["get", "--prefix", "--keys-only", prefix]);
        said.lines().filter(|line| !line.is_empty()).map(Into::into).collect()
    }

    /// Deletes all keys that start with `prefix`.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn delete(&self, prefix: &str) {
        self.ctl(&["del", "--prefix", prefix]);
    }

    /// The ids of the server's leases, as `etcdctl` prints them.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn leases(&self) -> Vec<String> {
        // "found 2 leases", then one per line.
        self.ctl(&["lease", "list"]).lines().skip(1).map(Into::into).collect()
    }

    /// Revokes a lease, which deletes its keys.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn revoke(&self, lease: &str) {
        self.ctl(&["lease", "revoke", lease]);
    }

    /// Waits until the server has no key that starts with `prefix`.
    ///
    /// # Panics
    ///
    /// If it still has one after [`DEADLINE`](crate::wait::DEADLINE).
    pub fn is_rid_of(&self, prefix: &str) {
        eventually_blocking("the keys to be gone", || self.keys(prefix).is_empty());
    }

    /// Saves all data as a backup for [`restore`](Self::restore).
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn save(&self) -> Backup {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("backup");
        self.ctl(&["snapshot", "save", file.to_str().expect("a path of ours")]);
        Backup { dir }
    }

    /// Restarts the server with the data of the backup and nothing else, revisions included.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restore(&self, backup: &Backup) {
        self.kill();
        std::fs::remove_dir_all(self.setup.data()).expect("a directory of ours");
        let mut command = super::launch::clean("etcdctl");
        command.args(["snapshot", "restore"]).arg(backup.dir.path().join("backup"));
        command.arg("--data-dir").arg(self.setup.data()).args(self.setup.founding());
        let output = command.output().expect(MISSING);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.restart();
    }
}

/// The data of a server at one moment.
#[derive(Debug)]
pub struct Backup {
    dir: tempfile::TempDir,
}

const MISSING: &str = "`etcdctl` can be started: `cargo xtask setup` installs it";
