//! The wait for the lock, and the progress messages during it.
//!
//! In: the arguments. Out: the guard, of one key or of several, or why there is none. A wait that ends by time or
//! by a signal leaves nothing behind: the engine abandons the claim of a dropped request.

use std::convert::Infallible;
use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::backend::LockInfo;
use tenure::time::Time;
use tenure::{Error, HeldMode, Key, LockAll, LockRequest, Locker, Mode, Process};

use crate::args::WaitArgs;
use crate::error::CliError;
use crate::hold::Hold;
use crate::output::{self, Obstacle};
use crate::signals::Signals;
use crate::status::Outcome;
use crate::target::Target;
use crate::text;
use crate::ui::Ui;

/// Waits that are shorter are not reported: people do not notice them.
const SILENCE: Duration = Duration::from_millis(400);
/// How often the live line is updated: its times are in seconds.
const LIVE_EVERY: Duration = Duration::from_secs(1);
/// The pause after the first plain line. It doubles, so that a log stays readable.
const PLAIN_FIRST: Duration = Duration::from_secs(2);
/// The longest pause between plain lines: a log that is silent for longer looks dead.
const PLAIN_MAX: Duration = Duration::from_secs(60);

/// How long to wait until the engine has finished or undone its requests. Anything left ends with its lease.
const FAREWELL: Duration = Duration::from_secs(5);

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Waited<H> {
    Acquired(H),
    Interrupted(Signal),
    /// The error, and the time waited.
    Failed(Error, Duration),
}

/// Connects, unless a signal comes first. If the caller waits, the request for the lock connects later, so
/// that the wait covers an unreachable server too.
pub(crate) async fn connect(
    target: &Target,
    asking: &WaitArgs,
    signals: &mut Signals,
    ui: &mut Ui,
) -> Result<Result<Locker, CliError>, Signal> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        locker = target.connect(ui, waits_for_server(asking, target)) => Ok(locker),
    }
}

/// Lets the engine finish; a second signal ends this too. Does not wait for an unreachable server: the
/// caller's limit is over, and the locker's drop waits for half a second.
pub(crate) async fn shutdown<T>(
    locker: &Locker,
    result: &Result<T, CliError>,
    signals: &mut Signals,
) {
    if result.as_ref().is_err_and(|trouble| trouble.outcome == Outcome::Unreachable) {
        return;
    }
    tokio::select! {
        _ = locker.shutdown(FAREWELL) => {}
        _ = signals.next() => {}
    }
}

/// Sets what `asking` says, on a request for one key or for several: they have the same setters and no common type.
macro_rules! configured {
    ($lock:expr, $ttl:expr, $asking:expr) => {{
        let (mut lock, asking): (_, &WaitArgs) = ($lock.ttl($ttl), $asking);
        if let Some(reason) = &asking.reason {
            lock = lock.reason(reason.as_str());
        }
        if let Some(longest) = asking.unavailable_after {
            lock = lock.unavailable_after(longest);
        }
        match asking.wait {
            _ if asking.no_wait => lock.attempts(1),
            Some(wait) => lock.wait(wait),
            None => lock,
        }
    }};
}

/// The request for one key, with what `asking` describes.
pub(crate) fn request<M: HeldMode>(
    lock: LockRequest<M>,
    ttl: Duration,
    asking: &WaitArgs,
) -> LockRequest<M> {
    configured!(lock, ttl, asking)
}

/// The same for several keys.
pub(crate) fn request_all(locks: LockAll, ttl: Duration, asking: &WaitArgs) -> LockAll {
    configured!(locks, ttl, asking)
}

/// Whether an unreachable server is waited for: with a limit of the wait, or of the time without a reply.
fn waits_for_server(asking: &WaitArgs, target: &Target) -> bool {
    bound(asking, target).is_some() || unavailable_after(asking, target).is_some()
}

/// The caller's limit of the time without a reply, if there is one.
fn unavailable_after(asking: &WaitArgs, target: &Target) -> Option<Duration> {
    let configured = target.config().get_unavailable_after().filter(|_| !asking.no_wait);
    asking.unavailable_after.or(configured)
}

