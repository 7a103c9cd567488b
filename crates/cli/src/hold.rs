//! The command runs and the lock is watched.
//!
//! In: a guard and the running command. Out: how the command ended, and whether it had its lock all
//! the while.
//!
//! The promise: if the lock ends before the command, the last member of the command's group is sent
//! KILL before anybody else can have the lock. That holds as long as this process is scheduled; one
//! that was stopped looks at the lock first when it goes on.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::getpgrp;
use tenure::Guard;
use tenure::backend::Loss;
use tenure::time::{Clock, Time, margin};

use crate::args::{OnLost, RunArgs};
use crate::child::{Change, Child, End};
use crate::output::{self, Danger, Measure};
use crate::signals::Signals;
use crate::talk::Talk;
use crate::terminal::Terminal;
use crate::text;

/// What is kept back of the lease for KILL to take effect: a busy machine may run us late.
const RESERVE: Duration = Duration::from_millis(100);
/// How long the last attempt to renew may take: long enough for a refusal to be heard and told.
const LAST_TRY: Duration = Duration::from_millis(50);

/// How long the command gets between TERM and KILL: what service managers and container engines
/// give at least, and well within the default ttl.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// What to do when the lock ends before the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    on_lost: OnLost,
    grace: Duration,
    reserve: Duration,
    ttl: Duration,
    at_most: Option<Duration>,
}

impl Policy {
    /// What the caller wants, cut down to what fits: a healthy lease never has less than two thirds
    /// of its ttl left, so a warning within the last half of it is a real one. Whoever names a grace
    /// may spend half of `--at-most` on it; others expect the command to run for nearly all of it.
    pub(crate) fn new(args: &RunArgs, ttl: Duration, expires: bool) -> Self {
        let lease = expires.then_some(ttl);
        let cut = |wanted: Duration, of_lease: u32, of_hold: u32| {
            let bounds = [lease.map(|ttl| ttl / of_lease), args.at_most.map(|most| most / of_hold)];
            bounds.into_iter().flatten().fold(wanted, Duration::min)
        };
        let (wanted, of_hold) = args.grace.map_or((GRACE_DEFAULT, 10), |grace| (grace, 2));
        let (grace, reserve) = (cut(wanted, 3, of_hold), cut(RESERVE, 10, 10));
        Policy { on_lost: args.on_lost, grace, reserve, ttl, at_most: args.at_most }
    }

    /// How long before the end to act.
    fn warning(&self) -> Option<Duration> {
        match self.on_lost {
            OnLost::Term => Some(self.grace + self.reserve),
            OnLost::Kill => Some(self.reserve),
            OnLost::Ignore => None,
        }
    }

    /// When KILL follows a TERM that is sent now.
    fn kill_at(&self, now: Time, valid_until: Time) -> Time {
        now.after(self.grace).min(valid_until.before(self.reserve))
    }
}

/// A command and the lock it runs under.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) guard: &'a Guard,
    pub(crate) clock: Clock,
    /// When the lock became ours.
    pub(crate) since: Time,
    pub(crate) policy: Policy,
    pub(crate) child: Child,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) talk: &'a mut Talk,
    pub(crate) fate: Fate,
    /// Why the lock ends or has ended; known from the moment at which it is not secure.
    pub(crate) loss: Option<Loss>,
}

/// How the two stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The lock is ours.
    Secure,
    /// The lock is about to end; the command has been asked to, and is killed at this moment.
    Ending(Time),
    /// The lock is lost or given up. The command has been killed, or goes on by the caller's wish.
    Lost,
}

enum Event {
    Lost(Loss),
    Endangered,
    KillDue,
    Child(Change),
    Signal(Signal),
}

