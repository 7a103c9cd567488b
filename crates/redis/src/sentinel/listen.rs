//! Listening to the Sentinels, all of them, for as long as a client lives.
//!
//! In: what they say unasked (`+switch-master`), and what they answer once a second. Out: the master,
//! as soon as one of them knows; everybody who holds a lock is then told to renew it.
//!
//! A former master goes on answering for a while, and what it grants then is lost. So it is not enough
//! to ask when a connection breaks.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind};
use tenure_core::backend::Notice;
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinSet;

use super::Sentinels;
use crate::jitter::jittered;
use crate::link::Pushes;
use crate::trouble::Trouble;
use crate::url::Address;

/// How often each is asked, in case nothing was said.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The pause after one could not be reached.
const PAUSE: Duration = Duration::from_millis(500);
/// What they say when another server is the master: all of them in the end, and before that the one
/// that leads the failover, when the new one has taken over.
const NEWS: [&str; 2] = ["+switch-master", "+promoted-slave"];

impl Sentinels {
    /// Never ends by itself.
    pub(crate) async fn watch(self: Arc<Self>, notices: broadcast::Sender<Notice>) {
        let mut ears = JoinSet::new();
        for address in self.addresses.clone() {
            ears.spawn(self.clone().listen(address));
        }
        let mut moves = self.changes();
        // We have the sender: it cannot end.
        while moves.changed().await.is_ok() {
            // Nobody may be listening yet, or any more.
            let _ = notices.send(Notice::Reconnected);
        }
    }

    async fn listen(self: Arc<Self>, address: Address) {
        loop {
            if let Err(trouble) = self.hear(&address).await {
                tracing::debug!(%trouble, "a Sentinel cannot be heard");
            }
            tokio::time::sleep(jittered(PAUSE)).await;
        }
    }

    /// Hears one until that fails.
    async fn hear(&self, address: &Address) -> Result<(), Trouble> {
        let news = Arc::new(Notify::new());
        let mut line = self.call_up(address, Some(bell(&news))).await?;
        for channel in NEWS {
            let mut subscribe = redis::cmd("SUBSCRIBE");
            let subscribed = subscribe.arg(channel).exec_async(&mut line.connection);
            let within = self.dial.response_timeout();
            // Without the right to listen there is still the asking; without a line that fails too.
            let _ = tokio::time::timeout(within, subscribed).await;
        }
        loop {
            let word = self.ask_on(&mut line, address).await?;
            self.learn(&[word]);
            tokio::select! {
                () = news.notified() => {}
                () = tokio::time::sleep(jittered(ASK_EVERY)) => {}
            }
        }
    }
}

/// Rings for whatever is said, and when the line breaks.
fn bell(news: &Arc<Notify>) -> Pushes {
    let news = news.clone();
    Pushes(Arc::new(move |push: PushInfo| {
        if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
            news.notify_one();
        }
    }))
}
