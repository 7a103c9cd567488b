//! The files of one lock, and the kernel's lock on the first of them.
//!
//! In: a directory and a name. Out: [`Locked`], the proof that the kernel granted us the lock.
//!
//! # Why exclusion holds although the files come and go
//!
//! *The holder is the process with an exclusive `flock` on the very inode that `<name>.lock` names at that
//! moment; readers are the processes with a shared one.* Three rules make sure that a holder is alone:
//!
//! 1. **Lock, then compare.** After every successful `flock`, the inode behind our descriptor is compared
//!    with the one behind the path. If they differ, or the path does not exist, we locked a file that its
//!    last holder had already removed. It excludes no one; we close it and start again. The number of an
//!    inode cannot be reused while we have it open, so the comparison is reliable.
//! 2. **Only the holder removes** `<name>.lock`, and it does so *before* it unlocks. No process renames a
//!    file onto the path, and opening with `O_CREAT` never replaces an existing file. So while the inode that
//!    the path names is held, the path keeps naming it, and every other process that opens the path queues on
//!    that inode. After the removal the remover no longer holds the lock, even though its descriptor is still
//!    locked. Processes queued on the old inode get it one after another and fail at rule 1. Processes that
//!    come later create a new inode and compete for that one.
//!    A reader removes nothing until it has the exclusive lock in place of its own: it was the last one.
//! 3. **The record is written with the lock held.** The record (and its draft) is written and removed
//!    only by the holder, and removed *before* the lock file: later it would belong to the next holder.
//!    A reader removes the record that a dead holder left: while somebody reads, there is no holder.
//!
//! A process that is killed loses its descriptors, and so the kernel's lock. The path still names the
//! unlocked inode; the next process locks it and rule 1 is satisfied. A process that is stopped (SIGSTOP)
//! while it waits is not in the kernel's queue and has no lock. A process that is stopped between two steps
//! of its release still has the kernel's lock, or has already removed the path.
//!
//! Exclusion breaks if another program removes the file (a cleaner of `/tmp`). The holder notices it at its
//! next renewal; until then there may be two holders, and the fence tells them apart. Renewals touch the
//! files, so that cleaners that go by age leave them alone.
//!
//! Absent on purpose: waiters (`waiter_mark.rs`), the holder (`record.rs`), waiting (`wait.rs`).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::readers::ReaderFile;
use super::record::{Found, Record};
use super::{dir, name, waiter_mark};
use crate::fault::{Fault, FaultKind};
use crate::key::Key;
use crate::mode::Mode;

/// The kernel's two kinds of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LockKind {
    Exclusive,
    /// For readers.
    Shared,
}

impl LockKind {
    pub(super) fn of(mode: &Mode) -> Self {
        match mode {
            Mode::Read => LockKind::Shared,
            _ => LockKind::Exclusive,
        }
    }
}

/// The paths of the files of one lock.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// The file with the kernel's lock.
    pub(super) lock: PathBuf,
    /// The description of the holder.
    pub(super) record: PathBuf,
    /// The record while it is being written.
    pub(super) draft: PathBuf,
    /// Has a shared lock by each waiter.
    pub(super) wait: PathBuf,
    /// Has a shared lock by each writer that waits, see `writer_mark.rs`.
    pub(super) want: PathBuf,
    /// The start of the paths that describe readers, see `readers.rs`.
    pub(super) readers: PathBuf,
}

/// The suffixes, in the order of [`Files`].
pub(super) const SUFFIXES: [&str; 5] = [".lock", ".json", ".tmp", ".wait", ".want"];

/// What stands between the name and the fence of a reader's file. No name of a lock contains it.
pub(super) const READER: &str = ".~";

impl Files {
    pub(super) fn of(dir: &Path, key: &Key) -> Self {
        Self::named(dir, &name::encode(key.as_str()))
    }

    pub(super) fn named(dir: &Path, name: &str) -> Self {
        let [lock, record, draft, wait, want] =
            SUFFIXES.map(|suffix| dir.join(format!("{name}{suffix}")));
        Files { lock, record, draft, wait, want, readers: dir.join(format!("{name}{READER}")) }
    }

