//! Asking for a lock, once or until it is had.
//!
//! In: a claim. Out: a grant, or who or what is in the way.
//!
//! A claim that waits stands in the server's queue. It is told its turn by a push to our inbox, and
//! says that it is alive by asking again every so often, with the same token: which resolves an
//! attempt whose reply was lost, and finds out what no push told. Where none can come (no right to
//! listen, the inbox is down, a holder that is not one of ours) asking at `retry_interval` is all
//! there is.
//!
//! A push needs no confirmation if it is known to be of a grant that was made after our last
//! heartbeat was carried out: then the lease lasts at least as long as if it had been granted when that heartbeat
//! was sent. Fences tell: the heartbeat was answered with a stamp, which every later grant exceeds.
//! Any other push may be of a grant that has ended since; the next heartbeat finds out.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Attempt, Fault, Grant, Term};
use tenure_core::time::Time;
use tenure_core::{Claim, Sight};

use crate::backend::Shared;
use crate::inbox::{Push, Slot};
use crate::jitter::jittered;
use crate::link::Link;
use crate::scripts::{Asked, Bare, Freed, How, Run, Taken};
use crate::trouble::{Cause, Trouble};
use crate::value::Said;
use crate::witness::{self, Witness};

/// How many more intervals than one connect time-out an unreachable server is waited for.
pub(crate) const RETRIES_WHILE_DOWN: u32 = 5;
/// How long after the end of a lease to ask: the server drops it in the next whole millisecond.
pub(crate) const AFTER_END: Duration = Duration::from_millis(2);
/// Those who are not next ask a little later: the first to ask makes the server pass the lock on.
const AFTER_THE_NEXT: Duration = Duration::from_millis(20);
/// How often one that waits says that it is alive, at the least.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// For how many heartbeats it is believed: one may be late, one may be lost. And for long enough to
/// find out that one was lost, which takes the response time-out.
pub(crate) const HEARTBEATS_GOOD: u32 = 3;

/// How long after it came one that waits says so for the first time: until then its ticket tells. Scripts
/// know it as 128000/256 ms.
const SAYS_NOTHING: Duration = Duration::from_millis(500);

/// For how long one that hears us is believed after a heartbeat.
fn believed(response_timeout: Duration) -> Duration {
    (HEARTBEAT * HEARTBEATS_GOOD).max(HEARTBEAT * 2 + response_timeout)
}

/// For how long it is believed after it came.
pub(crate) fn believed_at_first(response_timeout: Duration) -> Duration {
    believed(response_timeout) + SAYS_NOTHING
}

/// A heartbeat that was answered with "you wait": when it was sent, and what it proves.
#[derive(Clone, Copy)]
struct Heartbeat {
    from: Time,
    /// Every grant after it has a higher fence.
    stamp: u64,
    turn: u64,
}

/// What asking came to.
enum Asking {
    Granted(Grant),
    /// Ask again after a pause, or when told.
    Wait(Duration, Option<Heartbeat>),
}

impl Shared {
    /// One attempt; "held by another" is an answer.
    pub(crate) async fn ask_once(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.refuse_unsupported(claim)?;
        match (self.ask_one_server(claim).await?, &self.witness) {
            (Attempt::Granted(grant), Some(witness)) => {
                let seen = Box::pin(self.witnessed(witness, claim, grant)).await;
                Ok(Attempt::Granted(seen?))
            }
            (attempt, _) => Ok(attempt),
        }
    }

    async fn ask_one_server(&self, claim: &Claim) -> Result<Attempt, Fault> {
        match self.take(claim).await {
            Ok(Some(grant)) => Ok(Attempt::Granted(grant)),
            Err(trouble) if trouble.cause() != Cause::Cut => Err(trouble.into()),
            // The full form finds out whether a request whose reply was lost has got it.
            Ok(None) | Err(_) => Box::pin(self.ask_once_in_full(claim)).await,
        }
    }

