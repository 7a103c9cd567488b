//! Telling a holder that others wait.
//!
//! In: leases behind which tasks of this process wait. Out: [`Notice::Contended`], once for each.
//!
//! The kernel tells nobody who is queued behind a lock, so a thread looks for marks; it runs only while
//! there is a lease to look after, and holds the state only for one look at a time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::mark::others_wait;
use super::state::Shared;
use crate::backend::Notice;
use crate::claim::Token;

/// How long another process may wait unnoticed. Local hand-offs go on meanwhile; the engine allows
/// a hundred milliseconds more, so this adds a quarter to that.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// It stats and locks files; it needs little.
const STACK: usize = 128 * 1024;

impl Shared {
    /// From now on, tells when others wait for what this claim holds.
    pub(super) fn heed(self: &Arc<Self>, token: Token) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&token) else { return };
        held.heeded = true;
        if !state.heeding {
            // Without the thread there are no hints; nothing depends on one.
            state.heeding = self.spawn_heeding();
        }
    }

    fn spawn_heeding(self: &Arc<Self>) -> bool {
        let shared = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("tenure-heed".into()).stack_size(STACK);
        thread.spawn(move || look_and_tell(&shared)).is_ok()
    }

    /// One round; `false` when there is nothing left to look after.
    fn look_after_all(&self) -> bool {
        self.heeded().into_iter().for_each(|token| self.look_after(token));
        let mut state = self.state();
        state.heeding = state.held.values().any(|held| held.heeded);
        state.heeding
    }

    fn heeded(&self) -> Vec<Token> {
        let state = self.state();
        state.held.iter().filter(|(_, held)| held.heeded).map(|(token, _)| *token).collect()
    }

    fn look_after(&self, token: Token) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&token) else { return };
        if others_wait(&held.locked.files.wait) {
            held.heeded = false;
            // Nobody listens: nobody needs to know.
            let _ = self.notices.send(Notice::Contended { key: held.key.clone(), token });
        }
    }
}

fn look_and_tell(shared: &Weak<Shared>) {
    while shared.upgrade().is_some_and(|shared| shared.look_after_all()) {
        std::thread::sleep(LOOK_EVERY);
    }
}
