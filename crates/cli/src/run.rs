//! `tenure run`: from the checks to the exit status.
//!
//! In: the command line. Out: the exit status, and the status file if one was asked for. What can be
//! known to fail is said before the lock is taken.

use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::backend::Loss;
use tenure::time::Time;
use tenure::{Client, Error, Guard, Key, Lock, Locker, TTL_DEFAULT};

use crate::args::{Everywhere, RunArgs};
use crate::child::{Child, End};
use crate::command::{self, Task};
use crate::hold::{Fate, Hold, Policy};
use crate::output;
use crate::signals::Signals;
use crate::status::{Outcome, Report, StatusFile, millis};
use crate::talk::Talk;
use crate::terminal::Terminal;
use crate::text;
use crate::trouble::{self, Trouble};
use crate::url::{self, Place};
use crate::wait::{self, Waited};

/// Runs the command under the lock, and says how it went.
pub(crate) fn run(args: &RunArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    let file = match args.status_file.as_deref().map(StatusFile::probe).transpose() {
        Ok(file) => file,
        Err(trouble) => return talk.trouble(&trouble),
    };
    let report = attempt(args, flags, talk);
    if let Some(Err(error)) = file.map(|file| file.write(&report)) {
        talk.trouble(&Trouble::usage(format!("cannot write the status file: {error}")));
    }
    report.code(args.asking.conflict_exit_code)
}

fn attempt(args: &RunArgs, flags: &Everywhere, talk: &mut Talk) -> Report {
    let mut report = Report::new(&args.key.to_string_lossy());
    if let Err(trouble) = checked(args, flags, talk, &mut report) {
        talk.trouble(&trouble);
        report.outcome = trouble.outcome;
    }
    report
}

fn checked(
    args: &RunArgs,
    flags: &Everywhere,
    talk: &mut Talk,
    report: &mut Report,
) -> Result<(), Trouble> {
    let key = trouble::key(&args.key)?;
    check_relations(args)?;
    args.command.first().map_or(Ok(()), |program| command::check(program))?;
    let place = Place::find(flags)?;
    // A bound that is configured ends the command in time, as one that is asked for does.
    let at_most = args.at_most.or(place.config().get_max_hold());
    let args = &RunArgs { at_most, ..args.clone() };
    check_relations(args)?;
    let run = Run { args, key: &key, place: &place, talk, report };
    url::runtime()?.block_on(run.go())
}

fn check_relations(args: &RunArgs) -> Result<(), Trouble> {
    match (args.at_least, args.at_most) {
        (Some(least), Some(most)) if least > most => {
            let (least, most) = (text::exact(least), text::exact(most));
            Err(Trouble::usage(format!(
                "`--at-least {least}` must not be more than `--at-most {most}`"
            )))
        }
        _ => Ok(()),
    }
}

/// One run, under way.
struct Run<'a> {
    args: &'a RunArgs,
    key: &'a Key,
    place: &'a Place,
    talk: &'a mut Talk,
    report: &'a mut Report,
}

