//! The mark of waiters: a shared lock on `<name>.wait`.
//!
//! In: the path. Out: whether others wait, for the holder.
//!
//! The mark is a hint and does not affect exclusion: a waiter without a mark gets the lock like any other,
//! only the holder does not see it. A process that can lock the file *exclusively* knows that there is no
//! mark. In this way the last waiter to leave notices that it is the last, and removes the file. The kernel
//! removes the mark of a killed process. Nothing here blocks: an exclusive lock on this file is held for
//! microseconds, and a process that meets one retries later.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::files::{is_current, open_or_create, read_only};

/// How often to retry at once when another process is checking for marks at that moment.
const TRIES: u32 = 8;

/// The mark of a waiting claim of this process.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) file: File,
    path: PathBuf,
}

impl Mark {
    /// Sets the mark. `None` if that failed for now: retry later.
    pub(super) fn take(path: &Path) -> Option<Self> {
        (0..TRIES).find_map(|_| Self::try_take(path))
    }

    fn try_take(path: &Path) -> Option<Self> {
        let file = open_or_create(path).ok()?;
        let taken = file.try_lock_shared().is_ok() && is_current(&file, path).unwrap_or(false);
        if !taken {
            std::thread::yield_now();
        }
        taken.then(|| Mark { file, path: path.into() })
    }

    /// Removes the mark, and with the last mark the file. Returns whether others wait.
    pub(super) fn leave(self) -> bool {
        // `flock` turns the shared lock into an exclusive one, or fails and drops the shared one; both remove
        // the mark. Of two processes that leave at the same time, the second sees no other mark.
        let alone = self.file.try_lock().is_ok();
        if alone && is_current(&self.file, &self.path).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
        !alone
    }
}

/// Whether any mark is set. Two simultaneous callers take each other for a waiter, but they meet for
/// microseconds only.
pub(super) fn others_wait(path: &Path) -> bool {
    (0..TRIES).all(|_| {
        let marked = read_only(path).is_ok_and(|file| file.try_lock().is_err());
        std::thread::yield_now();
        marked
    })
}

/// Whether any mark is set, as [`others_wait`], and removes the file if not.
pub(super) fn sweep(path: &Path) -> bool {
    read_only(path).is_ok_and(|file| Mark { file, path: path.into() }.leave())
}
