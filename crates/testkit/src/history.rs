//! What happened in a run, as each claimant saw it.
//!
//! In: events from tasks and processes of one host. Out: one list in the order of time, for
//! `judge.rs`.
//!
//! A record is a line of JSON. Several processes write to files of their own, each line in one
//! `write`, so that a killed process has left everything it knew; [`read_dir`] merges them. Times
//! are the host's boot-time nanoseconds, which all of its processes share.
//!
//! # When to read the clock
//!
//! So that a judge never accuses the innocent, a claim counts from *before* it is sent, a grant from
//! *after* it was reported, a release and a kill from *before* they are called. [`Recorder::note`]
//! reads the clock and writes before it returns, so call it in that order.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tenure_core::time::{Clock, Time};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When, in nanoseconds of the host's boot-time clock.
    pub at: u64,
    /// Who: `process/task`, different for each claimant; claimants with one name are one owner.
    pub owner: String,
    /// Which of the owner's claims.
    pub claim: u64,
    /// The lock.
    pub key: String,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// What can happen to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It is about to be sent.
    Asked,
    /// The caller has its guard.
    Granted {
        /// The fence it carries.
        fence: u64,
        /// Until when it may be relied on, as of now.
        valid_until: u64,
    },
    /// The holder looked: it may be relied on until a later moment.
    Extended {
        /// The new end.
        valid_until: u64,
    },
    /// It is about to be released.
    ReleaseCalled {
        /// Until when it could have been relied on.
        valid_until: u64,
    },
    /// The server confirmed the release.
    Released,
    /// The holder was told that it is lost.
    Lost {
        /// Why.
        loss: String,
    },
    /// It ended without a grant.
    GaveUp {
        /// Why.
        error: String,
    },
    /// A fault: the server was made to forget the lock. `owner` is whoever did it.
    TakenAway,
    /// A fault: `owner`, and every owner whose name starts with it and a `/`, is about to be killed.
    Killed,
}

/// Takes records; cheap to clone and to call, also from async code.
#[derive(Clone, Debug)]
pub struct Recorder {
    clock: Clock,
    sink: Arc<Mutex<Sink>>,
}

#[derive(Debug)]
enum Sink {
    Memory(Vec<Record>),
    File(File),
}

