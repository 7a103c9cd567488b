//! From a claim to a grant.
//!
//! In: a claim. Out: a grant, with its fence and its record; or who is in the way.
//!
//! The kernel's lock is noted under the claim's token before anything else is done, so that whatever
//! happens half-way (a dropped future, a full disk), `abandon` finds it.

use std::time::Duration;

use super::record::{Found, Record};
use super::{FileLocks, mark, wait};
use crate::backend::{Attempt, Fault, Grant, Term};
use crate::claim::{Claim, Holder, Sight, Token};
use crate::fence::Fence;
use crate::time::Time;

/// How often to look at a lock that is taken, but whose holder has not written its record yet or is
/// not alive any more: somebody is about to finish taking it, or giving it back.
pub(super) const SETTLE_TRIES: u32 = 10;
/// How long to wait in between; taking and giving back need a tenth of it.
pub(super) const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// How far a claim got.
pub(super) enum Step {
    Granted(Grant),
    /// By another, if it has said who it is.
    Held(Found),
    /// Nobody holds it, and nobody may until then.
    Closed(Holder, Time),
}

impl FileLocks {
    pub(super) async fn attempt(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.check(claim)?;
        for _ in 1..SETTLE_TRIES {
            match self.step(claim).await? {
                Step::Held(record) if !record.is_alive() => {
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
            Step::Held(record) => Attempt::Held(Box::new(record.holder(&self.shared.clock))),
            Step::Closed(holder, _) => Attempt::Held(Box::new(holder)),
        }
    }

    pub(super) async fn wait(&self, claim: &Claim) -> Result<Grant, Fault> {
        self.check(claim)?;
        self.shared.let_others(claim.key()).await;
        loop {
            match self.step(claim).await? {
                Step::Granted(grant) => return Ok(grant),
                Step::Held(record) => {
                    claim.saw(Sight::of(record.holder(&self.shared.clock), None));
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
    pub(super) async fn step(&self, claim: &Claim) -> Result<Step, Fault> {
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

    pub(super) fn has(&self, token: Token) -> bool {
        self.shared.state().held.contains_key(&token)
    }

    /// Makes a grant of the kernel's lock, or gives it back. Dropped half-way it can be called again;
    /// the lock is noted under the claim all the while, so `abandon` finds it.
    async fn settle(&self, claim: &Claim) -> Result<Step, Fault> {
        self.shared.state().leave(claim.token());
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
        granted.map(Step::Granted)
    }

    /// Whether the last holder left the lock closed.
    fn closed(&self, claim: &Claim) -> Result<Option<Step>, Fault> {
        let (clock, files) = (&self.shared.clock, self.shared.files(claim.key()));
        let record = match Record::find(&files)? {
            Found::Nothing => return Ok(None),
            Found::Record(record) => record,
            Found::Newer => return Err(Record::newer(&files)),
        };
        let rest = record.closed_rest(clock);
        Ok(rest.map(|rest| Step::Closed(record.holder(clock), clock.now().after(rest))))
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
}
