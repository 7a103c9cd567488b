//! `tenure run`: from the checks to the exit status.
//!
//! In: the command line. Out: the exit status, and the status file if one was requested. Errors that can be
//! predicted are reported before the lock is acquired.

use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::backend::Loss;
use tenure::config::SET_BY_RUN;
use tenure::time::{Time, UnixMillis};
use tenure::{Error, HeldMode, Key, LockAll, LockRequest, Locker, Mode, Process, TTL_DEFAULT};

use crate::args::{GlobalArgs, RunArgs};
use crate::child::{Child, End};
use crate::command::{self, Task};
use crate::error::{self, CliError};
use crate::hold::Hold;
use crate::output;
use crate::signals::Signals;
use crate::status::{Outcome, Report, StatusFile, millis};
use crate::supervise::{LockState, LostKey, Policy, Supervisor};
use crate::target::{self, Target};
use crate::terminal::Terminal;
use crate::text;
use crate::ui::Ui;
use crate::wait::{self, Waited, Wanted};

/// Runs the command under the lock, and reports the outcome.
pub(crate) fn run(args: &RunArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    let file = match args.status_file.as_deref().map(StatusFile::probe).transpose() {
        Ok(file) => file,
        Err(trouble) => return ui.trouble(&trouble),
    };
    let mut report = attempt(args, flags, ui);
    report.ended_unix_ms = UnixMillis::now().0;
    if let Some(Err(error)) = file.map(|file| file.write(&report)) {
        ui.trouble(&CliError::usage(format!("cannot write the status file: {error}")));
    }
    report.code(args.asking.conflict_exit_code)
}

fn attempt(args: &RunArgs, flags: &GlobalArgs, ui: &mut Ui) -> Report {
    let mut report = Report::new(&args.keys, &args.mode());
    if let Err(trouble) = checked(args, flags, ui, &mut report) {
        ui.trouble(&trouble);
        report.outcome = trouble.outcome;
    }
    report
}

fn checked(
    args: &RunArgs,
    flags: &GlobalArgs,
    ui: &mut Ui,
    report: &mut Report,
) -> Result<(), CliError> {
    let named = args.keys.iter().map(|key| error::key(key)).collect::<Result<Vec<_>, _>>()?;
    check_relations(args)?;
    args.command.first().map_or(Ok(()), |program| command::check(program))?;
    let target = Target::find(flags)?;
    // A `max_hold` from the configuration ends the command in time too, as one from the command line does.
    let max_hold = args.max_hold.or(target.config().get_max_hold());
    let args = &RunArgs { max_hold, ..args.clone() };
    check_relations(args)?;
    let (mut keys, mode) = (named.clone(), args.mode());
    keys.sort();
    keys.dedup();
    let run = Run { args, named: &named, keys: &keys, mode, target: &target, ui, report };
    target::runtime()?.block_on(run.go())
}

fn check_relations(args: &RunArgs) -> Result<(), CliError> {
    match (args.min_hold, args.max_hold) {
        (Some(least), Some(most)) if least > most => {
            let (least, most) = (text::exact(least), text::exact(most));
            Err(CliError::usage(format!(
                "`--min-hold {least}` must not be more than `--max-hold {most}`"
            )))
        }
        _ => Ok(()),
    }
}

/// One run in progress.
struct Run<'a> {
    args: &'a RunArgs,
    /// The keys as they were named; at least one.
    named: &'a [Key],
    /// The same keys, each once and in the order in which they are acquired.
    keys: &'a [Key],
    mode: Mode,
    target: &'a Target,
    ui: &'a mut Ui,
    report: &'a mut Report,
}

