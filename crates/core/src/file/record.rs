//! The record next to a lock: a readable description of the holder, and until when the lock stays closed.
//!
//! In: a granted claim. Out: a [`Holder`] for claims that do not get the lock.
//!
//! The kernel's lock decides who holds; the record only describes it. There is one exception: a release with
//! `min_hold` leaves the record behind *without* the lock. The record then says until when the lock must not
//! be acquired. A record of a newer version may mean that too, so its lock cannot be acquired either. A file
//! that is not a record of any version is ignored: records are renamed into place as a whole, so such a file
//! is left over from a power cut. Nothing is flushed to disk: a power cut that destroys a record also ends
//! all locks.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::files::{Files, fault, is_link, read_only, start_over};
use super::readers::Readers;
use crate::claim::Claim;
use crate::fault::{Fault, FaultKind};
use crate::fence::Fence;
use crate::holder::{Holder, Process};
use crate::report::Holding;
use crate::time::{Clock, Time, UnixMillis};
use crate::token::Token;

/// The version of the record's layout. Records of other versions are not read.
const VERSION: u32 = 1;
/// More than the longest plausible key, label and reason.
const SIZE_MAX: u64 = 1 << 20;

/// The result of reading a record.
#[derive(Debug)]
pub(super) enum Found {
    /// No record.
    Nothing,
    Record(Box<Record>),
    /// A record of a newer version.
    Newer,
}

impl Found {
    pub(super) fn record(self) -> Option<Box<Record>> {
        match self {
            Found::Record(record) => Some(record),
            Found::Nothing | Found::Newer => None,
        }
    }

    pub(super) fn holder(&self, clock: &Clock) -> Holder {
        match self {
            Found::Nothing => Holder::unknown(),
            Found::Record(record) => record.holder(clock),
            Found::Newer => Holder::newer(),
        }
    }

    /// Whether the holder's process is alive, as far as this process can tell.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Found::Nothing => false,
            Found::Record(record) => record.is_alive(),
            Found::Newer => true,
        }
    }
}

/// The field that a record of every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    pub(super) key: String,
    client: Process,
    since: UnixMillis,
    label: Option<String>,
    reason: Option<String>,
    pub(super) fence: Fence,
    pub(super) token: Token,
    closed: Option<Closed>,
}

/// Until when a released lock stays closed, on the clock that has run since `boot`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Closed {
    boot: Option<String>,
    until_nanos: u64,
    span_nanos: u64,
}

impl Record {
    pub(super) fn of(claim: &Claim, fence: Fence) -> Self {
        Record {
            version: VERSION,
            key: claim.key().as_str().into(),
            client: Process::this_process().clone(),
            since: UnixMillis::now(),
            label: claim.present_label().as_deref().map(Into::into),
            reason: claim.reason().map(Into::into),
            fence,
            token: claim.token(),
            closed: None,
        }
    }

