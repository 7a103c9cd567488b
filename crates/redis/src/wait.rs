//! Asking for a lock, once or until it is had.
//!
//! In: a claim. Out: a grant, or who or what is in the way.
//!
//! Waiting is polling: a jittered `retry_interval` apart, or when the holder's lease should end if
//! that is sooner. Every attempt carries the same token, so one whose reply was lost is resolved by
//! the next.

use std::time::Duration;

use tenure_core::backend::{Attempt, Fault, FaultKind, Grant, Term};
use tenure_core::time::{Time, UnixMillis};
use tenure_core::{Claim, Sight};

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
        let asked = self.twice(&self.asking(claim)).await?;
        self.attempt(claim, from, asked)
    }

    /// Asks until the lock is granted, or it is plain that asking is of no use.
    pub(crate) async fn poll(&self, claim: &Claim) -> Result<Grant, Fault> {
        refuse_unsupported(claim)?;
        let mut down_since = None;
        loop {
            let from = self.clock.now();
            let pause = match self.asking(claim).on(&self.commands).await {
                Ok(asked) => {
                    down_since = None;
                    match self.attempt(claim, from, asked)? {
                        Attempt::Granted(grant) => return Ok(grant),
                        Attempt::Held(holder) => {
                            let left = holder.lease_left;
                            claim.saw(Sight::of(*holder, None));
                            pause(claim, left)
                        }
                    }
                }
                Err(trouble) => {
                    self.still_worth_it(claim, &trouble, down_since.get_or_insert(from))?;
                    claim.saw(Sight::trouble(trouble.into()));
                    pause(claim, None)
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
            Asked::WrongType(key) => Err(refused(format!("the key `{key}` is not a string"))),
            Asked::Endless => {
                let key = self.keys.lock(claim.key());
                Err(refused(format!(
                    "the key `{key}` has a value without an expiry: it is no lock"
                )))
            }
            Asked::Corrupt(count) => {
                let (key, count) = (self.keys.fence(), count.escape_debug());
                Err(refused(format!(
                    "the fence counter `{key}` holds `{count}`, which is no count"
                )))
            }
        }
    }

    /// A refusal is for good. A server that cannot be reached is waited for as long as one
    /// connection may take, and a little more; one that answers "not now", or nothing, for ever.
    fn still_worth_it(&self, claim: &Claim, trouble: &Trouble, since: &Time) -> Result<(), Fault> {
        let patience = self.connect_timeout + claim.retry_interval() * RETRIES_WHILE_DOWN;
        let may_pass = match trouble.cause() {
            Cause::Down | Cause::Demoted => self.clock.now() < since.after(patience),
            Cause::NotNow | Cause::Silent | Cause::Cut => true,
            Cause::NoScript | Cause::WrongType | Cause::Refused | Cause::Unsupported => false,
        };
        if may_pass { Ok(()) } else { Err(trouble.clone().into()) }
    }
}

fn refused(message: String) -> Fault {
    Fault::new(FaultKind::Refused, message)
}

/// How long until the next attempt.
fn pause(claim: &Claim, left: Option<Duration>) -> Duration {
    let interval = jittered(claim.retry_interval());
    left.map_or(interval, |left| interval.min(left + AFTER_END))
}
