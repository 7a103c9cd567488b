//! `tenure release --force`: takes a lock from its holder, or opens a lock that `min_hold` keeps closed.
//!
//! In: a key, and the start of a token if several hold it. Out: a lock without the holder that was shown, if it still
//! held the lock. On a terminal the operator
//! must type the key again, and a renewal in the meantime is reported; elsewhere `--yes` is required.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::Pid;
use tenure::backend::{Holding, LockInfo, Release};
use tenure::{Holder, Key, Locker, Process, Token};
use tokio::sync::oneshot;

use crate::args::ReleaseArgs;
use crate::error::CliError;
use crate::output::{self, Life};
use crate::release::Unfreed;
use crate::status::Outcome;
use crate::target::Target;
use crate::ui::Ui;

/// How often to check for a renewal while the operator types: often enough to see every renewal.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// One forced release in progress.
pub(crate) struct Forcing<'a> {
    pub(crate) args: &'a ReleaseArgs,
    pub(crate) key: &'a Key,
    pub(crate) target: &'a Target,
    pub(crate) locker: &'a Locker,
    pub(crate) ui: &'a mut Ui,
}

impl Forcing<'_> {
    /// Returns `None` if the lock is free.
    pub(crate) async fn go(mut self) -> Result<Option<Outcome>, Unfreed> {
        let holders = self.look().await?.map(|lock| lock.holders).unwrap_or_default();
        if holders.is_empty() {
            return Ok(self.nothing());
        }
        let seen = self.chosen(holders)?;
        let (key, life) = (self.key.as_str(), life(&seen.holder));
        self.ui.info(&output::held(key, &seen.holder, life));
        let token = self.token(&seen)?;
        if self.is_possible(&seen) && !self.args.yes && !self.is_confirmed(&seen).await? {
            self.ui.always(&output::not_typed(key));
            return Ok(Some(Outcome::NotForced));
        }
        match self.locker.force_release(key, token, &self.by()).await? {
            Release::NotHeld => self.changed_hands(&seen).await,
            Release::Freed | Release::StillHeld(_) => {
                self.ui.info(&output::forced(key, &seen.holder, life));
                Ok(None)
            }
        }
    }

    async fn look(&self) -> Result<Option<LockInfo>, tenure::Error> {
        self.locker.inspect(self.key.as_str()).await
    }

    fn nothing(&mut self) -> Option<Outcome> {
        self.ui.info(&output::nothing_to_release(self.key.as_str()));
        None
    }

    /// The holder to take the lock from: the only one, or the one with this start of a token.
    fn chosen(&self, holders: Vec<Holding>) -> Result<Holding, CliError> {
        let (key, count, start) = (self.key, holders.len(), self.args.token.as_deref());
        let is_meant = |holding: &Holding| match (start, &holding.token) {
            (None, _) => true,
            (Some(start), Some(token)) => token.expose().starts_with(start),
            (Some(_), None) => false,
        };
        let mut meant: Vec<_> = holders.into_iter().filter(is_meant).collect();
        let why = match (meant.len(), start) {
            (1, _) => return Ok(meant.remove(0)),
            (0, start) => {
                let start = start.unwrap_or_default();
                let why = format!("no holder of `{key}` has a token that starts with `{start}`");
                return Err(CliError::new(Outcome::NotForced, why).hint(self.how_to_see()));
            }
            (_, None) => format!("lock `{key}` has {count} holders: --token says which one"),
            (many, Some(start)) => {
                format!("{many} holders of `{key}` have a token that starts with `{start}`")
            }
        };
        let option = self.target.option();
        let options = [option.as_deref(), Some("--force --token TOKEN")];
        let options = options.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let then = output::paste("release", Some(&options), key.as_str());
        Err(CliError::usage(why).hint(format!("{}, then {then}", self.how_to_see())))
    }

    /// The command that shows the holders and the start of their tokens.
    fn how_to_see(&self) -> String {
        output::paste("show", self.target.option().as_deref(), self.key.as_str())
    }

    /// Whether the lock can be released by force. If not, the engine's error explains what to do instead, and
    /// no confirmation is needed.
    fn is_possible(&self, seen: &Holding) -> bool {
        self.locker.capabilities().force_release || seen.holder.cooling_down
    }

    /// The token of the holder.
    fn token(&self, seen: &Holding) -> Result<Token, CliError> {
        let key = self.key;
        match seen.token {
            Some(token) => Ok(token),
            // The request will fail anyway, with the engine's advice on which process to end, so any token
            // will do.
            None if !self.is_possible(seen) => Token::random()
                .map_err(|error| CliError::new(Outcome::Unreachable, error.to_string())),
            None if seen.holder.cooling_down => {
                let why = format!("lock `{key}` was closed by an older version of tenure");
                Err(CliError::new(Outcome::NotForced, why).hint("it opens by itself"))
            }
            None if seen.holder.newer => {
                let why = format!("lock `{key}` is held by a newer version of tenure");
                Err(CliError::usage(why).hint("release it there, or with that version's `tenure`"))
            }
            None => {
                let why = format!("lock `{key}` is held by a program that is not tenure");
                Err(CliError::usage(why).hint("release it there, or delete its key by hand"))
            }
        }
    }

    /// Who released the lock by force, and why: a text for the former holder.
    fn by(&self) -> String {
        let Process { user, host, .. } = Process::this_process();
        match &self.args.reason {
            Some(reason) => format!("{user}@{host}: {reason}"),
            None => format!("{user}@{host}"),
        }
    }

    /// Asks for the key again. Reports a renewal in the meantime, because it shows that the holder is alive.
    async fn is_confirmed(&mut self, seen: &Holding) -> Result<bool, CliError> {
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(CliError::usage("--force needs --yes if there is no terminal to ask on"));
        }
        self.ui.ask(&output::type_again());
        let (mut typed, mut left, mut told) = (typed(), seen.holder.lease_left, false);
        loop {
            tokio::select! {
                line = &mut typed => return Ok(line.is_ok_and(|line| line == self.key.as_str())),
                () = tokio::time::sleep(POLL_INTERVAL), if !told => {}
            }
            let now = self.left_now(seen).await;
            told = now > left && left.is_some();
            left = now.or(left);
            if told {
                self.ui.interject(&output::renewed(self.key.as_str()));
                self.ui.ask(&output::type_again());
            }
        }
    }

    /// The time left of the lease that was shown, if that lease still exists.
    async fn left_now(&self, seen: &Holding) -> Option<Duration> {
        let holders = self.look().await.ok()??.holders;
        holders.iter().find(|now| now.token == seen.token)?.holder.lease_left
    }

    async fn changed_hands(&mut self, seen: &Holding) -> Result<Option<Outcome>, Unfreed> {
        let Some(now) = holding(self.look().await?) else { return Ok(self.nothing()) };
        let key = self.key.as_str();
        if seen.mode.is_together() {
            self.ui.info(&output::has_left(key, &seen.holder));
            return Ok(None);
        }
        self.ui.always(&output::changed_hands(key, &now.holder));
        self.ui.info(&output::hint_show(key, self.target.option().as_deref()));
        Ok(Some(Outcome::NotForced))
    }
}

