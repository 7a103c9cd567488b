//! Who holds what: for people, and for those who clear up after dead processes.
//!
//! In: a [`Query`]. Out: the locks that are held or closed, and a directory without leftovers.
//!
//! Whether a lock is held is asked of the kernel, never of a process id: ids are used again, and a
//! forked child can hold what its parent took. Asking does nothing to a lock that is held. One that
//! is not is ours for that moment, and only then its leftovers are removed.

use std::collections::BTreeSet;
use std::io;

use super::files::{Files, Locked, SUFFIXES, fault};
use super::name;
use super::record::Record;
use super::state::Shared;
use super::take::{SETTLE_PAUSE, SETTLE_TRIES};
use crate::backend::{Fault, FaultKind, Holding, LockInfo, Query, Release};
use crate::claim::{Holder, Token};
use crate::key::Key;

/// What is found in a lock's place.
enum Found {
    Free,
    Held(Option<Box<Record>>),
}

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        let mut infos = Vec::new();
        for name in self.names(query)? {
            let files = Files::named(self.dir(), &name);
            let found = self.find(&files).await?;
            infos.extend(self.info(query, &name, found));
        }
        infos.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(infos)
    }

    /// The names of the files to look at: one, or all there are.
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

    fn info(&self, query: &Query, name: &str, found: Found) -> Option<LockInfo> {
        let Found::Held(record) = found else { return None };
        let key = match (query, &record) {
            (Query::Key(key), _) => key.clone(),
            (_, Some(record)) => Key::new(&record.key).ok()?,
            (_, None) => Key::new(&name::decode(name)).ok()?,
        };
        let holding = record.map(|record| record.holding(&self.clock));
        let holding = holding.unwrap_or_else(|| Holding::new(Holder::unknown(), None, None));
        query.matches(key.as_str()).then(|| LockInfo::exclusive(key, vec![holding], None))
    }

    /// Looks until what is there makes sense: a lock without a record is on its way to one, or to
    /// its end, unless a program that is not ours has it.
    async fn find(&self, files: &Files) -> Result<Found, Fault> {
        for _ in 1..SETTLE_TRIES {
            match self.find_now(files)? {
                Found::Held(None) => tokio::time::sleep(SETTLE_PAUSE).await,
                found => return Ok(found),
            }
        }
        self.find_now(files)
    }

    fn find_now(&self, files: &Files) -> Result<Found, Fault> {
        if !files.exist() {
            return Ok(Found::Free);
        }
        let Some(locked) = files.try_lock()? else { return Ok(Found::Held(Record::read(files))) };
        // Read under the lock: what was there before it may have been another's.
        let record = Record::read(files);
        match record.as_ref().and_then(|record| record.closed_rest(&self.clock)) {
            Some(_) => locked.unlock(),
            None => {
                // Who gives a lock back removes its record first: this one's process ended.
                let held = record.iter().filter(|record| !record.is_closed());
                held.for_each(|record| self.state().bury(record.token));
                clear(locked);
            }
        }
        let closed = record.filter(|record| record.closed_rest(&self.clock).is_some());
        Ok(closed.map_or(Found::Free, |record| Found::Held(Some(record))))
    }

    pub(super) async fn force_release(&self, key: &Key, seen: Token) -> Result<Release, Fault> {
        let files = self.files(key);
        match self.find(&files).await? {
            Found::Free => Ok(Release::NotHeld),
            Found::Held(None) => {
                Err(unsupported(&format!("end the one that has `{}` locked", files.lock.display())))
            }
            Found::Held(Some(record)) if record.token != seen => Ok(Release::NotHeld),
            Found::Held(Some(record)) => match record.closed_rest(&self.clock) {
                Some(_) => self.open_early(&files, seen),
                None => Err(unsupported(&record.culprit())),
            },
        }
    }

    /// A lock that is only kept closed has no process to end, and can be opened.
    fn open_early(&self, files: &Files, seen: Token) -> Result<Release, Fault> {
        let Some(locked) = files.try_lock()? else { return Ok(Release::NotHeld) };
        match Record::read(files) {
            Some(record) if record.token == seen => clear(locked),
            _ => return Ok(Release::NotHeld),
        }
        Ok(Release::Freed)
    }
}

fn unsupported(whom: &str) -> Fault {
    Fault::new(FaultKind::Unsupported, format!("a file lock ends with its process: {whom}"))
}

/// Removes what a dead process left, also the draft that it had no time to finish.
fn clear(locked: Locked) {
    let _ = std::fs::remove_file(&locked.files.draft);
    locked.give_back();
}

/// The part of a file's name that names a lock.
fn stem(file: &str) -> Option<String> {
    SUFFIXES.iter().find_map(|suffix| file.strip_suffix(suffix)).map(Into::into)
}

impl Files {
    /// Whether any is there: a look must not make any.
    fn exist(&self) -> bool {
        let all = [&self.lock, &self.record, &self.draft, &self.wait];
        all.into_iter().any(|path| path.symlink_metadata().is_ok())
    }
}
