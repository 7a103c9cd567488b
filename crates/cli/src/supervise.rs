//! Watches the running command and its lock.
//!
//! In: a guard, of one key or of several, and the running command. Out: how the command ended, and whether every key
//! was held all the time. With several keys, "the lock" below is all of them.
//!
//! The guarantee: if the lock ends before the command, every member of the command's group is sent KILL
//! before another process can acquire the lock. This holds while this process is scheduled. After a stop, it
//! checks the lock before anything else.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::getpgrp;
use tenure::Key;
use tenure::backend::Loss;
use tenure::time::{Clock, Time, margin};

use crate::args::{OnLost, RunArgs};
use crate::child::{Change, Child, End};
use crate::hold::Hold;
use crate::output::{self, Danger, Measure};
use crate::signals::Signals;
use crate::terminal::Terminal;
use crate::text;
use crate::ui::Ui;

/// How long before the end of the lease KILL is sent, at most a tenth of the lease: a busy machine may run us
/// late.
const RESERVE: Duration = Duration::from_millis(500);
/// How much later than the engine we may read the clock at the start of the hold.
const CLOCK_READ: Duration = Duration::from_millis(100);
/// The time limit of the last renewal attempt: long enough for an error to arrive and be reported.
const LAST_TRY: Duration = Duration::from_millis(50);

/// The time between TERM and KILL: at least what service managers and container engines give, and well within
/// the default ttl.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// What to do when the lock ends before the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    on_lost: OnLost,
    grace: Duration,
    reserve: Duration,
    ttl: Duration,
    max_hold: Option<Duration>,
}

impl Policy {
    /// The caller's settings, reduced to what fits. A healthy lease never has less than two thirds of its ttl
    /// left, so a warning within the last half of the ttl is a real one. An explicit grace may use half of
    /// `--max-hold`; the default grace uses at most a tenth, because the caller expects the command to run
    /// for nearly all of it.
    pub(crate) fn new(args: &RunArgs, ttl: Duration, expires: bool) -> Self {
        Policy::of(args.on_lost, args.grace, args.max_hold, ttl, expires)
    }

    /// The same, for a caller without the arguments of `run`.
    pub(crate) fn of(
        on_lost: OnLost,
        grace: Option<Duration>,
        max_hold: Option<Duration>,
        ttl: Duration,
        expires: bool,
    ) -> Self {
        let lease = expires.then_some(ttl);
        let cut = |wanted: Duration, of_lease: u32, of_hold: u32| {
            let bounds = [lease.map(|ttl| ttl / of_lease), max_hold.map(|most| most / of_hold)];
            bounds.into_iter().flatten().fold(wanted, Duration::min)
        };
        let (wanted, of_hold) = grace.map_or((GRACE_DEFAULT, 10), |grace| (grace, 2));
        let (grace, reserve) = (cut(wanted, 3, of_hold), cut(RESERVE, 10, 10));
        Policy { on_lost, grace, reserve, ttl, max_hold }
    }

    /// How long before the end of the lease to act.
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
pub(crate) struct Supervisor<'a, H> {
    pub(crate) guard: &'a H,
    pub(crate) clock: Clock,
    /// When the lock was acquired.
    pub(crate) since: Time,
    pub(crate) policy: Policy,
    pub(crate) child: Child,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) ui: &'a mut Ui,
    pub(crate) fate: LockState,
    /// The key that ends or has ended, and why; set as soon as the state is not `Secure`.
    pub(crate) loss: Option<LostKey>,
}

/// The name of a key that is lost, or is about to be, and why.
pub(crate) type LostKey = (String, Loss);

/// The state of the lock, and what was done about the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockState {
    /// The lock is held.
    Secure,
    /// The lock is about to end. TERM was sent to the command, and KILL follows at this time.
    Ending(Time),
    /// The lock is lost or given up. The command has been killed, or continues because of `--on-lost ignore`.
    Lost,
}

enum Event {
    Lost(Key, Loss),
    Endangered,
    KillDue,
    Child(Change),
    Signal(Signal),
}

