//! Inspection of the locks: for people, and to remove the leftovers of dead processes.
//!
//! In: a [`Query`]. Out: the locks that are held or closed, and a directory without leftovers.
//!
//! Whether a lock is held is decided by the kernel, never by a process id: ids are reused, and a forked child
//! can hold a lock of its parent. The check does not affect a held lock. A free lock is locked by us during
//! the check, and only then its leftovers are removed.

use std::collections::BTreeSet;
use std::io;

use super::acquire::{SETTLE_PAUSE, SETTLE_TRIES};
use super::files::{Files, LockKind, Locked, READER, SUFFIXES, fault};
use super::name;
use super::readers::Readers;
use super::record::{Found, Record};
use super::state::FileEngine;
use crate::fault::{Fault, FaultKind};
use crate::grant::Release;
use crate::key::Key;
use crate::mode::Mode;
use crate::report::{Holding, LockInfo, Query};
use crate::token::Token;

/// The state of a lock.
enum LockState {
    Free,
    /// Held or closed, with its record.
    Taken(Found),
    /// Held by readers.
    Read(Vec<Record>),
}

impl FileEngine {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        let mut infos = Vec::new();
        for name in self.names(query)? {
            let files = Files::named(self.dir(), &name);
            let state = self.find(&files).await?;
            if matches!((query, &state), (Query::Glob(_), LockState::Free)) {
                // A writer may have removed the other files since these readers died.
                self.record_all_dead(Readers::of(&files).dead);
            }
            infos.extend(self.info(query, &name, state));
        }
        infos.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(infos)
    }

    /// The file names to check: those of the given keys, or all names in the directory.
    fn names(&self, query: &Query) -> Result<BTreeSet<String>, Fault> {
        match query {
            Query::Key(key) => return Ok([name::encode(key.as_str())].into()),
            Query::Keys(keys) => {
                return Ok(keys.iter().map(|key| name::encode(key.as_str())).collect());
            }
            Query::Glob(_) => {}
        }
        let entries = match std::fs::read_dir(self.dir()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries.map_err(|error| fault("read lock directory", self.dir(), error))?,
        };
        Ok(entries.flatten().filter_map(|entry| stem(entry.file_name().to_str()?)).collect())
    }

    fn info(&self, query: &Query, name: &str, state: LockState) -> Option<LockInfo> {
        let found = match state {
            LockState::Free => return None,
            LockState::Taken(found) => found,
            LockState::Read(readers) => return self.readers_info(query, &readers),
        };
        let key = match (query, &found) {
            (Query::Key(key), _) => key.clone(),
            (_, Found::Record(record)) => Key::new(&record.key).ok()?,
            _ => Key::new(&name::decode(name)).ok()?,
        };
        let holding = match &found {
            Found::Record(record) => record.holding(&self.clock),
            found => Holding::new(found.holder(&self.clock), None, None),
        };
        query.matches(key.as_str()).then(|| LockInfo::new(key, vec![holding], None))
    }

    fn readers_info(&self, query: &Query, readers: &[Record]) -> Option<LockInfo> {
        let key = Key::new(&readers.first()?.key).ok()?;
        let holding = |record: &Record| record.holding(&self.clock).mode(Mode::Read, None);
        let holders = readers.iter().map(holding).collect();
        query.matches(key.as_str()).then(|| LockInfo::new(key, holders, None))
    }

    /// Checks until the state is consistent. A held lock without a record is being acquired or released,
    /// unless a foreign program holds it.
    async fn find(&self, files: &Files) -> Result<LockState, Fault> {
        for _ in 1..SETTLE_TRIES {
            match self.find_now(files)? {
                LockState::Taken(Found::Nothing) => tokio::time::sleep(SETTLE_PAUSE).await,
                found => return Ok(found),
            }
        }
        self.find_now(files)
    }

    fn find_now(&self, files: &Files) -> Result<LockState, Fault> {
        if !files.exist() {
            return Ok(LockState::Free);
        }
        let Some(locked) = files.try_lock(LockKind::Exclusive)? else {
            return Ok(self.held(files));
        };
        // Read the record with the lock held: an earlier read may show that of another holder.
        let found = Record::find(files);
        let stays = match &found {
            Ok(Found::Nothing) => false,
            Ok(Found::Record(record)) => record.closed_rest(&self.clock).is_some(),
            Ok(Found::Newer) | Err(_) => true,
        };
        if stays {
            locked.unlock();
            return found.map(LockState::Taken);
        }
        // A release removes the record first, so the process of this record ended without a release.
        let record = found.ok().and_then(Found::record);
        let held = record.iter().filter(|record| !record.is_closed()).map(|record| record.token);
        self.record_all_dead(held.chain(Readers::of(files).dead));
        clear(locked);
        Ok(LockState::Free)
    }

    fn record_all_dead(&self, tokens: impl IntoIterator<Item = Token>) {
        tokens.into_iter().for_each(|token| self.state().record_dead(token));
    }

    /// Who has a lock that the kernel keeps.
    fn held(&self, files: &Files) -> LockState {
        match Record::find(files).unwrap_or(Found::Nothing) {
            Found::Nothing => {}
            found => return LockState::Taken(found),
        }
        let readers = Readers::of(files);
        self.record_all_dead(readers.dead);
        match readers.alive.is_empty() {
            true => LockState::Taken(Found::Nothing),
            false => LockState::Read(readers.alive),
        }
    }

    pub(super) async fn force_release(&self, key: &Key, seen: Token) -> Result<Release, Fault> {
        let files = self.files(key);
        match self.find(&files).await? {
            LockState::Free => Ok(Release::NotHeld),
            LockState::Read(readers) => {
                let reader = readers.iter().find(|record| record.token == seen);
                reader.map_or(Ok(Release::NotHeld), |record| Err(unsupported(&record.culprit())))
            }
            LockState::Taken(Found::Newer) => Err(Record::newer(&files)),
            LockState::Taken(Found::Nothing) => {
                Err(unsupported(&format!("end the one that has `{}` locked", files.lock.display())))
            }
            LockState::Taken(Found::Record(record)) if record.token != seen => Ok(Release::NotHeld),
            LockState::Taken(Found::Record(record)) => match record.closed_rest(&self.clock) {
                Some(_) => self.open_early(&files, seen),
                None => Err(unsupported(&record.culprit())),
            },
        }
    }

    /// Opens a lock that is only kept closed: it has no process to end.
    fn open_early(&self, files: &Files, seen: Token) -> Result<Release, Fault> {
        let Some(locked) = files.try_lock(LockKind::Exclusive)? else {
            return Ok(Release::NotHeld);
        };
        match Record::read(files) {
            Found::Record(record) if record.token == seen => clear(locked),
            _ => return Ok(Release::NotHeld),
        }
        Ok(Release::Freed)
    }
}

fn unsupported(whom: &str) -> Fault {
    Fault::new(FaultKind::Unsupported, format!("a file lock ends with its process: {whom}"))
}

/// Removes the leftovers of a dead process, or what kept a lock closed.
fn clear(locked: Locked) {
    let _ = std::fs::remove_file(&locked.files.draft);
    let _ = std::fs::remove_file(&locked.files.record);
    locked.give_back();
}

/// The part of a file name that names a lock.
fn stem(file: &str) -> Option<String> {
    let of_reader = || file.split_once(READER).map(|(name, _)| name);
    SUFFIXES.iter().find_map(|suffix| file.strip_suffix(suffix)).or_else(of_reader).map(Into::into)
}

impl Files {
    /// Whether any of the files exists. Used first, because a check must not create any.
    fn exist(&self) -> bool {
        let all = [&self.lock, &self.record, &self.draft, &self.wait];
        all.into_iter().any(|path| path.symlink_metadata().is_ok())
    }
}
