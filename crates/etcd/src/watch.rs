//! Hints that locks have changed, told by the server, for whoever watches.
//!
//! In: changes of the keys of all claims. Out: hints for the engine, which looks at what they name.
//!
//! Every watch has a stream of its own, kept up by a task that ends with the watch. After a cut everything
//! is looked at.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::Token;
use tenure_core::backend::{Hint, Hinter, Hints, hints};

use crate::backend::Shared;
use crate::jitter::jittered;
use crate::link::Watching;
use crate::proto::{EventType, WatchCreateRequest, WatchResponse, end_of};
use crate::trouble::Trouble;
use crate::value;

/// The pause after a failure to watch.
const PAUSE: Duration = Duration::from_millis(100);
/// How many deleted keys are remembered until somebody asks what became of their claims.
const DEPARTED_MAX: usize = 1_000;
/// How often a watched connection is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(5);

impl Shared {
    /// Hints from now on.
    pub(crate) async fn hints(self: &Arc<Self>) -> Result<Option<Hints>, Trouble> {
        let (hinter, hints) = hints(&self.clock);
        let eyes = Eyes { shared: self.clone(), hinter };
        let watching = eyes.open().await?;
        Ok(Some(hints.kept_by(tokio::spawn(eyes.keep_open(watching)).abort_handle())))
    }
}

/// Claims whose keys a watch has seen deleted, and the lease that each hung on. A lock that was given back
/// leaves its lease, for a while at least; one that ran out went with it.
#[derive(Debug, Default)]
pub(crate) struct Departed(Mutex<VecDeque<(Token, i64)>>);

impl Departed {
    fn add(&self, token: Token, lease: i64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= DEPARTED_MAX {
            known.pop_front();
        }
        known.push_back((token, lease));
    }

    /// The lease that the claim's key hung on, if that was seen. Asked for once.
    pub(crate) fn take(&self, token: Token) -> Option<i64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().rposition(|(known, _)| *known == token)?;
        known.remove(at).map(|(_, lease)| lease)
    }
}

/// One watch over all locks.
struct Eyes {
    shared: Arc<Shared>,
    hinter: Hinter,
}

impl Eyes {
    /// Has the server tell us of changes. It has begun when this returns.
    async fn open(&self) -> Result<Watching, Trouble> {
        let key = self.shared.keys.locks();
        let range_end = end_of(&key);
        let create = WatchCreateRequest { key, range_end, prev_kv: true, ..Default::default() };
        self.shared.calls.watch(create).await
    }

    async fn keep_open(self, mut watching: Watching) {
        loop {
            self.listen(&mut watching).await;
            loop {
                tokio::time::sleep(jittered(PAUSE)).await;
                match self.open().await {
                    Ok(again) => break watching = again,
                    // Whoever watches looks, and finds out what is wrong.
                    Err(_) => self.hinter.tell(Hint::All),
                }
            }
            self.hinter.tell(Hint::All);
        }
    }

    /// Passes on what is told, until that ends.
    async fn listen(&self, watching: &mut Watching) {
        loop {
            tokio::select! {
                told = watching.next() => match told {
                    Ok(told) => self.pass_on(&told),
                    Err(_) => return,
                },
                () = tokio::time::sleep(PING_EVERY) => self.ping().await,
            }
        }
    }

    fn pass_on(&self, told: &WatchResponse) {
        for event in &told.events {
            let key = event.kv.as_ref().and_then(|kv| self.shared.keys.parse(&kv.key));
            let Some(key) = key else { continue };
            if let (EventType::Delete, Some(prev)) = (event.r#type(), &event.prev_kv)
                && let Some(token) = value::token(&prev.value)
            {
                self.shared.departed.add(token, prev.lease);
            }
            self.hinter.tell(Hint::Changed(key));
        }
    }

    /// A connection that is silently dead is given up, and with it the watch.
    async fn ping(&self) {
        let _ = self.shared.first(&self.shared.keys.all_forced()).await;
    }
}
