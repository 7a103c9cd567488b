//! How lines reach people: stderr, colours, the live line of a wait.
//!
//! In: lines from `output.rs`. Out: bytes on stderr. A reader that is gone or slow never stops us:
//! errors are ignored, and once a lock is in danger a thread of its own does the writing.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tracing_subscriber::filter::LevelFilter;

use crate::args::{Everywhere, When};
use crate::output;
use crate::trouble::Trouble;

/// How long the end of the program waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

/// Our side of the conversation.
#[derive(Debug)]
pub(crate) struct Talk {
    quiet: bool,
    colored: bool,
    terminal: bool,
    /// A line is on the screen that the next one replaces.
    live: bool,
    aside: Option<Aside>,
}

/// The thread that writes while we must not block.
#[derive(Debug)]
struct Aside {
    lines: Sender<String>,
    done: Receiver<()>,
}

impl Talk {
    pub(crate) fn new(flags: &Everywhere) -> Self {
        let terminal = io::stderr().is_terminal();
        let colored = wants_color(flags.color, terminal);
        Talk { quiet: flags.quiet, colored, terminal, live: false, aside: None }
    }

    /// For tests: what is said comes out at the other end.
    #[cfg(test)]
    pub(crate) fn overheard() -> (Self, Receiver<String>) {
        let ((lines, heard), (_, done)) = (channel(), channel());
        let aside = Some(Aside { lines, done });
        (Talk { quiet: false, colored: false, terminal: false, live: false, aside }, heard)
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

    /// From now on no reader can hold us up: there is a command to be killed in time.
    pub(crate) fn step_aside(&mut self) {
        if self.aside.is_none() {
            self.aside = Aside::start();
        }
    }

    /// Waits a moment for what is still to be written.
    pub(crate) fn finish(&mut self) {
        if let Some(Aside { lines, done }) = self.aside.take() {
            drop(lines);
            // An error is the thread's end; a time-out is a reader that does not read.
            let _ = done.recv_timeout(PATIENCE);
        }
    }

    fn write(&self, text: String) {
        match &self.aside {
            Some(aside) => aside.lines.send(text).unwrap_or_default(),
            None => put(&text),
        }
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

impl Aside {
    fn start() -> Option<Self> {
        let (lines, incoming) = channel::<String>();
        let (finished, done) = channel();
        let write = move || {
            incoming.iter().for_each(|text| put(&text));
            drop(finished);
        };
        std::thread::Builder::new().name("tenure-talk".into()).spawn(write).ok()?;
        Some(Aside { lines, done })
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

/// Turns the engine's log on, to stderr, for `-v` and `-vv`, in colour where all we say is.
pub(crate) fn trace(flags: &Everywhere) {
    let level = match flags.verbose {
        0 => return,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let colored = wants_color(flags.color, io::stderr().is_terminal());
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(colored);
    log.with_writer(io::stderr).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(colored: bool) -> Talk {
        Talk { quiet: false, colored, terminal: false, live: false, aside: None }
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
