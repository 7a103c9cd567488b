//! Asking for a lock, once or until it is had.
//!
//! In: a claim. Out: a grant, or who or what is in the way.
//!
//! Waiting is polling: a jittered `retry_interval` apart, or when the holder's lease should end if
//! that is sooner. Every attempt carries the same token, so one whose reply was lost is resolved by
//! the next.

use std::time::Duration;

use tenure_core::backend::{Attempt, Fault, Grant, Term};
use tenure_core::time::{Time, UnixMillis};
use tenure_core::{Claim, Holder, Sight};

use crate::backend::{Shared, refuse_unsupported};
use crate::jitter::jittered;
use crate::scripts::{Asked, Run};
use crate::trouble::{Cause, Trouble};
use crate::value::Said;

/// How many more intervals than one connect time-out an unreachable server is waited for.
const RETRIES_WHILE_DOWN: u32 = 5;
/// How long after the end of a lease to ask: the server drops it in the next whole millisecond.
const AFTER_END: Duration = Duration::from_millis(2);

impl Shared {
    /// One attempt; "held by another" is an answer.
    pub(crate) async fn ask_once(&self, claim: &Claim) -> Result<Attempt, Fault> {
        refuse_unsupported(claim)?;
        let from = self.clock.now();
        let asked = self.twice(claim.key(), &self.asking(claim)).await?;
        self.attempt(claim, from, asked)
    }

    /// Asks until the lock is granted, or it is plain that asking is of no use.
    pub(crate) async fn poll(&self, claim: &Claim) -> Result<Grant, Fault> {
        refuse_unsupported(claim)?;
        let mut down_since = None;
        loop {
            let from = self.clock.now();
            let pause = match self.asking(claim).on(self.commands.of(claim.key())).await {
                Ok(asked) => match self.attempt(claim, from, asked)? {
                    Attempt::Granted(grant) => return Ok(grant),
                    Attempt::Held(holder) => {
                        down_since = None;
                        see_holder(claim, *holder)
                    }
                },
                Err(trouble) => {
                    down_since = down_since.or(Some(from)).filter(|_| trouble.is_absence());
                    self.see_trouble(claim, trouble, down_since)?
                }
            };
            self.clock.sleep(pause).await;
        }
    }

    fn asking(&self, claim: &Claim) -> Run {
        let value = self.author.value(claim, UnixMillis::now());
        let (lock, fence) = (self.keys.lock(claim.key()), self.keys.fence());
        Run::acquire(lock, fence, claim.token(), value, claim.ttl())
    }

    /// `from` was read before the request left: the server's ttl starts somewhere between then and
    /// the reply, so counting from there can only make our view too short.
    fn attempt(&self, claim: &Claim, from: Time, asked: Asked) -> Result<Attempt, Fault> {
        match asked {
            Asked::Granted { fence, contended } => {
                let term = Term::Lease { from, ttl: claim.ttl() };
                Ok(Attempt::Granted(Grant::new(fence, term).contended(contended)))
            }
            Asked::Held { value, left } => {
                Ok(Attempt::Held(Box::new(Said::parse(&value).holder(Some(left)))))
            }
            Asked::WrongType(key) => Err(self.refusal(format!("the key `{key}` is not a string"))),
            Asked::Endless => {
                let key = self.keys.lock(claim.key());
                Err(self.refusal(format!("the key `{key}` has no expiry: it is no lock")))
            }
            Asked::Corrupt(count) => {
                let (key, count) = (self.keys.fence(), count.escape_debug());
                Err(self.refusal(format!("the fence counter `{key}` holds `{count}`, no count")))
            }
        }
    }

    fn refusal(&self, what: String) -> Fault {
        self.commands.any().trouble(Cause::Refused, what).into()
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
        Ok(pause(claim, None))
    }

    /// A server that cannot be reached is waited for as long as one connection may take, and a
    /// little more. One that answers "not now", or nothing, for as long as the caller likes.
    fn is_out_of_patience(&self, claim: &Claim, down_since: Option<Time>) -> bool {
        let patience = self.connect_timeout + claim.retry_interval() * RETRIES_WHILE_DOWN;
        down_since.is_some_and(|since| self.clock.now() >= since.after(patience))
    }
}

/// Notes who is in the way; the pause until they may have gone.
fn see_holder(claim: &Claim, holder: Holder) -> Duration {
    let left = holder.lease_left;
    claim.saw(Sight::of(holder, None));
    pause(claim, left)
}

/// How long until the next attempt.
fn pause(claim: &Claim, left: Option<Duration>) -> Duration {
    let interval = jittered(claim.retry_interval());
    left.map_or(interval, |left| interval.min(left + AFTER_END))
}