impl Run<'_> {
    async fn go(mut self) -> Result<(), CliError> {
        let mut signals = Signals::ending()?;
        match wait::connect(self.target, &self.args.asking, &mut signals, self.ui).await {
            Ok(locker) => self.with(&locker?, &mut signals).await,
            Err(signal) => self.interrupted(signal),
        }
    }

    async fn with(&mut self, locker: &Locker, signals: &mut Signals) -> Result<(), CliError> {
        self.say_what_is_ignored(locker);
        let key = self.named[0].as_str();
        match (&self.mode, self.keys) {
            (Mode::Read, [_]) => self.under(locker, self.one(locker.read(key)), signals).await,
            (Mode::Permits { permits, capacity }, _) => {
                let request = locker.semaphore(key, *capacity).acquire_many(*permits);
                let request = if *permits == 1 { request.numbered() } else { request };
                self.under(locker, self.one(request), signals).await
            }
            (_, [_]) => self.under(locker, self.one(locker.lock(key)), signals).await,
            (_, keys) => {
                let keys = keys.iter().map(Key::as_str);
                let none: [&str; 0] = [];
                let request = match self.mode {
                    Mode::Read => locker.lock_all(none).read(keys),
                    _ => locker.lock_all(keys),
                };
                self.under(locker, self.all(request), signals).await
            }
        }
    }

    /// Waits for the keys of `request`, and runs the command under them.
    async fn under<H: Hold>(
        &mut self,
        locker: &Locker,
        request: impl IntoFuture<Output = Result<H, Error>>,
        signals: &mut Signals,
    ) -> Result<(), CliError> {
        let start = locker.clock().now();
        let longest = wait::gives_up_after(&self.args.asking, self.target);
        let wanted = Wanted { keys: self.keys, mode: &self.mode };
        let waited = wait::acquire(locker, wanted, request, longest, signals, self.ui).await;
        self.report.waited_ms = millis(locker.clock().now().since(start));
        let result = match waited {
            Waited::Acquired(guard) => self.hold(locker, guard, signals).await,
            Waited::Interrupted(signal) => self.interrupted(signal),
            Waited::Failed(error, waited) => self.failed(&error, waited),
        };
        wait::shutdown(locker, &result, signals).await;
        result
    }

    fn say_what_is_ignored(&mut self, locker: &Locker) {
        let can = locker.capabilities();
        if self.args.ttl.is_some() && !can.expires {
            self.ui.info(&output::ttl_without_effect(can.engine));
        }
    }

    fn ttl(&self) -> Duration {
        self.args.ttl.or(self.target.config().get_ttl()).unwrap_or(TTL_DEFAULT)
    }

    /// A request for one key, with the options of the command line.
    fn one<M: HeldMode>(&self, lock: LockRequest<M>) -> LockRequest<M> {
        let lock = wait::request(lock, self.ttl(), &self.args.asking);
        let lock = lock.min_hold(self.args.min_hold.unwrap_or_default());
        match self.args.max_hold {
            Some(most) => lock.max_hold(most),
            None => lock,
        }
    }

    /// The same for several keys.
    fn all(&self, locks: LockAll) -> LockAll {
        let locks = wait::request_all(locks, self.ttl(), &self.args.asking);
        let locks = locks.min_hold(self.args.min_hold.unwrap_or_default());
        match self.args.max_hold {
            Some(most) => locks.max_hold(most),
            None => locks,
        }
    }

    fn interrupted(&mut self, signal: Signal) -> Result<(), CliError> {
        self.report.outcome = Outcome::Interrupted(signal as i32);
        Ok(())
    }

    fn failed(&mut self, error: &Error, waited: Duration) -> Result<(), CliError> {
        let key = error.key().unwrap_or(&self.named[0]);
        self.report.failed_key = error.key().map(Key::to_string);
        wait::failed(error, waited, key, &self.args.asking, self.target, self.ui)?;
        self.report.outcome = Outcome::NotAcquired;
        Ok(())
    }

    /// Runs the command under the acquired lock, and releases the lock afterwards in every case.
    async fn hold<H: Hold>(
        &mut self,
        locker: &Locker,
        guard: H,
        signals: &mut Signals,
    ) -> Result<(), CliError> {
        let since = locker.clock().now();
        self.report.granted(self.named.iter().map(|key| guard.fence(key)), guard.slot());
        let ended = self.watch(locker, &guard, since, signals).await;
        self.report.held_ms = Some(millis(locker.clock().now().since(since)));
        let lost = matches!(&ended, Ok((_, Some(_))));
        let first_to_end = guard.first_to_end();
        let found = self.release(guard, lost).await;
        match ended {
            Ok((end, loss)) => self.concluded(end, loss.or(found)),
            // The engine reported no loss, so the lease must have expired.
            Err(trouble) if trouble.outcome == Outcome::Lost => {
                self.note_loss(found.unwrap_or((first_to_end, Loss::Expired)));
                return Err(trouble);
            }
            Err(trouble) => return Err(trouble),
        }
        Ok(())
    }

    /// Starts the command and watches it until it ends. Without a loss, the lock was held to the end.
    async fn watch<H: Hold>(
        &mut self,
        locker: &Locker,
        guard: &H,
        since: Time,
        signals: &mut Signals,
    ) -> Result<(End, Option<LostKey>), CliError> {
        let mut terminal = Terminal::open();
        let child = self.start(guard, signals, terminal.as_mut())?;
        let policy = Policy::new(self.args, self.ttl(), locker.capabilities().expires);
        let (clock, ui, fate, loss) = (locker.clock(), &mut *self.ui, LockState::Secure, None);
        let hold = Supervisor { guard, clock, since, policy, child, terminal, ui, fate, loss };
        Ok(hold.run(signals).await)
    }

    fn start<H: Hold>(
        &self,
        guard: &H,
        signals: &mut Signals,
        terminal: Option<&mut Terminal>,
    ) -> Result<Child, CliError> {
        signals.for_the_command()?;
        // This process may have been stopped since the lock was granted.
        if !guard.is_held() {
            let key = guard.first_to_end();
            let late = format!("lock `{key}` was lost before the command could start");
            return Err(CliError::new(Outcome::Lost, late));
        }
        command::start(&self.task(guard), terminal)
    }

    fn task<H: Hold>(&self, guard: &H) -> Task<'_> {
        let fences: Vec<_> = self.named.iter().map(|key| guard.fence(key).to_string()).collect();
        let permits = self.mode.permits();
        let values = [
            ("TENURE_KEY", Some(self.named[0].to_string())),
            ("TENURE_FENCE", fences.first().cloned()),
            ("TENURE_FENCES", Some(fences.join(" "))),
            ("TENURE_MODE", Some(self.mode.as_str().to_owned())),
            ("TENURE_PERMITS", (permits > 0).then(|| permits.to_string())),
            ("TENURE_SLOT", guard.slot().map(|slot| slot.to_string())),
            ("TENURE_OWNER", Some(Process::this_process().to_string())),
            ("TENURE_TTL_MS", Some(millis(self.ttl()).to_string())),
        ];
        let added: Vec<_> =
            values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        // A run around this one may have set the others.
        let is_added = |name: &&str| added.iter().any(|(known, _)| known == name);
        let others = SET_BY_RUN.into_iter().filter(|name| !is_added(name));
        let removed = self.target.private_variables().into_iter().chain(others).collect();
        Task { words: &self.args.command, added, removed }
    }

    /// Releases the lock. Returns a loss if the release finds one. If the loss is known already (`lost`), a
    /// failed release is expected and not reported.
    async fn release<H: Hold>(&mut self, guard: H, lost: bool) -> Option<LostKey> {
        let error = guard.release().await.err()?;
        let key = error.key().unwrap_or(&self.named[0]).to_string();
        if !error.is_lost() && !lost {
            let cause = self.target.scrub(&text::chain(&error));
            self.ui.always(&output::not_released(&key, &cause));
        }
        Some((key, error.loss().cloned()?))
    }

    fn concluded(&mut self, end: End, loss: Option<LostKey>) {
        self.report.child = Some(end);
        self.report.outcome = match end {
            _ if loss.is_some() => Outcome::Lost,
            End::Exited(_) => Outcome::Exited,
            End::Signalled(_) => Outcome::Signalled,
        };
        if let Some(lost) = loss {
            self.ui.always(&output::lost(&lost.0));
            self.note_loss(lost);
        }
    }

    fn note_loss(&mut self, (key, loss): LostKey) {
        (self.report.failed_key, self.report.loss) = (Some(key), Some(loss));
    }
}
