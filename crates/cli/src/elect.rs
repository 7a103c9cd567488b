//! `tenure elect`: runs a command while this process leads.
//!
//! In: the command line. Out: the exit status of the command. After a loss the command has ended, and this process
//! waits to lead again. `supervise.rs` watches the command, as for `run`.

use std::time::Duration;

use tenure::{Error, Guard, Key, Leader, Locker, Mode, Process, Released, TTL_DEFAULT};

use crate::args::{ElectArgs, GlobalArgs, OnLost};
use crate::child::{Child, End};
use crate::command::{self, Task};
use crate::error::{self, CliError};
use crate::output;
use crate::signals::Signals;
use crate::status::{Outcome, millis};
use crate::supervise::{LockState, Policy, Supervisor};
use crate::target::{self, Target};
use crate::terminal::Terminal;
use crate::text;
use crate::ui::Ui;
use crate::wait;
use crate::watch::by;

/// The pause before this process campaigns again: the server may have lost its data, or be about to change.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn elect(args: &ElectArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match attempt(args, flags, ui) {
        Ok(code) => code,
        Err(trouble) => ui.trouble(&trouble),
    }
}

fn attempt(args: &ElectArgs, flags: &GlobalArgs, ui: &mut Ui) -> Result<u8, CliError> {
    let key = error::key(&args.key)?;
    args.command.first().map_or(Ok(()), |program| command::check(program))?;
    let target = Target::find(flags)?;
    let value = args.value.clone().unwrap_or_else(|| Process::this_process().to_string());
    let candidate = Candidate { args, key: &key, value, target: &target, ui, ran: false };
    target::runtime()?.block_on(candidate.go())
}

/// One `tenure elect` in progress.
struct Candidate<'a> {
    args: &'a ElectArgs,
    key: &'a Key,
    value: String,
    target: &'a Target,
    ui: &'a mut Ui,
    /// A command was started: its signals are listened for.
    ran: bool,
}

impl Candidate<'_> {
    async fn go(mut self) -> Result<u8, CliError> {
        let mut signals = Signals::ending()?;
        let connected = tokio::select! {
            biased;
            signal = signals.next() => return Ok(by(signal)),
            locker = self.target.connect(self.ui, true) => locker,
        };
        let locker = connected?;
        let result = self.terms(&locker, &mut signals).await;
        wait::shutdown(&locker, &result, &mut signals).await;
        result
    }

    /// Leads again and again, until the command ends by itself, or a signal ends a wait.
    async fn terms(&mut self, locker: &Locker, signals: &mut Signals) -> Result<u8, CliError> {
        loop {
            let elected = tokio::select! {
                biased;
                signal = signals.next() => return Ok(by(signal)),
                elected = self.campaign(locker) => elected,
            };
            match elected {
                Ok(leader) => {
                    if let Some(code) = self.lead(locker, leader, signals).await? {
                        return Ok(code);
                    }
                    self.ui.always(&output::lost_leadership(self.key.as_str()));
                }
                Err(error) if error.is_unavailable() || error.is_unknown() => {}
                Err(error) => return Err(self.target.trouble(&error)),
            }
            // The command was asked to end, and the leadership was lost meanwhile.
            if let Some(signal) = signals.asked_to_end() {
                return Ok(by(signal));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn campaign(&self, locker: &Locker) -> Result<Leader, Error> {
        let campaign = locker.election(self.key.as_str()).campaign(self.value.as_str());
        let campaign = campaign.ttl(self.ttl()).wait_forever();
        match &self.args.reason {
            Some(reason) => campaign.reason(reason.as_str()).await,
            None => campaign.await,
        }
    }

    fn ttl(&self) -> Duration {
        self.args.ttl.or(self.target.config().get_ttl()).unwrap_or(TTL_DEFAULT)
    }

    /// Runs the command while `leader` leads, and resigns. `None` if the leadership was lost.
    async fn lead(
        &mut self,
        locker: &Locker,
        leader: Leader,
        signals: &mut Signals,
    ) -> Result<Option<u8>, CliError> {
        self.ui.info(&output::leading(self.key.as_str(), &self.value, leader.term()));
        let ended = self.watch(locker, &leader, signals).await;
        let resigned = leader.resign().await;
        match ended {
            Ok(Some(end)) => Ok(Some(self.concluded(end, resigned))),
            Ok(None) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// The exit status of a command that ended by itself.
    fn concluded(&mut self, end: End, resigned: Result<Released, Error>) -> u8 {
        match resigned {
            Err(error) if error.is_lost() => {
                self.ui.always(&output::lost(self.key.as_str()));
                return Outcome::Lost.code();
            }
            Err(error) => {
                let cause = self.target.scrub(&text::chain(&error));
                self.ui.always(&output::not_released(self.key.as_str(), &cause));
            }
            Ok(_) => {}
        }
        end.code()
    }

    /// Starts the command and watches it until it ends. `None` if the leadership ended before.
    async fn watch(
        &mut self,
        locker: &Locker,
        leader: &Guard,
        signals: &mut Signals,
    ) -> Result<Option<End>, CliError> {
        let mut terminal = Terminal::open();
        let since = locker.clock().now();
        let Some(child) = self.start(leader, signals, terminal.as_mut())? else { return Ok(None) };
        let expires = locker.capabilities().expires;
        let policy = Policy::of(OnLost::Term, self.args.grace, None, self.ttl(), expires);
        let (clock, ui, fate, loss) = (locker.clock(), &mut *self.ui, LockState::Secure, None);
        let guard = leader;
        let hold = Supervisor { guard, clock, since, policy, child, terminal, ui, fate, loss };
        let (end, loss) = hold.run(signals).await;
        Ok(loss.is_none().then_some(end))
    }

    /// Starts the command, unless the leadership has ended: this process may have been stopped since it was elected.
    fn start(
        &mut self,
        leader: &Guard,
        signals: &mut Signals,
        terminal: Option<&mut Terminal>,
    ) -> Result<Option<Child>, CliError> {
        if !std::mem::replace(&mut self.ran, true) {
            signals.for_the_command()?;
        }
        match leader.is_held() {
            true => command::start(&self.task(leader), terminal).map(Some),
            false => Ok(None),
        }
    }

    fn task(&self, leader: &Guard) -> Task<'_> {
        let fence = leader.fence().to_string();
        let added = vec![
            ("TENURE_KEY", self.key.as_str().to_owned()),
            ("TENURE_FENCE", fence.clone()),
            ("TENURE_FENCES", fence),
            ("TENURE_MODE", Mode::Exclusive.as_str().to_owned()),
            ("TENURE_OWNER", Process::this_process().to_string()),
            ("TENURE_TTL_MS", millis(self.ttl()).to_string()),
        ];
        // A leader has no permits.
        let removed = ["TENURE_PERMITS", "TENURE_SLOT"].into_iter();
        let removed = self.target.private_variables().into_iter().chain(removed).collect();
        Task { words: &self.args.command, added, removed }
    }
}
