//! Writes messages to stderr: lines, colours, the live line of a wait.
//!
//! In: lines from `output.rs`, and the engine's log. Out: bytes on stderr, written by a separate thread. A
//! reader that is gone, slow or stopped delays nothing: lines wait in a queue, and lines that do not fit are
//! dropped. While the reader keeps up, a line is on the screen before we continue.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use crate::args::{GlobalArgs, When};
use crate::error::CliError;
use crate::output;

/// How long the end of the program waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait until a line is written, so that it comes before the command's output.
const MOMENT: Duration = Duration::from_millis(50);
/// How many lines are queued for a slow reader: more than `-vv` writes in a burst.
const QUEUE: usize = 1_024;

/// Prints our messages.
#[derive(Debug)]
pub(crate) struct Ui {
    quiet: bool,
    colored: bool,
    terminal: bool,
    /// The screen shows a live line, which the next line replaces.
    live: bool,
    lines: SyncSender<Line>,
    /// The channel is disconnected when the last line has been written.
    unwritten: Option<Receiver<()>>,
    /// Do not wait until lines are written any more.
    hurried: bool,
}

/// A text to write, and a sender that is dropped when the text is written.
pub(crate) type Line = (String, Option<Sender<()>>);

impl Ui {
    pub(crate) fn new(flags: &GlobalArgs) -> Self {
        let terminal = io::stderr().is_terminal();
        let (lines, incoming) = sync_channel(QUEUE);
        let write = move || {
            let write = |(text, written): Line| {
                put(&text);
                drop(written);
            };
            incoming.into_iter().for_each(write);
        };
        // If the thread cannot start, messages are lost; that is better than a hang.
        let _ = std::thread::Builder::new().name("tenure-ui".into()).spawn(write);
        let colored = wants_color(flags.color, terminal);
        Ui { quiet: flags.quiet, terminal, ..Self::over(lines, colored) }
    }

    fn over(lines: SyncSender<Line>, colored: bool) -> Self {
        let (quiet, terminal, live, unwritten, hurried) = (false, false, false, None, false);
        Ui { quiet, colored, terminal, live, lines, unwritten, hurried }
    }

    /// For tests: the lines arrive at the receiver.
    #[cfg(test)]
    pub(crate) fn for_test() -> (Self, Receiver<Line>) {
        let (lines, heard) = sync_channel(QUEUE);
        (Ui { hurried: true, ..Self::over(lines, false) }, heard)
    }

    /// Prints a line, unless `-q` is set.
    pub(crate) fn info(&mut self, line: &str) {
        if !self.quiet {
            self.always(line);
        }
    }

    /// Prints a line, also with `-q`.
    pub(crate) fn always(&mut self, line: &str) {
        let clear = if std::mem::take(&mut self.live) { "\r\x1b[K" } else { "" };
        self.write(format!("{clear}{}\n", self.painted(line)));
    }

    /// Prints a question; the operator types the answer on the same line.
    pub(crate) fn ask(&mut self, question: &str) {
        self.write(question.into());
    }

    /// Prints a line while a question is open, also with `-q`. The typed text stays visible.
    pub(crate) fn interject(&mut self, line: &str) {
        self.write("\n".into());
        self.always(line);
    }

    /// Prints what the wait is for: in target on a terminal, elsewhere on a line of its own.
    pub(crate) fn progress(&mut self, line: &str) {
        if !self.is_live() {
            return self.info(line);
        }
        self.live = true;
        // Automatic wrapping is switched off, so that the terminal cuts the line at its edge.
        self.write(format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h"));
    }

    /// Erases the live line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.live) {
            self.write("\r\x1b[K".into());
        }
    }

    /// Prints an error and its hint. Returns the exit status.
    pub(crate) fn trouble(&mut self, trouble: &CliError) -> u8 {
        self.always(&output::error(&trouble.chain));
        if let Some(advice) = &trouble.hint {
            self.always(&output::hint(advice));
        }
        trouble.outcome.code()
    }

    /// Whether lines can be rewritten in target.
    pub(crate) fn is_live(&self) -> bool {
        self.terminal && !self.quiet && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    /// From now on, never wait until a line is written: a command has to be killed in time.
    pub(crate) fn stop_waiting(&mut self) {
        self.hurried = true;
    }

    /// Waits up to [`PATIENCE`] until all lines are written, the log included.
    pub(crate) fn finish(&mut self) {
        self.hurried = true;
        self.write(String::new());
        if let Some(unwritten) = self.unwritten.take() {
            // An error means that the last line is written; a time-out means that the reader does not read.
            let _ = unwritten.recv_timeout(PATIENCE);
        }
    }

    fn write(&mut self, text: String) {
        let (written, unwritten) = channel();
        let behind =
            self.unwritten.as_ref().is_some_and(|last| last.try_recv() == Err(TryRecvError::Empty));
        if self.lines.try_send((text, Some(written))).is_err() {
            return;
        }
        if !behind && !self.hurried {
            let _ = unwritten.recv_timeout(MOMENT);
        }
        self.unwritten = Some(unwritten);
    }

    /// Writes the engine's log to stderr for `-v` and `-vv`, in colour if our messages are.
    pub(crate) fn trace(&self, flags: &GlobalArgs) {
        let level = match flags.verbose {
            0 => return,
            1 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let lines = self.lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(self.colored);
        log.with_writer(move || Log(lines.clone())).init();
    }

    fn painted(&self, line: &str) -> String {
        let word = [("tenure: ", "error:", "1;31"), ("", "hint:", "36")].into_iter().find_map(
            |(before, word, color)| {
                let rest = line.strip_prefix(before)?.strip_prefix(word)?;
                Some(format!("{before}\x1b[{color}m{word}\x1b[0m{rest}"))
            },
        );
        word.filter(|_| self.colored).unwrap_or_else(|| line.into())
    }
}

/// Sends the engine's log to the writer thread.
struct Log(SyncSender<Line>);

impl Write for Log {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let _ = self.0.try_send((String::from_utf8_lossy(event).into_owned(), None));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints before there is a `Ui`, on a separate thread. Waits for the reader no longer than [`PATIENCE`].
pub(crate) fn briefly(print: impl FnOnce() + Send + 'static) {
    let (done, printed) = channel::<()>();
    let printing = move || {
        print();
        drop(done);
    };
    if std::thread::Builder::new().spawn(printing).is_ok() {
        let _ = printed.recv_timeout(PATIENCE);
    }
}

/// Writes to stderr. A write error is ignored: a missing reader is no reason to stop.
fn put(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Whether to colour the output; `terminal` is whether it goes to a terminal.
pub(crate) fn wants_color(when: When, terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => terminal && !refused,
    }
}

/// Prints data to stdout. A reader that has read enough (`| head`) is not an error.
pub(crate) fn data(text: &str) {
    let _ = print(text);
}

/// Like [`data`], for a caller that stops when the reader is gone.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ui(colored: bool) -> Ui {
        Ui { colored, ..Ui::for_test().0 }
    }

    /// Only the important word is coloured, and only if colours are on.
    #[test]
    fn colors() {
        assert_eq!(ui(true).painted("tenure: error: x"), "tenure: \x1b[1;31merror:\x1b[0m x");
        assert_eq!(ui(true).painted("hint: x"), "\x1b[36mhint:\x1b[0m x");
        assert_eq!(ui(true).painted("tenure: lost k"), "tenure: lost k");
        assert_eq!(ui(false).painted("tenure: error: x"), "tenure: error: x");
        assert!(wants_color(When::Always, false) && !wants_color(When::Never, true));
    }
}
