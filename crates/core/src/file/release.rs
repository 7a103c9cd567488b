//! Renewal and release.
//!
//! In: leases. Out: whether they are still held, and their end.

use std::time::Duration;

use super::record::Record;
use super::state::KernelHold;
use super::{FileLocks, waiter_mark};
use crate::fault::{Fault, Loss};
use crate::grant::{AfterRelease, Release, Renewal, Validity};
use crate::lease::Lease;

impl FileLocks {
    pub(super) fn renew_one(&self, lease: &Lease) -> Renewal {
        let (token, mut state) = (lease.claim().token(), self.shared.state());
        let Some(held) = state.held.get(&token) else { return Renewal::Lost(Loss::Gone) };
        match held.locked.is_current() {
            Ok(true) => {
                if let Err(fault) = show_new_label(lease, held) {
                    return Renewal::Unknown(fault);
                }
                held.locked.touch();
                let contended = waiter_mark::others_wait(&held.locked.files.wait);
                Renewal::Renewed { validity: Validity::Unbounded, contended }
            }
            Ok(false) => {
                state.held.remove(&token).into_iter().for_each(|held| held.locked.unlock());
                Renewal::Lost(Loss::Gone)
            }
            Err(fault) => Renewal::Unknown(fault),
        }
    }

    pub(super) fn end(&self, lease: &Lease, then: AfterRelease) -> Result<Release, Fault> {
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

    fn end_held(&self, lease: &Lease, held: KernelHold, then: AfterRelease) -> Result<(), Fault> {
        match then {
            AfterRelease::Cooldown(span) if !span.is_zero() => self.close_for(lease, held, span),
            AfterRelease::Free | AfterRelease::Cooldown(_) => {
                self.shared.give_back(held);
                Ok(())
            }
        }
    }

    /// Replaces the lock by a record that keeps it closed. If the record cannot be written, nothing changes:
    /// the lock stays held, which also keeps others out.
    fn close_for(&self, lease: &Lease, mut held: KernelHold, span: Duration) -> Result<(), Fault> {
        let (claim, files) = (lease.claim(), &held.locked.files);
        let record = Record::read(files).record().filter(|record| record.token == claim.token());
        let record = record.unwrap_or_else(|| Record::of(claim, lease.fence()).into());
        let written = held.locked.close(&record.closed_for(span, &self.shared.clock));
        match written {
            Ok(()) => held.locked.unlock(),
            Err(_) => drop(self.shared.state().held.insert(claim.token(), held)),
        }
        written
    }
}

/// Writes the record of a held lock again, if the label of its claim was changed since.
fn show_new_label(lease: &Lease, held: &KernelHold) -> Result<(), Fault> {
    if lease.claim().new_label().is_none() {
        return Ok(());
    }
    let (claim, files) = (lease.claim(), &held.locked.files);
    let record = Record::read(files).record().filter(|record| record.token == claim.token());
    let record = record.unwrap_or_else(|| Record::of(claim, lease.fence()).into());
    record.relabelled(claim).map_or(Ok(()), |record| record.write(files))
}
