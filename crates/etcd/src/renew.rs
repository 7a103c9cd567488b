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
use crate::proto::{Op, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse};
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
            // One that was handed to a holder with a longer ttl gets a session that keeps it so long.
            match due.ttl > session.ttl() && self.lengthen(&due, &told).await {
                true => {}
                false => rest.push(due),
            }
        }
        if rest.is_empty() {
            return;
        }
        let kept = self.keep_alive(&session, &self.renewals).await;
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

    /// Looks at some locks of a session that was just kept alive.
    async fn renew_some(
        &self,
        session: &Arc<Session>,
        some: &[Due],
        told: &Told,
    ) -> Result<(), Trouble> {
        for _ in 0..TERMS_MAX {
            let success: Vec<RequestOp> = some.iter().map(|due| due.seat.check()).collect();
            let answer = self.read(TxnRequest { success, ..Default::default() }).await?;
            let Some(lasts) = session.lasts(self.clock.now()) else {
                self.lose(session, Loss::Expired);
                return Err(self.trouble(Cause::NoLease, "the session has ended", ""));
            };
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
            // It has moved to another session, by a request whose answer was lost: known from now on.
            Some(kv) if due.seat.found_on(kv.lease) => {
                let what = self.trouble(Cause::Silent, "the lock was moved meanwhile", "");
                Renewal::Unknown(what.into())
            }
            _ => Renewal::Lost(self.why_lost(&due.seat).await),
        };
        let _ = told.send((due.index, answer));
    }

    /// Moves the lock to a session that is long enough; whether it is answered for.
    async fn lengthen(&self, due: &Due, told: &Told) -> bool {
        if due.seat.now().stray {
            return false;
        }
        let moved = self.move_out(&due.seat, due.ttl).await;
        let lasts = due.seat.session().lasts(self.clock.now());
        let (Ok(true), Some(lasts)) = (moved, lasts) else { return false };
        let term = lasts.as_term();
        told.send((due.index, Renewal::Renewed { term, contended: false })).is_ok()
    }

    /// Who took it away, if somebody has left a word.
    async fn why_lost(&self, seat: &Seat) -> Loss {
        let word = RangeRequest::one(self.keys.forced(seat.token));
        let answer = self.read(TxnRequest { success: vec![Op::range(word)], ..Default::default() });
        let found = answer.await.ok().and_then(|answer| answer.ranges().next());
        let by = found.and_then(|found| found.kvs.into_iter().next());
        by.map_or(Loss::Gone, |by| Loss::Forced(String::from_utf8_lossy(&by.value).into_owned()))
    }

    /// Reads on the connection for renewals.
    async fn read(&self, ask: TxnRequest) -> Result<TxnResponse, Trouble> {
        self.renewals.call(ask).await
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
