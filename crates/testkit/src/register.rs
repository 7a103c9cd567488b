//! The resource that a lock protects: a number that each holder reads, and writes back one higher.
//!
//! Each register has two values side by side: one that rejects stale fences, and an unfenced twin that
//! accepts every write. An update is lost when a write was accepted and the number did not rise by it. The
//! fenced value must never lose an update; the losses of the unfenced twin show what fencing prevents.
//!
//! Readers read both values twice. The fenced value must be the same both times, unless the second read is rejected.
//!
//! [`Register`] is in memory and uses [`FenceCheck`]; [`FileRegister`] does the same for several processes,
//! in a file with its own kernel lock.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tenure_core::{Fence, FenceCheck};

/// The counts of a register's updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Writes that the fenced value accepted.
    pub fenced_writes: u64,
    /// The current fenced value.
    pub fenced_value: u64,
    /// Reads and writes that the fenced value rejected as stale.
    pub refused: u64,
    /// Writes to the unfenced twin.
    pub plain_writes: u64,
    /// The current value of the unfenced twin.
    pub plain_value: u64,
    /// Second reads of readers.
    pub reads: u64,
    /// Second reads that the fenced value accepted although it had changed since the first.
    pub fenced_torn: u64,
    /// Second reads of the unfenced twin that found another value than the first.
    pub plain_torn: u64,
}

impl Tally {
    /// Updates that the fenced value lost.
    pub fn fenced_lost(&self) -> u64 {
        self.fenced_writes.abs_diff(self.fenced_value)
    }

    /// Updates that the unfenced twin lost.
    pub fn plain_lost(&self) -> u64 {
        self.plain_writes.abs_diff(self.plain_value)
    }

    /// The sum of both tallies.
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        Tally {
            fenced_writes: self.fenced_writes + other.fenced_writes,
            fenced_value: self.fenced_value + other.fenced_value,
            refused: self.refused + other.refused,
            plain_writes: self.plain_writes + other.plain_writes,
            plain_value: self.plain_value + other.plain_value,
            reads: self.reads + other.reads,
            fenced_torn: self.fenced_torn + other.fenced_torn,
            plain_torn: self.plain_torn + other.plain_torn,
        }
    }
}

/// The values that a holder has read; pass it to `write` to write one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an update reads first and writes later"]
pub struct Reading {
    fence: Fence,
    /// `None` if the fence was rejected.
    fenced: Option<u64>,
    plain: u64,
}

impl Reading {
    /// Whether the fenced value accepted the read.
    pub fn was_accepted(&self) -> bool {
        self.fenced.is_some()
    }
}

/// Registers in memory, one per key.
#[derive(Debug, Default)]
pub struct Register {
    check: FenceCheck,
    tallies: Mutex<HashMap<String, Tally>>,
}

impl Register {
    /// Registers that are all zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads both values under `fence`. From now on lower fences are rejected: a write that an older holder
    /// has under way comes too late.
    pub fn read(&self, key: &str, fence: Fence) -> Reading {
        let accepted = self.check.accept(key, fence).is_ok();
        self.with(key, |tally| {
            tally.refused += u64::from(!accepted);
            Reading {
                fence,
                fenced: accepted.then_some(tally.fenced_value),
                plain: tally.plain_value,
            }
        })
    }

    /// Writes one more than was read. Returns whether the fenced value accepted the write.
    pub fn write(&self, key: &str, seen: Reading) -> bool {
        // The check and the write are one step: both happen under the mutex of the tallies.
        self.with(key, |tally| {
            tally.plain_value = seen.plain + 1;
            tally.plain_writes += 1;
            let Some(value) = seen.fenced else { return false };
            if self.check.accept(key, seen.fence).is_err() {
                tally.refused += 1;
                return false;
            }
            tally.fenced_value = value + 1;
            tally.fenced_writes += 1;
            true
        })
    }

    /// The sum over all keys.
    pub fn tally(&self) -> Tally {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.values().copied().fold(Tally::default(), Tally::plus)
    }

