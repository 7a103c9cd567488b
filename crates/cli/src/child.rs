//! The running command: its process group, its stops, its end.
//!
//! In: a process that `command.rs` started, the leader of its own group. Out: [`Change`]s.
//! Whatever is sent goes to the whole group: a shell's children must not outlive the lock that the
//! shell was given. Descendants that are in groups of their own (jobs of an interactive shell) are not reached.

use std::io;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use rustix::process::{WaitOptions, WaitStatus, waitpid};
use tokio::signal::unix::{self, SignalKind};

/// A running command.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    changes: unix::Signal,
    /// Its status has been collected: from now on its process id may be another's.
    ended: bool,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Stopped by this signal; it can go on.
    Stopped(i32),
    Ended(End),
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Signalled(i32),
}

/// The watch for changes of children. To be set up before there is one, or its end may be missed.
#[derive(Debug)]
pub(crate) struct Watch(unix::Signal);

impl Watch {
    pub(crate) fn start() -> io::Result<Self> {
        unix::signal(SignalKind::child()).map(Watch)
    }

    /// Watches the child with this process id.
    pub(crate) fn over(self, pid: u32) -> Child {
        // Process ids fit: the kernel's own type is `i32`.
        let pid = Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
        Child { pid, changes: self.0, ended: false }
    }
}

impl Child {
    /// Its process id, which is its group's too.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to every member of the group, and to the command wherever it is.
    pub(crate) fn send(&self, signal: Signal) {
        // A group without members has nothing left to be told.
        let _ = killpg(self.pid, signal);
        // A command can join another group; one that has not must not get the signal twice.
        if !self.ended && getpgid(Some(self.pid)) != Ok(self.pid) {
            let _ = kill(self.pid, signal);
        }
    }

    /// Waits for the next change. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Change {
        loop {
            if let Some(change) = self.look() {
                self.ended = matches!(change, Change::Ended(_));
                return change;
            }
            self.changes.recv().await;
        }
    }

    fn look(&self) -> Option<Change> {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        match waitpid(pid, WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((_, status))) => change(status),
            Ok(None) => None,
            // Somebody else has taken its status: it has ended, and nobody can tell how.
            Err(_) => Some(Change::Ended(End::Exited(i32::from(u8::MAX)))),
        }
    }
}

/// Raw numbers, since a signal need not have a name (real-time signals).
fn change(status: WaitStatus) -> Option<Change> {
    let exited = status.exit_status().map(|status| Change::Ended(End::Exited(status)));
    let signalled = status.terminating_signal().map(|s| Change::Ended(End::Signalled(s)));
    exited.or(signalled).or(status.stopping_signal().map(Change::Stopped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;

    #[allow(clippy::zombie_processes, reason = "`Child` is what waits for it")]
    fn start(script: &str) -> Child {
        let watch = Watch::start().unwrap();
        let mut command = std::process::Command::new("sh");
        let process = command.args(["-c", script]).process_group(0).spawn().unwrap();
        watch.over(process.id())
    }

    /// A status is passed on as it is, a signal by its number, also one without a name.
    #[tokio::test]
    async fn ends_are_told_exactly() {
        assert_eq!(start("exit 42").changed().await, Change::Ended(End::Exited(42)));
        assert_eq!(start("kill -9 $$").changed().await, Change::Ended(End::Signalled(9)));
        assert_eq!(start("kill -40 $$").changed().await, Change::Ended(End::Signalled(40)));
    }

    /// A command that has gone to another group is reached too, and only once where it has not.
    #[tokio::test]
    #[allow(clippy::zombie_processes, reason = "`Child` is what waits for it")]
    async fn commands_in_another_group() {
        let watch = Watch::start().unwrap();
        // Not the leader of a group: it is in ours.
        let process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut child = watch.over(process.id());
        child.send(Signal::SIGKILL);
        let end = tokio::time::timeout(std::time::Duration::from_secs(20), child.changed()).await;
        assert_eq!(end, Ok(Change::Ended(End::Signalled(9))));
    }

    /// A stop is no end: the command goes on and ends later.
    #[tokio::test]
    async fn stops_are_told_apart() {
        let mut child = start("kill -STOP $$; exit 3");
        assert_eq!(child.changed().await, Change::Stopped(Signal::SIGSTOP as i32));
        child.send(Signal::SIGCONT);
        assert_eq!(child.changed().await, Change::Ended(End::Exited(3)));
    }
}
