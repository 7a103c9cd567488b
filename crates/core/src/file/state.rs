//! The state of this process for one directory: held locks, and waiting claims.
//!
//! In: locks granted by the kernel. Out: the claim that each belongs to.
//!
//! One mutex, locked briefly, protects everything. The files of a lock held here are touched only with the
//! mutex locked, or after the lock was removed from the state. So a release and a check of the same lock
//! never overlap.
//!
//! Absent on purpose: a `Drop`. When the last handle is dropped, the files are closed and the kernel frees
//! the locks. Only the process that created the files may remove them, and a drop can happen in a forked
//! child.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::fence::Count;
use super::files::{Files, LockKind, Locked};
use super::waiter_mark::Mark;
use super::writer_mark::WriterMark;
use crate::backend::Notifier;
use crate::fault::Fault;
use crate::grant::Grant;
use crate::key::Key;
use crate::time::{Clock, Time};
use crate::token::Token;

/// How long we leave a lock to other waiters before we ask for it again: a waiter that was just woken needs a
/// moment, and we would always be faster.
const GRACE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct FileEngine {
    pub(super) dir: PathBuf,
    pub(super) clock: Clock,
    pub(super) count: Count,
    pub(super) notifier: Notifier,
    /// The process that opened the directory. A forked child has the memory but not the threads.
    pub(super) pid: u32,
    state: Mutex<State>,
}

/// How many claims of dead processes are remembered. Their end is queried right after it is found, so the
/// latest are enough.
const BURIED_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Claims of processes that ended without releasing their lock, as far as we found them.
    buried: VecDeque<Token>,
    /// By claim: the locks that the kernel granted to us.
    pub(super) held: HashMap<Token, KernelHold>,
    /// By claim: the waiting claims.
    pub(super) tickets: HashMap<Token, FileWaiter>,
    /// By key and kind: the waiting claims in order. While a thread waits in the kernel there is an entry,
    /// possibly empty.
    pub(super) queues: HashMap<(Key, LockKind), VecDeque<Token>>,
    /// Whether the thread of `contention.rs` runs.
    pub(super) watching: bool,
    /// By key: until when to leave the lock to others.
    left: HashMap<Key, Time>,
}

/// A lock that the kernel granted to a claim.
#[derive(Debug)]
pub(super) struct KernelHold {
    pub(super) key: Key,
    pub(super) locked: Locked,
    /// The grant; `None` until fence and record have been written.
    pub(super) grant: Option<Grant>,
    /// Whether the engine wants to be notified of other waiters.
    pub(super) watched: bool,
}

/// A claim that waits in this process.
#[derive(Debug, Default)]
pub(super) struct FileWaiter {
    pub(super) mark: Option<Mark>,
    /// Only of a writer.
    pub(super) writer_mark: Option<WriterMark>,
    /// The fault that ended the wait.
    pub(super) fault: Option<Fault>,
    pub(super) wake: Arc<Notify>,
}

impl FileEngine {
    pub(super) fn new(dir: PathBuf, clock: Clock) -> Self {
        FileEngine {
            count: Count::in_dir(&dir),
            dir,
            clock,
            notifier: Notifier::default(),
            pid: std::process::id(),
            state: Mutex::default(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn files(&self, key: &Key) -> Files {
        Files::of(&self.dir, key)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a lock that the kernel granted to this claim.
    pub(super) fn won(&self, key: &Key, token: Token, locked: Locked) {
        self.state().won(key, token, locked);
    }

    /// Removes the claim's lock from the state. The caller must release it.
    pub(super) fn take_out(&self, token: Token) -> Option<KernelHold> {
        self.state().held.remove(&token)
    }

    /// Releases a lock that was removed from the state.
    pub(super) fn give_back(&self, held: KernelHold) {
        if held.locked.give_back() {
            self.state().leave_to_others(held.key);
        }
    }

    /// If we released this lock while others waited, waits until they have had time to acquire it.
    pub(super) async fn yield_to_others(&self, key: &Key) {
        let until = self.state().left.remove(key);
        if let Some(until) = until {
            Clock::system().sleep_until(until).await;
        }
    }
}

impl State {
    pub(super) fn record_dead(&mut self, token: Token) {
        self.buried.truncate(BURIED_MAX - 1);
        self.buried.push_front(token);
    }

    pub(super) fn is_recorded_dead(&self, token: Token) -> bool {
        self.buried.contains(&token)
    }

    pub(super) fn won(&mut self, key: &Key, token: Token, locked: Locked) {
        let held = KernelHold { key: key.clone(), locked, grant: None, watched: false };
        self.held.insert(token, held);
    }

    fn leave_to_others(&mut self, key: Key) {
        let now = Clock::system().now();
        self.left.retain(|_, until| *until > now);
        self.left.insert(key, now.after(GRACE));
    }
}
