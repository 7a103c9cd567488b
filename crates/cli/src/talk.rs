//! How lines reach people: stderr, colours, the live line of a wait.
//!
//! In: lines from `output.rs`, and the engine's log. Out: bytes on stderr, written by a thread of their own.
//! A reader that is gone, slow or asleep holds up nobody: lines wait in a queue, and what does not fit is
//! dropped. While the reader keeps up, a line is on the screen before we go on.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use crate::args::{Everywhere, When};
use crate::output;
use crate::trouble::Trouble;

/// How long the end of the program waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a line waits for its reader, so that it stands before what the command prints.
const MOMENT: Duration = Duration::from_millis(50);
/// How many lines wait for a reader: more than `-vv` writes in a burst.
const QUEUE: usize = 1_024;

/// Our side of the conversation.
#[derive(Debug)]
pub(crate) struct Talk {
    quiet: bool,
    colored: bool,
    terminal: bool,
    /// A line is on the screen that the next one replaces.
    live: bool,
    lines: SyncSender<Line>,
    /// Disconnected when the last line has been written.
    unwritten: Option<Receiver<()>>,
    /// No line is waited for any more.
    hurried: bool,
}

/// A text to write, and what is dropped when that is done.
pub(crate) type Line = (String, Option<Sender<()>>);

impl Talk {
    pub(crate) fn new(flags: &Everywhere) -> Self {
        let terminal = io::stderr().is_terminal();
        let (lines, incoming) = sync_channel(QUEUE);
        let write = move || {
            let write = |(text, written): Line| {
                put(&text);
                drop(written);
            };
            incoming.into_iter().for_each(write);
        };
        // Without a thread nothing is said: that is better than to hang.
        let _ = std::thread::Builder::new().name("tenure-talk".into()).spawn(write);
        let colored = wants_color(flags.color, terminal);
        Talk { quiet: flags.quiet, terminal, ..Self::over(lines, colored) }
    }

    fn over(lines: SyncSender<Line>, colored: bool) -> Self {
        let (quiet, terminal, live, unwritten, hurried) = (false, false, false, None, false);
        Talk { quiet, colored, terminal, live, lines, unwritten, hurried }
    }

    /// For tests: what is said comes out at the other end.
    #[cfg(test)]
    pub(crate) fn overheard() -> (Self, Receiver<Line>) {
        let (lines, heard) = sync_channel(QUEUE);
        (Talk { hurried: true, ..Self::over(lines, false) }, heard)
    }

    /// Says something that `-q` silences.
    pub(crate) fn say(&mut self, line: &str) {
        if !self.quiet {
            self.insist(line);
        }
    }

    /// Says something that must be said.
    pub(crate) fn insist(&mut self, line: &str) {
        let clear = if std::mem::take(&mut self.live) { "\r\x1b[K" } else { "" };
        self.write(format!("{clear}{}\n", self.painted(line)));
    }

    /// Asks something: the answer is typed after it, on the same line.
    pub(crate) fn ask(&mut self, question: &str) {
        self.write(question.into());
    }

    /// Says something that must be said while a question is open. What has been typed stays to be seen.
    pub(crate) fn interject(&mut self, line: &str) {
        self.write("\n".into());
        self.insist(line);
    }

    /// Says what is in the way: in place on a terminal, else on a line of its own.
    pub(crate) fn progress(&mut self, line: &str) {
        if !self.is_live() {
            return self.say(line);
        }
        self.live = true;
        // Without automatic wrapping the terminal cuts the line at its edge, whatever its width.
        self.write(format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h"));
    }

    /// Takes the live line away.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.live) {
            self.write("\r\x1b[K".into());
        }
    }

    /// Says what went wrong and what to do about it. The status to exit with comes back.
    pub(crate) fn trouble(&mut self, trouble: &Trouble) -> u8 {
        self.insist(&output::error(&trouble.chain));
        if let Some(advice) = &trouble.hint {
            self.insist(&output::hint(advice));
        }
        trouble.outcome.code()
    }

    /// Whether lines can be rewritten in place.
    pub(crate) fn is_live(&self) -> bool {
        self.terminal && !self.quiet && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }

    /// From now on no line is waited for, not even for a moment: there is a command to be killed in time.
    pub(crate) fn step_aside(&mut self) {
        self.hurried = true;
    }

    /// Waits a moment for what is still to be written, the log included.
    pub(crate) fn finish(&mut self) {
        self.hurried = true;
        self.write(String::new());
        if let Some(unwritten) = self.unwritten.take() {
            // An error is the end of the last line; a time-out is a reader that does not read.
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

    /// Turns the engine's log on, to stderr, for `-v` and `-vv`, in colour where all we say is.
    pub(crate) fn trace(&self, flags: &Everywhere) {
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

/// The engine's log, on its way to the same thread.
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

/// Prints what has no conversation yet, and waits no longer for its reader than at the end of one.
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

/// A reader that has gone away is no reason to stop.
fn put(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Whether to colour what goes to a stream that is a terminal or not.
pub(crate) fn wants_color(when: When, terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => terminal && !refused,
    }
}

/// Prints data. A reader that has seen enough (`| head`) is not an error.
pub(crate) fn data(text: &str) {
    let _ = print(text);
}

/// The same for whoever goes on printing as long as somebody reads.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(colored: bool) -> Talk {
        Talk { colored, ..Talk::overheard().0 }
    }

    /// Colour marks the one word that matters, and only where it is wanted.
    #[test]
    fn colors() {
        assert_eq!(talk(true).painted("tenure: error: x"), "tenure: \x1b[1;31merror:\x1b[0m x");
        assert_eq!(talk(true).painted("hint: x"), "\x1b[36mhint:\x1b[0m x");
        assert_eq!(talk(true).painted("tenure: lost k"), "tenure: lost k");
        assert_eq!(talk(false).painted("tenure: error: x"), "tenure: error: x");
        assert!(wants_color(When::Always, false) && !wants_color(When::Never, true));
    }
}
