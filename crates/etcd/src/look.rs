//! Looking at locks from outside: reads only, nothing is disturbed.
//!
//! In: a name or a glob. Out: who holds what, and who waits for it, in order.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Holding, LockInfo, Query, Waiting};
use tenure_core::{Fence, Key};

use crate::backend::Shared;
use crate::link::Link;
use crate::proto::{
    KeyValue, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, Op, RangeRequest, TxnRequest,
};
use crate::session::seconds;
use crate::trouble::{Cause, Trouble};
use crate::value;

/// How many keys are read in one round trip.
const READ_AT_ONCE: i64 = 1_000;
/// How many locks are read in one round trip. A server takes 128 operations unless told otherwise.
const LOCKS_AT_ONCE: usize = 64;

type Found = BTreeMap<Key, Vec<KeyValue>>;

impl Shared {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Trouble> {
        let found = match query {
            Query::Key(key) => self.read_locks(std::slice::from_ref(key)).await?,
            Query::Keys(keys) => self.read_locks(keys).await?,
            Query::Glob(_) => self.scan(query).await?,
        };
        let (mut infos, mut left) = (Vec::with_capacity(found.len()), HashMap::new());
        for (key, mut claims) in found {
            claims.sort_by_key(|claim| claim.create_revision);
            infos.extend(self.info(key, claims, &mut left).await?);
        }
        Ok(infos)
    }

    async fn read_locks(&self, keys: &[Key]) -> Result<Found, Trouble> {
        let mut found = Found::new();
        for some in keys.chunks(LOCKS_AT_ONCE) {
            let queue = |key: &Key| Op::range(RangeRequest::under(self.keys.queue(key)));
            let success = some.iter().map(queue).collect();
            let answer = self.calls.call(TxnRequest { success, ..Default::default() }).await?;
            let shown = some.iter().cloned().zip(answer.ranges().map(|range| range.kvs));
            found.extend(shown.filter(|(_, claims)| !claims.is_empty()));
        }
        Ok(found)
    }

    /// The claims on all locks that match, page by page.
    async fn scan(&self, query: &Query) -> Result<Found, Trouble> {
        let mut found = Found::new();
        let mut range = RangeRequest::under(self.keys.locks()).limit(READ_AT_ONCE);
        loop {
            let page = self.calls.call(range.clone()).await?;
            let next = page.kvs.last().map(|last| after(&last.key));
            for claim in page.kvs {
                let key = self.keys.parse(&claim.key);
                if let Some(key) = key.filter(|key| query.matches(key.as_str())) {
                    found.entry(key).or_default().push(claim);
                }
            }
            match next {
                Some(next) if page.more => range.key = next,
                _ => return Ok(found),
            }
        }
    }

    /// `None` if it is free by now. Leases that several locks hang on are asked for once.
    async fn info(
        &self,
        key: Key,
        claims: Vec<KeyValue>,
        left: &mut HashMap<i64, Option<Duration>>,
    ) -> Result<Option<LockInfo>, Trouble> {
        let mut claims = claims.into_iter();
        let Some(first) = claims.next() else { return Ok(None) };
        let left = match left.get(&first.lease) {
            Some(known) => *known,
            None => *left.entry(first.lease).or_insert(self.left_of(first.lease).await?),
        };
        let holding = self.holding(&first, left);
        let waiters = claims.map(|claim| {
            let holder = value::holder(&claim.value, None);
            let since = holder.since;
            Waiting::new(holder, since)
        });
        Ok(Some(LockInfo::exclusive(key, vec![holding], Some(waiters.collect()))))
    }

    fn holding(&self, first: &KeyValue, left: Option<Duration>) -> Holding {
        let holder = value::holder(&first.value, left);
        let number =
            value::base(&first.value).map(|base| base.saturating_add(first.create_revision));
        let fence = number.and_then(|number| u64::try_from(number).ok()).map(Fence::from_server);
        let token = value::token(&first.value);
        let shown = !holder.closing;
        Holding::new(holder, fence.filter(|_| shown), token.filter(|_| shown))
    }

    /// What is left of a lease, at the most: the server says it in whole seconds, rounded down. One that
    /// is over and not yet swept away has nothing left.
    pub(crate) async fn left_of(&self, lease: i64) -> Result<Option<Duration>, Trouble> {
        if lease == 0 {
            return Ok(None);
        }
        let answer = self.what_is_left(lease).await?;
        let most = answer.granted_ttl.max(0);
        Ok(Some(seconds((answer.ttl + 1).clamp(0, most))))
    }

    pub(crate) async fn what_is_left(
        &self,
        lease: i64,
    ) -> Result<LeaseTimeToLiveResponse, Trouble> {
        self.ask_what_is_left(lease, &self.calls, self.calls.response_timeout()).await
    }

    /// What the server says of a lease; of one that it does not know, that it has ended.
    pub(crate) async fn ask_what_is_left(
        &self,
        lease: i64,
        link: &Link,
        within: Duration,
    ) -> Result<LeaseTimeToLiveResponse, Trouble> {
        match link.call_within(within, LeaseTimeToLiveRequest { id: lease }).await {
            Err(trouble) if trouble.cause() == Cause::NoLease => {
                Ok(LeaseTimeToLiveResponse { ttl: -1, ..Default::default() })
            }
            answer => answer,
        }
    }
}

/// The first key that comes after `key`.
fn after(key: &Bytes) -> Bytes {
    [key, &[0][..]].concat().into()
}