    async fn ask_once_in_full(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.sending(claim).await?;
        let from = self.clock.now();
        let run = Run::acquire(&self.keys, &self.author, claim, How::Not);
        match self.twice(claim.key(), &run).await? {
            Asked::Granted { fence, contended } => {
                Ok(Attempt::Granted(self.grant(claim, from, fence, contended)))
            }
            Asked::Held { value, left } | Asked::Queued { value, left, .. } => {
                Ok(Attempt::Held(Box::new(Said::parse(&value).holder(Some(left)))))
            }
            refused => Err(self.refused(claim, &refused).into()),
        }
    }

    /// Waits until the lock is granted, or it is plain that waiting is of no use.
    pub(crate) async fn wait(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        match (self.take_first(claim).await?, &self.witness) {
            (Some(grant), None) => Ok(grant),
            // Boxed, as is all that is rare here: what is made for every lock is to be small.
            (taken, _) => Box::pin(self.go_on(claim, taken)).await,
        }
    }

    /// Takes it if it is plainly free.
    pub(crate) async fn take_first(&self, claim: &Arc<Claim>) -> Result<Option<Grant>, Fault> {
        self.refuse_unsupported(claim)?;
        self.inbox.listen_early();
        // One that waits already may stand in the queue, which the bare command would not leave.
        // Whatever else is wrong with it, the full form finds out.
        match self.inbox.desk().knows(claim.token()) {
            true => Ok(None),
            false => Ok(self.take(claim).await.unwrap_or_default()),
        }
    }

    /// Waits with what was taken first, if anything was.
    pub(crate) async fn go_on(
        &self,
        claim: &Arc<Claim>,
        taken: Option<Grant>,
    ) -> Result<Grant, Fault> {
        match (taken, &self.witness) {
            (Some(grant), None) => Ok(grant),
            (None, None) => self.wait_in_queue(claim).await,
            (taken, Some(witness)) => self.wait_for_all(witness, claim, taken).await,
        }
    }

    /// Whether a grant counts only when replicas have it.
    pub(crate) fn has_witness(&self) -> bool {
        self.witness.is_some()
    }

    /// Waits until it is granted and enough replicas know. What became of a grant that got lost on the
    /// way to them is found out by asking again.
    async fn wait_for_all(
        &self,
        witness: &Witness,
        claim: &Arc<Claim>,
        mut taken: Option<Grant>,
    ) -> Result<Grant, Fault> {
        loop {
            let grant = match taken.take() {
                Some(grant) => grant,
                None => self.wait_in_queue(claim).await?,
            };
            let trouble = match self.witnessed(witness, claim, grant).await {
                Ok(grant) => return Ok(grant),
                Err(trouble) if trouble.is_final() || trouble.cause() == Cause::TooFew => {
                    return Err(trouble.into());
                }
                Err(trouble) => trouble,
            };
            self.clock.sleep(self.see_trouble(claim, trouble, None)?).await;
        }
    }

    /// The grant, once enough replicas know of it; it is given back if they do not.
    async fn witnessed(
        &self,
        witness: &Witness,
        claim: &Claim,
        grant: Grant,
    ) -> Result<Grant, Trouble> {
        let run = Run::renew(&self.keys, claim, claim.ttl() + witness::MORE);
        // Before sending: it is renewed after this.
        let from = self.clock.now();
        let trouble = match witness.see(run, claim.ttl()).await {
            Ok(()) => {
                let term = Term::Lease { from, ttl: claim.ttl() };
                return Ok(Grant::new(grant.fence, term).contended(grant.contended));
            }
            Err(trouble) => trouble,
        };
        if trouble.cause() == Cause::TooFew {
            // If that fails too, the engine goes on giving it up.
            self.inbox.desk().forget(claim.token());
            let link = self.commands.of(claim.key());
            let _ = Run::release(&self.keys, &self.author, claim, None).on::<Freed>(link).await;
        }
        Err(trouble)
    }

