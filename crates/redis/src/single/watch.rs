//! Hints that locks have changed, for a watch.
//!
//! In: the keys that change under our prefix; the server reports them to the connection that asked for it
//! (`CLIENT TRACKING … BCAST`). Out: hints for the engine, which inspects the locks that they name.
//!
//! Every watch has a connection of its own, kept up by a task that ends with the watch: without a watch there
//! is no cost. If the server does not report changes, there are no hints, and the engine polls.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tenure_core::backend::{Hint, HintSender, Query};
use tenure_net::jittered;
use tokio::sync::Notify;

use super::inspector::Inspector;
use crate::error::EngineError;
use crate::link::{Connection, Link, Pushes};
use crate::wire::keys::Keys;

/// How often the connection is pinged.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure to connect.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn warn_unwatched(error: &EngineError) {
    tracing::warn!(%error, "the server does not report changes: a watch polls ten times a second");
}

/// The connection of one watch.
pub(crate) struct Watch {
    link: Link,
    hinter: HintSender,
    /// The start of the names of the locks that are watched.
    prefix: String,
    channel: String,
    cut: Arc<Notify>,
}

impl Watch {
    pub(super) fn new(inspector: &Inspector, hinter: HintSender, query: &Query) -> Self {
        let cut = Arc::new(Notify::new());
        let listener = listener(&inspector.keys, &hinter, &cut);
        let link = Link::with_pushes(inspector.server.clone(), listener);
        let prefix = match query {
            // A busy server then reports this key, and those that begin with its name.
            Query::Key(key) => inspector.keys.lock(key),
            _ => inspector.keys.locks().to_owned(),
        };
        let channel = format!("{}:watch", inspector.keys.inbox(&inspector.client, None));
        Watch { link, hinter, prefix, channel, cut }
    }

    /// Makes the server report changes to us.
    pub(crate) async fn open(&self) -> Result<Arc<Connection>, EngineError> {
        let live = self.link.live().await?;
        let mut track = redis::cmd("CLIENT");
        track.arg("TRACKING").arg("ON").arg("BCAST").arg("PREFIX").arg(&self.prefix);
        self.link.call(&live, track).await?;
        // Nothing is ever published on this channel. A server buffers the unread output of a subscriber up to
        // a limit, and then disconnects it; for other clients the buffer has no limit, and would fill the
        // memory if we were stopped.
        let mut limit = redis::cmd("SUBSCRIBE");
        limit.arg(&self.channel);
        match self.link.call(&live, limit).await {
            Err(error) if !error.is_permanent() => Err(error),
            _ => Ok(live),
        }
    }

    /// Stays connected until the watch ends, or the server does not report changes any more.
    pub(crate) async fn keep_open(self, mut live: Arc<Connection>) {
        loop {
            self.watch(&live).await;
            let epoch = live.epoch();
            live = match self.open_again().await {
                Ok(live) => live,
                Err(error) => return warn_unwatched(&error),
            };
            let same = live.epoch() == epoch;
            self.hinter.send(if same { Hint::All } else { Hint::Forgot });
        }
    }

    /// Opens the connection as soon as possible, and then keeps it open.
    pub(crate) async fn open_when_possible(self) {
        match self.open_again().await {
            Ok(live) => {
                self.hinter.send(Hint::Forgot);
                self.keep_open(live).await;
            }
            Err(error) => warn_unwatched(&error),
        }
    }

    /// Watches until the connection fails.
    async fn watch(&self, live: &Arc<Connection>) {
        loop {
            tokio::select! {
                () = self.cut.notified() => {
                    self.link.give_up(live, "the watch was cut");
                    return;
                }
                () = tokio::time::sleep(PING_EVERY) => {}
            }
            if self.link.call(live, redis::cmd("PING")).await.is_err() {
                return;
            }
        }
    }

    /// A new connection, however long that takes; an error if it would be useless.
    async fn open_again(&self) -> Result<Arc<Connection>, EngineError> {
        loop {
            match self.open().await {
                Err(error) if !error.is_permanent() => {
                    // The watcher learns that the server is unreachable. And if another link reconnects
                    // before us, it is unknown whether the server is still the same.
                    self.hinter.send(Hint::Forgot);
                    tokio::time::sleep(jittered(PAUSE)).await;
                }
                opened => return opened,
            }
        }
    }
}

/// The function that the driver calls for every push of the server.
fn listener(keys: &Keys, hinter: &HintSender, cut: &Arc<Notify>) -> Pushes {
    let (keys, hinter, cut) = (keys.clone(), hinter.clone(), cut.clone());
    Pushes(Arc::new(move |push: PushInfo| match push.kind {
        PushKind::Invalidate => {
            hints_of(&push.data, &keys).into_iter().for_each(|hint| hinter.send(hint))
        }
        PushKind::Disconnection => cut.notify_one(),
        _ => {}
    }))
}

/// A hint for each changed lock, or `Forgot` if everything was deleted.
fn hints_of(data: &[Value], keys: &Keys) -> Vec<Hint> {
    match data {
        [Value::Array(changed)] => {
            let names = changed.iter().filter_map(|name| match name {
                Value::BulkString(name) => keys.parse_lock(name),
                _ => None,
            });
            names.map(Hint::Changed).collect()
        }
        _ => vec![Hint::Forgot],
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::Key;

    use super::*;

    /// Changed locks are reported by name, other keys are not, and a flush is `Forgot`.
    #[test]
    fn pushes() {
        let keys = Keys::new("tenure", None);
        let name = |name: &str| Value::BulkString(name.into());
        let changed =
            Value::Array(vec![name("tenure:lock:a"), name("tenure:lock:\u{1}"), name("x")]);
        let a = Hint::Changed(Key::new("a").unwrap());
        assert_eq!(hints_of(&[changed], &keys), [a]);
        assert_eq!(hints_of(&[Value::Nil], &keys), [Hint::Forgot]);
    }
}
