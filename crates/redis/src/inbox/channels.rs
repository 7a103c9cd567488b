//! The channels of an inbox in a cluster: one for each slot in which a claim waits.
//!
//! In: slots, as claims wait in them. Out: the channels to open and to close, and the open ones.
//!
//! Channels are in slots as keys are, and only the node that owns a slot knows how many subscribers a channel
//! has. One channel for each lock would be many; one for each slot is enough. It stays open for a while after
//! the last waiter, since a process that waited for a lock is likely to wait for it again.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Time;
use tokio::sync::Notify;

/// How long a channel stays open after it was wanted last: longer than most locks are held, so that a holder is
/// notified of new waiters.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Channels {
    state: Mutex<State>,
    /// Notified when there is a channel to open.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<u16, Channel>,
    /// The names of channels that we are closing: their end is expected.
    leaving: HashSet<Vec<u8>>,
}

#[derive(Debug)]
struct Channel {
    wanted_until: Time,
    open: bool,
}

impl Channels {
    /// A claim waits in `slot`, or holds a lock there that others may come to wait for.
    pub(super) fn want(&self, slot: u16, now: Time) {
        let wanted_until = now.after(KEPT);
        let mut state = self.state();
        let new = || Channel { wanted_until, open: false };
        let channel = state.slots.entry(slot).or_insert_with(new);
        channel.wanted_until = channel.wanted_until.max(wanted_until);
        if !channel.open {
            self.news.notify_one();
        }
    }

    /// A lock in `slot` is held until then: its channel, if it has one, stays open as long.
    pub(super) fn keep(&self, slot: u16, until: Time) {
        if let Some(channel) = self.state().slots.get_mut(&slot) {
            channel.wanted_until = channel.wanted_until.max(until);
        }
    }

    /// Waits until there is a channel to open.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Whether the channel of `slot` is open.
    pub(super) fn has(&self, slot: u16) -> bool {
        self.state().slots.get(&slot).is_some_and(|channel| channel.open)
    }

    /// The slots of the channels that must be opened.
    pub(super) fn missing(&self) -> Vec<u16> {
        let state = self.state();
        let missing = state.slots.iter().filter(|(_, channel)| !channel.open);
        missing.map(|(slot, _)| *slot).collect()
    }

    pub(super) fn opened(&self, slot: u16) {
        if let Some(channel) = self.state().slots.get_mut(&slot) {
            channel.open = true;
        }
    }

    /// The channel cannot be opened here; it is forgotten until it is wanted again.
    pub(super) fn give_up(&self, slot: u16) {
        self.state().slots.remove(&slot);
    }

    /// Removes and returns the slots that were not wanted for long. From now on they count as closed.
    pub(super) fn take_idle(&self, now: Time) -> Vec<u16> {
        let mut state = self.state();
        let idle = state.slots.extract_if(|_, channel| channel.wanted_until < now);
        idle.filter(|(_, channel)| channel.open).map(|(slot, _)| slot).collect()
    }

    /// We are about to close the channel with this name.
    pub(super) fn leave(&self, name: &str) {
        self.state().leaving.insert(name.into());
    }

    /// Whether we closed the channel with this name.
    pub(super) fn has_left(&self, name: &[u8]) -> bool {
        self.state().leaving.remove(name)
    }

    /// The connection is lost.
    pub(super) fn close_all(&self) {
        let mut state = self.state();
        state.slots.values_mut().for_each(|channel| channel.open = false);
        state.leaving.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A channel is opened when it is first wanted, and closed when it was not wanted for long.
    #[test]
    fn a_channel_comes_and_goes() {
        let (channels, start) = (Channels::default(), Time::from_nanos(1));
        channels.want(7, start);
        assert_eq!((channels.missing(), channels.has(7)), (vec![7], false));
        channels.opened(7);
        assert!(channels.missing().is_empty() && channels.has(7));
        channels.want(7, start.after(KEPT));
        assert!(channels.take_idle(start.after(KEPT * 2)).is_empty());
        assert_eq!(channels.take_idle(start.after(KEPT * 3)), [7]);
        assert!(!channels.has(7));
    }

    /// A channel stays open while a lock in its slot is held, however long that is. A lock makes no channel.
    #[test]
    fn a_held_lock_keeps_its_channel() {
        let (channels, start) = (Channels::default(), Time::from_nanos(1));
        channels.keep(7, start.after(KEPT * 3));
        assert!(channels.missing().is_empty());
        channels.want(7, start);
        channels.opened(7);
        channels.keep(7, start.after(KEPT * 3));
        channels.want(7, start);
        assert!(channels.take_idle(start.after(KEPT * 3)).is_empty() && channels.has(7));
        assert_eq!(channels.take_idle(start.after(KEPT * 4)), [7]);
    }

    /// Without the connection no channel is open. A channel that the server closed was not closed by us.
    #[test]
    fn channels_closed_by_the_server() {
        let channels = Channels::default();
        channels.want(7, Time::from_nanos(1));
        channels.opened(7);
        channels.close_all();
        assert_eq!((channels.missing(), channels.has(7)), (vec![7], false));
        channels.leave("a");
        assert!(channels.has_left(b"a") && !channels.has_left(b"a") && !channels.has_left(b"b"));
    }
}
