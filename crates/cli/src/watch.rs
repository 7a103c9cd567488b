//! `tenure watch`: the events of locks, one line each, until it is stopped.
//!
//! Exits with 0 after `--count` events or when stdout has no reader any more, with 128+N after signal N. It
//! waits while the server is unreachable, and then reports the changes that can still be seen.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::Signal;
use tenure::view::EventView;
use tenure::watch::{Event, EventKind};
use tenure::{Error, Locker, Watch};

use crate::args::{GlobalArgs, WatchArgs};
use crate::error::CliError;
use crate::json::json;
use crate::output;
use crate::signals::Signals;
use crate::status::Outcome;
use crate::target::{self, Target};
use crate::text;
use crate::ui::{self, Ui};

pub(crate) fn watch(args: &WatchArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match attempt(args, flags, ui) {
        Ok(code) => code,
        Err(trouble) => ui.trouble(&trouble),
    }
}

fn attempt(args: &WatchArgs, flags: &GlobalArgs, ui: &mut Ui) -> Result<u8, CliError> {
    let target = Target::find(flags)?;
    let runtime = target::runtime()?;
    let colored =
        !args.json && ui::wants_color(flags.color, io::IsTerminal::is_terminal(&io::stdout()));
    let watching = Watching { args, target: &target, ui, colored, blind: false };
    let code = runtime.block_on(watching.go());
    // Do not wait for a blocked write to stdout.
    runtime.shutdown_background();
    code
}

/// One watch in progress.
struct Watching<'a> {
    args: &'a WatchArgs,
    target: &'a Target,
    ui: &'a mut Ui,
    colored: bool,
    /// The message that the locks cannot be read has been printed.
    blind: bool,
}

impl Watching<'_> {
    async fn go(mut self) -> Result<u8, CliError> {
        let mut signals = Signals::ending()?;
        let watched = tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            done = self.watch() => Ok(done),
        };
        match watched {
            Ok(done) => done.map(|()| 0),
            Err(signal) => Ok(by(signal)),
        }
    }

    async fn watch(&mut self) -> Result<(), CliError> {
        self.target.introduce(self.ui);
        let locker: Locker = self.target.look_when_there().await?;
        let mut watch =
            locker.watch(&self.args.glob).await.map_err(|error| self.target.trouble(&error))?;
        self.ui.info(&output::watching(watch.held()));
        for _ in 0..self.args.count.unwrap_or(u64::MAX) {
            let event = self.next(&mut watch).await?;
            if print(self.line(&event)).await.is_err() {
                // A reader that has read enough (`| head`) is not an error.
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next event. Waits while the engine is unreachable.
    async fn next(&mut self, watch: &mut Watch) -> Result<Event, CliError> {
        loop {
            match watch.next().await {
                Ok(event) => {
                    self.blind = false;
                    return Ok(event);
                }
                Err(error) if passes(&error) => self.say_blind(&error),
                Err(error) => return Err(self.target.trouble(&error)),
            }
        }
    }

    fn say_blind(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.blind, true) {
            let cause = self.target.scrub(&text::root(error));
            self.ui.always(&output::cannot_see(&cause));
        }
    }

    fn line(&self, event: &Event) -> String {
        match self.args.json {
            true => json(&EventView::of(event)),
            false => in_words(event, self.colored) + "\n",
        }
    }
}

pub(crate) fn by(signal: Signal) -> u8 {
    Outcome::Interrupted(signal as i32).code()
}

/// Whether the error is temporary.
pub(crate) fn passes(error: &Error) -> bool {
    error.is_unavailable() || error.is_unknown()
}

/// Prints on a blocking thread, so that a slow reader delays nothing else.
pub(crate) async fn print(line: String) -> io::Result<()> {
    let printed = tokio::task::spawn_blocking(move || ui::print(&line)).await;
    printed.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn in_words(event: &Event, colored: bool) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(event.at.0)).unwrap_or(UNIX_EPOCH);
    let (word, rest) = output::event(event);
    let word = match color(&event.what).filter(|_| colored) {
        Some(color) => format!("\x1b[{color}m{word}\x1b[0m"),
        None => word.into(),
    };
    let (at, key) = (humantime::format_rfc3339_millis(at), text::escape(event.key.as_str()));
    format!("{at} {key} {word}{rest}")
}

/// Green for a new holder, red and yellow for an unwanted end.
fn color(what: &EventKind) -> Option<&'static str> {
    match what {
        EventKind::Acquired | EventKind::HandedOver => Some("32"),
        EventKind::Lost => Some("1;31"),
        EventKind::Forced(_) | EventKind::Ended => Some("33"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::samples;
    use tenure::Holder;

    /// Only the word for the event is coloured.
    #[test]
    fn colors() {
        let event = samples::event(EventKind::Lost);
        let plain = in_words(&event, false);
        assert!(plain.starts_with("2027-01-15T08:00:00.000Z db-migrate lost by "), "{plain}");
        assert_eq!(in_words(&event, true), plain.replacen("lost", "\x1b[1;31mlost\x1b[0m", 1));
        assert!(!in_words(&samples::event(EventKind::Released), true).contains('\x1b'));
    }

    /// Every event has the same fields; unknown values are `null`.
    #[test]
    fn json_in_full() {
        let mut event = samples::event(EventKind::Forced("ann: stuck".into()));
        event.holder = Some(Holder::unknown());
        assert_eq!(
            json(&EventView::of(&event)),
            "{\"schema\":1,\"at_unix_ms\":1800000000000,\"event\":\"forced\",\"key\":\"db-migrate\",\
             \"holder\":{\"user\":null,\"host\":null,\"pid\":null,\"program\":null,\
             \"since_unix_ms\":null,\"label\":null,\"reason\":null,\"held_ms\":null,\
             \"lease_left_ms\":null,\"cooling_down\":false,\"fence\":\"27431\"},\"from\":null,\
             \"by\":\"ann: stuck\",\"waiters\":2}\n"
        );
    }
}
