//! The files of one lock, and the kernel's lock on the first of them.
//!
//! In: a directory and a name. Out: [`Locked`], the proof that the kernel gave the lock to us.
//!
//! # Why exclusion holds although the files come and go
//!
//! *The lock is held by whoever has an exclusive `flock` on the very inode that `<name>.lock` names
//! at that moment.* Three rules keep that true for one at a time:
//!
//! 1. **Lock, then look.** After every successful `flock` the inode behind our descriptor is compared
//!    with the one behind the path. Different, or no path: we locked a file that its last holder had
//!    already removed; it excludes nobody, we close it and start again. The number of an inode cannot
//!    be reused while we have it open, so the comparison cannot be fooled.
//! 2. **Only the holder removes** `<name>.lock`, and it does so *before* it unlocks. Nobody renames
//!    onto the path, and opening with `O_CREAT` never replaces what is there. So as long as somebody
//!    holds the inode that the path names, the path keeps naming it, and everybody else who opens the
//!    path queues on that inode. After the removal the remover holds nothing any more, whatever its
//!    descriptor says; those who were queued on the old inode get it one after another and fail at
//!    rule 1; those who come later make a new inode and compete for that.
//! 3. **Everything beside it is written under it.** The record (and its draft) is written and removed
//!    only by the holder, and removed *before* the lock file: afterwards it would be the next one's.
//!
//! A process that is killed loses its descriptors, so the kernel lock goes; the path keeps naming the
//! unlocked inode, the next one locks it and rule 1 is satisfied. A process that is stopped (SIGSTOP)
//! while it waits is not in the kernel's queue and has no lock; one that is stopped between two
//! steps of its release still has the kernel lock, or has removed the path already.
//!
//! What breaks it: somebody else who removes the file (a cleaner of `/tmp`). The holder finds out at
//! its next renewal; two may hold until then, and the fence tells them apart. Renewals touch the
//! files, so that cleaners which go by age leave them alone.
//!
//! Absent on purpose: who waits (`mark.rs`), who holds (`record.rs`), waiting itself (`wait.rs`).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::{dir, mark, name};
use crate::backend::{Fault, FaultKind};
use crate::key::Key;

/// Where the files of one lock are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// The kernel's lock is on this one.
    pub(super) lock: PathBuf,
    /// Who holds it.
    pub(super) record: PathBuf,
    /// The record while it is being written.
    pub(super) draft: PathBuf,
    /// Locked, shared, by those who wait.
    pub(super) wait: PathBuf,
}

/// The suffixes, in the order of [`Files`].
pub(super) const SUFFIXES: [&str; 4] = [".lock", ".json", ".tmp", ".wait"];

impl Files {
    pub(super) fn of(dir: &Path, key: &Key) -> Self {
        Self::named(dir, &name::encode(key.as_str()))
    }

    pub(super) fn named(dir: &Path, name: &str) -> Self {
        let [lock, record, draft, wait] =
            SUFFIXES.map(|suffix| dir.join(format!("{name}{suffix}")));
        Files { lock, record, draft, wait }
    }

    /// One attempt. `None`: another has it.
    pub(super) fn try_lock(&self) -> Result<Option<Locked>, Fault> {
        // Every further round means that another holder came and went in between.
        loop {
            let file = self.open()?;
            match file.try_lock() {
                Ok(()) if is_current(&file, &self.lock)? => return Ok(Some(self.locked(file))),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if is_interruption(&error) => {}
                Err(TryLockError::Error(error)) => return Err(fault("lock", &self.lock, error)),
            }
        }
    }

    /// Blocks the thread until the kernel has given the lock. `None`: it gave one on a file that is
    /// gone by now; ask again.
    pub(super) fn wait_lock(&self) -> Result<Option<Locked>, Fault> {
        let file = self.open()?;
        while let Err(error) = file.lock() {
            if !is_interruption(&error) {
                return Err(fault("lock", &self.lock, error));
            }
        }
        Ok(is_current(&file, &self.lock)?.then(|| self.locked(file)))
    }

    fn locked(&self, file: File) -> Locked {
        Locked { file, files: self.clone() }
    }

