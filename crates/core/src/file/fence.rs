//! The fence counter: one file per directory, with one number.
//!
//! In: nothing. Out: a number higher than all earlier ones of this directory.
//!
//! The number is overwritten in place, with a kernel lock on the file itself. It only grows, so the text
//! never shrinks, and the file is empty only before its first number. So an empty file is a new one. If the
//! file is lost, the wall clock keeps the numbers rising. Any other content is refused: guessing a lower
//! number would invalidate every check ever made with a fence.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::files::{fault, is_current, is_interruption, open_or_create};
use crate::fault::{Fault, FaultKind};
use crate::fence::next_server_fence;
use crate::time::UnixMillis;

/// How often to retry at once: other processes lock the file for microseconds.
const SPINS: u32 = 32;
/// After that, how often to retry, a millisecond apart. A process that keeps the file locked for that long
/// has been stopped.
const PATIENCE: u32 = 2_000;
/// More than any number needs; longer content is read only to be shown in the error.
const TEXT_MAX: u64 = 64;

#[derive(Debug)]
pub(super) struct Count {
    path: PathBuf,
    /// Threads of this process queue here, because at the file they could only retry.
    turn: Mutex<()>,
}

impl Count {
    pub(super) fn in_dir(dir: &Path) -> Self {
        Count { path: dir.join("fence"), turn: Mutex::default() }
    }

    /// The next number.
    pub(super) async fn next(&self) -> Result<u64, Fault> {
        for _ in 0..PATIENCE {
            if let Some(number) = self.spin()? {
                return Ok(number);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let path = self.path.display();
        let message = format!("fence file `{path}` is kept locked by another process");
        Err(Fault::new(FaultKind::Unavailable, message))
    }

    fn spin(&self) -> Result<Option<u64>, Fault> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..SPINS {
            if let Some(file) = self.try_lock()? {
                return self.advance(file).map(Some);
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    fn try_lock(&self) -> Result<Option<File>, Fault> {
        let failed = |error| fault("open fence file", &self.path, error);
        let file = open_or_create(&self.path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(is_current(&file, &self.path)?.then_some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) if is_interruption(&error) => Ok(None),
            Err(TryLockError::Error(error)) => Err(fault("lock", &self.path, error)),
        }
    }

    fn advance(&self, mut file: File) -> Result<u64, Fault> {
        let text = read(&mut file).map_err(|error| fault("read", &self.path, error))?;
        let next = following(&text).ok_or_else(|| self.corrupt(&text))?;
        write(&mut file, next).map_err(|error| fault("write", &self.path, error))?;
        // A forked child may have a copy of the descriptor: closing alone would not unlock.
        let _ = file.unlock();
        Ok(next)
    }

    fn corrupt(&self, text: &str) -> Fault {
        let (path, text) = (self.path.display(), text.escape_debug());
        let message = format!("fence file `{path}` holds `{text}`, which is no fence number");
        Fault::new(FaultKind::Refused, message)
    }
}

fn read(file: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    file.take(TEXT_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn following(text: &str) -> Option<u64> {
    let last = match text {
        "" => 0,
        text => text.strip_suffix('\n').unwrap_or(text).parse().ok()?,
    };
    next_server_fence(last, UnixMillis::now())
}

fn write(file: &mut File, number: u64) -> io::Result<()> {
    let text = format!("{number}\n");
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    // Only a number written by hand, with leading zeros, could have been longer.
    file.set_len(text.len() as u64)
}