    /// One attempt. `None` if the lock is held.
    pub(super) fn try_lock(&self, kind: LockKind) -> Result<Option<Locked>, Fault> {
        // Each further iteration means that another holder came and went in between.
        loop {
            let file = self.open()?;
            let locked = match kind {
                LockKind::Exclusive => file.try_lock(),
                LockKind::Shared => file.try_lock_shared(),
            };
            match locked {
                Ok(()) if is_current(&file, &self.lock)? => {
                    return Ok(Some(self.locked(file, kind)));
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if is_interruption(&error) => {}
                Err(TryLockError::Error(error)) => return Err(fault("lock", &self.lock, error)),
            }
        }
    }

    /// Blocks the thread until the kernel grants the lock. `None` if it granted one on a file that has been
    /// removed: call it again.
    pub(super) fn wait_lock(&self, kind: LockKind) -> Result<Option<Locked>, Fault> {
        let file = self.open()?;
        let lock = match kind {
            LockKind::Exclusive => File::lock,
            LockKind::Shared => File::lock_shared,
        };
        while let Err(error) = lock(&file) {
            if !is_interruption(&error) {
                return Err(fault("lock", &self.lock, error));
            }
        }
        Ok(is_current(&file, &self.lock)?.then(|| self.locked(file, kind)))
    }

    fn locked(&self, file: File, kind: LockKind) -> Locked {
        Locked { file, files: self.clone(), kind, reader: None, described: false }
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

/// A kernel lock that we hold. Dropping it closes the file and removes nothing: in a forked child the files
/// and the lock belong to the parent.
#[derive(Debug)]
pub(super) struct Locked {
    file: File,
    pub(super) files: Files,
    kind: LockKind,
    /// Describes the reader, once its grant is complete.
    reader: Option<ReaderFile>,
    /// Whether the record is that of this holder.
    described: bool,
}

impl Locked {
    /// Whether the path still names the file that we locked.
    pub(super) fn is_current(&self) -> Result<bool, Fault> {
        is_current(&self.file, &self.files.lock)
    }

    /// Updates the times of the files, so that cleaners that go by age leave them alone.
    pub(super) fn touch(&self) {
        touch(&self.file);
        // Without a record there is nothing to touch.
        let _ = read_only(&self.files.record).map(|record| touch(&record));
        self.reader.iter().for_each(|reader| touch(&reader.file));
    }

    /// Writes the record of the holder or reader. A reader also removes the record of a holder that died.
    pub(super) fn describe(&mut self, record: &Record) -> Result<(), Fault> {
        if self.kind == LockKind::Exclusive {
            record.write(&self.files)?;
            self.described = true;
            return Ok(());
        }
        self.reader = Some(ReaderFile::publish(&self.files, record)?);
        // Nothing is removed if there was no record: another reader may be leaving one now that keeps the lock closed.
        if self.record().is_some_and(|record| !record.is_closed()) {
            let _ = fs::remove_file(&self.files.record);
        }
        Ok(())
    }

    /// Writes the record that keeps the lock closed. It keeps out readers as well. If readers that leave at the same
    /// moment want different times, one of them counts.
    pub(super) fn close(&mut self, record: &Record) -> Result<(), Fault> {
        match self.reader.take() {
            None => record.write(&self.files),
            Some(reader) => reader.turn_into(&self.files.record, record),
        }
    }

    /// Releases the lock and removes its files. Returns whether others wait.
    ///
    /// If a removal fails, the next holder or the next inspection removes the file; the lock is free in any
    /// case.
    pub(super) fn give_back(mut self) -> bool {
        self.reader.take().into_iter().for_each(ReaderFile::remove);
        if !self.make_exclusive() || !self.is_current().unwrap_or(false) {
            self.unlock();
            return false;
        }
        // Another reader, or the holder before a claim that gave up, may have left the lock closed.
        if !self.described && self.is_closed() {
            self.unlock();
            return false;
        }
        let _ = fs::remove_file(&self.files.record);
        // If others wait, the lock file stays: they are queued on it, and a new file would make them start
        // again. Windows cannot remove a file that other processes have open.
        let contended = waiter_mark::sweep(&self.files.wait);
        waiter_mark::sweep(&self.files.want);
        if !contended && cfg!(unix) {
            let _ = fs::remove_file(&self.files.lock);
        }
        self.unlock();
        contended
    }

    /// Whether a holder or reader has left the lock closed for some time.
    fn is_closed(&self) -> bool {
        self.record().is_some_and(|record| record.is_closed())
    }

    fn record(&self) -> Option<Box<Record>> {
        Record::find(&self.files).ok().and_then(Found::record)
    }

    /// Replaces the shared lock of the last reader by an exclusive one. Otherwise the shared lock is released.
    fn make_exclusive(&self) -> bool {
        self.kind == LockKind::Exclusive || self.file.try_lock().is_ok()
    }

    /// Unlocks and leaves the record in place: a closed lock stays closed.
    pub(super) fn unlock(self) {
        // Closing is not enough if a forked child still has a copy of the descriptor.
        let _ = self.file.unlock();
    }
}

/// Opens a file of ours for reading and writing, and creates it if necessary; never follows a link.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    ours().read(true).write(true).create(true).truncate(false).open(path)
}

/// Opens a file of ours for reading.
pub(super) fn read_only(path: &Path) -> io::Result<File> {
    ours().read(true).open(path)
}

/// Opens a file of ours for writing, truncated.
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

/// On other systems lock files are never removed, so the path names the opened file.
#[cfg(not(unix))]
fn same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

#[cfg(unix)]
pub(super) fn touch(file: &File) {
    use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = rustix::fs::futimens(file, &Timestamps { last_access: now, last_modification: now });
}

#[cfg(not(unix))]
pub(super) fn touch(_: &File) {}

pub(super) fn is_interruption(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// The fault for `error`, which happened while `doing` something to `path`.
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

/// Whether the error is that of `O_NOFOLLOW` for a link.
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
