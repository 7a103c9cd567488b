//! Subscribes to all Sentinels, for the life of a client.
//!
//! In: their messages (`+switch-master`), and their answers to a query once a second. Out: the new master, as
//! soon as one of them knows it; all holders are then notified to renew their locks.
//!
//! A former master goes on answering for a while, and what it grants then is lost. So it is not enough to ask
//! when a connection breaks.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tenure_core::backend::{Notice, Notifier};
use tenure_net::jittered;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::Sentinels;
use crate::error::EngineError;
use crate::link::Pushes;
use crate::url::Address;

/// How often each Sentinel is asked, in case no message arrives.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The pause after a failed connection.
const PAUSE: Duration = Duration::from_millis(500);
/// The channels that announce a new master. All Sentinels send the first in the end; before that, the
/// Sentinel that leads the failover sends the second, when the new master has taken over.
const NEWS: [&str; 2] = ["+switch-master", "+promoted-slave"];

impl Sentinels {
    /// Runs until it is aborted.
    pub(crate) async fn watch(self: Arc<Self>, notifier: Notifier) {
        let mut subscription = JoinSet::new();
        for address in self.addresses.clone() {
            subscription.spawn(self.clone().listen(address));
        }
        let mut moves = self.changes();
        // We hold the sender, so this cannot fail.
        while moves.changed().await.is_ok() {
            notifier.send(Notice::Reconnected);
        }
    }

    async fn listen(self: Arc<Self>, address: Address) {
        loop {
            if let Err(error) = self.follow(&address).await {
                tracing::debug!(%error, "a Sentinel cannot be followed");
            }
            tokio::time::sleep(jittered(PAUSE)).await;
        }
    }

    /// Follows one Sentinel until an error.
    async fn follow(&self, address: &Address) -> Result<(), EngineError> {
        let news = Arc::new(Notify::new());
        let mut line = self.call_up(address, Some(notify_on_push(&news))).await?;
        for channel in NEWS {
            let mut subscribe = redis::cmd("SUBSCRIBE");
            let subscribed = subscribe.arg(channel).exec_async(&mut line.connection);
            let within = self.connector.response_timeout();
            // Without the right to subscribe, the regular query still works; without a connection, it fails
            // as well.
            let _ = tokio::time::timeout(within, subscribed).await;
        }
        loop {
            let report = self.ask_on(&mut line, address).await?;
            self.apply(&[report]);
            tokio::select! {
                () = news.notified() => {}
                () = tokio::time::sleep(jittered(ASK_EVERY)) => {}
            }
        }
    }
}

/// Notifies `news` of every message, and of the end of the connection.
fn notify_on_push(news: &Arc<Notify>) -> Pushes {
    let news = news.clone();
    Pushes(Arc::new(move |push: PushInfo| {
        if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
            news.notify_one();
        }
    }))
}
