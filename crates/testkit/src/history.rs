//! What happened in a run, as each claimant saw it.
//!
//! In: events from tasks and processes of one host. Out: one list, ordered by time, for the module `judge`.
//!
//! A record is one line of JSON. Each process writes its own file, and each line in one `write`, so that
//! nothing is missing after a kill; [`read_dir`] merges the files. Times are nanoseconds of the host's
//! boot-time clock, which all its processes share.
//!
//! # When to read the clock
//!
//! The judge must never report a false overlap. So a claim counts from *before* it is sent, a grant from
//! *after* it was reported, a release and a kill from *before* they are called. [`Recorder::note`] reads the
//! clock and writes before it returns, so call it in that order.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tenure_core::time::{Clock, Time};
use tenure_core::{Fence, Leadership, Mode};

/// One event with its time, owner, claim and key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The time, in nanoseconds of the host's boot-time clock.
    pub at: u64,
    /// The claimant as `process/task`. Claimants with the same name count as one owner.
    pub owner: String,
    /// The number of the claim among those of its owner.
    pub claim: u64,
    /// The key of the lock.
    pub key: String,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// An event in the life of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The claim is about to be sent.
    Asked {
        /// How the key is asked for.
        #[serde(default, with = "JsonMode")]
        mode: Mode,
    },
    /// The caller has received its guard.
    Granted {
        /// The fence of the grant.
        fence: u64,
        /// The end of the lease's validity, as known at the time of the grant.
        valid_until: u64,
        /// The slot of a numbered permit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
    },
    /// The holder has read the end of the lease's validity again.
    Extended {
        /// The end of the lease's validity at that time.
        valid_until: u64,
    },
    /// The lock is about to be released.
    ReleaseCalled {
        /// The end of the lease's validity at that time.
        valid_until: u64,
    },
    /// The server confirmed the release.
    Released,
    /// The holder was notified that the lock is lost.
    Lost {
        /// The reason.
        loss: String,
    },
    /// The claim ended without a grant.
    GaveUp {
        /// The error, or the reason.
        error: String,
    },
    /// A candidate or a leader is about to show `value` to observers of its election.
    Proclaimed {
        /// The value: the label of the claim, or the label with `.` and a number.
        value: String,
    },
    /// An observer of an election was shown who leads.
    Observed {
        /// The value of the leader; nothing if nobody leads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
        /// The term of the leader, if the engine shows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        term: Option<u64>,
    },
    /// A fault: a test deleted the lock on the server. `owner` names the test code that did it.
    TakenAway,
    /// A fault: `owner`, and every owner whose name starts with it and a `/`, is about to be killed.
    Killed,
}

/// [`Mode`] as JSON. The processes of a shared owner record under one name, so its mode is not needed.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode", rename_all = "snake_case")]
enum JsonMode {
    Exclusive,
    #[serde(skip)]
    SharedOwner(Arc<str>),
    Read,
    Permits {
        permits: u32,
        capacity: u32,
    },
}