    fn with<T>(&self, key: &str, change: impl FnOnce(&mut Tally) -> T) -> T {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        change(tallies.entry(key.into()).or_default())
    }
}

/// The number of fields in the file of a [`FileRegister`]: two fences and a [`Tally`].
const FIELDS: usize = 10;

/// One register in a file, for several processes of one machine.
#[derive(Debug)]
pub struct FileRegister(File);

impl FileRegister {
    /// Opens the register at `path`, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        options.map(FileRegister)
    }

    /// As [`Register::read`].
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read(&self, fence: Fence) -> io::Result<Reading> {
        self.with(|state| {
            let accepted = state.accept(fence);
            state.reading(fence, accepted)
        })
    }

    /// The first read of a reader. From now on writes with a lower fence are rejected, but no other readers are.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read_shared(&self, fence: Fence) -> io::Result<Reading> {
        self.with(|state| {
            let accepted = state.accept_read(fence);
            state.reading(fence, accepted)
        })
    }

    /// The second read of the same reader. Counts whether the values have changed.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn read_again(&self, first: Reading) -> io::Result<()> {
        self.with(|state| {
            let accepted = state.accept_read(first.fence) && first.was_accepted();
            let second = state.reading(first.fence, accepted);
            state.tally.reads += 1;
            state.tally.fenced_torn += u64::from(accepted && second.fenced != first.fenced);
            state.tally.plain_torn += u64::from(second.plain != first.plain);
        })
    }

    /// As [`Register::write`].
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, seen: Reading) -> io::Result<bool> {
        self.with(|state| {
            state.tally.plain_value = seen.plain + 1;
            state.tally.plain_writes += 1;
            let Some(value) = seen.fenced.filter(|_| state.accept(seen.fence)) else {
                return false;
            };
            state.tally.fenced_value = value + 1;
            state.tally.fenced_writes += 1;
            true
        })
    }

    /// The counts of all updates.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn tally(&self) -> io::Result<Tally> {
        self.with(|state| state.tally)
    }

    /// Changes the state under the file's own lock, in one `pwrite`: a kill leaves either the old or the new
    /// state.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        self.0.lock()?;
        let mut state = State::read(&self.0)?;
        let output = change(&mut state);
        let written = state.write(&self.0);
        self.0.unlock()?;
        written.map(|()| output)
    }
}

#[derive(Default)]
struct State {
    /// The highest fence of a writer; zero at first.
    written: u64,
    /// The highest fence of a reader.
    read: u64,
    tally: Tally,
}

impl State {
    /// The same comparison as [`FenceCheck::accept`], on numbers in a file.
    fn accept(&mut self, fence: Fence) -> bool {
        let accepted = self.count(fence, self.written.max(self.read));
        if accepted {
            self.written = fence.get();
        }
        accepted
    }

    /// The same comparison as [`FenceCheck::accept_read`].
    fn accept_read(&mut self, fence: Fence) -> bool {
        let accepted = self.count(fence, self.written);
        if accepted {
            self.read = self.read.max(fence.get());
        }
        accepted
    }

    fn count(&mut self, fence: Fence, lowest: u64) -> bool {
        let accepted = fence.get() >= lowest && fence != Fence::NONE;
        self.tally.refused += u64::from(!accepted);
        accepted
    }

    fn reading(&self, fence: Fence, accepted: bool) -> Reading {
        let (fenced, plain) = (self.tally.fenced_value, self.tally.plain_value);
        Reading { fence, fenced: accepted.then_some(fenced), plain }
    }

