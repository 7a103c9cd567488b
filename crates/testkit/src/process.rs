//! Programs that can be stopped, continued and killed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::WaitIdOptions;

use crate::wait::DEADLINE;

/// A spawned program whose output is read line by line. It is killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: Receiver<String>,
    /// The last lines that were read, for the message when an expected line does not come.
    seen: VecDeque<String>,
}

/// The number of lines that a message shows.
const SHOWN: usize = 20;

impl Program {
    /// Starts `command` with its output piped to us.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => panic!("cannot start {command:?}: {error}"),
        };
        let stdout = child.stdout.take().expect("piped above");
        let (sender, lines) = channel();
        // The thread ends with the pipe, and so with the program.
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Program { child, lines, seen: VecDeque::new() }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether this program, and no other, listens on the port.
    pub fn listens_on(&self, port: u16) -> bool {
        let proc = format!("/proc/{}", self.pid());
        let sockets = std::fs::read_to_string(format!("{proc}/net/tcp")).unwrap_or_default();
        let local = format!(":{port:04X}");
        // Local address, remote address, state (0A is listening), five more fields, the inode of the socket.
        let listener = sockets.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let is_port = fields.get(1).is_some_and(|address| address.ends_with(&local));
            let is_it = is_port && fields.get(3) == Some(&"0A");
            is_it.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
        });
        let Some(listener) = listener else { return false };
        let files = std::fs::read_dir(format!("{proc}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.any(|link| link.as_os_str() == &*listener)
    }

    /// Waits for a line that starts with `start`, and returns the rest of the line.
    ///
    /// # Panics
    ///
    /// If the program ends or [`DEADLINE`] passes first; the message shows the last lines.
    #[track_caller]
    pub fn wait_for(&mut self, start: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(start) {
                    Some(rest) => return rest.trim().into(),
                    None => self.remember(line),
                },
                Err(why) => self.did_not_say(start, why),
            }
        }
    }

    /// The next line; `None` if the program ends or [`DEADLINE`] passes first.
    pub fn line(&mut self) -> Option<String> {
        self.lines.recv_timeout(DEADLINE).ok()
    }

    /// Skips the lines printed so far, so that the next `wait_for` finds only a new line.
    pub fn forget_lines(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.remember(line);
        }
    }

    fn remember(&mut self, line: String) {
        self.seen.push_back(line);
        if self.seen.len() > SHOWN {
            self.seen.pop_front();
        }
    }

    #[track_caller]
    fn did_not_say(&self, start: &str, why: RecvTimeoutError) -> ! {
        let why = match why {
            RecvTimeoutError::Timeout => "in time",
            RecvTimeoutError::Disconnected => "before it ended",
        };
        panic!("the program did not say `{start}` {why}; its last lines: {:#?}", self.seen);
    }

    /// Whether the program runs (or is stopped).
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops the program (`SIGSTOP`), and waits until it has stopped or ended: from then on it does nothing.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let id = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        let id = rustix::process::WaitId::Pid(id.expect("a process id fits"));
        // `NOWAIT` leaves the exit status for `wait`.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = rustix::process::waitid(id, options);
    }

    /// Continues the program (`SIGCONT`).
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the program (`SIGKILL`), and waits until it has ended.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// Asks the program to end (`SIGTERM`).
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id fits");
        // The program may have ended already; the caller has to check that.
        let _ = kill(Pid::from_raw(pid), signal);
    }

    /// Waits for the program's end.
    ///
    /// # Panics
    ///
    /// If it has not ended within [`DEADLINE`].
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        crate::wait::eventually_blocking("the program's end", || {
            ended = self.child.try_wait().expect("our own child");
            ended.is_some()
        });
        ended.expect("waited for")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The program is our child and not reaped yet, so the process id still belongs to it.
        if self.is_running() {
            self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::spawn(Command::new("sh").args(["-c", script]))
    }

    /// A test can wait for a line and for the program's end.
    #[test]
    fn lines_and_end() {
        let mut program = shell("echo one; echo two 2; exit 3");
        assert_eq!(program.wait_for("two"), "2");
        assert_eq!(program.wait().code(), Some(3));
    }

    /// If an expected line does not come, the panic message names it.
    #[test]
    #[should_panic(expected = "the program did not say `two` before it ended")]
    fn a_missing_line_is_named() {
        shell("echo one").wait_for("two");
    }

    /// A stopped program can be continued, and a killed one has ended.
    #[test]
    fn stop_go_on_kill() {
        let mut program = shell("echo up; while true; do :; done");
        program.wait_for("up");
        program.stop();
        assert!(program.is_running());
        program.go_on();
        program.kill();
        assert!(!program.is_running());
    }
}
