//! `tenure release --force`: takes a lock from whoever holds it.
//!
//! In: a key. Out: a free lock, if the holder is still the one that was shown. On a terminal the key
//! has to be typed again, and what the holder does meanwhile is told; elsewhere only `--yes` will do.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::Pid;
use tenure::backend::{Holding, LockInfo, Release};
use tenure::{Client, Holder, Key, Locker, Token};
use tokio::sync::oneshot;

use crate::args::ReleaseArgs;
use crate::output::{self, Life};
use crate::release::Unfreed;
use crate::status::Outcome;
use crate::talk::Talk;
use crate::trouble::Trouble;
use crate::url::Place;

/// How often to look for a renewal while the operator types: often enough to catch each.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A lock that is about to be taken away.
pub(crate) struct Forcing<'a> {
    pub(crate) args: &'a ReleaseArgs,
    pub(crate) key: &'a Key,
    pub(crate) place: &'a Place,
    pub(crate) locker: &'a Locker,
    pub(crate) talk: &'a mut Talk,
}

impl Forcing<'_> {
    /// No outcome: the lock is free.
    pub(crate) async fn go(mut self) -> Result<Option<Outcome>, Unfreed> {
        let Some(seen) = holding(self.look().await?) else { return Ok(self.nothing()) };
        let (key, life) = (self.key.as_str(), life(&seen.holder));
        self.talk.say(&output::held(key, &seen.holder, life));
        let token = self.token(&seen)?;
        if self.is_possible(&seen) && !self.args.yes && !self.is_confirmed(&seen).await? {
            self.talk.insist(&output::not_typed(key));
            return Ok(Some(Outcome::NotForced));
        }
        match self.locker.force_release(key, token, &self.by()).await? {
            Release::NotHeld => self.changed_hands().await,
            Release::Freed | Release::StillHeld(_) => {
                self.talk.say(&output::forced(key, &seen.holder, life));
                Ok(None)
            }
        }
    }

    async fn look(&self) -> Result<Option<LockInfo>, tenure::Error> {
        self.locker.inspect(self.key.as_str()).await
    }

    fn nothing(&mut self) -> Option<Outcome> {
        self.talk.say(&output::nothing_to_release(self.key.as_str()));
        None
    }

    /// Where it is not, the engine says what to do instead, and there is nothing to confirm.
    fn is_possible(&self, seen: &Holding) -> bool {
        self.locker.capabilities().forcible || seen.holder.closing
    }

    /// What the holder is known by.
    fn token(&self, seen: &Holding) -> Result<Token, Trouble> {
        let key = self.key;
        match seen.token {
            Some(token) => Ok(token),
            // Any will do where the engine only says whose process to end.
            None if !self.is_possible(seen) => Token::random()
                .map_err(|error| Trouble::new(Outcome::Unreachable, error.to_string())),
            None if seen.holder.closing => {
                let why = format!("lock `{key}` has no holder any more, and opens by itself");
                Err(Trouble::new(Outcome::NotForced, why))
            }
            None if seen.holder.newer => {
                let why = format!("lock `{key}` is held by a newer version of tenure");
                Err(Trouble::usage(why).hint("release it there, or with that version's `tenure`"))
            }
            None => {
                let why = format!("lock `{key}` is held by a program that is not tenure");
                Err(Trouble::usage(why).hint("release it there, or delete its key by hand"))
            }
        }
    }

    /// Who takes it away, and why: for the former holder.
    fn by(&self) -> String {
        let Client { user, host, .. } = Client::this_process();
        match &self.args.reason {
            Some(reason) => format!("{user}@{host}: {reason}"),
            None => format!("{user}@{host}"),
        }
    }

    /// Asks for the key once more, and tells of a renewal meanwhile: it shows that the holder lives.
    async fn is_confirmed(&mut self, seen: &Holding) -> Result<bool, Trouble> {
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Trouble::usage("--force needs --yes where nobody can be asked"));
        }
        self.talk.ask(&output::type_again());
        let (mut typed, mut left, mut told) = (typed(), seen.holder.lease_left, false);
        loop {
            tokio::select! {
                line = &mut typed => return Ok(line.is_ok_and(|line| line == self.key.as_str())),
                () = tokio::time::sleep(LOOK_EVERY), if !told => {}
            }
            let now = self.left_now(seen).await;
            told = now > left && left.is_some();
            left = now.or(left);
            if told {
                self.talk.interject(&output::renewed(self.key.as_str()));
                self.talk.ask(&output::type_again());
            }
        }
    }

    /// What is left of the lease that was shown, if it is still there.
    async fn left_now(&self, seen: &Holding) -> Option<Duration> {
        let now = holding(self.look().await.ok()?)?;
        now.holder.lease_left.filter(|_| now.token == seen.token)
    }

    async fn changed_hands(&mut self) -> Result<Option<Outcome>, Unfreed> {
        let Some(now) = holding(self.look().await?) else { return Ok(self.nothing()) };
        let key = self.key.as_str();
        self.talk.insist(&output::changed_hands(key, &now.holder));
        self.talk.say(&output::hint_show(key, self.place.option().as_deref()));
        Ok(Some(Outcome::NotForced))
    }
}

fn holding(lock: Option<LockInfo>) -> Option<Holding> {
    lock?.holders.into_iter().next()
}

/// Whether the holder's process runs, where that can be seen: on this machine.
fn life(holder: &Holder) -> Option<Life> {
    let client = holder.client.as_ref().filter(|_| !holder.closing)?;
    if client.host != Client::this_process().host {
        return None;
    }
    let pid = Pid::from_raw(i32::try_from(client.pid).ok()?);
    match nix::sys::signal::kill(pid, None) {
        // "Not permitted" means that there is somebody to forbid it to us.
        Ok(()) | Err(Errno::EPERM) => Some(Life::Runs),
        Err(_) => Some(Life::Ended),
    }
}

/// The next line of the keyboard. On a thread that nobody waits for: a read cannot be cancelled.
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
    use crate::view::samples;

    /// Whether a process runs is said of this machine only, and not of a lock without a holder.
    #[test]
    fn lives() {
        let mut holder = Holder::unknown();
        assert_eq!(life(&holder), None);
        holder.client = Some(Client::this_process().clone());
        assert_eq!(life(&holder), Some(Life::Runs));
        holder.closing = true;
        assert_eq!(life(&holder), None);
        // No process has the largest id: the kernel's own limit is far below.
        let gone = Client { pid: i32::MAX as u32, ..Client::this_process().clone() };
        let mut holder = Holder::unknown();
        holder.client = Some(gone);
        assert_eq!(life(&holder), Some(Life::Ended));
        assert_eq!(life(&samples::holder("deploy", 1)), None, "on another machine");
    }
}
