//! The files that describe the readers of a lock: `<name>.~<fence>.<number>`, one for each.
//!
//! In: a reader that has the kernel's lock. Out: the records of the readers whose processes live.
//!
//! A reader keeps its file locked, so it shows that the reader's process lives. The file only describes the reader;
//! the kernel's lock decides who reads.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use super::files::{Files, fault, is_current, is_interruption, open_or_create, read_only};
use super::record::{Found, Record};
use crate::fault::Fault;
use crate::fence::Fence;
use crate::token::Token;

/// The file of a reader of this process.
#[derive(Debug)]
pub(super) struct ReaderFile {
    pub(super) file: File,
    path: PathBuf,
}

impl ReaderFile {
    /// Makes the file of a reader. Waits for no other process: `Readers::of` may have locked the file first, to remove
    /// it as that of a dead reader, and its process may be stopped. So this goes on with another name.
    pub(super) fn publish(files: &Files, record: &Record) -> Result<Self, Fault> {
        let mut number = 0;
        loop {
            let path = files.reader(record.fence, number);
            let failed = |error| fault("write", &path, error);
            let file = open_or_create(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if is_current(&file, &path)? => {
                    let reader = ReaderFile { file, path: path.clone() };
                    return match reader.write(record) {
                        Ok(()) => Ok(reader),
                        Err(error) => {
                            reader.remove();
                            Err(failed(error))
                        }
                    };
                }
                Err(TryLockError::Error(error)) if !is_interruption(&error) => {
                    return Err(failed(error));
                }
                _ => number += 1,
            }
        }
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&record.to_json()?)
    }

    /// Becomes the record of the lock.
    pub(super) fn turn_into(self, path: &Path, record: &Record) -> Result<(), Fault> {
        let written = self.write(record).and_then(|()| fs::rename(&self.path, path));
        let _ = self.file.unlock();
        written.map_err(|error| fault("write", path, error))
    }

    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

/// The readers of a lock.
#[derive(Debug, Default)]
pub(super) struct Readers {
    pub(super) alive: Vec<Record>,
    /// The claims of readers whose process has ended. Their files have been removed.
    pub(super) dead: Vec<Token>,
}

impl Readers {
    pub(super) fn of(files: &Files) -> Self {
        let mut readers = Readers::default();
        let entries = files.lock.parent().and_then(|dir| fs::read_dir(dir).ok());
        for entry in entries.into_iter().flatten().flatten() {
            if files.is_reader(&entry.file_name()) {
                readers.add(&entry.path());
            }
        }
        readers.alive.sort_by_key(|record| record.fence);
        readers
    }

    fn add(&mut self, path: &Path) {
        // The file of a reader that has just left is gone.
        let Ok(file) = read_only(path) else { return };
        let is_dead = file.try_lock_shared().is_ok();
        let record = Record::from_file(&file).ok().and_then(Found::record);
        if !is_dead {
            return self.alive.extend(record.map(|record| *record));
        }
        self.dead.extend(record.map(|record| record.token));
        // Still locked: a reader that has just made the file sees that it is locked or gone.
        let _ = fs::remove_file(path);
        let _ = file.unlock();
    }

    /// The first reader, as the record of the holder.
    pub(super) fn first(self) -> Found {
        let first = self.alive.into_iter().next();
        first.map_or(Found::Nothing, |record| Found::Record(Box::new(record)))
    }
}

impl Files {
    fn reader(&self, fence: Fence, number: u32) -> PathBuf {
        let mut path = self.readers.clone().into_os_string();
        path.push(format!("{}.{number}", fence.get()));
        path.into()
    }

    fn is_reader(&self, name: &OsStr) -> bool {
        let prefix = self.readers.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
    }
}