/// The caller's limit of the wait, if there is one.
pub(crate) fn bound(asking: &WaitArgs, target: &Target) -> Option<Duration> {
    let wait = asking.wait.or(target.config().get_wait()).filter(|_| !asking.no_wait);
    wait.filter(|wait| !wait.is_zero())
}

/// The lock was not acquired. "Held by another" is a normal result; everything else is an error. `key` is the key that
/// was in the way.
pub(crate) fn failed(
    error: &Error,
    waited: Duration,
    key: &Key,
    asking: &WaitArgs,
    target: &Target,
    ui: &mut Ui,
) -> Result<(), CliError> {
    if !error.is_busy() {
        let mut trouble = target.trouble(error);
        if trouble.outcome == Outcome::Unreachable && waited >= SILENCE {
            trouble.chain += &output::gave_up(waited);
        }
        return Err(trouble);
    }
    ui.info(&output::not_acquired(key.as_str(), error.holder(), bound(asking, target)));
    ui.info(&output::hint_show(key.as_str(), target.option().as_deref()));
    Ok(())
}

/// After which time the caller gives up on an unreachable server. `None` with `unavailable_after`, which counts
/// from the last reply.
pub(crate) fn gives_up_after(asking: &WaitArgs, target: &Target) -> Option<Duration> {
    bound(asking, target).filter(|_| unavailable_after(asking, target).is_none())
}

/// What is waited for: the keys, each once and in the order of their bytes, and how each is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) keys: &'a [Key],
    pub(crate) mode: &'a Mode,
}

/// Waits for the keys, for as long as `request` allows.
pub(crate) async fn acquire<H: Hold>(
    locker: &Locker,
    wanted: Wanted<'_>,
    request: impl IntoFuture<Output = Result<H, Error>>,
    gives_up_after: Option<Duration>,
    signals: &mut Signals,
    ui: &mut Ui,
) -> Waited<H> {
    let start = locker.clock().now();
    let until = gives_up_after.map(|longest| start.after(longest));
    let mut said = false;
    let waited = tokio::select! {
        biased;
        signal = signals.next() => Waited::Interrupted(signal),
        answer = request.into_future() => match answer {
            Ok(guard) => Waited::Acquired(guard),
            Err(error) => Waited::Failed(error, locker.clock().now().since(start)),
        },
        never = report_progress(locker, wanted, until, ui, &mut said) => match never {},
    };
    ui.clear();
    if let (Waited::Acquired(guard), true) = (&waited, said) {
        let took = locker.clock().now().since(start);
        ui.info(&output::acquired(wanted.keys, took, |key| guard.fence(key)));
    }
    waited
}

/// Reports repeatedly what the wait is for.
async fn report_progress(
    locker: &Locker,
    wanted: Wanted<'_>,
    until: Option<Time>,
    ui: &mut Ui,
    said: &mut bool,
) -> Infallible {
    tokio::time::sleep(SILENCE).await;
    let mut pause = if ui.is_live() { LIVE_EVERY } else { PLAIN_FIRST };
    loop {
        let (key, seen) = in_the_way(locker, wanted.keys).await;
        ui.progress(&match seen {
            Ok(info) => {
                let (obstacle, position) =
                    sight(info.as_ref(), wanted.mode, Process::this_process());
                output::waiting(key, obstacle.as_ref(), position)
            }
            // The wait continues although the server cannot be asked about it.
            Err(error) => {
                let left = until.map(|until| until.since(locker.clock().now()));
                output::waiting_for_server(key, &text::root(&error), left)
            }
        });
        *said = true;
        tokio::time::sleep(pause).await;
        pause = next_pause(pause, ui.is_live());
    }
}

/// The key that is waited for: the first that we do not hold, because a request for several keys holds all smaller ones
/// while it waits.
async fn in_the_way<'a>(
    locker: &Locker,
    keys: &'a [Key],
) -> (&'a str, Result<Option<LockInfo>, Error>) {
    let mut last = ("", Ok(None));
    for key in keys {
        last = (key.as_str(), locker.inspect(key.as_str()).await);
        let held = matches!(&last.1, Ok(Some(info)) if holds(info, Process::this_process()));
        if !held {
            break;
        }
    }
    last
}

