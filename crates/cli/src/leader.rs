//! `tenure leader`: who leads, once or with each change.
//!
//! Exits with 0 if somebody leads, and with 1 if nobody does. With `--watch` as `watch`.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use tenure::time::UnixMillis;
use tenure::{Key, Leadership, Locker, Observer};

use crate::args::{GlobalArgs, LeaderArgs};
use crate::error::{self, CliError};
use crate::json::{SCHEMA, json};
use crate::output;
use crate::signals::Signals;
use crate::target::{self, Target, look_at};
use crate::text::{self, escape};
use crate::ui::{self, Ui};
use crate::watch::{by, passes, print};

/// The exit status if nobody leads.
const NOBODY: u8 = 1;

pub(crate) fn leader(args: &LeaderArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    let done = error::key(&args.key).and_then(|key| match args.watch {
        true => watch(args, &key, flags, ui),
        false => once(args, &key, flags, ui),
    });
    done.unwrap_or_else(|trouble| ui.trouble(&trouble))
}

fn once(args: &LeaderArgs, key: &Key, flags: &GlobalArgs, ui: &mut Ui) -> Result<u8, CliError> {
    let found = look_at(flags, ui, async |locker| locker.election(key.as_str()).leader().await)?;
    match &found {
        _ if args.json => ui::data(&line_of_json(key, found.as_ref())),
        Some(found) => ui::data(&format!("{}\n", escape(&found.value))),
        None => ui.info(&output::nobody_leads(key.as_str())),
    }
    Ok(if found.is_some() { 0 } else { NOBODY })
}

fn watch(args: &LeaderArgs, key: &Key, flags: &GlobalArgs, ui: &mut Ui) -> Result<u8, CliError> {
    let target = Target::find(flags)?;
    let runtime = target::runtime()?;
    let code = runtime.block_on(Watching { args, key, target: &target, ui, blind: false }.go());
    // Do not wait for a blocked write to stdout.
    runtime.shutdown_background();
    code
}

/// One `--watch` in progress.
struct Watching<'a> {
    args: &'a LeaderArgs,
    key: &'a Key,
    target: &'a Target,
    ui: &'a mut Ui,
    /// The message that the leader cannot be seen has been printed.
    blind: bool,
}

impl Watching<'_> {
    async fn go(mut self) -> Result<u8, CliError> {
        let mut signals = Signals::ending()?;
        tokio::select! {
            biased;
            signal = signals.next() => Ok(by(signal)),
            done = self.watch() => done.map(|()| 0),
        }
    }

    async fn watch(&mut self) -> Result<(), CliError> {
        self.target.introduce(self.ui);
        let locker: Locker = self.target.look_when_there().await?;
        let observe = locker.election(self.key.as_str()).observe().await;
        let mut observe = observe.map_err(|error| self.target.trouble(&error))?;
        for _ in 0..self.args.count.unwrap_or(u64::MAX) {
            let now = self.next(&mut observe).await?;
            if print(self.line(now.as_ref())).await.is_err() {
                // A reader that has read enough (`| head`) is not an error.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Who leads after the next change. Waits while the engine is unreachable.
    async fn next(&mut self, observe: &mut Observer) -> Result<Option<Leadership>, CliError> {
        loop {
            match observe.next().await {
                Ok(now) => {
                    self.blind = false;
                    return Ok(now);
                }
                Err(error) if passes(&error) => {
                    if !std::mem::replace(&mut self.blind, true) {
                        let cause = self.target.scrub(&text::root(&error));
                        self.ui.always(&output::cannot_see(&cause));
                    }
                }
                Err(error) => return Err(self.target.trouble(&error)),
            }
        }
    }

    fn line(&self, now: Option<&Leadership>) -> String {
        if self.args.json {
            return line_of_json(self.key, now);
        }
        let at = UNIX_EPOCH.checked_add(Duration::from_millis(UnixMillis::now().0));
        let at = humantime::format_rfc3339_millis(at.unwrap_or(UNIX_EPOCH));
        format!("{at} {} {}\n", escape(self.key.as_str()), output::leadership(now))
    }
}

/// Who leads, as one line of JSON. `leader` is `null` if nobody does.
fn line_of_json(key: &Key, now: Option<&Leadership>) -> String {
    #[derive(Serialize)]
    struct View<'a> {
        schema: u32,
        at_unix_ms: u64,
        key: &'a str,
        leader: Option<LeaderView<'a>>,
    }
    #[derive(Serialize)]
    struct LeaderView<'a> {
        value: &'a str,
        /// A string: a JSON reader that uses doubles would round a number.
        term: Option<String>,
        user: Option<&'a str>,
        host: Option<&'a str>,
        pid: Option<u32>,
        program: Option<&'a str>,
        since_unix_ms: Option<u64>,
    }
    let leader = now.map(|now| {
        let process = now.process.as_ref();
        LeaderView {
            value: &now.value,
            term: now.term.map(|term| term.to_string()),
            user: process.map(|process| process.user.as_str()),
            host: process.map(|process| process.host.as_str()),
            pid: process.map(|process| process.pid),
            program: process.map(|process| process.program.as_str()),
            since_unix_ms: now.since.map(|since| since.0),
        }
    });
    json(&View { schema: SCHEMA, at_unix_ms: UnixMillis::now().0, key: key.as_str(), leader })
}