/// Collects records. Cheap to clone and to call, also from async code.
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
    /// A recorder that keeps its records in memory, with times of the host's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// A recorder that keeps its records in memory, with times of `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Recorder { clock, sink: Arc::new(Mutex::new(Sink::Memory(Vec::new()))) }
    }

    /// A recorder that appends to the file at `path`. No other process may write to that file.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn append_to(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Recorder { clock: Clock::system(), sink: Arc::new(Mutex::new(Sink::File(file))) })
    }

    /// Records `event` with the current time.
    ///
    /// # Panics
    ///
    /// If the file cannot be written: an incomplete history proves nothing.
    pub fn note(&self, owner: &str, claim: u64, key: &str, event: Event) {
        let at = self.clock.now().as_nanos();
        let record = Record { at, owner: owner.into(), claim, key: key.into(), event };
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.push(record),
            Sink::File(file) => append(file, &record).expect("the history can be written"),
        }
    }

    /// All records in memory so far; empty for a recorder that writes to a file.
    pub fn history(&self) -> History {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => History::new(records.clone()),
            Sink::File(_) => History::default(),
        }
    }

    /// A claimant that records under the name `owner`.
    pub fn claimant(&self, owner: impl Into<String>) -> Claimant {
        Claimant { recorder: self.clone(), owner: owner.into(), claims: AtomicU64::new(0) }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

/// Appends one line in one `write`, so that a kill leaves only whole lines.
fn append(file: &mut File, record: &Record) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// The name of an owner, and a counter that numbers its claims.
#[derive(Debug)]
pub struct Claimant {
    recorder: Recorder,
    owner: String,
    claims: AtomicU64,
}

impl Claimant {
    /// The owner's name.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Numbers the claims from `first` on. Claimants with the same owner name must not share claim numbers.
    #[must_use]
    pub fn numbered(self, first: u64) -> Self {
        self.claims.store(first, Ordering::Relaxed);
        self
    }

    /// Records that the claimant is about to ask for `key` alone.
    pub fn asks(&self, key: &str) -> Noted {
        self.asks_for(key, Mode::Exclusive)
    }

    /// Records that the claimant is about to ask for `key` in `mode`.
    pub fn asks_for(&self, key: &str, mode: Mode) -> Noted {
        let noted = self.observes(key);
        noted.note(Event::Asked { mode });
        noted
    }

    /// Records that the claimant is about to ask for all of `keys`, each in its mode, with one request. The claims have
    /// one number.
    pub fn asks_for_all(&self, keys: &[(String, Mode)]) -> Vec<Noted> {
        let claim = self.claims.fetch_add(1, Ordering::Relaxed);
        let asks = keys.iter().map(|(key, mode)| {
            let noted = self.noted(claim, key);
            noted.note(Event::Asked { mode: mode.clone() });
            noted
        });
        asks.collect()
    }

    /// For an observer of `key`, which asks for nothing.
    pub fn observes(&self, key: &str) -> Noted {
        self.noted(self.claims.fetch_add(1, Ordering::Relaxed), key)
    }

    fn noted(&self, claim: u64, key: &str) -> Noted {
        let (recorder, owner) = (self.recorder.clone(), self.owner.clone());
        Noted { recorder, owner, claim, key: key.into() }
    }
}

/// One claim in the history; its methods record what happens to it.
#[derive(Clone, Debug)]
pub struct Noted {
    recorder: Recorder,
    owner: String,
    claim: u64,
    key: String,
}

impl Noted {
    /// The key of the claim.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// `owner/claim`: a label that identifies this claim, also on the server.
    pub fn label(&self) -> String {
        format!("{}/{}", self.owner, self.claim)
    }

    /// Records that the caller has received its guard.
    pub fn granted(&self, fence: Fence, valid_until: Time) {
        self.granted_slot(None, fence, valid_until);
    }

    /// As [`granted`](Self::granted), for a permit that may be numbered.
    pub fn granted_slot(&self, slot: Option<u32>, fence: Fence, valid_until: Time) {
        let (fence, valid_until) = (fence.get(), valid_until.as_nanos());
        self.note(Event::Granted { fence, valid_until, slot });
    }

    /// Records that the lease is valid until `valid_until`.
    pub fn extended(&self, valid_until: Time) {
        self.note(Event::Extended { valid_until: valid_until.as_nanos() });
    }

    /// Records that the release is about to be called.
    pub fn release_called(&self, valid_until: Time) {
        self.note(Event::ReleaseCalled { valid_until: valid_until.as_nanos() });
    }

    /// Records that the server confirmed the release.
    pub fn released(&self) {
        self.note(Event::Released);
    }

    /// Records that the holder was notified of a loss.
    pub fn lost(&self, loss: impl ToString) {
        self.note(Event::Lost { loss: loss.to_string() });
    }

    /// Records that the claim ended without a grant.
    pub fn gave_up(&self, error: impl ToString) {
        self.note(Event::GaveUp { error: error.to_string() });
    }

    /// Records that the claimant is about to show `value`.
    pub fn proclaims(&self, value: impl Into<String>) {
        self.note(Event::Proclaimed { value: value.into() });
    }

    /// Records who was shown to lead.
    pub fn observed(&self, leader: Option<Leadership>) {
        let term = leader.as_ref().and_then(|now| now.term).map(Fence::get);
        self.note(Event::Observed { value: leader.map(|now| now.value), term });
    }

    /// Records any event of this claim.
    pub fn note(&self, event: Event) {
        self.recorder.note(&self.owner, self.claim, &self.key, event);
    }
}

/// The label of the claim that shows `value`.
pub(crate) fn claim_of(value: &str) -> &str {
    value.split('.').next().unwrap_or(value)
}

/// All records of a run, ordered by time.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

impl History {
    /// A history of these records, which may be in any order.
    pub fn new(mut records: Vec<Record>) -> Self {
        // The sort is stable: records of one claimant with the same time keep their order.
        records.sort_by_key(|record| record.at);
        History { records }
    }

    /// The records, oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Merges both histories.
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
/// If the file cannot be read, or a line other than the last is not a record: a kill can tear only the last
/// one.
pub fn read_file(path: &Path) -> io::Result<History> {
    records(path).map(History::new)
}

/// Reads and merges every `*.jsonl` file of a directory.
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

    fn write_one(path: &Path, owner: &str) {
        let recorder = Recorder::append_to(path).unwrap();
        let noted = recorder.claimant(owner).asks("k");
        noted.granted(Fence::from_raw(7), Time::NEVER);
        noted.release_called(Time::NEVER);
        noted.released();
    }

    /// Files of several processes are merged into one history, ordered by time and complete.
    #[test]
    fn files_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        write_one(&dir.path().join("a.jsonl"), "a/0");
        write_one(&dir.path().join("b.jsonl"), "b/0");
        let history = read_dir(dir.path()).unwrap();
        assert_eq!(history.records().len(), 8);
        assert!(history.records().is_sorted_by_key(|record| record.at));
    }

    /// A last line that a kill has torn is ignored; a torn line in the middle is an error.
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

    /// A record is one line of JSON with named fields.
    #[test]
    fn a_record_is_one_line_of_json() {
        let record = Record {
            at: 5,
            owner: "a/0".into(),
            claim: 1,
            key: "k".into(),
            event: Event::Granted { fence: 9, valid_until: 11, slot: None },
        };
        let line = serde_json::to_string(&record).unwrap();
        let expected = r#"{"at":5,"owner":"a/0","claim":1,"key":"k","event":"granted","fence":9,"valid_until":11}"#;
        assert_eq!(line, expected);
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }

    /// What an observer saw is kept in a file, also that nobody leads. A request for several keys has one number.
    #[test]
    fn leaders_and_several_keys_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let claimant = Recorder::append_to(&path).unwrap().claimant("a/0");
        let both = ["x", "y"].map(|key| (key.to_owned(), Mode::Exclusive));
        assert!(claimant.asks_for_all(&both).iter().all(|noted| noted.label() == "a/0/0"));
        claimant.observes("z").observed(None);
        let seen = Event::Observed { value: Some("b/0/4.1".into()), term: Some(7) };
        claimant.observes("z").note(seen.clone());
        let history = read_file(&path).unwrap();
        let claims: Vec<_> = history.records().iter().map(|it| (it.claim, &*it.key)).collect();
        assert_eq!(claims, [(0, "x"), (0, "y"), (1, "z"), (2, "z")]);
        assert_eq!(history.records()[2].event, Event::Observed { value: None, term: None });
        assert_eq!(history.records()[3].event, seen);
    }

    /// The mode of a claim and the slot of a grant are kept in a file.
    #[test]
    fn modes_and_slots_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let claimant = Recorder::append_to(&path).unwrap().claimant("a/0");
        let modes = [Mode::Exclusive, Mode::Read, Mode::Permits { permits: 1, capacity: 4 }];
        for mode in modes.clone() {
            claimant.asks_for("k", mode).granted_slot(Some(2), Fence::from_raw(7), Time::NEVER);
        }
        let events: Vec<Event> =
            read_file(&path).unwrap().records().iter().map(|record| record.event.clone()).collect();
        let granted = Event::Granted { fence: 7, valid_until: u64::MAX, slot: Some(2) };
        let expected = modes.map(|mode| [Event::Asked { mode }, granted.clone()]);
        assert_eq!(events, expected.concat());
    }
}
