//! Notifies a holder that others wait.
//!
//! In: leases behind which tasks of this process wait. Out: [`Notice::Contended`], once for each.
//!
//! The kernel does not report the waiters of a lock, so a thread looks for marks. It runs only while there is
//! a lease to watch, and locks the state only for one check at a time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::state::FileEngine;
use super::waiter_mark::others_wait;
use crate::backend::Notice;
use crate::token::Token;

/// How long another process may wait undetected. Local hand-overs continue meanwhile; the engine allows them
/// for another hundred milliseconds, so this adds a quarter.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// The thread opens and locks files; it needs little stack.
const STACK: usize = 128 * 1024;

impl FileEngine {
    /// Starts to watch this claim's lock; a notice is sent when others wait for it.
    pub(super) fn watch_contention(self: &Arc<Self>, token: Token) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&token) else { return };
        held.watched = true;
        if !state.watching {
            // Without the thread there are no notices; nothing depends on them.
            state.watching = self.spawn_watcher();
        }
    }

    fn spawn_watcher(self: &Arc<Self>) -> bool {
        let shared = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("tenure-contention".into()).stack_size(STACK);
        thread.spawn(move || watch_until_idle(&shared)).is_ok()
    }

    /// One round; returns `false` when no lease is left to watch.
    fn check_all(&self) -> bool {
        self.watched().into_iter().for_each(|token| self.check(token));
        let mut state = self.state();
        state.watching = state.held.values().any(|held| held.watched);
        state.watching
    }

    fn watched(&self) -> Vec<Token> {
        let state = self.state();
        state.held.iter().filter(|(_, held)| held.watched).map(|(token, _)| *token).collect()
    }

    fn check(&self, token: Token) {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(&token) else { return };
        if others_wait(&held.locked.files.wait) {
            held.watched = false;
            self.notifier.send(Notice::Contended { key: held.key.clone(), token });
        }
    }
}

fn watch_until_idle(shared: &Weak<FileEngine>) {
    while shared.upgrade().is_some_and(|shared| shared.check_all()) {
        std::thread::sleep(POLL_INTERVAL);
    }
}