fn holds(info: &LockInfo, us: &Process) -> bool {
    info.holders
        .iter()
        .any(|held| is(held.holder.process.as_ref(), us) && !held.holder.cooling_down)
}

fn is(process: Option<&Process>, us: &Process) -> bool {
    process.is_some_and(|process| (process.pid, &process.host) == (us.pid, &us.host))
}

fn next_pause(pause: Duration, live: bool) -> Duration {
    if live { pause } else { (pause * 2).min(PLAIN_MAX) }
}

/// What keeps us out, and our position in the queue. If the holders would admit us, it is the first waiter.
fn sight<'a>(
    info: Option<&'a LockInfo>,
    mode: &Mode,
    us: &Process,
) -> (Option<Obstacle<'a>>, Option<u64>) {
    let Some(info) = info else { return (None, None) };
    let queue = info.waiters.as_deref().unwrap_or_default();
    let position = queue.iter().position(|waiting| is(waiting.process.as_ref(), us));
    let admitted = tenure::admits(info.holders.iter().map(|held| &held.mode), mode);
    let before_us = queue.first().filter(|_| admitted && position != Some(0));
    let holders = (!info.holders.is_empty()).then_some(Obstacle::Holders(&info.holders));
    let obstacle = before_us.map(Obstacle::Waiter).or(holders);
    (obstacle, position.and_then(|index| u64::try_from(index + 1).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::Holder;
    use tenure::backend::{Holding, Waiting};

    fn client(pid: u32) -> Process {
        Process { host: "h".into(), pid, user: "u".into(), program: "p".into() }
    }

    fn holder(pid: u32) -> Holder {
        let mut holder = Holder::unknown();
        holder.process = Some(client(pid));
        holder
    }

    fn info(waiters: Option<Vec<Waiting>>) -> LockInfo {
        let holding = Holding::new(holder(1), None, None);
        LockInfo::new(Key::new("k").unwrap(), vec![holding], waiters)
    }

    /// Our position is counted from 1, and unknown if we are in no queue.
    #[test]
    fn positions() {
        let queue = [2, 3].map(|pid| Waiting::new(holder(pid), None)).to_vec();
        let (seen, blind) = (info(Some(queue)), info(None));
        let alone = &Mode::Exclusive;
        let (obstacle, position) = sight(Some(&seen), alone, &client(3));
        assert_eq!((obstacle, position), (Some(Obstacle::Holders(&seen.holders)), Some(2)));
        assert_eq!(sight(Some(&seen), alone, &client(9)).1, None);
        assert_eq!(sight(Some(&blind), alone, &client(3)).1, None);
        assert_eq!(sight(None, alone, &client(3)), (None, None));
    }

    /// B2: a reader that the holders would admit waits behind the first waiter, not behind them.
    #[test]
    fn b2_a_waiter_can_be_in_the_way() {
        let mut seen = info(Some(vec![Waiting::new(holder(2), None)]));
        seen.holders[0].mode = Mode::Read;
        let waiter = &seen.waiters.as_ref().unwrap()[0];
        let (obstacle, _) = sight(Some(&seen), &Mode::Read, &client(3));
        assert_eq!(obstacle, Some(Obstacle::Waiter(waiter)));
        let (obstacle, _) = sight(Some(&seen), &Mode::Exclusive, &client(3));
        assert_eq!(obstacle, Some(Obstacle::Holders(&seen.holders)));
        let (obstacle, _) = sight(Some(&seen), &Mode::Read, &client(2));
        assert_eq!(obstacle, Some(Obstacle::Holders(&seen.holders)), "we are that waiter");
    }

    /// Plain lines come at growing intervals, the live line at a fixed one.
    #[test]
    fn pauses() {
        let pauses = std::iter::successors(Some(PLAIN_FIRST), |p| Some(next_pause(*p, false)));
        let seen: Vec<u64> = pauses.take(7).map(|pause| pause.as_secs()).collect();
        assert_eq!(seen, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(next_pause(LIVE_EVERY, true), LIVE_EVERY);
    }
}
