//! Releases a lock at the node that owns its slot, and again at the node that takes over.
//!
//! In: a lease or a claim. Out: whether the lock was released. A slot may move meanwhile, so the answers of all
//! nodes that were asked count together. Recent releases are logged with the owner of their slot; the next
//! owner gets them again. See `single/release_log.rs`, which does this for a single server.

use std::sync::Arc;

use tenure_core::backend::{AfterRelease, Fault, FaultKind, Release};
use tenure_core::{Claim, Key, Lease, Token};

use super::Shared;
use super::redirect::{RedirectLoop, Verdict};
use super::topology::SlotOwner;
use crate::single::LoggedRelease;

impl Shared {
    /// A release that an earlier owner of the slot carried out counts, even if the next owner replies
    /// `NotHeld`.
    pub(super) async fn release(
        &self,
        lease: &Lease,
        then: AfterRelease,
    ) -> Result<Release, Fault> {
        let (mut hops, mut before) =
            (RedirectLoop::new(self, lease.claim().key()), EarlierAnswers::Nothing);
        let mailbox = self.nodes.forget(lease.claim().token());
        loop {
            let owner = hops.next().await?;
            let answer =
                owner.locks().releaser.release_unlogged(mailbox.as_deref(), lease, then).await;
            match hops.on_answer(&owner, answer).await {
                Verdict::Counts(answer) => {
                    if matches!(answer, Ok(Release::Freed)) && then == AfterRelease::Free {
                        self.log(lease.claim(), &owner);
                    }
                    return before.and(answer);
                }
                Verdict::Moved(answer) => before.add(answer),
            }
        }
    }

    pub(super) async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.nodes.forget(claim.token());
        if !claim.was_sent() {
            return Ok(());
        }
        let mut hops = RedirectLoop::new(self, claim.key());
        loop {
            let owner = hops.next().await?;
            let answer = owner.locks().releaser.abandon(claim).await;
            if let Verdict::Counts(answer) = hops.on_answer(&owner, answer).await {
                if answer.is_ok() {
                    self.log(claim, &owner);
                }
                return answer;
            }
        }
    }

    pub(super) async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        let (mut hops, mut before) = (RedirectLoop::new(self, key), EarlierAnswers::Nothing);
        loop {
            let owner = hops.next().await?;
            let answer = owner.locks().inspector.force_release(key, seen, by).await;
            match hops.on_answer(&owner, answer).await {
                Verdict::Counts(answer) => return before.and(answer),
                Verdict::Moved(answer) => before.add(answer),
            }
        }
    }

    fn log(&self, claim: &Arc<Claim>, owner: &SlotOwner) {
        self.releases.add(claim, self.nodes.clock.now(), owner.changes());
    }

    /// Repeats the releases that an earlier owner of the slot carried out; those that fail are retried next
    /// time.
    pub(super) async fn replay_releases(&self) {
        let earlier = |done: &LoggedRelease| {
            !self.nodes.is_owner_epoch(self.keys.slot(done.claim().key()), done.epoch())
        };
        let mut shares: Vec<(SlotOwner, Vec<LoggedRelease>)> = Vec::new();
        for done in self.releases.drain_if(self.nodes.clock.now(), earlier) {
            let Some(owner) = self.nodes.owner_now(self.keys.slot(done.claim().key())) else {
                self.releases.put_back(&[done]);
                continue;
            };
            match shares.iter_mut().find(|(known, _)| Arc::ptr_eq(&known.node, &owner.node)) {
                Some((_, share)) => share.push(done),
                None => shares.push((owner, vec![done])),
            }
        }
        for (owner, share) in shares {
            if let Err(error) = owner.locks().releaser.release_all(&share).await {
                tracing::debug!(%error, "releases are repeated later");
                self.releases.put_back(&share);
            }
        }
    }
}

/// How earlier owners of a slot have answered a release.
enum EarlierAnswers {
    Nothing,
    /// The release may have been carried out.
    Unknown(Fault),
    Freed,
}

impl EarlierAnswers {
    fn add(&mut self, answer: Result<Release, Fault>) {
        match (&self, answer) {
            (_, Ok(Release::Freed)) => *self = EarlierAnswers::Freed,
            (EarlierAnswers::Nothing, Err(fault)) if fault.kind() == FaultKind::Unknown => {
                *self = EarlierAnswers::Unknown(fault);
            }
            _ => {}
        }
    }

    /// Combines them with the last answer: `NotHeld` means little if an earlier owner freed the lock.
    fn and(self, last: Result<Release, Fault>) -> Result<Release, Fault> {
        match (self, last) {
            (EarlierAnswers::Freed, Ok(Release::NotHeld)) => Ok(Release::Freed),
            (EarlierAnswers::Unknown(fault), Ok(Release::NotHeld)) => Err(fault),
            (_, last) => last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind) -> Result<Release, Fault> {
        Err(Fault::new(kind, "x"))
    }

    /// If an earlier node carried the release out, it counts. If one may have, the result is unknown.
    #[test]
    fn t36_a_release_at_several_nodes() {
        let came_to = |before: Vec<Result<Release, Fault>>| {
            let mut all = EarlierAnswers::Nothing;
            before.into_iter().for_each(|one| all.add(one));
            all.and(Ok(Release::NotHeld)).map_err(|fault| fault.kind())
        };
        let (unknown, not) = (FaultKind::Unknown, FaultKind::Unavailable);
        assert_eq!(came_to(vec![]), Ok(Release::NotHeld));
        assert_eq!(came_to(vec![fault(not)]), Ok(Release::NotHeld));
        assert_eq!(came_to(vec![fault(not), Ok(Release::Freed)]), Ok(Release::Freed));
        assert_eq!(came_to(vec![fault(unknown), fault(not)]), Err(unknown));
        assert_eq!(came_to(vec![fault(unknown), Ok(Release::Freed)]), Ok(Release::Freed));
    }
}
