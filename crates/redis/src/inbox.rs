//! The inbox: where this process is told of its turns, and that others wait.
//!
//! In: claims that are about to wait. Out: a [`Slot`] for each, in which a push lands.
//!
//! It has a connection of its own, which carries nothing but one subscription and signs of life. What
//! is told here is a hint and may be late or never come: every wait has a timer, and a push only
//! counts under the conditions of `wait.rs`.
//!
//! A claim is known here from before its first request to wait until its release or abandon is asked
//! for. A grant that is pushed for it after that is nobody's and given back at once; so a claim must not
//! be forgotten while anybody may still ask for it again.
//!
//! In reading order: this file (the connection), `channels.rs` (what it listens to in a cluster), `desk.rs`
//! (claims and their slots). A *slot* here is a claim's, but for the slots of a cluster, which are numbers.

mod channels;
mod desk;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tenure_core::backend::Notice;
use tenure_core::time::Time;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::jitter::jittered;
use crate::keys::{Keys, NO_SLOT};
use crate::link::{Link, Links, Live, Pushes, Server};
use crate::trouble::{Cause, Trouble};
use crate::value::Author;
use channels::Channels;
use desk::Desk;
pub(crate) use desk::{Push, Slot};

/// How often the connection is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure to connect.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause after the server refused to let us listen: rights are not given every day.
const PAUSE_REFUSED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    /// The task that keeps the connection up, on the runtime of whoever waited first.
    task: Mutex<Option<AbortHandle>>,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    link: Link,
    keys: Keys,
    client: String,
    /// Those of a cluster's slots; elsewhere there is one for everything.
    channels: Option<Arc<Channels>>,
    desk: Arc<Desk>,
    ears: Arc<Ears>,
}

/// Whether we hear anything.
#[derive(Debug)]
pub(crate) struct Ears {
    /// The server's turn in which we are subscribed.
    open: watch::Sender<Option<u64>>,
    /// One more than that turn, or zero: to be read for every lock.
    heard: AtomicU64,
    cut: Notify,
    /// When we were last subscribed: what was said before that, we may have missed.
    opened: Mutex<Option<Time>>,
    /// Somebody relies on hearing what may have been said before we are.
    missed: AtomicBool,
}

impl Ears {
    fn new() -> Self {
        let (heard, cut, opened, missed) = Default::default();
        Ears { open: watch::Sender::new(None), heard, cut, opened, missed }
    }

    fn set(&self, turn: Option<u64>) {
        self.heard.store(turn.map_or(0, |turn| turn + 1), Ordering::Release);
        self.open.send_replace(turn);
    }