fn holding(lock: Option<LockInfo>) -> Option<Holding> {
    lock?.holders.into_iter().next()
}

/// Whether the holder's process runs. Known only for a process on this machine.
fn life(holder: &Holder) -> Option<Life> {
    let client = holder.process.as_ref().filter(|_| !holder.cooling_down)?;
    if client.host != Process::this_process().host {
        return None;
    }
    let pid = Pid::from_raw(i32::try_from(client.pid).ok()?);
    match nix::sys::signal::kill(pid, None) {
        // EPERM means that the process exists.
        Ok(()) | Err(Errno::EPERM) => Some(Life::Runs),
        Err(_) => Some(Life::Ended),
    }
}

/// The next line from stdin. Read on a detached thread, because a read cannot be cancelled.
fn typed() -> oneshot::Receiver<String> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let line = io::stdin().lines().next();
        line.and_then(Result::ok).map(|line| tell.send(line))
    });
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::samples;

    /// The state of a process is known on this machine only, and not for a lock without a holder.
    #[test]
    fn lives() {
        let mut holder = Holder::unknown();
        assert_eq!(life(&holder), None);
        holder.process = Some(Process::this_process().clone());
        assert_eq!(life(&holder), Some(Life::Runs));
        holder.cooling_down = true;
        assert_eq!(life(&holder), None);
        // The largest id belongs to no process: the kernel's own limit is far lower.
        let gone = Process { pid: i32::MAX as u32, ..Process::this_process().clone() };
        let mut holder = Holder::unknown();
        holder.process = Some(gone);
        assert_eq!(life(&holder), Some(Life::Ended));
        assert_eq!(life(&samples::holder("deploy", 1)), None, "on another machine");
    }
}