    /// Asks, and asks again, standing in the queue where there is one.
    async fn wait_in_queue(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        let (slot, there) = (self.inbox.desk().expect(claim), self.keys.slot(claim.key()));
        let mut hearing = self.inbox.hearing(there);
        let (mut down_since, mut heartbeat, mut first) = (None, None, true);
        loop {
            // Each time: the runtime that it lives on may have ended.
            self.inbox.listen(there);
            hearing.begin();
            let from = self.clock.now();
            let pause = match self.ask(claim, &slot, from, mem::take(&mut first)).await {
                Ok(Asking::Granted(grant)) => return Ok(grant),
                Ok(Asking::Wait(pause, beat)) => {
                    (down_since, heartbeat) = (None, beat);
                    pause
                }
                Err(Stop::Fault(fault)) => return Err(fault),
                Err(Stop::Trouble(trouble)) => {
                    down_since = down_since.or(Some(from)).filter(|_| trouble.is_absence());
                    self.see_trouble(claim, trouble, down_since)?
                }
            };
            let told = pin!(async {
                tokio::select! {
                    biased;
                    push = slot.push() => Some(push),
                    () = hearing.changed() => None,
                }
            });
            let told = self.commands.of(claim.key()).bounds().within(pause, told).await;
            let push = told.flatten();
            if let Some(grant) = push.and_then(|push| self.believe(claim, push, heartbeat)) {
                return Ok(grant);
            }
        }
    }

    /// Asks, and stands in the queue if it must.
    async fn ask(
        &self,
        claim: &Claim,
        slot: &Slot,
        from: Time,
        first: bool,
    ) -> Result<Asking, Stop> {
        let hears = self.inbox.hears(self.keys.slot(claim.key()));
        let asked = match first && hears {
            true => self.stand(claim).await?,
            false => None,
        };
        let asked = match asked {
            Some(asked) => asked,
            None => {
                slot.asks_in_full();
                Box::pin(self.ask_in_full(claim, hears)).await?
            }
        };
        self.asked(claim, from, hears, asked)
    }

    /// Asks by the short form, which finds out only what is plain.
    async fn stand(&self, claim: &Claim) -> Result<Option<Asked>, Trouble> {
        if claim.shared_owner().is_some() || !claim.fenced() {
            return Ok(None);
        }
        let stand = || Run::stand(&self.keys, &self.author, claim);
        Run::once(stand, self.sending(claim).await?).await
    }

    async fn ask_in_full(&self, claim: &Claim, hears: bool) -> Result<Asked, Trouble> {
        let how = match hears {
            true => How::Told(believed(self.server.target().response_timeout())),
            false => How::Asks(HEARTBEAT.max(claim.retry_interval()) * HEARTBEATS_GOOD),
        };
        let run = Run::acquire(&self.keys, &self.author, claim, how);
        run.on(self.sending(claim).await?).await
    }

    /// What to do about the answer.
    fn asked(&self, claim: &Claim, from: Time, hears: bool, asked: Asked) -> Result<Asking, Stop> {
        let every = if hears { HEARTBEAT.min(claim.ttl() / 3) } else { claim.retry_interval() };
        match asked {
            Asked::Granted { fence, contended } => {
                Ok(Asking::Granted(self.grant(claim, from, fence, contended)))
            }
            Asked::Queued { value, left, place, stamp } => {
                self.calm().disturb(claim.key(), from);
                claim.saw(Sight::of(Said::parse(&value).holder(Some(left)), Some(place)));
                let end = left
                    + AFTER_END
                    + if place > 1 { jittered(AFTER_THE_NEXT) } else { Duration::ZERO };
                // One that was not to be told has left word of that, which asking clears away.
                let beat = hears.then(|| Heartbeat { from, stamp, turn: self.server.turn() });
                Ok(Asking::Wait(jittered(every).min(end), beat))
            }
            Asked::Held { value, left } => {
                self.calm().disturb(claim.key(), from);
                claim.saw(Sight::of(Said::parse(&value).holder(Some(left)), None));
                Ok(Asking::Wait(jittered(claim.retry_interval()).min(left + AFTER_END), None))
            }
            refused => Err(Stop::Fault(self.refused(claim, &refused).into())),
        }
    }

    /// The grant that a push tells of, if that can be relied on without asking.
    fn believe(&self, claim: &Claim, push: Push, heartbeat: Option<Heartbeat>) -> Option<Grant> {
        let Heartbeat { from, stamp, turn } = heartbeat?;
        let told_by_the_same = push.turn == Some(turn) && self.server.is_at(turn);
        let enough_left = self.clock.now() < from.after(claim.ttl() / 2);
        // One that will not be renewed is to have the whole of its ttl, which asking gives it.
        let later = push.fence > stamp && claim.fenced() && claim.renewed();
        (told_by_the_same && later && enough_left)
            .then(|| self.grant(claim, from, push.fence, push.contended))
    }

