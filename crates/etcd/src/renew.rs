//! Renewing: keeping sessions alive, and looking whether the locks that hang on them are still ours.
//!
//! In: leases that are due. Out: an answer for each, as soon as it is known.
//!
//! Each session is kept alive once for all its leases; then all their locks are looked at, many with one
//! request. A lock that is not there any more is lost, though its session lives: an operator has taken it
//! away. And only what the cluster shows after the keep-alive was answered makes that answer count.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Lease;
use tenure_core::backend::{Answers, Loss, Renewal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backend::Shared;
use crate::proto::{RangeRequest, RangeResponse, RequestOp, TxnRequest};
use crate::seat::Seat;
use crate::session::{Lasts, Session};
use crate::trouble::{Cause, Trouble};

/// How many locks are looked at with one request. A server takes 128 operations unless told otherwise.
const LOOKED_AT_ONCE: usize = 64;
/// How often a keep-alive is repeated because the leader has changed since.
const TERMS_MAX: u32 = 3;

/// A lease that is due, by its place in the list of all.
struct Due {
    index: usize,
    seat: Arc<Seat>,
    /// What its present holder asks for.
    ttl: Duration,
}

type Told = mpsc::UnboundedSender<(usize, Renewal)>;

impl Shared {
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        let mut sessions: HashMap<i64, (Arc<Session>, Vec<Due>)> = HashMap::new();
        for (index, lease) in leases.iter().enumerate() {
            let Some(seat) = self.seats.get(lease.claim().token()) else {
                answers(index, Renewal::Lost(Loss::Gone));
                continue;
            };
            let (session, ttl) = (seat.session(), lease.ttl());
            let due = Due { index, seat, ttl };
            sessions.entry(session.lease()).or_insert_with(|| (session, vec![])).1.push(due);
        }
        let (told, mut hear) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for (session, due) in sessions.into_values() {
            tasks.spawn(self.clone().renew_session(session, due, told.clone()));
        }
        drop(told);
        while let Some((index, answer)) = hear.recv().await {
            answers(index, answer);
        }
    }

    async fn renew_session(self: Arc<Self>, session: Arc<Session>, due: Vec<Due>, told: Told) {
        let mut rest = Vec::with_capacity(due.len());
        for due in due {
            if !self.moved(&session, &due, &told).await {
                rest.push(due);
            }
        }
        if rest.is_empty() {
            return;
        }
        let kept = self.keep_alive_if_due(&session).await;
        for some in rest.chunks(LOOKED_AT_ONCE) {
            let looked = match &kept {
                Ok(()) => self.renew_some(&session, some, &told).await,
                Err(trouble) => Err(trouble.clone()),
            };
            if let Err(trouble) = looked {
                some.iter().for_each(|due| tell_trouble(&session, due, &trouble, &told));
            }
        }
    }

    /// Many leases of one session come due one after the other: what has just been kept alive need not
    /// be again.
    async fn keep_alive_if_due(&self, session: &Session) -> Result<(), Trouble> {
        match !session.is_own() && session.is_fresh(self.clock.now()) {
            true => Ok(()),
            false => self.keep_alive(session, &self.renewals).await,
        }
    }

    /// Looks at some locks of a session that was just kept alive.
    async fn renew_some(
        &self,
        session: &Arc<Session>,
        some: &[Due],
        told: &Told,
    ) -> Result<(), Trouble> {
        for _ in 0..TERMS_MAX {
            // Before sending: only what was answered by then is confirmed by what comes back.
            let Some(lasts) = session.lasts(self.clock.now()) else {
                self.lose(session, Loss::Expired);
                return Err(self.trouble(Cause::NoLease, "the session has ended", ""));
            };
            let success: Vec<RequestOp> = some.iter().map(|due| due.seat.check()).collect();
            let ask = TxnRequest { success, ..Default::default() };
            let answer = self.renewals.call_within(self.patience(session), ask).await?;
            if lasts.term != answer.term() {
                self.keep_alive(session, &self.renewals).await?;
                continue;
            }
            for (due, found) in some.iter().zip(answer.ranges()) {
                self.judge(due, &found, lasts, told).await;
            }
            return Ok(());
        }
        Err(self.trouble(Cause::Silent, "the cluster changes its leader all the time", ""))
    }

    async fn judge(&self, due: &Due, found: &RangeResponse, lasts: Lasts, told: &Told) {
        let now = due.seat.now();
        let first = found.kvs.first();
        let ours = first.filter(|kv| kv.key == now.name && kv.create_revision == now.created);
        let answer = match ours {
            Some(kv) if kv.lease == now.session.lease() => {
                let contended = found.count > 1;
                Renewal::Renewed { term: lasts.as_term(), contended }
            }
            _ => Renewal::Lost(self.why_lost(&due.seat).await),
        };
        let _ = told.send((due.index, answer));
    }

    /// Sees to a lock that is on its way to another session, or ought to be: one that was handed to a
    /// holder with a longer ttl gets a session that keeps it so long. Whether it is answered for.
    async fn moved(&self, session: &Session, due: &Due, told: &Told) -> bool {
        let is_short = due.ttl > session.ttl();
        if !is_short && !due.seat.may_have_moved() {
            return false;
        }
        let moved = self.move_on(due).await;
        let now = due.seat.session();
        let answer = match (moved, now.lasts(self.clock.now())) {
            (Err(trouble), _) => Renewal::Unknown(trouble.into()),
            (Ok(()), Some(lasts)) if now.lease() != session.lease() => {
                Renewal::Renewed { term: lasts.as_term(), contended: false }
            }
            // It is where it was, or not ours: a look finds out.
            (Ok(()), _) => return false,
        };
        told.send((due.index, answer)).is_ok()
    }

    async fn move_on(&self, due: &Due) -> Result<(), Trouble> {
        let settled = self.settle(&due.seat).await?;
        if settled && due.ttl > due.seat.session().ttl() {
            self.move_out(&due.seat, due.ttl).await?;
        }
        Ok(())
    }

    /// Who took it away, if somebody has left a word.
    async fn why_lost(&self, seat: &Seat) -> Loss {
        let word = RangeRequest::one(self.keys.forced(seat.token));
        let found = self.renewals.call(word).await.ok();
        let by = found.and_then(|found| found.kvs.into_iter().next());
        by.map_or(Loss::Gone, |by| Loss::Forced(String::from_utf8_lossy(&by.value).into_owned()))
    }
}

/// What is known of a lease whose renewal brought no answer.
fn tell_trouble(session: &Session, due: &Due, trouble: &Trouble, told: &Told) {
    let answer = match session.loss() {
        Some(loss) => Renewal::Lost(loss),
        None => Renewal::Unknown(trouble.clone().into()),
    };
    let _ = told.send((due.index, answer));
}