impl Hold<'_> {
    /// Watches both until the command has ended. No loss: it had the lock to the end.
    pub(crate) async fn until_the_end(mut self, signals: &mut Signals) -> (End, Option<Loss>) {
        loop {
            match self.next(signals).await {
                Event::Lost(loss) => self.lost(loss),
                Event::Endangered => self.endangered().await,
                Event::KillDue => self.kill(),
                Event::Child(Change::Ended(end)) => return self.ended(end),
                Event::Child(Change::Stopped(signal)) => self.stopped(signal),
                Event::Signal(Signal::SIGCONT) => self.resumed(),
                Event::Signal(signal) => self.child.send(signal),
            }
        }
    }

    /// What happens next. The lock comes first: when several things have happened while we were
    /// stopped, a lost lock must not wait for a signal to be forwarded.
    async fn next(&mut self, signals: &mut Signals) -> Event {
        let secure = self.fate == Fate::Secure;
        let kill_at = self.kill_at();
        let warning = self.policy.warning().filter(|_| secure);
        tokio::select! {
            biased;
            loss = self.guard.lost(), if self.fate != Fate::Lost => Event::Lost(loss),
            () = self.clock.sleep_until(kill_at), if kill_at != Time::NEVER => Event::KillDue,
            () = self.guard.endangered(warning.unwrap_or_default()), if warning.is_some() => Event::Endangered,
            change = self.child.changed() => Event::Child(change),
            signal = signals.next() => Event::Signal(signal),
        }
    }

    fn kill_at(&self) -> Time {
        match self.fate {
            Fate::Ending(kill_at) => kill_at,
            Fate::Secure | Fate::Lost => Time::NEVER,
        }
    }

    /// Little is left of the lease. The command is asked to end while there is time to ask.
    async fn endangered(&mut self) {
        let Some(danger) = self.danger().await else { return };
        self.loss = Some(danger.loss());
        let now = self.clock.now();
        let kill_at = self.policy.kill_at(now, self.guard.valid_until());
        if self.policy.on_lost == OnLost::Kill || kill_at <= now {
            self.kill();
            return self.tell(&danger, Measure::Kill { pid: self.child.pid().as_raw() });
        }
        self.terminate();
        self.fate = Fate::Ending(kill_at);
        let kill_in = kill_at.since(now);
        self.tell(&danger, Measure::Term { pid: self.child.pid().as_raw(), kill_in });
    }

    /// What the danger is, or `None` if one more attempt has averted it.
    async fn danger(&self) -> Option<Danger> {
        if let Some(limit) = self.policy.at_most.filter(|limit| self.ends_after(*limit)) {
            return Some(Danger::AtMost(limit));
        }
        let cause = match tokio::time::timeout(LAST_TRY, self.guard.renew()).await {
            Ok(Ok(())) if Some(self.guard.remaining()) > self.policy.warning() => return None,
            Ok(Err(error)) => Some(text::root(&error)),
            _ => None,
        };
        let granted = self.policy.ttl.saturating_sub(margin(self.policy.ttl));
        Some(Danger::NoRenewal { since: granted.saturating_sub(self.guard.remaining()), cause })
    }

    /// Whether it is `limit` that ends the hold, rather than the lease. We looked at the clock a
    /// moment after the engine did.
    fn ends_after(&self, limit: Duration) -> bool {
        self.guard.valid_until().after(RESERVE) >= self.since.after(limit)
    }

    /// The lock is gone. If the command still runs there is no time left to be kind.
    fn lost(&mut self, loss: Loss) {
        let before = self.fate;
        self.loss = Some(loss.clone());
        let measure = if self.policy.on_lost == OnLost::Ignore {
            self.fate = Fate::Lost;
            Measure::Nothing
        } else {
            self.kill();
            Measure::Kill { pid: self.child.pid().as_raw() }
        };
        if before == Fate::Secure {
            self.tell(&Danger::Lost(loss), measure);
        }
    }

    /// A stopped command cannot follow a request, so it is woken for it.
    fn terminate(&self) {
        self.child.send(Signal::SIGTERM);
        self.child.send(Signal::SIGCONT);
    }

    fn kill(&mut self) {
        self.child.send(Signal::SIGKILL);
        self.fate = Fate::Lost;
    }

    /// Signals go first, words second, and words must never hold up the next signal.
    fn tell(&mut self, danger: &Danger, measure: Measure) {
        self.talk.step_aside();
        self.talk.insist(&output::losing(self.guard.key().as_str(), danger, measure));
    }

    /// The command was stopped, by a key or because it wants the terminal.
    fn stopped(&mut self, signal: i32) {
        let asks = [Signal::SIGTTIN, Signal::SIGTTOU].iter().any(|s| *s as i32 == signal);
        let by_key = signal == Signal::SIGTSTP as i32;
        let Some(terminal) = self.terminal.as_mut().filter(|_| asks || by_key) else { return };
        if matches!(self.fate, Fate::Ending(_)) || asks && terminal.lend(self.child.pid()) {
            return self.child.send(Signal::SIGCONT);
        }
        terminal.take_back(self.child.pid());
        stop_ourselves();
        self.resumed();
    }

    /// We go on after a stop, of whatever length. A lock that ended meanwhile is dealt with first.
    fn resumed(&mut self) {
        if self.policy.on_lost != OnLost::Ignore && !self.guard.is_held() {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.lend_again(self.child.pid());
        }
        self.child.send(Signal::SIGCONT);
    }

    /// Whoever is left of the group may go on, unless the lock is lost.
    fn ended(self, end: End) -> (End, Option<Loss>) {
        if self.loss.is_some() && self.policy.on_lost != OnLost::Ignore {
            self.child.send(Signal::SIGKILL);
        }
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.child.pid());
        }
        (end, self.loss)
    }
}

/// Stops our whole job, as Ctrl-Z would have without us: the shell takes the terminal, `fg` gives it
/// back. By SIGTTOU, which we do not catch and the kernel does not carry out where nobody could
/// continue us (an orphaned group: a container's first process, say); then we just go on.
fn stop_ourselves() {
    let _ = killpg(getpgrp(), Signal::SIGTTOU);
}

#[cfg(test)]
mod tests;
