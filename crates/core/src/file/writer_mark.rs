//! The mark of waiting writers: a shared lock on `<name>.want`, which readers wait behind.
//!
//! In: a writer that waits. Out: whether a reader that has just come must wait for a writer.
//!
//! The kernel lets readers in while a writer waits, so writers would starve. A waiting writer therefore has a mark,
//! and updates the time of its file. A reader that finds a fresh mark waits until there is none, or until one writer
//! has been served: then the readers are next. Several writers share the file. A writer that is stopped or dead
//! updates nothing, and holds nobody back for longer than [`FRESH`].
//!
//! As every mark it is a hint: it decides who comes first, not who excludes whom.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::files::{is_current, read_only, touch};
use super::waiter_mark::{Mark, others_wait};

/// How often a waiting writer updates its mark.
pub(super) const REFRESH: Duration = Duration::from_millis(250);
/// For how long an update counts.
const FRESH: Duration = Duration::from_secs(2);

/// The mark of a waiting writer of this process.
#[derive(Debug)]
pub(super) struct WriterMark(Mark);

impl WriterMark {
    /// Sets the mark. `None` if that failed for now: retry later.
    pub(super) fn take(path: &Path) -> Option<Self> {
        Mark::take(path).map(WriterMark)
    }

    pub(super) fn refresh(&self) {
        touch(&self.0.file);
    }

    /// Removes the mark of a writer that is served. Readers that wait behind it see that the file has grown.
    pub(super) fn served(self) {
        let mut file = &self.0.file;
        let _ = file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(b"."));
        self.leave();
    }

    /// Removes the mark.
    pub(super) fn leave(self) {
        self.0.leave();
    }
}

/// The writers that waited when a reader came.
pub(super) struct WritersAhead<'a> {
    path: &'a Path,
    /// Open, so that no other file gets its number.
    file: File,
    served: u64,
}

impl<'a> WritersAhead<'a> {
    /// `None` if no writer waits.
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let file = read_only(path).ok()?;
        let served = file.metadata().ok()?.len();
        Some(WritersAhead { path, file, served }).filter(Self::wait)
    }

    /// Whether they still wait, and none of them has been served.
    pub(super) fn wait(&self) -> bool {
        let served = || self.file.metadata().map_or(u64::MAX, |data| data.len()) != self.served;
        is_current(&self.file, self.path).unwrap_or(false)
            && !served()
            && self.is_fresh()
            && others_wait(self.path)
    }

    fn is_fresh(&self) -> bool {
        let updated = self.file.metadata().and_then(|data| data.modified());
        // If the wall clock was set back, the time of a writer that stands still lies far ahead.
        let apart = |updated| match SystemTime::now().duration_since(updated) {
            Ok(age) => age,
            Err(ahead) => ahead.duration(),
        };
        updated.is_ok_and(|updated| apart(updated) < FRESH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// t112: a writer whose mark has not been updated lately counts as stopped, also if the wall clock was set back
    /// since.
    #[test]
    fn t112_a_mark_of_another_time_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mark = File::create(&path).unwrap();
        let is_fresh = || {
            let file = read_only(&path).unwrap();
            WritersAhead { path: &path, file, served: 0 }.is_fresh()
        };
        assert!(is_fresh());
        let hour = Duration::from_secs(3600);
        for other in [SystemTime::now() - hour, SystemTime::now() + hour] {
            mark.set_modified(other).unwrap();
            assert!(!is_fresh());
        }
    }
}
