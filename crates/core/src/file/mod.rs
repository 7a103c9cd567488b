//! Locks between the processes of one machine, kept by the kernel; no server needed.
//!
//! In: claims. Out: grants that last until they are released or the process ends.
//!
//! In reading order: `dir.rs` the directory, `name.rs` a key's file name, `files.rs` the kernel's lock and
//! **why exclusion holds**, `mark.rs` who waits, `record.rs` who holds, `count.rs` the fence, `state.rs` what
//! this process has to do with it, `wait.rs` waiting, `heed.rs` noticing others, `look.rs` inspection.
//!
//! Per lock there are `<name>.lock`, `<name>.json` and, while somebody waits, `<name>.wait`; they go with the
//! release. `fence` stays. File-system calls take microseconds and are made where they are needed; only the wait
//! for a lock, which has no bound, has a thread.
//!
//! Absent on purpose: expiry (the kernel frees a dead process's lock), order among processes (the kernel has none),
//! permits and shared owners.

mod count;
mod dir;
mod files;
mod heed;
mod look;
mod mark;
mod name;
mod record;
mod state;
#[cfg(all(test, unix))]
mod tests;
mod wait;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use dir::default_dir;

use record::Record;
use state::{Held, Shared};

use crate::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fault, FaultKind, Grant, LockInfo, Loss,
    Notices, Query, Release, Renewal, Term, Then,
};
use crate::claim::{Claim, Holder, Mode, Sight, Token};
use crate::error::Error;
use crate::fence::Fence;
use crate::key::Key;
use crate::lease::Lease;
use crate::time::{Clock, Time};

/// How often to look at a lock that is taken, but whose holder has not written its record yet or is
/// not alive any more: somebody is about to finish taking it, or giving it back.
const SETTLE_TRIES: u32 = 10;
/// How long to wait in between; taking and giving back need a tenth of it.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// Locks in a directory, between the processes of one machine.
///
/// The kernel keeps them: a lock ends with its release or with the process that holds it, however
/// that ends, and has no ttl. Processes get their turn in no particular order.
///
/// The directory must belong to the user, be writable to nobody else, and not be on a network file
/// system. Cheap to clone; the locks end when the last clone goes.
///
/// ```
/// use tenure_core::FileLocks;
///
/// let dir = std::env::temp_dir().join(format!("tenure-doc-{}", std::process::id()));
/// let locks = FileLocks::open(&dir)?;
/// assert_eq!(locks.dir(), dir);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), tenure_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FileLocks {
    shared: Arc<Shared>,
}

/// How far a claim got.
enum Step {
    Granted(Grant),
    /// By another; `None` if it did not say who it is.
    Held(Option<Box<Record>>),
    /// Nobody holds it, and nobody may until then.
    Closed(Holder, Time),
}

