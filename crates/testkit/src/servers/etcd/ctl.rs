//! What an operator does: `etcdctl`, with what it needs to reach one server.
//!
//! Programs of the server's own and not our client, so that a test of ours does not look through it.

use std::process::{Command, Output};

use super::EtcdServer;
use crate::wait::eventually_blocking;

impl EtcdServer {
    /// Runs `etcdctl` with these words, and gives what it prints.
    ///
    /// # Panics
    ///
    /// If there is none, or it fails.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        match self.try_ctl(words) {
            Ok(said) => said,
            Err(said) => panic!("etcdctl {words:?}: {said}"),
        }
    }

    /// The same, on a server that may refuse or be down.
    ///
    /// # Errors
    ///
    /// With what it printed, if it failed.
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

    /// Wants a password from everybody from now on: user `root`, who may do anything. `etcdctl` is
    /// given it.
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

    /// Adds a user who may read and write what starts with `prefix`.
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

    /// Its revision now.
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

    /// Makes it forget all that was before now.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn compact(&self) {
        self.ctl(&["compact", &self.revision().to_string()]);
    }

    /// The same, on a server that may be losing its leader; whether it did.
    pub fn try_compact(&self) -> bool {
        self.try_revision().is_some_and(|revision| self.try_compact_to(revision))
    }

    /// Makes it forget what was before `revision`, if it can; whether it did.
    pub fn try_compact_to(&self, revision: u64) -> bool {
        self.try_ctl(&["compact", &revision.to_string()]).is_ok()
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

    /// The leases that it keeps, as `etcdctl` calls them.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn leases(&self) -> Vec<String> {
        // "found 2 leases", then one to a line.
        self.ctl(&["lease", "list"]).lines().skip(1).map(Into::into).collect()
    }

    /// Ends a lease, and with it all its keys.
    ///
    /// # Panics
    ///
    /// As [`ctl`](Self::ctl).
    pub fn revoke(&self, lease: &str) {
        self.ctl(&["lease", "revoke", lease]);
    }

    /// Waits until it keeps no key that starts with `prefix`.
    ///
    /// # Panics
    ///
    /// If it still does after a long time.
    pub fn is_rid_of(&self, prefix: &str) {
        eventually_blocking("the keys to be gone", || self.keys(prefix).is_empty());
    }

    /// Saves all that it has; to be [put back](Self::restore).
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

    /// Starts it again with what was saved and nothing else, revisions included.
    ///
    /// # Panics
    ///
    /// If it does not come up.
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

/// What a server had at one moment.
#[derive(Debug)]
pub struct Backup {
    dir: tempfile::TempDir,
}

const MISSING: &str = "`etcdctl` can be started: `cargo xtask setup` installs it";
