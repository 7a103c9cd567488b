//! Hints that locks have changed, told by the server, for whoever watches.
//!
//! In: changes of the keys of all claims. Out: hints for the engine, which looks at what they name.
//!
//! Every watch has a stream of its own, kept up by a task that ends with the watch. It goes on after the
//! last change it was told, so that nothing is missed; where the server has forgotten what came after that,
//! everything is looked at.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Hint, Hinter, Hints, hints};

use crate::backend::Shared;
use crate::jitter::jittered;
use crate::link::Watching;
use crate::proto::{WatchCreateRequest, WatchResponse, end_of};
use crate::trouble::Trouble;

/// The pause after a failure to watch.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a watched connection is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(5);

impl Shared {
    /// Hints from now on.
    pub(crate) async fn hints(self: &Arc<Self>) -> Result<Option<Hints>, Trouble> {
        let (hinter, hints) = hints(&self.clock);
        let eyes = Eyes { shared: self.clone(), hinter, next: 0 };
        let watching = eyes.open().await?;
        Ok(Some(hints.kept_by(tokio::spawn(eyes.keep_open(watching)).abort_handle())))
    }
}

/// One watch over all locks.
struct Eyes {
    shared: Arc<Shared>,
    hinter: Hinter,
    /// The revision to go on from; zero for now.
    next: i64,
}

impl Eyes {
    /// Has the server tell us of changes. It has begun when this returns.
    async fn open(&self) -> Result<Watching, Trouble> {
        let key = self.shared.keys.locks();
        let range_end = end_of(&key);
        let start_revision = self.next;
        let create = WatchCreateRequest { key, range_end, start_revision, filters: vec![] };
        self.shared.calls.watch(create).await
    }

    async fn keep_open(mut self, mut watching: Watching) {
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
            if self.next == 0 {
                self.hinter.tell(Hint::All);
            }
        }
    }

    /// Passes on what is told, until that ends.
    async fn listen(&mut self, watching: &mut Watching) {
        loop {
            tokio::select! {
                told = watching.next() => match told {
                    Ok(told) => self.pass_on(&told),
                    // Also where what comes next was compacted: from now on, then, after a look.
                    Err(_) => return self.next = 0,
                },
                () = tokio::time::sleep(PING_EVERY) => self.ping().await,
            }
        }
    }

    fn pass_on(&mut self, told: &WatchResponse) {
        if let Some(header) = told.header {
            self.next = header.revision + 1;
        }
        let keys = told.events.iter().filter_map(|event| event.kv.as_ref());
        for kv in keys {
            if let Some(place) = self.shared.keys.parse(&kv.key) {
                self.hinter.tell(Hint::Changed(place.key));
            }
        }
    }

    /// A connection that is silently dead is given up, and with it the watch.
    async fn ping(&self) {
        let _ = self.shared.first(&self.shared.keys.all_forced()).await;
    }
}
