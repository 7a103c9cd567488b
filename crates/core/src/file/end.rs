//! From a grant to its end.
//!
//! In: leases. Out: whether they still hold, and that they do no more.

use std::time::Duration;

use super::record::Record;
use super::state::Held;
use super::{FileLocks, mark};
use crate::backend::{Fault, Loss, Release, Renewal, Term, Then};
use crate::claim::Token;
use crate::lease::Lease;

impl FileLocks {
    pub(super) fn renew_one(&self, token: Token) -> Renewal {
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

    pub(super) fn end(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
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
            Then::Closed(span) if !span.is_zero() => self.close_for(lease, held, span),
            Then::Free | Then::Closed(_) => {
                self.shared.give_back(held);
                Ok(())
            }
        }
    }

    /// Leaves the record in the lock's place. If it cannot be written, nothing was done: the lock is
    /// held as before, which is the safe side of closed.
    fn close_for(&self, lease: &Lease, held: Held, span: Duration) -> Result<(), Fault> {
        let (claim, files) = (lease.claim(), &held.locked.files);
        let record = Record::read(files).record().filter(|record| record.token == claim.token());
        let record = record.unwrap_or_else(|| Record::of(claim, lease.fence()).into());
        let written = record.closed_for(span, &self.shared.clock).write(files);
        match written {
            Ok(()) => held.locked.unlock(),
            Err(_) => drop(self.shared.state().held.insert(claim.token(), held)),
        }
        written
    }
}
