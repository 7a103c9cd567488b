//! Checks whether waiters can be notified.
//!
//! In: a probe connection, and a second connection that subscribes. Out: whether a message of the first
//! arrives at the second. In a cluster, whether subscribers can be counted.

use std::sync::Arc;

use redis::{PushInfo, PushKind};
use tenure_core::doctor::{Check, Finding};
use tokio::sync::Notify;

use super::Exam;
use super::acl::line;
use super::probe::{Visit, why};
use crate::error::EngineError;
use crate::link::Pushes;

/// The effect when waiters cannot be notified.
const POLLING: &str = "waiters poll at `retry_interval` instead of being notified";

impl Exam<'_> {
    pub(super) async fn listening(&self, visit: &mut Visit) -> Finding {
        let tried = "SUBSCRIBE on a second connection (RESP3), PUBLISH on the first";
        let check = Check::new("pub-sub", visit.address(), tried);
        let start = self.clock.now();
        match self.hear_ourselves(visit).await {
            Ok(true) => check
                .good(format!("the message arrived, all in {:.1?}", self.clock.now().since(start))),
            Ok(false) => check.warning(
                format!("the message did not arrive: {POLLING}"),
                "look for a proxy on the way that does not pass pub/sub on",
            ),
            Err(error) if error.code() == "NOPERM" => check.warning(
                format!("not allowed: {POLLING}"),
                format!("this is enough: `{}`", line(self.target.connector().user(), self.keys)),
            ),
            Err(error) => check.unknown(why(&error)),
        }
    }

    async fn hear_ourselves(&self, visit: &mut Visit) -> Result<bool, EngineError> {
        let (arrived, channel) = (Arc::new(Notify::new()), self.keys.probe()?.channel);
        let connector = self.target.connector();
        let ear = Some(bell(&arrived));
        let mut listener = Visit::pay(connector, visit.address(), ear).await?;
        listener.ask(redis::cmd("SUBSCRIBE").arg(&channel)).await?;
        visit.ask(redis::cmd("PUBLISH").arg(&channel).arg("")).await?;
        let received = tokio::time::timeout(connector.response_timeout(), arrived.notified()).await;
        Ok(received.is_ok())
    }
}

/// Whether the user of a cluster lacks the right to count the subscribers of a channel, which no self-test shows.
/// Before version 7 there is no such command, and waiters poll.
pub(super) async fn uncounted(visit: &mut Visit, user: &str) -> Option<Finding> {
    let error = visit.ask(redis::cmd("PUBSUB").arg("SHARDNUMSUB")).await.err()?;
    let check = Check::new("pub-sub", visit.address(), "PUBSUB SHARDNUMSUB");
    (error.code() == "NOPERM").then(|| {
        check.warning(
            "not allowed: a dead waiter can hold back those behind it for 4.5 s",
            format!("`ACL SETUSER {user} +pubsub|shardnumsub`"),
        )
    })
}

fn bell(arrived: &Arc<Notify>) -> Pushes {
    let arrived = arrived.clone();
    Pushes(Arc::new(move |push: PushInfo| {
        if push.kind == PushKind::Message {
            arrived.notify_one();
        }
    }))
}
