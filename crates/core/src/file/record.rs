//! The record beside a lock: who holds it, in words for people, and until when it stays closed.
//!
//! In: a granted claim. Out: a [`Holder`] for whoever is in its way.
//!
//! The kernel's lock is the truth about who holds; the record only explains it, with one exception:
//! a release with `at_least` leaves the record behind *without* the lock, and it then says until when
//! nobody may have it. A record of a newer version may say that too, so nobody may have its lock
//! either. A file that is no record of any version explains nothing and closes nothing: records are
//! renamed into place as a whole, so it is what a power cut left. Nothing is flushed to disk: what a
//! power cut takes with it, it takes together with all locks.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::files::{Files, fault, is_link, read_only, start_over};
use crate::backend::{Fault, FaultKind, Holding};
use crate::claim::{Claim, Client, Holder, Token};
use crate::fence::Fence;
use crate::time::{Clock, Time, UnixMillis};

/// The layout of the record; others are not read.
const VERSION: u32 = 1;
/// More than the longest key, label and reason that anybody would write down.
const SIZE_MAX: u64 = 1 << 20;

/// What is found in a record's place.
#[derive(Debug)]
pub(super) enum Found {
    /// No record.
    Nothing,
    Record(Box<Record>),
    /// That of a newer version.
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

    /// Whether it is that of a process that lives, as far as can be seen from here.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Found::Nothing => false,
            Found::Record(record) => record.is_alive(),
            Found::Newer => true,
        }
    }
}

/// What a record of any version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    pub(super) key: String,
    client: Client,
    since: UnixMillis,
    label: Option<String>,
    reason: Option<String>,
    fence: Fence,
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
            client: Client::this_process().clone(),
            since: UnixMillis::now(),
            label: claim.label().map(Into::into),
            reason: claim.reason().map(Into::into),
            fence,
            token: claim.token(),
            closed: None,
        }
    }

    /// The record as it is, for whoever has the lock: a fault if that cannot be found out.
    pub(super) fn find(files: &Files) -> Result<Found, Fault> {
        let mut text = Vec::new();
        let read =
            read_only(&files.record).and_then(|file| file.take(SIZE_MAX).read_to_end(&mut text));
        match read {
            Ok(_) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            // Not followed, and nothing of ours.
            Err(error) if is_link(&error) => Ok(Found::Nothing),
            Err(error) => Err(fault("read", &files.record, error)),
        }
    }

    fn parse(text: &[u8]) -> Found {
        match serde_json::from_slice(text).map(|Versioned { version }| version) {
            Ok(VERSION) => serde_json::from_slice(text).map_or(Found::Nothing, Found::Record),
            Ok(VERSION..) => Found::Newer,
            _ => Found::Nothing,
        }
    }

    /// The record for whoever only wants to know who holds the lock.
    pub(super) fn read(files: &Files) -> Found {
        Self::find(files).unwrap_or(Found::Nothing)
    }

    /// Why nobody may have a lock with a record of a newer version.
    pub(super) fn newer(files: &Files) -> Fault {
        let what = format!(
            "the record `{}` is of a newer version of tenure, and may keep the lock closed: update \
             this program, or remove the file if no newer one uses it",
            files.record.display()
        );
        Fault::new(FaultKind::Refused, what)
    }

    /// Writes it in one step: a reader sees the old one or the new one, and a full disk leaves the
    /// old one. Only the holder of the lock does, so one draft per lock is enough.
    pub(super) fn write(&self, files: &Files) -> Result<(), Fault> {
        let written = self.draft(&files.draft);
        written.and_then(|()| fs::rename(&files.draft, &files.record)).map_err(|error| {
            let _ = fs::remove_file(&files.draft);
            fault("write", &files.record, error)
        })
    }

    fn draft(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        start_over(path)?.write_all(&text)
    }

    /// The record of a lock that nobody holds and nobody may have for `span`.
    pub(super) fn closed_for(&self, span: Duration, clock: &Clock) -> Self {
        let until_nanos = moment(clock).after(span).as_nanos();
        let span_nanos = Time::from_nanos(0).after(span).as_nanos();
        let closed = Closed { boot: boot_id().map(Into::into), until_nanos, span_nanos };
        Record { closed: Some(closed), ..self.clone() }
    }

    /// Whether its holder gave it back, to be closed for a while.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// How much longer the lock is closed; `None` if it is not (any more).
    pub(super) fn closed_rest(&self, clock: &Clock) -> Option<Duration> {
        let closed = self.closed.as_ref()?;
        let rest = Time::from_nanos(closed.until_nanos).since(moment(clock));
        // More left than there ever was: the clock has started anew since.
        let this_boot =
            closed.boot.as_deref() == boot_id() && rest <= Duration::from_nanos(closed.span_nanos);
        (this_boot && !rest.is_zero()).then_some(rest)
    }

    pub(super) fn holder(&self, clock: &Clock) -> Holder {
        let lease_left = self.closed_rest(clock);
        Holder {
            client: Some(self.client.clone()),
            since: Some(self.since),
            label: self.label.clone(),
            reason: self.reason.clone(),
            lease_left,
            closing: lease_left.is_some(),
            newer: false,
        }
    }

    pub(super) fn holding(&self, clock: &Clock) -> Holding {
        Holding::new(self.holder(clock), Some(self.fence), Some(self.token))
    }

    /// Whether the process that wrote it is alive, as far as can be seen from here.
    pub(super) fn is_alive(&self) -> bool {
        self.client.host == Client::this_process().host && is_alive(self.client.pid)
    }

    /// What an operator has to end.
    pub(super) fn culprit(&self) -> String {
        let Client { host, pid, program, .. } = &self.client;
        let words = [&self.label, &self.reason].into_iter().flatten();
        let words: String = words.map(|word| format!(", {word:?}")).collect();
        format!("end pid {pid} on `{host}` ({program}{words})")
    }
}

#[cfg(unix)]
fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let asked = pid.map(rustix::process::test_kill_process);
    // "Not permitted" means that there is somebody to forbid it to us.
    matches!(asked, Some(Ok(()) | Err(rustix::io::Errno::PERM)))
}

#[cfg(not(unix))]
fn is_alive(_: u32) -> bool {
    true
}

/// A moment that other processes can compare with theirs. Outside Unix our clock starts with the
/// process, and only the wall clock is common to all.
fn moment(clock: &Clock) -> Time {
    match cfg!(unix) {
        true => clock.now(),
        false => Time::from_nanos(UnixMillis::now().0.saturating_mul(1_000_000)),
    }
}

/// What tells this run of the kernel from the last, where the kernel says.
fn boot_id() -> Option<&'static str> {
    static ID: OnceLock<Option<String>> = OnceLock::new();
    ID.get_or_init(read_boot_id).as_deref()
}

fn read_boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().into())
}
