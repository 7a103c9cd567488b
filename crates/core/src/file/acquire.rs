//! From a claim to a grant.
//!
//! In: a claim. Out: a grant, with its fence and its record; or the present holder.
//!
//! The kernel's lock is stored under the claim's token before anything else happens. So `abandon` finds it,
//! no matter what interrupts the rest (a dropped future, a full disk).

use std::time::Duration;

use super::files::LockKind;
use super::record::{Found, Record};
use super::writer_mark::WritersAhead;
use super::{FileLocks, wait, waiter_mark};
use crate::claim::Claim;
use crate::fault::Fault;
use crate::fence::Fence;
use crate::grant::{Attempt, Grant, Validity};
use crate::holder::{Holder, WaitStatus};
use crate::mode::Mode;
use crate::time::Time;
use crate::token::Token;

/// How often to check a lock that is locked while its record is missing or names a dead process. Another
/// process is then in the middle of acquiring or releasing it.
pub(super) const SETTLE_TRIES: u32 = 10;
/// The pause between these checks; acquiring and releasing need a tenth of it.
pub(super) const SETTLE_PAUSE: Duration = Duration::from_millis(1);
/// How often a waiter checks a closed lock: an operator may open it early, and waiters are not notified of
/// that.
const LOOK_AT_CLOSED: Duration = Duration::from_secs(1);

/// The result of one step of a claim.
pub(super) enum FileAttempt {
    Granted(Grant),
    /// Held by another claim; its record, if it has been written.
    Held(Found),
    /// Free, but closed until that time.
    Closed(Holder, Time),
}

impl FileLocks {
    pub(super) async fn attempt(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.check(claim)?;
        let files = self.shared.files(claim.key());
        if *claim.mode() == Mode::Read && WritersAhead::of(&files.want).is_some() {
            return Ok(self.answer(FileAttempt::Held(Record::read(&files))));
        }
        for _ in 1..SETTLE_TRIES {
            match self.step(claim).await? {
                FileAttempt::Held(record) if !record.is_alive() => {
                    tokio::time::sleep(SETTLE_PAUSE).await;
                }
                step => return Ok(self.answer(step)),
            }
        }
        Ok(self.answer(self.step(claim).await?))
    }

    fn answer(&self, step: FileAttempt) -> Attempt {
        match step {
            FileAttempt::Granted(grant) => Attempt::Granted(grant),
            FileAttempt::Held(record) => Attempt::Held(Box::new(record.holder(&self.shared.clock))),
            FileAttempt::Closed(holder, _) => Attempt::Held(Box::new(holder)),
        }
    }

    pub(super) async fn wait(&self, claim: &Claim) -> Result<Grant, Fault> {
        self.check(claim)?;
        self.shared.yield_to_others(claim.key()).await;
        if *claim.mode() == Mode::Read {
            self.shared.wait_behind_writers(claim).await;
        }
        loop {
            match self.step(claim).await? {
                FileAttempt::Granted(grant) => return Ok(grant),
                FileAttempt::Held(record) => {
                    claim.report_wait(WaitStatus::of(record.holder(&self.shared.clock), None));
                    self.shared.in_turn(claim).await?;
                }
                FileAttempt::Closed(holder, until) => {
                    claim.report_wait(WaitStatus::of(holder, None));
                    let clock = &self.shared.clock;
                    clock.sleep_until(until.min(clock.now().after(LOOK_AT_CLOSED))).await;
                }
            }
        }
    }

    /// Locks the file if it is free, and completes the grant if this claim has the lock.
    pub(super) async fn step(&self, claim: &Claim) -> Result<FileAttempt, Fault> {
        let (token, files) = (claim.token(), self.shared.files(claim.key()));
        if !self.is_known(token) {
            match files.try_lock(LockKind::of(claim.mode()))? {
                Some(locked) => self.shared.won(claim.key(), token, locked),
                None => return Ok(FileAttempt::Held(Record::read(&files))),
            }
        }
        match self.has(token) {
            true => self.finish(claim).await,
            false => Ok(FileAttempt::Held(Record::read(&files))),
        }
    }

    fn is_known(&self, token: Token) -> bool {
        let state = self.shared.state();
        state.held.contains_key(&token) || state.tickets.contains_key(&token)
    }

    pub(super) fn has(&self, token: Token) -> bool {
        self.shared.state().held.contains_key(&token)
    }

    /// Completes the grant, or releases the kernel's lock. If the future is dropped, it can be called again.
    /// The lock is stored under the claim all the time, so `abandon` finds it.
    async fn finish(&self, claim: &Claim) -> Result<FileAttempt, Fault> {
        self.shared.state().served(claim.token());
        let closed = self.closed(claim).transpose();
        if let Some(closed) = closed {
            self.shared.take_out(claim.token()).into_iter().for_each(|held| held.locked.unlock());
            return closed;
        }
        let granted = self.complete(claim).await;
        if granted.is_err() {
            let held = self.shared.take_out(claim.token());
            held.into_iter().for_each(|held| self.shared.give_back(held));
        }
        granted.map(FileAttempt::Granted)
    }

    /// The closed state, if the last holder left the lock closed.
    fn closed(&self, claim: &Claim) -> Result<Option<FileAttempt>, Fault> {
        let (clock, files) = (&self.shared.clock, self.shared.files(claim.key()));
        let record = match Record::find(&files)? {
            Found::Nothing => return Ok(None),
            Found::Record(record) => record,
            Found::Newer => return Err(Record::newer(&files)),
        };
        let rest = record.closed_rest(clock);
        Ok(rest.map(|rest| FileAttempt::Closed(record.holder(clock), clock.now().after(rest))))
    }

    async fn complete(&self, claim: &Claim) -> Result<Grant, Fault> {
        if let Some(grant) = self.granted(claim.token()) {
            return Ok(grant);
        }
        let number = self.shared.count.next().await?;
        let mut state = self.shared.state();
        let held = state.held.get_mut(&claim.token()).ok_or_else(wait::abandoned)?;
        held.locked.describe(&Record::of(claim, Fence::from_server(number)))?;
        let contended = waiter_mark::others_wait(&held.locked.files.wait);
        let grant = Grant::new(number, Validity::Unbounded).contended(contended);
        held.grant = Some(grant);
        Ok(grant)
    }

    fn granted(&self, token: Token) -> Option<Grant> {
        self.shared.state().held.get(&token).and_then(|held| held.grant)
    }
}
