//! The mark of those who wait: a shared lock on `<name>.wait`.
//!
//! In: the path. Out: whether others wait, for the holder.
//!
//! It is a hint and carries no exclusion: a waiter without a mark is served like any other, only
//! the holder does not know of it. Whoever can get the file *exclusively* knows that nobody has a
//! mark; the last waiter to leave finds out that way that it is the last, and removes the file. A
//! killed process leaves its mark to the kernel. Nothing here blocks: an exclusive lock on this file
//! lasts microseconds, and who meets one tries again later.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::files::{is_current, open_or_create, read_only};

/// How often to try again at once when a mark meets somebody who is just looking for marks.
const TRIES: u32 = 8;

/// Somebody here waits.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
    path: PathBuf,
}

impl Mark {
    /// Makes it known that we wait. `None`: not now, try again.
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

    /// The mark goes, and with the last one its file. Returns whether others wait.
    pub(super) fn leave(self) -> bool {
        // `flock` turns the shared lock into an exclusive one, or fails and drops the shared one;
        // both are a way to leave. Of two who leave at once, the second finds itself alone.
        let alone = self.file.try_lock().is_ok();
        if alone && is_current(&self.file, &self.path).unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
        let _ = self.file.unlock();
        !alone
    }
}

/// Whether anybody has a mark. Only the holder of the lock asks: two who ask at once would each
/// take the other for a waiter.
pub(super) fn others_wait(path: &Path) -> bool {
    read_only(path).is_ok_and(|file| file.try_lock().is_err())
}

/// The same, and removes the file if nobody has.
pub(super) fn sweep(path: &Path) -> bool {
    read_only(path).is_ok_and(|file| Mark { file, path: path.into() }.leave())
}
