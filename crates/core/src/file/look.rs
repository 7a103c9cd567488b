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
use super::record::{Found, Record};
use super::state::Shared;
use super::take::{SETTLE_PAUSE, SETTLE_TRIES};
use crate::backend::{Fault, FaultKind, Holding, LockInfo, Query, Release};
use crate::claim::Token;
use crate::key::Key;

/// What is found in a lock's place.
enum Place {
    Free,
    /// Held or closed, with its record.
    Taken(Found),
}

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        let mut infos = Vec::new();
        for name in self.names(query)? {
            let files = Files::named(self.dir(), &name);
            let place = self.find(&files).await?;
            infos.extend(self.info(query, &name, place));
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

    fn info(&self, query: &Query, name: &str, place: Place) -> Option<LockInfo> {
        let Place::Taken(found) = place else { return None };
        let key = match (query, &found) {
            (Query::Key(key), _) => key.clone(),
            (_, Found::Record(record)) => Key::new(&record.key).ok()?,
            _ => Key::new(&name::decode(name)).ok()?,
        };
        let holding = match &found {
            Found::Record(record) => record.holding(&self.clock),
            found => Holding::new(found.holder(&self.clock), None, None),
        };
        query.matches(key.as_str()).then(|| LockInfo::exclusive(key, vec![holding], None))
    }

    /// Looks until what is there makes sense: a lock without a record is on its way to one, or to
    /// its end, unless a program that is not ours has it.
    async fn find(&self, files: &Files) -> Result<Place, Fault> {
        for _ in 1..SETTLE_TRIES {
            match self.find_now(files)? {
                Place::Taken(Found::Nothing) => tokio::time::sleep(SETTLE_PAUSE).await,
                found => return Ok(found),
            }
        }
        self.find_now(files)
    }

    fn find_now(&self, files: &Files) -> Result<Place, Fault> {
        if !files.exist() {
            return Ok(Place::Free);
        }
        let Some(locked) = files.try_lock()? else { return Ok(Place::Taken(Record::read(files))) };
        // Read under the lock: what was there before it may have been another's.
        let found = Record::find(files);
        let stays = match &found {
            Ok(Found::Nothing) => false,
            Ok(Found::Record(record)) => record.closed_rest(&self.clock).is_some(),
            Ok(Found::Newer) | Err(_) => true,
        };
        if stays {
            locked.unlock();
            return found.map(Place::Taken);
        }
        // Who gives a lock back removes its record first: this one's process ended.
        let record = found.ok().and_then(Found::record);
        let held = record.iter().filter(|record| !record.is_closed());
        held.for_each(|record| self.state().bury(record.token));
        clear(locked);
        Ok(Place::Free)
    }

    pub(super) async fn force_release(&self, key: &Key, seen: Token) -> Result<Release, Fault> {
        let files = self.files(key);
        match self.find(&files).await? {
            Place::Free => Ok(Release::NotHeld),
            Place::Taken(Found::Newer) => Err(Record::newer(&files)),
            Place::Taken(Found::Nothing) => {
                Err(unsupported(&format!("end the one that has `{}` locked", files.lock.display())))
            }
            Place::Taken(Found::Record(record)) if record.token != seen => Ok(Release::NotHeld),
            Place::Taken(Found::Record(record)) => match record.closed_rest(&self.clock) {
                Some(_) => self.open_early(&files, seen),
                None => Err(unsupported(&record.culprit())),
            },
        }
    }

    /// A lock that is only kept closed has no process to end, and can be opened.
    fn open_early(&self, files: &Files, seen: Token) -> Result<Release, Fault> {
        let Some(locked) = files.try_lock()? else { return Ok(Release::NotHeld) };
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
