//! `tenure watch`: what happens to locks, one line per event, until somebody ends it.
//!
//! Ends with 0 after `--count` events or when nobody reads any more, with 128+N by signal N. A server
//! that is out of reach for a while is waited for: what still shows is told when it is back.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::Signal;
use serde::Serialize;
use tenure::backend::Holding;
use tenure::watch::{Event, What};
use tenure::{Error, Holder, Locker, Watch};

use crate::args::{Everywhere, WatchArgs};
use crate::output;
use crate::signals::Signals;
use crate::status::Outcome;
use crate::talk::{self, Talk};
use crate::text;
use crate::trouble::Trouble;
use crate::url::{self, Place};
use crate::view::{HolderView, SCHEMA, json};

/// Watches.
pub(crate) fn watch(args: &WatchArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    match attempt(args, flags, talk) {
        Ok(code) => code,
        Err(trouble) => talk.trouble(&trouble),
    }
}

fn attempt(args: &WatchArgs, flags: &Everywhere, talk: &mut Talk) -> Result<u8, Trouble> {
    let place = Place::find(flags)?;
    let runtime = url::runtime()?;
    let colored =
        !args.json && talk::wants_color(flags.color, io::IsTerminal::is_terminal(&io::stdout()));
    let watching = Watching { args, place: &place, talk, colored, blind: false };
    let code = runtime.block_on(watching.go());
    // Not kept by a reader that does not read.
    runtime.shutdown_background();
    code
}

/// One watch, under way.
struct Watching<'a> {
    args: &'a WatchArgs,
    place: &'a Place,
    talk: &'a mut Talk,
    colored: bool,
    /// That nothing can be seen has been said.
    blind: bool,
}

impl Watching<'_> {
    async fn go(mut self) -> Result<u8, Trouble> {
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

    async fn watch(&mut self) -> Result<(), Trouble> {
        self.place.introduce(self.talk);
        let locker: Locker = self.place.look_when_there().await?;
        let mut watch =
            locker.watch(&self.args.glob).await.map_err(|error| self.place.trouble(&error))?;
        self.talk.say(&output::watching(watch.held()));
        for _ in 0..self.args.count.unwrap_or(u64::MAX) {
            let event = self.next(&mut watch).await?;
            if print(self.line(&event)).await.is_err() {
                // A reader that has seen enough (`| head`) is not an error.
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next event, however long the engine is out of reach.
    async fn next(&mut self, watch: &mut Watch) -> Result<Event, Trouble> {
        loop {
            match watch.next().await {
                Ok(event) => {
                    self.blind = false;
                    return Ok(event);
                }
                Err(error) if passes(&error) => self.say_blind(&error),
                Err(error) => return Err(self.place.trouble(&error)),
            }
        }
    }

    fn say_blind(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.blind, true) {
            let cause = self.place.scrub(&text::root(error));
            self.talk.insist(&output::cannot_see(&cause));
        }
    }

    fn line(&self, event: &Event) -> String {
        match self.args.json {
            true => json(&EventView::of(event)),
            false => in_words(event, self.colored) + "\n",
        }
    }
}

fn by(signal: Signal) -> u8 {
    Outcome::Interrupted(signal as i32).code()
}

/// Whether the engine may answer later.
fn passes(error: &Error) -> bool {
    error.is_unavailable() || error.is_unknown()
}

/// Prints, and does not keep anything else waiting for whoever reads.
async fn print(line: String) -> io::Result<()> {
    let printed = tokio::task::spawn_blocking(move || talk::print(&line)).await;
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

/// Green for what begins, red and yellow for what should not have happened.
fn color(what: &What) -> Option<&'static str> {
    match what {
        What::Acquired | What::HandedOver => Some("32"),
        What::Lost => Some("1;31"),
        What::Forced(_) | What::Ended => Some("33"),
        _ => None,
    }
}

/// One event, as one line of JSON.
#[derive(Debug, Serialize)]
struct EventView<'a> {
    schema: u32,
    at_unix_ms: u64,
    event: &'a str,
    key: &'a str,
    holder: Option<HolderView>,
    /// Who held it before, where it was handed over.
    from: Option<HolderView>,
    /// Who took it away, and why.
    by: Option<&'a str>,
    /// `null` where the engine does not know.
    waiters: Option<usize>,
}

impl<'a> EventView<'a> {
    fn of(event: &'a Event) -> Self {
        let view = |holder: &Option<Holder>, fence| {
            holder.clone().map(|holder| HolderView::of(&Holding::new(holder, fence, None)))
        };
        EventView {
            schema: SCHEMA,
            at_unix_ms: event.at.0,
            event: event.what.word(),
            key: event.key.as_str(),
            holder: view(&event.holder, event.fence),
            from: view(&event.from, None),
            by: match &event.what {
                What::Forced(by) => Some(by),
                _ => None,
            },
            waiters: event.waiters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    /// Colour is for the word that says what happened.
    #[test]
    fn colors() {
        let event = samples::event(What::Lost);
        let plain = in_words(&event, false);
        assert!(plain.starts_with("2027-01-15T08:00:00.000Z db-migrate lost by "), "{plain}");
        assert_eq!(in_words(&event, true), plain.replacen("lost", "\x1b[1;31mlost\x1b[0m", 1));
        assert!(!in_words(&samples::event(What::Released), true).contains('\x1b'));
    }

    /// Every event has the same fields; what is not known is `null`.
    #[test]
    fn json_in_full() {
        let mut event = samples::event(What::Forced("ann: stuck".into()));
        event.holder = Some(Holder::unknown());
        assert_eq!(
            json(&EventView::of(&event)),
            "{\"schema\":1,\"at_unix_ms\":1800000000000,\"event\":\"forced\",\"key\":\"db-migrate\",\
             \"holder\":{\"user\":null,\"host\":null,\"pid\":null,\"program\":null,\
             \"since_unix_ms\":null,\"label\":null,\"reason\":null,\"held_ms\":null,\
             \"lease_left_ms\":null,\"closing\":false,\"fence\":\"27431\"},\"from\":null,\
             \"by\":\"ann: stuck\",\"waiters\":2}\n"
        );
    }
}