impl Run<'_> {
    async fn go(mut self) -> Result<(), Trouble> {
        let mut signals = Signals::ending()?;
        match wait::connect(self.place, &mut signals, self.talk).await {
            Ok(locker) => self.with(&locker?, &mut signals).await,
            Err(signal) => self.interrupted(signal),
        }
    }

    async fn with(&mut self, locker: &Locker, signals: &mut Signals) -> Result<(), Trouble> {
        self.say_what_is_ignored(locker);
        let start = locker.clock().now();
        let request = self.request(locker);
        let waited = wait::acquire(locker, self.key, request, signals, self.talk).await;
        self.report.waited_ms = millis(locker.clock().now().since(start));
        let result = match waited {
            Waited::Acquired(guard) => self.hold(locker, guard, signals).await,
            Waited::Interrupted(signal) => self.interrupted(signal),
            Waited::Failed(error) => self.failed(&error),
        };
        wait::farewell(locker, signals).await;
        result
    }

    fn say_what_is_ignored(&mut self, locker: &Locker) {
        let can = locker.capabilities();
        if self.args.ttl.is_some() && !can.expires {
            self.talk.say(&output::ttl_without_effect(can.engine));
        }
    }

    fn ttl(&self) -> Duration {
        self.args.ttl.or(self.place.config().get_ttl()).unwrap_or(TTL_DEFAULT)
    }

    fn request(&self, locker: &Locker) -> Lock {
        let args = self.args;
        let lock = wait::request(locker, self.key, self.ttl(), &args.asking);
        let lock = lock.at_least(args.at_least.unwrap_or_default());
        match args.at_most {
            Some(most) => lock.max_hold(most),
            None => lock,
        }
    }

    fn interrupted(&mut self, signal: Signal) -> Result<(), Trouble> {
        self.report.outcome = Outcome::Interrupted(signal as i32);
        Ok(())
    }

    fn failed(&mut self, error: &Error) -> Result<(), Trouble> {
        wait::failed(error, self.key, &self.args.asking, self.place, self.talk)?;
        self.report.outcome = Outcome::NotAcquired;
        Ok(())
    }

    /// The lock is ours: runs the command, and gives the lock back whatever comes of it.
    async fn hold(
        &mut self,
        locker: &Locker,
        guard: Guard,
        signals: &mut Signals,
    ) -> Result<(), Trouble> {
        let since = locker.clock().now();
        self.report.fence = Some(guard.fence().to_string());
        let ended = self.watch(locker, &guard, since, signals).await;
        self.report.held_ms = Some(millis(locker.clock().now().since(since)));
        let lost = matches!(&ended, Ok((_, Some(_))));
        let found = self.release(guard, lost).await;
        match ended {
            Ok((end, loss)) => self.concluded(end, loss.or(found)),
            // Without a word from the engine it is only the time that has run out.
            Err(trouble) if trouble.outcome == Outcome::Lost => {
                self.report.loss = Some(found.unwrap_or(Loss::Expired));
                return Err(trouble);
            }
            Err(trouble) => return Err(trouble),
        }
        Ok(())
    }

    /// Starts the command and stays with it. No loss: it had the lock to its end.
    async fn watch(
        &mut self,
        locker: &Locker,
        guard: &Guard,
        since: Time,
        signals: &mut Signals,
    ) -> Result<(End, Option<Loss>), Trouble> {
        let mut terminal = Terminal::open();
        let child = self.start(guard, signals, terminal.as_mut())?;
        let policy = Policy::new(self.args, self.ttl(), locker.capabilities().expires);
        let (clock, talk, fate, loss) = (locker.clock(), &mut *self.talk, Fate::Secure, None);
        let hold = Hold { guard, clock, since, policy, child, terminal, talk, fate, loss };
        Ok(hold.until_the_end(signals).await)
    }

    fn start(
        &self,
        guard: &Guard,
        signals: &mut Signals,
        terminal: Option<&mut Terminal>,
    ) -> Result<Child, Trouble> {
        signals.for_the_command()?;
        // We may have been stopped since the lock was granted.
        if !guard.is_held() {
            let key = self.key;
            let late = format!("lock `{key}` was lost before the command could start");
            return Err(Trouble::new(Outcome::Lost, late));
        }
        command::start(&self.task(guard), terminal)
    }

    fn task(&self, guard: &Guard) -> Task<'_> {
        let added = vec![
            ("TENURE_KEY", self.key.as_str().to_owned()),
            ("TENURE_FENCE", guard.fence().to_string()),
            ("TENURE_OWNER", Client::this_process().to_string()),
            ("TENURE_TTL_MS", millis(self.ttl()).to_string()),
        ];
        Task { words: &self.args.command, added, removed: self.place.private_variables() }
    }

    /// Gives the lock back. A loss comes back if it turns out that there was one; what is known to be
    /// lost is expected not to be there.
    async fn release(&mut self, guard: Guard, lost: bool) -> Option<Loss> {
        let error = guard.release().await.err()?;
        if !error.is_lost() && !lost {
            let cause = self.place.scrub(&text::chain(&error));
            self.talk.insist(&output::not_released(self.key.as_str(), &cause));
        }
        error.loss().cloned()
    }

    fn concluded(&mut self, end: End, loss: Option<Loss>) {
        self.report.child = Some(end);
        self.report.outcome = match end {
            _ if loss.is_some() => Outcome::Lost,
            End::Exited(_) => Outcome::Exited,
            End::Signalled(_) => Outcome::Signalled,
        };
        if loss.is_some() {
            self.talk.insist(&output::lost(self.key.as_str()));
        }
        self.report.loss = loss;
    }
}
