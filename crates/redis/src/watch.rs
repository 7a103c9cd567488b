//! Hints that locks have changed, told by the server, for whoever watches.
//!
//! In: the keys that change under our prefix, which the server tells the connection that asked for it
//! (`CLIENT TRACKING … BCAST`). Out: hints for the engine, which looks at what they name.
//!
//! Every watch has a connection of its own, kept up by a task that ends with the watch: nothing is paid
//! when nobody watches. Where the server will not tell, there are no hints, and the engine looks again
//! and again.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tenure_core::backend::{Fate, Hint, Hinter, Hints, Loss, hints};
use tenure_core::{Key, Token};
use tokio::sync::Notify;

use crate::backend::Shared;
use crate::jitter::jittered;
use crate::keys::Keys;
use crate::link::{Link, Live, Pushes};
use crate::trouble::Trouble;

/// How often the connection is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failure to connect.
const PAUSE: Duration = Duration::from_millis(100);

impl Shared {
    /// Hints from now on; `None` where the server will not tell.
    pub(crate) async fn hints(&self) -> Result<Option<Hints>, Trouble> {
        let (hinter, hints) = hints(&self.clock);
        let eyes = Eyes::new(self, hinter);
        match eyes.open().await {
            Ok(live) => Ok(Some(hints.kept_by(tokio::spawn(eyes.keep_open(live)).abort_handle()))),
            Err(trouble) if trouble.is_final() => {
                say_blind(&trouble);
                Ok(None)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Who took the locks of these claims away, for those that an operator did.
    pub(crate) async fn fates(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<Fate>>, Trouble> {
        let mut pipe = redis::pipe();
        for (key, token) in ended {
            pipe.cmd("GET").arg(self.keys.forced(key, *token));
        }
        let replies = self.read_all(&pipe).await?;
        replies.into_iter().map(|by| Ok(forced(by?))).collect()
    }
}

fn forced(by: Value) -> Option<Fate> {
    let by: Option<String> = redis::from_redis_value(by).ok()?;
    by.map(|by| Loss::Forced(by).into())
}

pub(crate) fn say_blind(trouble: &Trouble) {
    tracing::warn!(%trouble, "the server does not tell of changes: a watch looks ten times a second");
}

/// The connection of one watch.
pub(crate) struct Eyes {
    link: Link,
    hinter: Hinter,
    /// What the names of locks start with.
    prefix: String,
    channel: String,
    cut: Arc<Notify>,
}

impl Eyes {
    pub(crate) fn new(shared: &Shared, hinter: Hinter) -> Self {
        let cut = Arc::new(Notify::new());
        let listener = listener(&shared.keys, &hinter, &cut);
        let link = Link::with_pushes(shared.server.clone(), listener);
        let prefix = shared.keys.locks().to_owned();
        let channel = format!("{}:watch", shared.keys.inbox(shared.author.client(), None));
        Eyes { link, hinter, prefix, channel, cut }
    }

    /// Has the server tell us of changes.
    pub(crate) async fn open(&self) -> Result<Arc<Live>, Trouble> {
        let live = self.link.live().await?;
        let mut track = redis::cmd("CLIENT");
        track.arg("TRACKING").arg("ON").arg("BCAST").arg("PREFIX").arg(&self.prefix);
        self.link.call(&live, track).await?;
        // Nobody tells anything here. A server keeps what a subscriber does not read up to a limit,
        // and then cuts it off; for others it would fill its memory, were we stopped.
        let mut limit = redis::cmd("SUBSCRIBE");
        limit.arg(&self.channel);
        match self.link.call(&live, limit).await {
            Err(trouble) if !trouble.is_final() => Err(trouble),
            _ => Ok(live),
        }
    }

    /// Stays connected until the watch is over, or the server will not tell any more.
    pub(crate) async fn keep_open(self, mut live: Arc<Live>) {
        loop {
            self.watch(&live).await;
            let turn = live.turn();
            live = match self.open_again().await {
                Ok(live) => live,
                Err(trouble) => return say_blind(&trouble),
            };
            let same = live.turn() == turn;
            self.hinter.tell(if same { Hint::All } else { Hint::Forgot });
        }
    }

    /// The same for one that cannot be opened yet.
    pub(crate) async fn open_when_possible(self) {
        match self.open_again().await {
            Ok(live) => {
                self.hinter.tell(Hint::Forgot);
                self.keep_open(live).await;
            }
            Err(trouble) => say_blind(&trouble),
        }
    }

    /// Watches until that ends.
    async fn watch(&self, live: &Arc<Live>) {
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

    /// A new connection, however long that takes; an error if it would be of no use.
    async fn open_again(&self) -> Result<Arc<Live>, Trouble> {
        loop {
            match self.open().await {
                Err(trouble) if !trouble.is_final() => {
                    // Whoever watches finds out that the server is away; and where another link finds
                    // it back before us, nobody knows yet whether it is still the same.
                    self.hinter.tell(Hint::Forgot);
                    tokio::time::sleep(jittered(PAUSE)).await;
                }
                opened => return opened,
            }
        }
    }
}

/// What the driver calls for whatever the server says unasked.
fn listener(keys: &Keys, hinter: &Hinter, cut: &Arc<Notify>) -> Pushes {
    let (keys, hinter, cut) = (keys.clone(), hinter.clone(), cut.clone());
    Pushes(Arc::new(move |push: PushInfo| match push.kind {
        PushKind::Invalidate => {
            told(&push.data, &keys).into_iter().for_each(|hint| hinter.tell(hint))
        }
        PushKind::Disconnection => cut.notify_one(),
        _ => {}
    }))
}

/// The keys that changed, or nothing at all where everything was deleted.
fn told(data: &[Value], keys: &Keys) -> Vec<Hint> {
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
    use super::*;

    /// Locks are told by name, what is none of ours is not, and a flush is everything.
    #[test]
    fn pushes() {
        let keys = Keys::new("tenure");
        let name = |name: &str| Value::BulkString(name.into());
        let changed =
            Value::Array(vec![name("tenure:lock:a"), name("tenure:lock:\u{1}"), name("x")]);
        let a = Hint::Changed(Key::new("a").unwrap());
        assert_eq!(told(&[changed], &keys), [a]);
        assert_eq!(told(&[Value::Nil], &keys), [Hint::Forgot]);
    }
}