    fn opened(&self) -> MutexGuard<'_, Option<Time>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    pub(crate) fn new(
        server: &Arc<Server>,
        commands: &Arc<Links>,
        keys: &Keys,
        author: &Author,
    ) -> Self {
        let desk = Arc::new(Desk::new(server, commands, keys));
        let ears = Arc::new(Ears::new());
        let channels = keys.has_slots().then(Arc::<Channels>::default);
        let link = Link::with_pushes(server.clone(), listener(&desk, &ears, channels.as_ref()));
        let (server, keys, client) = (server.clone(), keys.clone(), author.client().into());
        let shared = Arc::new(Shared { server, link, keys, client, channels, desk, ears });
        Inbox { shared, task: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// Makes sure that we are told of everything before anybody waits, where one channel is enough for
    /// that: a holder is told there what becomes of its lock.
    pub(crate) fn listen_early(&self) {
        if self.shared.channels.is_none() && !self.hears(NO_SLOT) {
            self.keep_up();
        }
    }

    /// Makes sure that we are told of turns in `slot`.
    pub(crate) fn listen(&self, slot: u16) {
        if let Some(channels) = &self.shared.channels {
            channels.want(slot, self.shared.server.clock().now());
        }
        self.keep_up();
    }

    /// Makes sure that somebody keeps the connection up. Whoever never waits needs none.
    fn keep_up(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = task.as_ref().is_some_and(|task| !task.is_finished());
        if let (false, Ok(here)) =
            (runs || self.closed.load(Ordering::Acquire), Handle::try_current())
        {
            *task = Some(here.spawn(keep_up(self.shared.clone())).abort_handle());
        }
    }

    /// Makes sure that we know of those who wait for what we have held since `since`.
    pub(crate) fn heed(&self, since: Time) {
        self.keep_up();
        let ears = &self.shared.ears;
        if ears.opened().is_some_and(|at| at <= since) {
            return;
        }
        ears.missed.store(true, Ordering::SeqCst);
        if ears.open.borrow().is_some() {
            self.shared.catch_up();
        }
    }

    /// Whether a turn in `slot` would be told to us, by the server that commands go to.
    pub(crate) fn hears(&self, slot: u16) -> bool {
        self.shared.ears.heard.load(Ordering::Acquire) == self.shared.server.turn() + 1
            && self.shared.channels.as_ref().is_none_or(|channels| channels.has(slot))
    }

    /// Waits until it would.
    pub(crate) async fn heard(&self, slot: u16) {
        let mut changes = self.shared.ears.open.subscribe();
        while !self.hears(slot) && changes.changed().await.is_ok() {}
    }

    /// Tells when that has changed.
    pub(crate) fn hearing(&self, slot: u16) -> Hearing<'_> {
        let open = self.shared.ears.open.subscribe();
        Hearing { inbox: self, slot, open, heard: self.hears(slot) }
    }

    pub(crate) fn desk(&self) -> &Desk {
        &self.shared.desk
    }

    /// Lets go of the connection, for good.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.inspect(AbortHandle::abort);
        self.shared.link.close();
    }
}

/// Whether a turn would be told to us, for one who waits for it.
pub(crate) struct Hearing<'a> {
    inbox: &'a Inbox,
    slot: u16,
    open: watch::Receiver<Option<u64>>,
    heard: bool,
}

