//! The resource that a lock protects: a number that each holder reads, and writes back one higher.
//!
//! Each register has two values side by side: one that refuses stale fences, and its twin that
//! believes whoever writes. An update is lost when a write was accepted and the number did not rise
//! by it. The first must never lose one; what the second loses is what fencing is worth.
//!
//! [`Register`] lives in memory and is guarded by [`FenceCheck`]; [`FileRegister`] does the same for
//! several processes in a file with a kernel lock of its own.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tenure_core::{Fence, FenceCheck};

/// What became of the updates of a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Writes that the fenced value accepted.
    pub fenced_writes: u64,
    /// What it stands at.
    pub fenced_value: u64,
    /// Reads and writes that it refused as stale.
    pub refused: u64,
    /// Writes to the unfenced twin.
    pub plain_writes: u64,
    /// What it stands at.
    pub plain_value: u64,
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

    /// Both tallies as one.
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        Tally {
            fenced_writes: self.fenced_writes + other.fenced_writes,
            fenced_value: self.fenced_value + other.fenced_value,
            refused: self.refused + other.refused,
            plain_writes: self.plain_writes + other.plain_writes,
            plain_value: self.plain_value + other.plain_value,
        }
    }
}

/// What a holder read; hand it back to write one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an update reads first and writes later"]
pub struct Seen {
    fence: Fence,
    /// `None` if the fence was refused.
    fenced: Option<u64>,
    plain: u64,
}

impl Seen {
    /// Whether the fenced value let us read.
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
    /// Registers that nobody has touched.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads both values under `fence`. The fence counts from here on: an older holder's write,
    /// under way already, comes too late.
    pub fn read(&self, key: &str, fence: Fence) -> Seen {
        let accepted = self.check.accept(key, fence).is_ok();
        self.with(key, |tally| {
            tally.refused += u64::from(!accepted);
            Seen { fence, fenced: accepted.then_some(tally.fenced_value), plain: tally.plain_value }
        })
    }

    /// Writes one more than was read. Whether the fenced value took it.
    pub fn write(&self, key: &str, seen: Seen) -> bool {
        // The check and the write are one step: both under the lock of the tallies.
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

    /// What became of all updates.
    pub fn tally(&self) -> Tally {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.values().copied().fold(Tally::default(), Tally::plus)
    }

    fn with<T>(&self, key: &str, change: impl FnOnce(&mut Tally) -> T) -> T {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        change(tallies.entry(key.into()).or_default())
    }
}

/// How many numbers a [`FileRegister`] keeps: the fence and a [`Tally`].
const FIELDS: usize = 6;

/// One register in a file, for several processes of a machine.
#[derive(Debug)]
pub struct FileRegister(File);

impl FileRegister {
    /// The register at `path`, made if it is not there.
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
    pub fn read(&self, fence: Fence) -> io::Result<Seen> {
        self.with(|state| {
            let accepted = state.accept(fence);
            Seen {
                fence,
                fenced: accepted.then_some(state.tally.fenced_value),
                plain: state.tally.plain_value,
            }
        })
    }

    /// As [`Register::write`].
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, seen: Seen) -> io::Result<bool> {
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

    /// What became of all updates.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn tally(&self) -> io::Result<Tally> {
        self.with(|state| state.tally)
    }

    /// Changes the state under the file's own lock, in one `pwrite`: a kill leaves the old state or
    /// the new one.
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
    /// The highest fence seen; zero at first.
    fence: u64,
    tally: Tally,
}

impl State {
    /// The comparison of [`FenceCheck`], on a number in a file.
    fn accept(&mut self, fence: Fence) -> bool {
        let accepted = fence.get() >= self.fence && fence != Fence::NONE;
        if accepted {
            self.fence = fence.get();
        } else {
            self.tally.refused += 1;
        }
        accepted
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
        let [fence, fenced_writes, fenced_value, refused, plain_writes, plain_value] = numbers;
        let tally = Tally { fenced_writes, fenced_value, refused, plain_writes, plain_value };
        Ok(State { fence, tally })
    }

    fn write(&self, file: &File) -> io::Result<()> {
        let t = &self.tally;
        let numbers =
            [self.fence, t.fenced_writes, t.fenced_value, t.refused, t.plain_writes, t.plain_value];
        file.write_all_at(&numbers.map(u64::to_be_bytes).concat(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Fence = Fence::from_raw(7);
    const NEW: Fence = Fence::from_raw(8);

    /// t25: an old holder's write after a new holder's read is refused, and only the twin loses.
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

    /// Two holders with one fence are both believed: the fenced value loses an update too.
    #[test]
    fn a_repeated_fence_loses_an_update() {
        let register = Register::new();
        let (one, two) = (register.read("k", NEW), register.read("k", NEW));
        assert!(register.write("k", one) && register.write("k", two));
        assert_eq!(register.tally().fenced_lost(), 1);
    }

    /// The register in a file does the same, also when opened twice.
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