impl<H: Hold> Supervisor<'_, H> {
    /// Watches both until the command has ended. Without a loss, the lock was held to the end.
    pub(crate) async fn run(mut self, signals: &mut Signals) -> (End, Option<LostKey>) {
        loop {
            match self.next(signals).await {
                Event::Lost(key, loss) => self.lost(&key, loss),
                Event::Endangered => self.endangered().await,
                Event::KillDue => self.kill(),
                Event::Child(Change::Ended(end)) => return self.ended(end),
                Event::Child(Change::Stopped(signal)) => self.stopped(signal),
                Event::Signal(Signal::SIGCONT) => self.resumed(),
                Event::Signal(signal) => self.child.send(signal),
            }
        }
    }

    /// The next event. The lock has priority: if several things happened while we were stopped, a lost lock
    /// must not wait until a signal has been forwarded.
    async fn next(&mut self, signals: &mut Signals) -> Event {
        let secure = self.fate == LockState::Secure;
        let kill_at = self.kill_at();
        let warning = self.policy.warning().filter(|_| secure);
        tokio::select! {
            biased;
            (key, loss) = self.guard.lost(), if self.fate != LockState::Lost => Event::Lost(key, loss),
            () = self.clock.sleep_until(kill_at), if kill_at != Time::NEVER => Event::KillDue,
            () = self.guard.expiring(warning.unwrap_or_default()), if warning.is_some() => Event::Endangered,
            change = self.child.changed() => Event::Child(change),
            signal = signals.next() => Event::Signal(signal),
        }
    }

    fn kill_at(&self) -> Time {
        match self.fate {
            LockState::Ending(kill_at) => kill_at,
            LockState::Secure | LockState::Lost => Time::NEVER,
        }
    }

    /// The lease is about to end. Asks the command to end while there is still time.
    async fn endangered(&mut self) {
        let Some(danger) = self.danger().await else { return };
        self.loss = Some((self.guard.first_to_end(), danger.loss()));
        let now = self.clock.now();
        let kill_at = self.policy.kill_at(now, self.guard.valid_until());
        if self.policy.on_lost == OnLost::Kill || kill_at <= now {
            self.kill();
            return self.tell(&danger, Measure::Kill { pid: self.child.pid().as_raw() });
        }
        self.terminate();
        self.fate = LockState::Ending(kill_at);
        let kill_in = kill_at.since(now);
        self.tell(&danger, Measure::Term { pid: self.child.pid().as_raw(), kill_in });
    }

    /// What the danger is, or `None` if one more renewal has averted it, or has found the lock lost: that is the
    /// next event.
    async fn danger(&self) -> Option<Danger> {
        if let Some(limit) = self.policy.max_hold.filter(|limit| self.ends_after(*limit)) {
            return Some(Danger::MaxHold(limit));
        }
        let cause = match tokio::time::timeout(LAST_TRY, self.guard.renew()).await {
            Ok(Ok(())) if Some(self.guard.remaining()) > self.policy.warning() => return None,
            Ok(Err(error)) if error.is_lost() => return None,
            Ok(Err(error)) => Some(text::root(&error)),
            _ => None,
        };
        let granted = self.policy.ttl.saturating_sub(margin(self.policy.ttl));
        Some(Danger::NoRenewal { since: granted.saturating_sub(self.guard.remaining()), cause })
    }

    /// Whether `limit` ends the hold before the lease does. Allows for the clock being read a little later
    /// than by the engine.
    fn ends_after(&self, limit: Duration) -> bool {
        self.guard.valid_until().after(CLOCK_READ) >= self.since.after(limit)
    }

    /// The lock is lost. If the command still runs, it is killed without a grace.
    fn lost(&mut self, key: &Key, loss: Loss) {
        let before = self.fate;
        self.loss = Some((key.to_string(), loss.clone()));
        let measure = if self.policy.on_lost == OnLost::Ignore {
            self.fate = LockState::Lost;
            Measure::Nothing
        } else {
            self.kill();
            Measure::Kill { pid: self.child.pid().as_raw() }
        };
        if before == LockState::Secure {
            self.tell(&Danger::Lost(loss), measure);
        }
    }

    /// Sends TERM, and CONT because a stopped command cannot react to TERM.
    fn terminate(&self) {
        self.child.send(Signal::SIGTERM);
        self.child.send(Signal::SIGCONT);
    }

    fn kill(&mut self) {
        self.child.send(Signal::SIGKILL);
        self.fate = LockState::Lost;
    }

    /// Prints the danger and the measure. Called after the signal is sent; printing must never delay the next
    /// signal.
    fn tell(&mut self, danger: &Danger, measure: Measure) {
        self.ui.stop_waiting();
        let key = self.loss.as_ref().map_or("", |(key, _)| key);
        self.ui.always(&output::losing(key, danger, measure));
    }

    /// The command was stopped, by a key or because it wants the terminal.
    fn stopped(&mut self, signal: i32) {
        let asks = [Signal::SIGTTIN, Signal::SIGTTOU].iter().any(|s| *s as i32 == signal);
        let by_key = signal == Signal::SIGTSTP as i32;
        let Some(terminal) = self.terminal.as_mut().filter(|_| asks || by_key) else { return };
        if matches!(self.fate, LockState::Ending(_)) || asks && terminal.lend(self.child.pid()) {
            return self.child.send(Signal::SIGCONT);
        }
        terminal.take_back(self.child.pid());
        stop_ourselves();
        self.resumed();
    }

    /// Continues after a stop of any length. If the lock ended in the meantime, the loss is handled first.
    fn resumed(&mut self) {
        if self.policy.on_lost != OnLost::Ignore && !self.guard.is_held() {
            return;
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.lend_again(self.child.pid());
        }
        self.child.send(Signal::SIGCONT);
    }

    /// The command has ended. Other members of its group may continue, unless the lock is lost.
    fn ended(self, end: End) -> (End, Option<LostKey>) {
        if self.loss.is_some() && self.policy.on_lost != OnLost::Ignore {
            self.child.send(Signal::SIGKILL);
        }
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.child.pid());
        }
        (end, self.loss)
    }
}

/// Stops our whole job, as Ctrl-Z would without us: the shell takes the terminal, and `fg` returns it. Uses
/// SIGTTOU, which we do not catch. The kernel ignores it for an orphaned group, which no shell could continue
/// (for example, a container's first process); then we just continue.
fn stop_ourselves() {
    let _ = killpg(getpgrp(), Signal::SIGTTOU);
}

#[cfg(test)]
mod tests;
