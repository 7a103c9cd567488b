//! The arguments of one request, written once, in the form in which the driver sends them.
//!
//! In: arguments, whole or in parts. Out: a command.

use std::io::Write;

use redis::{Arg, Cmd, RedisWrite as _};

/// Enough for the short requests. The full ones are rare and allocate more.
const ROOM: usize = 320;
const WORDS: usize = 10;

pub(crate) struct CommandWriter(Cmd);

impl CommandWriter {
    /// A command that starts with the arguments `first`.
    pub(crate) fn new(first: &[&str]) -> Self {
        let mut words = CommandWriter(Cmd::with_capacity(WORDS, ROOM));
        first.iter().for_each(|word| words.add(word));
        words
    }

    pub(crate) fn add(&mut self, word: &str) {
        self.0.write_arg(word.as_bytes());
    }

    pub(crate) fn add_bytes(&mut self, word: &[u8]) {
        self.0.write_arg(word);
    }

    pub(crate) fn add_number(&mut self, number: u64) {
        self.0.arg(number);
    }

    /// Adds an argument that consists of several parts.
    pub(crate) fn add_parts(&mut self, parts: &[&str]) {
        self.add_with(|text| parts.iter().try_for_each(|part| text.write_all(part.as_bytes())));
    }

    /// Adds the argument that `write` writes.
    pub(crate) fn add_with(&mut self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        // It writes into memory, which cannot fail.
        let _ = write(&mut self.0.writer_for_next_arg());
    }

    pub(crate) fn command(self) -> Cmd {
        self.0
    }
}

/// The same command with other arguments at its start.
pub(crate) fn starting_with(first: &[&str], command: &Cmd) -> Cmd {
    let mut words = CommandWriter::new(first);
    for arg in command.args_iter().skip(first.len()) {
        if let Arg::Simple(word) = arg {
            words.add_bytes(word);
        }
    }
    words.command()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: &Cmd) -> Vec<String> {
        let word = |arg| match arg {
            Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => "?".into(),
        };
        command.args_iter().map(word).collect()
    }

    /// Arguments come out as they went in, also empty ones, and also after the first ones are replaced.
    #[test]
    fn words_round_trip() {
        let mut words = CommandWriter::new(&["one", "two"]);
        words.add("");
        words.add_number(30_000);
        words.add_parts(&["a", ":", "b"]);
        let command = words.command();
        assert_eq!(read(&command), ["one", "two", "", "30000", "a:b"]);
        assert_eq!(read(&starting_with(&["1", "2"], &command)), ["1", "2", "", "30000", "a:b"]);
    }
}
