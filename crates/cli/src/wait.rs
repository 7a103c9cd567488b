//! The wait for the lock, and what is said meanwhile.
//!
//! In: what was asked for. Out: the guard, or why there is none. A wait that is given up, by time or by
//! signal, leaves nothing behind: the engine undoes what a dropped request may have won.

use std::convert::Infallible;
use std::time::Duration;

use nix::sys::signal::Signal;
use tenure::backend::LockInfo;
use tenure::{Client, Error, Guard, Holder, Key, Lock, Locker};

use crate::args::Asking;
use crate::output;
use crate::signals::Signals;
use crate::talk::Talk;
use crate::text;
use crate::trouble::Trouble;
use crate::url::Place;

/// Shorter waits are nobody's business: below it a pause is not felt as one.
const SILENCE: Duration = Duration::from_millis(400);
/// How often a live line is brought up to date: its times are in seconds.
const LIVE_EVERY: Duration = Duration::from_secs(1);
/// The pause after the first plain line; it doubles, for a log wants to stay readable.
const PLAIN_FIRST: Duration = Duration::from_secs(2);
/// The longest pause between plain lines: a log that is silent for longer looks dead.
const PLAIN_MAX: Duration = Duration::from_secs(60);

/// How long to wait for the engine to undo or finish what is under way. A lease frees what is left.
const FAREWELL: Duration = Duration::from_secs(5);

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Waited {
    Acquired(Guard),
    Interrupted(Signal),
    Failed(Error),
}

/// Connects, unless a signal comes first.
pub(crate) async fn connect(
    place: &Place,
    signals: &mut Signals,
    talk: &mut Talk,
) -> Result<Result<Locker, Trouble>, Signal> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        locker = place.connect(talk) => Ok(locker),
    }
}

/// Lets the engine finish. Whoever signals again does not want to wait for that either.
pub(crate) async fn farewell(locker: &Locker, signals: &mut Signals) {
    tokio::select! {
        _ = locker.shutdown(FAREWELL) => {}
        _ = signals.next() => {}
    }
}

/// The request that `asking` describes.
pub(crate) fn request(locker: &Locker, key: &Key, ttl: Duration, asking: &Asking) -> Lock {
    let mut lock = locker.lock(key.as_str()).ttl(ttl);
    if let Some(reason) = &asking.reason {
        lock = lock.reason(reason.as_str());
    }
    match asking.wait {
        _ if asking.no_wait => lock.attempts(1),
        Some(wait) => lock.wait(wait),
        None => lock,
    }
}

/// There is no lock: held by another is an answer, everything else is trouble.
pub(crate) fn failed(
    error: &Error,
    key: &Key,
    asking: &Asking,
    place: &Place,
    talk: &mut Talk,
) -> Result<(), Trouble> {
    if !error.is_busy() {
        return Err(place.trouble(error));
    }
    let wait = asking.wait.or(place.config().get_wait()).filter(|_| !asking.no_wait);
    let gave_up = wait.filter(|wait| !wait.is_zero());
    talk.say(&output::not_acquired(key.as_str(), error.holder(), gave_up));
    talk.say(&output::hint_show(key.as_str(), place.option().as_deref()));
    Ok(())
}

/// Waits for the lock, for as long as `request` allows.
pub(crate) async fn acquire(
    locker: &Locker,
    key: &Key,
    request: Lock,
    signals: &mut Signals,
    talk: &mut Talk,
) -> Waited {
    let start = locker.clock().now();
    let mut said = false;
    let waited = tokio::select! {
        biased;
        signal = signals.next() => Waited::Interrupted(signal),
        answer = request.into_future() => answer.map_or_else(Waited::Failed, Waited::Acquired),
        never = narrate(locker, key, talk, &mut said) => match never {},
    };
    talk.clear();
    if let (Waited::Acquired(guard), true) = (&waited, said) {
        let took = locker.clock().now().since(start);
        talk.say(&output::acquired(key.as_str(), took, guard.fence()));
    }
    waited
}

/// Says what is in the way, again and again.
async fn narrate(locker: &Locker, key: &Key, talk: &mut Talk, said: &mut bool) -> Infallible {
    tokio::time::sleep(SILENCE).await;
    let mut pause = if talk.is_live() { LIVE_EVERY } else { PLAIN_FIRST };
    loop {
        talk.progress(&match locker.inspect(key.as_str()).await {
            Ok(info) => {
                let (holder, place) = sight(info.as_ref(), Client::this_process());
                output::waiting(key.as_str(), holder, place)
            }
            // A wait is not less of one because the engine cannot say what for.
            Err(error) => output::waiting_in_vain(key.as_str(), &text::root(&error)),
        });
        *said = true;
        tokio::time::sleep(pause).await;
        pause = next_pause(pause, talk.is_live());
    }
}

fn next_pause(pause: Duration, live: bool) -> Duration {
    if live { pause } else { (pause * 2).min(PLAIN_MAX) }
}

/// Who is in the way, and how many are before us.
fn sight<'a>(info: Option<&'a LockInfo>, us: &Client) -> (Option<&'a Holder>, Option<u64>) {
    let Some(info) = info else { return (None, None) };
    let holder = info.holders.first().map(|holding| &holding.holder);
    let ours = |holder: &Holder| {
        holder.client.as_ref().is_some_and(|c| (c.pid, &c.host) == (us.pid, &us.host))
    };
    let queue = info.waiters.as_deref().unwrap_or_default();
    let place = queue.iter().position(|waiting| ours(&waiting.holder));
    (holder, place.and_then(|index| u64::try_from(index + 1).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::backend::{Holding, Waiting};

    fn client(pid: u32) -> Client {
        Client { host: "h".into(), pid, user: "u".into(), program: "p".into() }
    }

    fn holder(pid: u32) -> Holder {
        let mut holder = Holder::unknown();
        holder.client = Some(client(pid));
        holder
    }

    fn info(waiters: Option<Vec<Waiting>>) -> LockInfo {
        let holding = Holding::new(holder(1), None, None);
        LockInfo::exclusive(Key::new("k").unwrap(), vec![holding], waiters)
    }

    /// Our place is counted from the front, and unknown where there is no queue to be in.
    #[test]
    fn places() {
        let queue = [2, 3].map(|pid| Waiting::new(holder(pid), None)).to_vec();
        let seen = info(Some(queue));
        assert_eq!(sight(Some(&seen), &client(3)), (Some(&holder(1)), Some(2)));
        assert_eq!(sight(Some(&seen), &client(9)).1, None);
        assert_eq!(sight(Some(&info(None)), &client(3)).1, None);
        assert_eq!(sight(None, &client(3)), (None, None));
    }

    /// Plain lines come at growing intervals, a live one steadily.
    #[test]
    fn pauses() {
        let pauses = std::iter::successors(Some(PLAIN_FIRST), |p| Some(next_pause(*p, false)));
        let seen: Vec<u64> = pauses.take(7).map(|pause| pause.as_secs()).collect();
        assert_eq!(seen, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(next_pause(LIVE_EVERY, true), LIVE_EVERY);
    }
}