    /// Reads the record for a process that has the lock; a fault if the record cannot be read.
    pub(super) fn find(files: &Files) -> Result<Found, Fault> {
        match read_only(&files.record).and_then(|file| Self::from_file(&file)) {
            Ok(found) => Ok(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            // A link is not followed, and is not a file of ours.
            Err(error) if is_link(&error) => Ok(Found::Nothing),
            Err(error) => Err(fault("read", &files.record, error)),
        }
    }

    pub(super) fn from_file(file: &File) -> io::Result<Found> {
        let mut text = Vec::new();
        file.take(SIZE_MAX).read_to_end(&mut text)?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Found {
        match serde_json::from_slice(text).map(|Versioned { version }| version) {
            Ok(VERSION) => serde_json::from_slice(text).map_or(Found::Nothing, Found::Record),
            Ok(VERSION..) => Found::Newer,
            _ => Found::Nothing,
        }
    }

    /// Reads the record only to describe the holder: a record that cannot be read counts as missing. If there is
    /// none, the first reader describes the holders.
    pub(super) fn read(files: &Files) -> Found {
        match Self::find(files).unwrap_or(Found::Nothing) {
            Found::Nothing => Readers::of(files).first(),
            found => found,
        }
    }

    /// The error of a claim for a lock with a record of a newer version.
    pub(super) fn newer(files: &Files) -> Fault {
        let what = format!(
            "the record `{}` is of a newer version of tenure, and may keep the lock closed: update \
             this program, or remove the file if no newer one uses it",
            files.record.display()
        );
        Fault::new(FaultKind::Refused, what)
    }

    /// Writes the record in one step: a reader sees the old or the new one, and on a full disk the old one
    /// stays. Only the holder of the lock writes, so one draft per lock is enough.
    pub(super) fn write(&self, files: &Files) -> Result<(), Fault> {
        let written = self.draft(&files.draft);
        written.and_then(|()| fs::rename(&files.draft, &files.record)).map_err(|error| {
            let _ = fs::remove_file(&files.draft);
            fault("write", &files.record, error)
        })
    }

    fn draft(&self, path: &Path) -> io::Result<()> {
        start_over(path)?.write_all(&self.to_json()?)
    }

    pub(super) fn to_json(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// The record of a lock that is free but stays closed for `span`.
    pub(super) fn closed_for(&self, span: Duration, clock: &Clock) -> Self {
        let until_nanos = moment(clock).after(span).as_nanos();
        let span_nanos = Time::from_nanos(0).after(span).as_nanos();
        let closed = Closed { boot: boot_id().map(Into::into), until_nanos, span_nanos };
        Record { closed: Some(closed), ..self.clone() }
    }

    /// The record with the present label of `claim`; `None` if it is the same.
    pub(super) fn relabelled(&self, claim: &Claim) -> Option<Self> {
        let label = claim.present_label().as_deref().map(Into::into);
        (self.label != label).then(|| Record { label, ..self.clone() })
    }

    /// Whether the holder released the lock with a closed time.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// How much longer the lock is closed; `None` if it is open.
    pub(super) fn closed_rest(&self, clock: &Clock) -> Option<Duration> {
        let closed = self.closed.as_ref()?;
        let rest = Time::from_nanos(closed.until_nanos).since(moment(clock));
        // More time left than was set: the clock has restarted since.
        let this_boot =
            closed.boot.as_deref() == boot_id() && rest <= Duration::from_nanos(closed.span_nanos);
        (this_boot && !rest.is_zero()).then_some(rest)
    }

    pub(super) fn holder(&self, clock: &Clock) -> Holder {
        let lease_left = self.closed_rest(clock);
        Holder {
            process: Some(self.client.clone()),
            since: Some(self.since),
            label: self.label.clone(),
            reason: self.reason.clone(),
            lease_left,
            cooling_down: lease_left.is_some(),
            ..Holder::unknown()
        }
    }

    pub(super) fn holding(&self, clock: &Clock) -> Holding {
        Holding::new(self.holder(clock), Some(self.fence), Some(self.token))
    }

    /// Whether the process that wrote the record is alive, as far as this process can tell.
    pub(super) fn is_alive(&self) -> bool {
        self.client.host == Process::this_process().host && is_alive(self.client.pid)
    }

    /// Describes the process that an operator has to end.
    pub(super) fn culprit(&self) -> String {
        let Process { host, pid, program, .. } = &self.client;
        let words = [&self.label, &self.reason].into_iter().flatten();
        let words: String = words.map(|word| format!(", {word:?}")).collect();
        format!("end pid {pid} on `{host}` ({program}{words})")
    }
}

#[cfg(unix)]
fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let asked = pid.map(rustix::process::test_kill_process);
    // `EPERM` means that the process exists but is not ours.
    matches!(asked, Some(Ok(()) | Err(rustix::io::Errno::PERM)))
}

#[cfg(not(unix))]
fn is_alive(_: u32) -> bool {
    true
}

/// A time that other processes can compare with theirs. Outside Unix our clock starts with the process, and
/// only the wall clock is common to all processes.
fn moment(clock: &Clock) -> Time {
    match cfg!(unix) {
        true => clock.now(),
        false => Time::from_nanos(UnixMillis::now().0.saturating_mul(1_000_000)),
    }
}

/// The id of the current boot, if the kernel has one.
fn boot_id() -> Option<&'static str> {
    static ID: OnceLock<Option<String>> = OnceLock::new();
    ID.get_or_init(read_boot_id).as_deref()
}

fn read_boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().into())
}