impl Recorder {
    /// One that keeps its records in memory, dated by the host's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// One that keeps its records in memory, dated by `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Recorder { clock, sink: Arc::new(Mutex::new(Sink::Memory(Vec::new()))) }
    }

    /// One that appends to the file at `path`, which no other process may write.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn append_to(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Recorder { clock: Clock::system(), sink: Arc::new(Mutex::new(Sink::File(file))) })
    }

    /// Records `event` as happening now.
    ///
    /// # Panics
    ///
    /// If the file cannot be written: a history with holes proves nothing.
    pub fn note(&self, owner: &str, claim: u64, key: &str, event: Event) {
        let at = self.clock.now().as_nanos();
        let record = Record { at, owner: owner.into(), claim, key: key.into(), event };
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.push(record),
            Sink::File(file) => append(file, &record).expect("the history can be written"),
        }
    }

    /// Everything recorded in memory so far; empty for a recorder that writes to a file.
    pub fn history(&self) -> History {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => History::new(records.clone()),
            Sink::File(_) => History::default(),
        }
    }

    /// A claimant who notes under `owner`.
    pub fn claimant(&self, owner: impl Into<String>) -> Claimant {
        Claimant { recorder: self.clone(), owner: owner.into(), claims: AtomicU64::new(0) }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

/// One `write`, so that a kill leaves whole lines.
fn append(file: &mut File, record: &Record) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// Somebody who claims: its owner's name, and a number for each claim.
#[derive(Debug)]
pub struct Claimant {
    recorder: Recorder,
    owner: String,
    claims: AtomicU64,
}

impl Claimant {
    /// Its name.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The same with its claims numbered from `first` on: claimants who share an owner's name must
    /// not share numbers.
    #[must_use]
    pub fn numbered(self, first: u64) -> Self {
        self.claims.store(first, Ordering::Relaxed);
        self
    }

    /// Notes that it is about to ask for `key`.
    pub fn asks(&self, key: &str) -> Noted {
        let claim = self.claims.fetch_add(1, Ordering::Relaxed);
        let noted = Noted {
            recorder: self.recorder.clone(),
            owner: self.owner.clone(),
            claim,
            key: key.into(),
        };
        noted.note(Event::Asked);
        noted
    }
}

/// One claim under observation: tell it what becomes of it.
#[derive(Clone, Debug)]
pub struct Noted {
    recorder: Recorder,
    owner: String,
    claim: u64,
    key: String,
}

impl Noted {
    /// `owner/claim`: what tells this claim from all others, to be shown at a server.
    pub fn label(&self) -> String {
        format!("{}/{}", self.owner, self.claim)
    }

    /// The caller has its guard.
    pub fn granted(&self, fence: tenure_core::Fence, valid_until: Time) {
        let (fence, valid_until) = (fence.get(), valid_until.as_nanos());
        self.note(Event::Granted { fence, valid_until });
    }

    /// The lease was seen to last until `valid_until`.
    pub fn extended(&self, valid_until: Time) {
        self.note(Event::Extended { valid_until: valid_until.as_nanos() });
    }

    /// The release is about to be called.
    pub fn release_called(&self, valid_until: Time) {
        self.note(Event::ReleaseCalled { valid_until: valid_until.as_nanos() });
    }

    /// The release is confirmed.
    pub fn released(&self) {
        self.note(Event::Released);
    }

    /// The holder was told of a loss.
    pub fn lost(&self, loss: impl ToString) {
        self.note(Event::Lost { loss: loss.to_string() });
    }

    /// It ended without a grant.
    pub fn gave_up(&self, error: impl ToString) {
        self.note(Event::GaveUp { error: error.to_string() });
    }

    /// Records any event of this claim.
    pub fn note(&self, event: Event) {
        self.recorder.note(&self.owner, self.claim, &self.key, event);
    }
}

/// All records of a run, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

impl History {
    /// The history of these records, in whatever order they came.
    pub fn new(mut records: Vec<Record>) -> Self {
        // Stable: what one claimant wrote at one instant stays in its order.
        records.sort_by_key(|record| record.at);
        History { records }
    }

    /// The records, oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Both histories as one.
    #[must_use]
    pub fn merge(mut self, other: History) -> Self {
        self.records.extend(other.records);
        History::new(self.records)
    }
}

/// Reads one file that a [`Recorder`] wrote.
///
/// # Errors
///
/// If it cannot be read, or a line other than the last is no record: a kill can tear only the last.
pub fn read_file(path: &Path) -> io::Result<History> {
    records(path).map(History::new)
}

/// Reads and merges every `*.jsonl` of a directory.
///
/// # Errors
///
/// As [`read_file`].
pub fn read_dir(dir: &Path) -> io::Result<History> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            all.extend(records(&path)?);
        }
    }
    Ok(History::new(all))
}

fn records(path: &Path) -> io::Result<Vec<Record>> {
    let lines: Vec<String> = BufReader::new(File::open(path)?).lines().collect::<Result<_, _>>()?;
    let mut records = Vec::with_capacity(lines.len());
    for (number, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(record) => records.push(record),
            Err(_) if number + 1 == lines.len() => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Fence;

    fn write_one(path: &Path, owner: &str) {
        let recorder = Recorder::append_to(path).unwrap();
        let noted = recorder.claimant(owner).asks("k");
        noted.granted(Fence::from_raw(7), Time::NEVER);
        noted.release_called(Time::NEVER);
        noted.released();
    }

    /// Files of several processes merge into one history in the order of time, losing nothing.
    #[test]
    fn files_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        write_one(&dir.path().join("a.jsonl"), "a/0");
        write_one(&dir.path().join("b.jsonl"), "b/0");
        let history = read_dir(dir.path()).unwrap();
        assert_eq!(history.records().len(), 8);
        assert!(history.records().is_sorted_by_key(|record| record.at));
    }

    /// A line that a kill tore is left out; a torn line in the middle is an error.
    #[test]
    fn a_torn_last_line_is_forgiven() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        write_one(&path, "a/0");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"at\":12,\"own").unwrap();
        assert_eq!(read_file(&path).unwrap().records().len(), 4);
        file.write_all(b"\n{}\n").unwrap();
        assert!(read_file(&path).is_err());
    }

    /// A record is one line that says everything by name.
    #[test]
    fn a_record_is_one_line_of_json() {
        let record = Record {
            at: 5,
            owner: "a/0".into(),
            claim: 1,
            key: "k".into(),
            event: Event::Granted { fence: 9, valid_until: 11 },
        };
        let line = serde_json::to_string(&record).unwrap();
        let expected = r#"{"at":5,"owner":"a/0","claim":1,"key":"k","event":"granted","fence":9,"valid_until":11}"#;
        assert_eq!(line, expected);
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }
}