    /// The link for what asks for this claim. Without a connection nothing is sent, and so nothing has to
    /// be undone: a claim counts as sent once there is one.
    async fn sending(&self, claim: &Claim) -> Result<&Link, Trouble> {
        let link = self.commands.of(claim.key());
        if !claim.was_sent() {
            link.live().await?;
            claim.set_sent();
        }
        Ok(link)
    }

    /// Takes a lock that is plainly free, by the shortest request there is. `None` where there is more
    /// to it, or may be: the full form finds out.
    ///
    /// Without a fence that is the bare command, which does not look at the queue: where a holder
    /// died, it may come before those who wait.
    async fn take(&self, claim: &Claim) -> Result<Option<Grant>, Trouble> {
        let (key, from) = (claim.key(), self.clock.now());
        if claim.shared_owner().is_some() || !self.calm().is_calm(key, from) {
            return Ok(None);
        }
        let link = self.sending(claim).await?;
        let taken = match claim.fenced() {
            true => Run::once(|| Run::take(&self.keys, &self.author, claim), link).await?,
            false => match Run::once(|| Run::set(&self.keys, &self.author, claim), link).await? {
                Bare::Yes => Taken::Yes(0),
                Bare::No => Taken::More,
            },
        };
        match taken {
            Taken::Yes(fence) => Ok(Some(self.grant(claim, from, fence, false))),
            Taken::More => {
                self.calm().disturb(key, from);
                Ok(None)
            }
        }
    }

    /// `from` was read before the request left: the server's ttl starts somewhere between then and the
    /// reply, so counting from there can only make our view too short.
    fn grant(&self, claim: &Claim, from: Time, fence: u64, contended: bool) -> Grant {
        self.pace.note(self.server.target(), &self.clock, from, fence);
        Grant::new(fence, Term::Lease { from, ttl: claim.ttl() }).contended(contended)
    }

    /// Why there will be no grant.
    pub(crate) fn refused(&self, claim: &Claim, asked: &Asked) -> Trouble {
        match asked {
            Asked::WrongType(key) => self.refusal(format!("the key `{key}` is not a string")),
            // Without what is there: where prefixes collide it may be a lock's value, with its token.
            Asked::Corrupt(length) => {
                let key = self.keys.fence(claim.key());
                self.refusal(format!(
                    "the fence counter `{key}` holds no count, but {length} bytes"
                ))
            }
            _ => {
                let key = self.keys.lock(claim.key());
                self.refusal(format!("the key `{key}` has no expiry: it is no lock"))
            }
        }
    }

    fn refusal(&self, what: String) -> Trouble {
        self.server.trouble(Cause::Refused, what)
    }

    /// Notes what keeps us from asking; the pause until it may have passed, if it may at all.
    fn see_trouble(
        &self,
        claim: &Claim,
        trouble: Trouble,
        down_since: Option<Time>,
    ) -> Result<Duration, Fault> {
        if trouble.is_final() || self.is_out_of_patience(claim, down_since) {
            return Err(trouble.into());
        }
        claim.saw(Sight::trouble(trouble.into()));
        // Asks in time for the next heartbeat: else one lost reply would cost it its place in the queue.
        Ok(jittered(claim.retry_interval().min(HEARTBEAT)))
    }

    /// A server that cannot be reached is waited for as long as one connection or a failover may take,
    /// and a little more. One that answers "not now", or nothing, for as long as the caller likes.
    fn is_out_of_patience(&self, claim: &Claim, down_since: Option<Time>) -> bool {
        let patience = self.server.patience() + claim.retry_interval() * RETRIES_WHILE_DOWN;
        down_since.is_some_and(|since| self.clock.now() >= since.after(patience))
    }
}

/// Why asking ends: for good, or perhaps not.
enum Stop {
    Fault(Fault),
    Trouble(Trouble),
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Stop::Trouble(trouble)
    }
}
