//! The inbox: it receives the messages for this process, about grants and about other waiters.
//!
//! In: claims that are about to wait. Out: a [`Mailbox`] for each, which receives its pushes.
//!
//! The inbox has a connection of its own, which carries only one subscription and pings. A message is a hint.
//! It may be late or lost: every wait has a timer, and a push counts only under the conditions of
//! `single/acquirer.rs`.
//!
//! The inbox knows a claim from before its first request to wait until its release or abandon is requested. A
//! grant that is pushed after that is unwanted and is released at once. So a claim must not be removed while
//! it may still be requested again.
//!
//! In reading order: this file (the connection), `channels.rs` (its subscriptions in a cluster), `waiters.rs`
//! (claims and their mailboxes), `contention.rs` (which keys other processes want).

mod channels;
mod contention;
mod waiters;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tenure_core::backend::Notice;
use tenure_core::time::Time;
use tenure_net::jittered;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::error::{Cause, EngineError};
use crate::link::{Connection, Link, Pool, Pushes, Server};
use crate::wire::keys::{Keys, NO_SLOT};
use crate::wire::value::ValueWriter;
use channels::Channels;
pub(crate) use contention::ContentionHints;
use waiters::Waiters;
pub(crate) use waiters::{Mailbox, Push};

/// How often the connection is pinged.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure to connect.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after the server refused the subscription: rights change seldom.
const PAUSE_REFUSED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    /// The task that keeps the connection up, on the runtime of the first waiter.
    task: Mutex<Option<AbortHandle>>,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    link: Link,
    keys: Keys,
    client: String,
    /// One channel for each slot in a cluster; otherwise there is one channel for everything.
    channels: Option<Arc<Channels>>,
    waiters: Arc<Waiters>,
    subscription: Arc<Subscription>,
}

/// Whether we are subscribed.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The epoch of the server in which we are subscribed.
    open: watch::Sender<Option<u64>>,
    /// That epoch + 1, or zero: it is read for every lock.
    subscribed_epoch: AtomicU64,
    cut: Notify,
    /// When the last subscription started: earlier messages may have been missed.
    opened: Mutex<Option<Time>>,
}

impl Subscription {
    fn new() -> Self {
        let (subscribed_epoch, cut, opened) = Default::default();
        Subscription { open: watch::Sender::new(None), subscribed_epoch, cut, opened }
    }

    fn set(&self, epoch: Option<u64>) {
        self.subscribed_epoch.store(epoch.map_or(0, |epoch| epoch + 1), Ordering::Release);
        self.open.send_replace(epoch);
    }

    fn opened(&self) -> MutexGuard<'_, Option<Time>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    pub(crate) fn new(
        server: &Arc<Server>,
        commands: &Arc<Pool>,
        keys: &Keys,
        writer: &ValueWriter,
    ) -> Self {
        let waiters = Arc::new(Waiters::new(server, commands, keys));
        let subscription = Arc::new(Subscription::new());
        let channels = keys.has_slots().then(Arc::<Channels>::default);
        let link =
            Link::with_pushes(server.clone(), listener(&waiters, &subscription, channels.as_ref()));
        let (server, keys, client) = (server.clone(), keys.clone(), writer.client().into());
        let shared =
            Arc::new(Shared { server, link, keys, client, channels, waiters, subscription });
        Inbox { shared, task: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// Subscribes before any claim waits, if one channel is enough for all: a holder is notified there about
    /// its lock.
    pub(crate) fn listen_early(&self) {
        if self.shared.channels.is_none() && !self.is_subscribed(NO_SLOT) {
            self.keep_up();
        }
    }

    /// Makes sure that we are notified of grants in `slot`.
    pub(crate) fn listen(&self, slot: u16) {
        if let Some(channels) = &self.shared.channels {
            channels.want(slot, self.shared.server.clock().now());
        }
        self.keep_up();
    }

    /// A lock in `slot` is held until then: if we are notified of its waiters, that does not end before.
    pub(crate) fn keep(&self, slot: u16, until: Time) {
        self.shared.channels.iter().for_each(|channels| channels.keep(slot, until));
    }

    /// Makes sure that a task keeps the connection up. A process that never waits needs none.
    fn keep_up(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = task.as_ref().is_some_and(|task| !task.is_finished());
        if let (false, Ok(here)) =
            (runs || self.closed.load(Ordering::Acquire), Handle::try_current())
        {
            *task = Some(here.spawn(keep_up(self.shared.clone())).abort_handle());
        }
    }

    /// Makes sure that new waiters notify us, if one channel is enough for all locks. Returns whether we know the
    /// waiters for a lock that we have held since `since`.
    pub(crate) fn hears_waiters_since(&self, since: Time) -> bool {
        self.keep_up();
        self.shared.subscription.opened().is_some_and(|at| at <= since)
    }

    /// Whether we would be notified of a grant in `slot`, by the server that commands go to.
    pub(crate) fn is_subscribed(&self, slot: u16) -> bool {
        self.shared.subscription.subscribed_epoch.load(Ordering::Acquire)
            == self.shared.server.epoch() + 1
            && self.shared.channels.as_ref().is_none_or(|channels| channels.has(slot))
    }

    /// Waits until `is_subscribed` is true.
    pub(crate) async fn subscribed(&self, slot: u16) {
        let mut changes = self.shared.subscription.open.subscribe();
        while !self.is_subscribed(slot) && changes.changed().await.is_ok() {}
    }

    /// Reports changes of `is_subscribed`.
    pub(crate) fn subscription_changes(&self, slot: u16) -> SubscriptionChanges<'_> {
        let open = self.shared.subscription.open.subscribe();
        SubscriptionChanges { inbox: self, slot, open, was_subscribed: self.is_subscribed(slot) }
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.shared.waiters
    }

    /// Closes the connection for good.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.inspect(AbortHandle::abort);
        self.shared.link.close();
    }
}