    fn read(file: &File) -> io::Result<Self> {
        let mut bytes = [0; FIELDS * 8];
        if file.metadata()?.len() == 0 {
            return Ok(State::default());
        }
        file.read_exact_at(&mut bytes, 0)?;
        let mut numbers = [0; FIELDS];
        for (number, chunk) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_be_bytes(chunk.try_into().expect("eight bytes"));
        }
        let [written, read, numbers @ ..] = numbers;
        let [fenced_writes, fenced_value, refused, plain_writes, plain_value, rest @ ..] = numbers;
        let [reads, fenced_torn, plain_torn] = rest;
        let tally = Tally {
            fenced_writes,
            fenced_value,
            refused,
            plain_writes,
            plain_value,
            reads,
            fenced_torn,
            plain_torn,
        };
        Ok(State { written, read, tally })
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let t = &self.tally;
        let fenced = [self.written, self.read, t.fenced_writes, t.fenced_value, t.refused];
        let others = [t.plain_writes, t.plain_value, t.reads, t.fenced_torn, t.plain_torn];
        let bytes = [fenced, others].concat().into_iter().flat_map(u64::to_be_bytes);
        file.write_all_at(&bytes.collect::<Vec<u8>>(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Fence = Fence::from_raw(7);
    const NEW: Fence = Fence::from_raw(8);

    /// t25: an old holder's write after a new holder's read is rejected; only the unfenced twin loses an
    /// update.
    #[test]
    fn t25_the_stale_write_is_refused() {
        let register = Register::new();
        let stale = register.read("k", OLD);
        let fresh = register.read("k", NEW);
        assert!(register.write("k", fresh));
        assert!(!register.write("k", stale));
        let tally = register.tally();
        assert_eq!((tally.fenced_lost(), tally.plain_lost(), tally.refused), (0, 1, 1));
    }

    /// Two holders with the same fence are both accepted: the fenced value loses an update too.
    #[test]
    fn a_repeated_fence_loses_an_update() {
        let register = Register::new();
        let (one, two) = (register.read("k", NEW), register.read("k", NEW));
        assert!(register.write("k", one) && register.write("k", two));
        assert_eq!(register.tally().fenced_lost(), 1);
    }

    /// t71, t72: a reader that a newer writer has come after is rejected, and so is a writer that a newer reader has
    /// come after. Only the unfenced twin changes under a reader.
    #[test]
    fn t71_t72_readers_see_one_value() {
        let dir = tempfile::tempdir().unwrap();
        let register = FileRegister::open(&dir.path().join("register")).unwrap();
        let stale = register.read(OLD).unwrap();
        let reader = register.read_shared(NEW).unwrap();
        let beside = register.read_shared(OLD).unwrap();
        assert!(reader.was_accepted() && beside.was_accepted(), "readers do not reject each other");
        assert!(!register.write(stale).unwrap(), "a reader came after it");
        register.read_again(reader).unwrap();
        let later = register.read(Fence::from_raw(9)).unwrap();
        assert!(register.write(later).unwrap());
        register.read_again(reader).unwrap();
        let tally = register.tally().unwrap();
        assert_eq!((tally.reads, tally.fenced_torn, tally.plain_torn), (2, 0, 2));
        assert_eq!(tally.refused, 2, "the stale writer, and the reader's last read");
    }

    /// A reader and a writer with one fence are both accepted: the value changes under the reader.
    #[test]
    fn a_fence_of_reader_and_writer_tears_a_read() {
        let dir = tempfile::tempdir().unwrap();
        let register = FileRegister::open(&dir.path().join("register")).unwrap();
        let reader = register.read_shared(NEW).unwrap();
        let writer = register.read(NEW).unwrap();
        assert!(register.write(writer).unwrap());
        register.read_again(reader).unwrap();
        assert_eq!(register.tally().unwrap().fenced_torn, 1);
    }

    /// The register in a file does the same, also when it is opened twice.
    #[test]
    fn t25_the_file_register_refuses_the_stale_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("register");
        let (a, b) = (FileRegister::open(&path).unwrap(), FileRegister::open(&path).unwrap());
        let stale = a.read(OLD).unwrap();
        let fresh = b.read(NEW).unwrap();
        assert!(b.write(fresh).unwrap());
        assert!(!a.write(stale).unwrap());
        assert!(!a.read(OLD).unwrap().was_accepted());
        let tally = a.tally().unwrap();
        assert_eq!((tally.fenced_lost(), tally.plain_lost(), tally.refused), (0, 1, 2));
    }
}
