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

/// A spawned program whose output is read line by line. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: Receiver<String>,
    /// What has been read already, for the message when a line does not come.
    seen: VecDeque<String>,
}

/// How many lines a message shows.
const SHOWN: usize = 20;

impl Program {
    /// Starts `command` with its output piped to us.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => panic!("cannot start {command:?}: {error}"),
        };
        let stdout = child.stdout.take().expect("piped above");
        let (sender, lines) = channel();
        // Ends with the pipe, that is with the program.
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        Program { child, lines, seen: VecDeque::new() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that starts with `start`, and gives the rest of it.
    ///
    /// # Panics
    ///
    /// If the program ends or [`DEADLINE`] passes first; the message shows its last lines.
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

    /// The next line; `None` if it ends or [`DEADLINE`] passes first.
    pub fn line(&mut self) -> Option<String> {
        self.lines.recv_timeout(DEADLINE).ok()
    }

    /// Forgets the lines that it has printed so far, so that the next one waited for is a new one.
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

    /// Whether it runs (or is stopped).
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Stops it in its tracks (`SIGSTOP`), and waits until it has stopped or ended: from then on it
    /// does nothing.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let id = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw);
        let id = rustix::process::WaitId::Pid(id.expect("a process id fits"));
        // Looking only: the end is left for `wait` to see.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = rustix::process::waitid(id, options);
    }

    /// Lets it go on (`SIGCONT`).
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Ends it without giving it a say (`SIGKILL`), and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// Asks it to end (`SIGTERM`).
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id fits");
        // It may have ended by itself; that is for the caller to find out.
        let _ = kill(Pid::from_raw(pid), signal);
    }

    /// Waits for its end.
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
        // Our child, and not waited for yet, so the id is still its own.
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

    /// A line can be waited for, and the program's end.
    #[test]
    fn lines_and_end() {
        let mut program = shell("echo one; echo two 2; exit 3");
        assert_eq!(program.wait_for("two"), "2");
        assert_eq!(program.wait().code(), Some(3));
    }

    /// A line that does not come fails with what came instead.
    #[test]
    #[should_panic(expected = "the program did not say `two` before it ended")]
    fn a_missing_line_is_named() {
        shell("echo one").wait_for("two");
    }

    /// A stopped program does nothing until it goes on, and a killed one nothing at all.
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