/// Whether a waiter would be notified, and changes of that.
pub(crate) struct SubscriptionChanges<'a> {
    inbox: &'a Inbox,
    slot: u16,
    open: watch::Receiver<Option<u64>>,
    was_subscribed: bool,
}

impl SubscriptionChanges<'_> {
    /// Counts changes from now on.
    pub(crate) fn begin(&mut self) {
        self.open.mark_unchanged();
        self.was_subscribed = self.inbox.is_subscribed(self.slot);
    }

    /// Waits for the next change. If there are many channels, the opening of another one does not count.
    pub(crate) async fn changed(&mut self) {
        while self.open.changed().await.is_ok() {
            let one_for_all = self.inbox.shared.channels.is_none();
            if one_for_all || self.inbox.is_subscribed(self.slot) != self.was_subscribed {
                return;
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}

/// The function that the driver calls for every push of the server.
fn listener(
    waiters: &Arc<Waiters>,
    subscription: &Arc<Subscription>,
    channels: Option<&Arc<Channels>>,
) -> Pushes {
    let (waiters, subscription, channels) =
        (waiters.clone(), subscription.clone(), channels.cloned());
    let closed_by_us = move |data: &[Value]| match (&channels, data) {
        (Some(channels), [Value::BulkString(name), ..]) => channels.has_left(name),
        _ => true,
    };
    Pushes(Arc::new(move |push: PushInfo| match push.kind {
        PushKind::Message | PushKind::SMessage => {
            let epoch = *subscription.open.borrow();
            if let [_, Value::BulkString(message)] = &push.data[..] {
                waiters.dispatch(message, epoch);
            }
        }
        // The slot has left the node. The driver takes this push for the reply to the last request, so no
        // further request may be sent on this connection.
        PushKind::SUnsubscribe if !closed_by_us(&push.data) => subscription.cut.notify_one(),
        PushKind::Disconnection => subscription.cut.notify_one(),
        _ => {}
    }))
}

/// Connects and subscribes, and does so again after every loss.
async fn keep_up(shared: Arc<Shared>) {
    // When this task ends, for any reason, the subscription counts as closed.
    let _unsubscribed = UnsubscribedOnDrop::of(&shared);
    let mut warned = false;
    loop {
        let error = match shared.subscribe().await {
            Ok(live) => {
                warned = false;
                shared.listen(&live).await
            }
            Err(error) => error,
        };
        let refused = error.cause() == Cause::Refused;
        if refused && !std::mem::replace(&mut warned, true) {
            tracing::warn!(%error, "not allowed to subscribe: waiters poll at their retry interval");
        }
        tokio::time::sleep(jittered(if refused { PAUSE_REFUSED } else { PAUSE })).await;
    }
}

impl Shared {
    async fn subscribe(&self) -> Result<Arc<Connection>, EngineError> {
        let live = self.link.live().await?;
        if let Some(channels) = &self.channels {
            if !live.has_flags() {
                let what = "channels with slots came with version 7";
                return Err(self.link.error(Cause::Refused, what));
            }
            self.open_missing(&live, channels).await?;
            return Ok(live);
        }
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(self.keys.inbox(&self.client, None));
        self.link.call(&live, subscribe).await?;
        Ok(live)
    }

    /// Opens the missing channels. A refused channel may belong to another node.
    async fn open_missing(
        &self,
        live: &Arc<Connection>,
        channels: &Channels,
    ) -> Result<(), EngineError> {
        for slot in channels.missing() {
            let name = self.keys.inbox(&self.client, Some(slot));
            let mut subscribe = redis::cmd("SSUBSCRIBE");
            subscribe.arg(&name);
            match self.link.call(live, subscribe).await {
                Ok(Value::Push { kind: PushKind::SSubscribe, data })
                    if data.first() == Some(&Value::BulkString(name.into())) =>
                {
                    channels.opened(slot);
                }
                Ok(_) => return Err(self.link.desynced(live)),
                Err(error) if error.has_moved() => channels.give_up(slot),
                Err(error) => return Err(error),
            }
        }
        // Waiters in these slots check again whether they are subscribed.
        self.subscription.open.send_modify(|_| ());
        Ok(())
    }

    /// Closes the channels that are no longer needed.
    async fn close_idle(
        &self,
        live: &Arc<Connection>,
        channels: &Channels,
    ) -> Result<(), EngineError> {
        for slot in channels.take_idle(self.server.clock().now()) {
            let name = self.keys.inbox(&self.client, Some(slot));
            channels.leave(&name);
            let mut unsubscribe = redis::cmd("SUNSUBSCRIBE");
            unsubscribe.arg(&name);
            self.link.call(live, unsubscribe).await?;
        }
        Ok(())
    }

    /// Waits until there is a channel to open; for ever if there is only one channel.
    async fn wanted(&self) -> &Channels {
        match &self.channels {
            Some(channels) => {
                channels.news().await;
                channels
            }
            None => std::future::pending().await,
        }
    }

    /// Keeps the subscription until it ends, and returns the reason.
    async fn listen(&self, live: &Arc<Connection>) -> EngineError {
        let _unsubscribed = UnsubscribedOnDrop::of(self);
        self.subscription.set(Some(live.epoch()));
        // A claim that came to wait since the last subscription could not notify us, and will not try again. So every
        // lease must read its flag.
        if self.subscription.opened().replace(self.server.clock().now()).is_some() {
            self.server.notify(Notice::Reconnected);
        }
        loop {
            tokio::select! {
                () = self.subscription.cut.notified() => return self.link.give_up(live, "the inbox was cut"),
                () = self.server.left(live.epoch()) => {
                    return self.link.give_up(live, "another server has become the master");
                }
                channels = self.wanted() => {
                    match self.open_missing(live, channels).await {
                        Ok(()) => continue,
                        Err(error) => return self.link.give_up(live, &error.to_string()),
                    }
                }
                () = tokio::time::sleep(PING_EVERY) => {}
            }
            if let Some(channels) = &self.channels
                && let Err(error) = self.close_idle(live, channels).await
            {
                return error;
            }
            // A server that refuses a ping is alive and still sends messages.
            match self.link.call(live, redis::cmd("PING")).await {
                Err(error) if !self.is_on(live) => return error,
                _ => {}
            }
        }
    }

    /// Whether the connection is still the link's connection.
    fn is_on(&self, live: &Arc<Connection>) -> bool {
        self.link.current().is_some_and(|current| Arc::ptr_eq(&current, live))
    }
}

/// Marks the subscription as closed when dropped.
struct UnsubscribedOnDrop(Arc<Subscription>, Option<Arc<Channels>>);

impl UnsubscribedOnDrop {
    fn of(shared: &Shared) -> Self {
        UnsubscribedOnDrop(shared.subscription.clone(), shared.channels.clone())
    }
}

impl Drop for UnsubscribedOnDrop {
    fn drop(&mut self) {
        self.1.iter().for_each(|channels| channels.close_all());
        self.0.set(None);
    }
}
