//! The running command: its process group, its stops, its end.
//!
//! In: a process that `command.rs` started, the leader of its own group. Out: [`Change`]s. Every signal goes
//! to the whole group, because the children of a shell must not outlive the shell's lock. Descendants in
//! groups of their own (jobs of an interactive shell) are not reached.

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
    /// The exit status has been collected: from now on another process may have this process id.
    ended: bool,
}

/// A change of the command's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Stopped by this signal; the command can continue.
    Stopped(i32),
    Ended(End),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Signalled(i32),
}

/// Receives SIGCHLD. Create it before the child is started, or the end of the child may be missed.
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
    /// The process id of the command, which is also the id of its group.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to every member of the group, and to the command itself if it has left the group.
    pub(crate) fn send(&self, signal: Signal) {
        // An empty group is not an error.
        let _ = killpg(self.pid, signal);
        // A command can join another group. If it has not, it must not get the signal twice.
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
            // Other code has collected the status: the command has ended, and its status is unknown.
            Err(_) => Some(Change::Ended(End::Exited(i32::from(u8::MAX)))),
        }
    }
}

/// Uses raw numbers, since a real-time signal has no name.
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

    /// An exit status is reported unchanged, a signal by its number, also a signal without a name.
    #[tokio::test]
    async fn exit_statuses_are_exact() {
        assert_eq!(start("exit 42").changed().await, Change::Ended(End::Exited(42)));
        assert_eq!(start("kill -9 $$").changed().await, Change::Ended(End::Signalled(9)));
        assert_eq!(start("kill -40 $$").changed().await, Change::Ended(End::Signalled(40)));
    }

    /// A signal reaches a command that is in another group.
    #[tokio::test]
    #[allow(clippy::zombie_processes, reason = "`Child` is what waits for it")]
    async fn commands_in_another_group() {
        let watch = Watch::start().unwrap();
        // It is not the leader of a group; it is in our group.
        let process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut child = watch.over(process.id());
        child.send(Signal::SIGKILL);
        let end = tokio::time::timeout(std::time::Duration::from_secs(20), child.changed()).await;
        assert_eq!(end, Ok(Change::Ended(End::Signalled(9))));
    }

    /// A stop is not an end: the command continues and ends later.
    #[tokio::test]
    async fn stops_are_told_apart() {
        let mut child = start("kill -STOP $$; exit 3");
        assert_eq!(child.changed().await, Change::Stopped(Signal::SIGSTOP as i32));
        child.send(Signal::SIGCONT);
        assert_eq!(child.changed().await, Change::Ended(End::Exited(3)));
    }
}