    fn open(&self) -> Result<File, Fault> {
        match open_or_create(&self.lock) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.open_anew(),
            opened => opened.map_err(|error| fault("open lock file", &self.lock, error)),
        }
    }

    /// The directory is gone: cleaners of `/tmp` remove empty ones after some days.
    fn open_anew(&self) -> Result<File, Fault> {
        self.lock.parent().map_or(Ok(()), dir::prepare)?;
        open_or_create(&self.lock).map_err(|error| fault("open lock file", &self.lock, error))
    }
}

/// The kernel's lock, ours. Dropping it closes the file and removes nothing: in a forked child the
/// files are the parent's, and so is the lock.
#[derive(Debug)]
pub(super) struct Locked {
    file: File,
    pub(super) files: Files,
}

impl Locked {
    /// Whether the path still names the file that we locked.
    pub(super) fn is_current(&self) -> Result<bool, Fault> {
        is_current(&self.file, &self.files.lock)
    }

    /// Tells cleaners that go by age that the files are in use.
    pub(super) fn touch(&self) {
        touch(&self.file);
        // Without a record there is nothing to keep.
        let _ = read_only(&self.files.record).map(|record| touch(&record));
    }

    /// Ends it and removes what belongs to it. Returns whether others wait.
    ///
    /// An error while removing leaves a file that the next holder or the next look removes; the lock
    /// is free all the same.
    pub(super) fn give_back(self) -> bool {
        if !self.is_current().unwrap_or(false) {
            self.unlock();
            return false;
        }
        let _ = fs::remove_file(&self.files.record);
        // Where others wait, the file stays: they are queued on it, and a new one would make them
        // start again. Windows cannot remove a file that others have open.
        let contended = mark::sweep(&self.files.wait);
        if !contended && cfg!(unix) {
            let _ = fs::remove_file(&self.files.lock);
        }
        self.unlock();
        contended
    }

    /// Ends it and leaves the record in force: the lock stays closed.
    pub(super) fn unlock(self) {
        // Closing is not enough if a forked child still has a copy of the descriptor.
        let _ = self.file.unlock();
    }
}

/// Opens a file of ours for reading and writing, and makes it if need be; never follows a link.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    ours().read(true).write(true).create(true).truncate(false).open(path)
}

/// Opens a file of ours for reading.
pub(super) fn read_only(path: &Path) -> io::Result<File> {
    ours().read(true).open(path)
}

/// Opens a file of ours to write it from the start.
pub(super) fn start_over(path: &Path) -> io::Result<File> {
    ours().write(true).create(true).truncate(true).open(path)
}

#[cfg(unix)]
fn ours() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    // The standard library adds O_CLOEXEC: a program that we start must not inherit a lock.
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options
}

#[cfg(not(unix))]
fn ours() -> OpenOptions {
    OpenOptions::new()
}

/// Whether `path` names the file that `file` has open.
pub(super) fn is_current(file: &File, path: &Path) -> Result<bool, Fault> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(fault("look at", path, error)),
        Ok(named) => {
            let opened = file.metadata().map_err(|error| fault("look at", path, error))?;
            Ok(same(&opened, &named))
        }
    }
}

#[cfg(unix)]
fn same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Elsewhere lock files are never removed, so what is there is what was opened.
#[cfg(not(unix))]
fn same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

#[cfg(unix)]
fn touch(file: &File) {
    use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now });
}

#[cfg(not(unix))]
fn touch(_: &File) {}

pub(super) fn is_interruption(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// What `error` means while we were `doing` something to `path`.
pub(super) fn fault(doing: &str, path: &Path, error: io::Error) -> Fault {
    let kind = if may_pass(&error) { FaultKind::Unavailable } else { FaultKind::Refused };
    let hint = if is_link(&error) { ", a symbolic link" } else { "" };
    Fault::new(kind, format!("cannot {doing} `{}`{hint}", path.display())).caused_by(error)
}

#[cfg(unix)]
fn may_pass(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOLCK, Errno::INTR];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What `O_NOFOLLOW` says when it meets one.
#[cfg(unix)]
pub(super) fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

#[cfg(not(unix))]
pub(super) fn is_link(_: &io::Error) -> bool {
    false
}

#[cfg(not(unix))]
fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted)
}
