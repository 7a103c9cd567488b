//! Whether those who wait are told of their turn.
//!
//! In: a visit, and a second connection that listens. Out: whether what the first says arrives at the
//! second.

use std::sync::Arc;

use redis::{PushInfo, PushKind};
use tenure_core::doctor::{Check, Finding};
use tokio::sync::Notify;

use super::Exam;
use super::rights::line;
use super::visit::{Visit, why};
use crate::link::Pushes;
use crate::trouble::Trouble;

/// What is lost where nobody can be told.
const POLLING: &str = "those who wait poll at `retry_interval` instead of being told";

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
            Err(trouble) if trouble.word() == "NOPERM" => check.warning(
                format!("not allowed: {POLLING}"),
                format!("this is enough: `{}`", line(self.target.dial().user(), self.keys)),
            ),
            Err(trouble) => check.unknown(why(&trouble)),
        }
    }

    async fn hear_ourselves(&self, visit: &mut Visit) -> Result<bool, Trouble> {
        let (arrived, channel) = (Arc::new(Notify::new()), self.keys.probe()?.channel);
        let dial = self.target.dial();
        let ear = Some(bell(&arrived));
        let mut listener = Visit::pay(dial, visit.address(), ear).await?;
        listener.ask(redis::cmd("SUBSCRIBE").arg(&channel)).await?;
        visit.ask(redis::cmd("PUBLISH").arg(&channel).arg("")).await?;
        let heard = tokio::time::timeout(dial.response_timeout(), arrived.notified()).await;
        Ok(heard.is_ok())
    }
}

fn bell(arrived: &Arc<Notify>) -> Pushes {
    let arrived = arrived.clone();
    Pushes(Arc::new(move |push: PushInfo| {
        if push.kind == PushKind::Message {
            arrived.notify_one();
        }
    }))
}