impl Hearing<'_> {
    /// Counts changes from here on.
    pub(crate) fn begin(&mut self) {
        self.open.mark_unchanged();
        self.heard = self.inbox.hears(self.slot);
    }

    /// Waits for the next change. Where there are many channels, that another was opened is none.
    pub(crate) async fn changed(&mut self) {
        while self.open.changed().await.is_ok() {
            let one_for_all = self.inbox.shared.channels.is_none();
            if one_for_all || self.inbox.hears(self.slot) != self.heard {
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

/// What the driver calls for whatever the server says unasked.
fn listener(desk: &Arc<Desk>, ears: &Arc<Ears>, channels: Option<&Arc<Channels>>) -> Pushes {
    let (desk, ears, channels) = (desk.clone(), ears.clone(), channels.cloned());
    let closed_by_us = move |data: &[Value]| match (&channels, data) {
        (Some(channels), [Value::BulkString(name), ..]) => channels.has_left(name),
        _ => true,
    };
    Pushes(Arc::new(move |push: PushInfo| match push.kind {
        PushKind::Message | PushKind::SMessage => {
            let turn = *ears.open.borrow();
            if let [_, Value::BulkString(message)] = &push.data[..] {
                desk.deliver(message, turn);
            }
        }
        // The slot has left the node. The driver takes this for the reply to whatever was asked last, so
        // nothing more is to be asked here.
        PushKind::SUnsubscribe if !closed_by_us(&push.data) => ears.cut.notify_one(),
        PushKind::Disconnection => ears.cut.notify_one(),
        _ => {}
    }))
}

/// Connects, subscribes, and does so again whenever that is lost.
async fn keep_up(shared: Arc<Shared>) {
    // However this task ends, nobody may rely on what it kept up.
    let _deaf = Deaf::of(&shared);
    let mut told = false;
    loop {
        let trouble = match shared.subscribe().await {
            Ok(live) => {
                told = false;
                shared.listen(&live).await
            }
            Err(trouble) => trouble,
        };
        let refused = trouble.cause() == Cause::Refused;
        if refused && !std::mem::replace(&mut told, true) {
            tracing::warn!(%trouble, "not allowed to listen: whoever waits asks at its retry interval");
        }
        tokio::time::sleep(jittered(if refused { PAUSE_REFUSED } else { PAUSE })).await;
    }
}

impl Shared {
    async fn subscribe(&self) -> Result<Arc<Live>, Trouble> {
        let live = self.link.live().await?;
        if let Some(channels) = &self.channels {
            if !live.has_flags() {
                let what = "channels with slots came with version 7";
                return Err(self.link.trouble(Cause::Refused, what));
            }
            self.open_missing(&live, channels).await?;
            return Ok(live);
        }
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(self.keys.inbox(&self.client, None));
        self.link.call(&live, subscribe).await?;
        Ok(live)
    }

    /// Opens the channels that are wanted. One that is refused may be another node's.
    async fn open_missing(&self, live: &Arc<Live>, channels: &Channels) -> Result<(), Trouble> {
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
                Ok(_) => return Err(self.link.out_of_turn(live)),
                Err(trouble) if trouble.has_moved() => channels.give_up(slot),
                Err(trouble) => return Err(trouble),
            }
        }
        // Whoever waits there looks whether it is heard.
        self.ears.open.send_modify(|_| ());
        Ok(())
    }

    /// Closes those that nobody wants any more.
    async fn close_idle(&self, live: &Arc<Live>, channels: &Channels) -> Result<(), Trouble> {
        for slot in channels.take_idle(self.server.clock().now()) {
            let name = self.keys.inbox(&self.client, Some(slot));
            channels.leave(&name);
            let mut unsubscribe = redis::cmd("SUNSUBSCRIBE");
            unsubscribe.arg(&name);
            self.link.call(live, unsubscribe).await?;
        }
        Ok(())
    }

    /// Waits until there is a channel to open; for ever where one is enough.
    async fn wanted(&self) -> &Channels {
        match &self.channels {
            Some(channels) => {
                channels.news().await;
                channels
            }
            None => std::future::pending().await,
        }
    }

    /// Hears what there is to hear until that ends; why it did.
    async fn listen(&self, live: &Arc<Live>) -> Trouble {
        let _deaf = Deaf::of(self);
        self.ears.set(Some(live.turn()));
        if self.ears.opened().replace(self.server.clock().now()).is_some() {
            self.ears.missed.store(true, Ordering::SeqCst);
        }
        self.catch_up();
        loop {
            tokio::select! {
                () = self.ears.cut.notified() => return self.link.give_up(live, "the inbox was cut"),
                () = self.server.left(live.turn()) => {
                    return self.link.give_up(live, "another server has become the master");
                }
                channels = self.wanted() => {
                    match self.open_missing(live, channels).await {
                        Ok(()) => continue,
                        Err(trouble) => return self.link.give_up(live, &trouble.to_string()),
                    }
                }
                () = tokio::time::sleep(PING_EVERY) => {}
            }
            if let Some(channels) = &self.channels
                && let Err(trouble) = self.close_idle(live, channels).await
            {
                return trouble;
            }
            // One that refuses is there, and tells what there is to tell.
            match self.link.call(live, redis::cmd("PING")).await {
                Err(trouble) if !self.is_on(live) => return trouble,
                _ => {}
            }
        }
    }

    /// Who came to wait while nobody listened has said so to nobody, and will not again: every lease
    /// is to look at its flag.
    fn catch_up(&self) {
        if self.ears.missed.swap(false, Ordering::SeqCst) {
            self.server.tell(Notice::Reconnected);
        }
    }

    /// Whether the connection is still good.
    fn is_on(&self, live: &Arc<Live>) -> bool {
        self.link.current().is_some_and(|current| Arc::ptr_eq(&current, live))
    }
}

/// Closes the ears when dropped.
struct Deaf(Arc<Ears>, Option<Arc<Channels>>);

impl Deaf {
    fn of(shared: &Shared) -> Self {
        Deaf(shared.ears.clone(), shared.channels.clone())
    }
}

impl Drop for Deaf {
    fn drop(&mut self) {
        self.1.iter().for_each(|channels| channels.close_all());
        self.0.set(None);
    }
}