impl FileLocks {
    /// The locks in `dir`, which is made if it is missing (but not its parents).
    ///
    /// # Errors
    ///
    /// [`is_refused`](Error::is_refused) if the directory cannot be made, or cannot be trusted: it is a link,
    /// belongs to another user, can be written to by others, or is on a network file system.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_clock(dir.as_ref(), Clock::system()).map_err(|fault| Error::backend(None, fault))
    }

    fn with_clock(dir: &Path, clock: Clock) -> Result<Self, Fault> {
        let dir = dir::absolute(dir)?;
        dir::prepare(&dir)?;
        Ok(FileLocks { shared: Arc::new(Shared::new(dir, clock)) })
    }

    /// Where the locks are.
    pub fn dir(&self) -> &Path {
        self.shared.dir()
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.check(claim)?;
        for _ in 1..SETTLE_TRIES {
            match self.step(claim).await? {
                Step::Held(record) if !record.as_deref().is_some_and(Record::is_alive) => {
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                step => return Ok(self.answer(step)),
            }
        }
        Ok(self.answer(self.step(claim).await?))
    }

    fn answer(&self, step: Step) -> Attempt {
        match step {
            Step::Granted(grant) => Attempt::Granted(grant),
            Step::Held(record) => Attempt::Held(Box::new(self.holder(record))),
            Step::Closed(holder, _) => Attempt::Held(Box::new(holder)),
        }
    }

    fn holder(&self, record: Option<Box<Record>>) -> Holder {
        record.map_or_else(Holder::unknown, |record| record.holder(&self.shared.clock))
    }

    async fn wait(&self, claim: &Claim) -> Result<Grant, Fault> {
        self.check(claim)?;
        self.shared.let_others(claim.key()).await;
        loop {
            match self.step(claim).await? {
                Step::Granted(grant) => return Ok(grant),
                Step::Held(record) => {
                    claim.saw(Sight::of(self.holder(record), None));
                    self.shared.in_turn(claim).await?;
                }
                Step::Closed(holder, until) => {
                    claim.saw(Sight::of(holder, None));
                    self.shared.clock.sleep_until(until).await;
                }
            }
        }
    }

    /// Takes the lock if it is free, and makes a grant of it if we have it.
    async fn step(&self, claim: &Claim) -> Result<Step, Fault> {
        let (token, files) = (claim.token(), self.shared.files(claim.key()));
        if !self.is_known(token) {
            match files.try_lock()? {
                Some(locked) => self.shared.won(claim.key(), token, locked),
                None => return Ok(Step::Held(Record::read(&files))),
            }
        }
        match self.has(token) {
            true => self.settle(claim).await,
            false => Ok(Step::Held(Record::read(&files))),
        }
    }

    fn is_known(&self, token: Token) -> bool {
        let state = self.shared.state();
        state.held.contains_key(&token) || state.tickets.contains_key(&token)
    }

    fn has(&self, token: Token) -> bool {
        self.shared.state().held.contains_key(&token)
    }

    /// Makes a grant of the kernel's lock, or gives it back. Dropped half-way it can be called again;
    /// the lock is noted under the claim all the while, so `abandon` finds it.
    async fn settle(&self, claim: &Claim) -> Result<Step, Fault> {
        self.shared.state().leave(claim.token());
        if let Some(closed) = self.closed(claim) {
            self.shared.take_out(claim.token()).into_iter().for_each(|held| held.locked.unlock());
            return Ok(closed);
        }
        let granted = self.complete(claim).await;
        if granted.is_err() {
            let held = self.shared.take_out(claim.token());
            held.into_iter().for_each(|held| self.shared.give_back(held));
        }
        granted.map(Step::Granted)
    }

    /// Whether the last holder left the lock closed.
    fn closed(&self, claim: &Claim) -> Option<Step> {
        let clock = &self.shared.clock;
        let record = Record::read(&self.shared.files(claim.key()))?;
        let until = clock.now().after(record.closed_rest(clock)?);
        Some(Step::Closed(record.holder(clock), until))
    }

    async fn complete(&self, claim: &Claim) -> Result<Grant, Fault> {
        if let Some(grant) = self.granted(claim.token()) {
            return Ok(grant);
        }
        let number = self.shared.count.next().await?;
        let mut state = self.shared.state();
        let held = state.held.get_mut(&claim.token()).ok_or_else(wait::abandoned)?;
        Record::of(claim, Fence::from_server(number)).write(&held.locked.files)?;
        let contended = mark::others_wait(&held.locked.files.wait);
        let grant = Grant::new(number, Term::Endless).contended(contended);
        held.grant = Some(grant);
        Ok(grant)
    }

    fn granted(&self, token: Token) -> Option<Grant> {
        self.shared.state().held.get(&token).and_then(|held| held.grant)
    }

    fn check(&self, claim: &Claim) -> Result<(), Fault> {
        let flaw = match claim.mode() {
            Mode::Permits { .. } => "file locks are exclusive: they have no permits",
            Mode::Exclusive if claim.shared_owner().is_some() => {
                "file locks belong to one process: they have no shared owners"
            }
            Mode::Exclusive if self.shared.pid != std::process::id() => {
                return Err(Fault::new(FaultKind::Invalid, FORKED));
            }
            Mode::Exclusive => return Ok(()),
        };
        Err(Fault::new(FaultKind::Unsupported, flaw))
    }

    fn renew_one(&self, token: Token) -> Renewal {
        let mut state = self.shared.state();
        let Some(held) = state.held.get(&token) else { return Renewal::Lost(Loss::Gone) };
        match held.locked.is_current() {
            Ok(true) => {
                held.locked.touch();
                let contended = mark::others_wait(&held.locked.files.wait);
                Renewal::Renewed { term: Term::Endless, contended }
            }
            Ok(false) => {
                state.held.remove(&token).into_iter().for_each(|held| held.locked.unlock());
                Renewal::Lost(Loss::Gone)
            }
            Err(fault) => Renewal::Unknown(fault),
        }
    }

    fn end(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
        let token = lease.claim().token();
        let Some(held) = self.shared.take_out(token) else { return Ok(Release::NotHeld) };
        match held.locked.is_current() {
            Ok(true) => self.end_held(lease, held, then).map(|()| Release::Freed),
            Ok(false) => {
                held.locked.unlock();
                Ok(Release::NotHeld)
            }
            Err(fault) => {
                self.shared.state().held.insert(token, held);
                Err(fault)
            }
        }
    }

    fn end_held(&self, lease: &Lease, held: Held, then: Then) -> Result<(), Fault> {
        match then {
            Then::Free => {
                self.shared.give_back(held);
                Ok(())
            }
            Then::Closed(span) => self.close_for(lease, held, span),
        }
    }

    /// Leaves the record in the lock's place. If it cannot be written, nothing was done: the lock is
    /// held as before, which is the safe side of closed.
    fn close_for(&self, lease: &Lease, held: Held, span: Duration) -> Result<(), Fault> {
        let (claim, files) = (lease.claim(), &held.locked.files);
        let record = Record::read(files).filter(|record| record.token == claim.token());
        let record = record.unwrap_or_else(|| Record::of(claim, lease.fence()).into());
        let written = record.closed_for(span, &self.shared.clock).write(files);
        match written {
            Ok(()) => held.locked.unlock(),
            Err(_) => drop(self.shared.state().held.insert(claim.token(), held)),
        }
        written
    }
}

/// Why a forked child cannot use what its parent opened.
const FORKED: &str = "the lock directory was opened by the process that forked this one";

impl Backend for FileLocks {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: false,
            expires: false,
            shared_owners: false,
            permits: false,
            adoptable: false,
            forcible: false,
            ..Capabilities::full("file")
        }
    }

    fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(self.attempt(claim))
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            for (index, lease) in leases.iter().enumerate() {
                answers(index, self.renew_one(lease.claim().token()));
            }
        })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(async move { self.end(lease, then) })
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let held = self.shared.withdraw(claim);
            held.into_iter().for_each(|held| self.shared.give_back(held));
            Ok(())
        })
    }

    fn heed(&self, lease: &Arc<Lease>) {
        self.shared.heed(lease.claim().token());
    }

    fn notices(&self) -> Notices {
        Notices::of(&self.shared.notices)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(self.shared.inspect(query))
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        _by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.force_release(key, seen))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        // There is no connection; what is held is released lease by lease.
        Box::pin(async {})
    }
}
