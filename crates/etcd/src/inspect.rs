//! Inspection of locks: reads only.
//!
//! In: a name or a glob. Out: the holders of each lock, and its waiters in order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::{Holding, LockInfo, Query, Waiting};
use tenure_core::{Fence, Key, Mode};

use crate::error::EngineError;
use crate::keys::Keys;
use crate::link::Link;
use crate::modes;
use crate::proto::{KeyValue, RangeRequest, TxnRequest};
use crate::value;

/// How many keys are read in one round trip.
const READ_AT_ONCE: i64 = 1_000;
/// How many locks are read in one round trip. A server allows 128 operations by default.
const LOCKS_AT_ONCE: usize = 64;

type Found = BTreeMap<Key, Vec<(KeyValue, Mode)>>;

#[derive(Debug)]
pub(crate) struct Inspector {
    pub(crate) keys: Arc<Keys>,
    pub(crate) calls: Arc<Link>,
}

impl Inspector {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, EngineError> {
        let found = match query {
            Query::Key(key) => self.read_locks(std::slice::from_ref(key)).await?,
            Query::Keys(keys) => self.read_locks(keys).await?,
            Query::Glob(_) => self.scan(query).await?,
        };
        let (mut infos, mut left) = (Vec::with_capacity(found.len()), HashMap::new());
        for (key, mut claims) in found {
            claims.sort_by_key(|(claim, _)| claim.create_revision);
            infos.push(self.info(key, claims, &mut left).await?);
        }
        Ok(infos)
    }

    async fn read_locks(&self, keys: &[Key]) -> Result<Found, EngineError> {
        let mut found = Found::new();
        for some in keys.chunks(LOCKS_AT_ONCE) {
            let queue = |key: &Key| RangeRequest::under(self.keys.queue(key));
            let answer = self.calls.call(TxnRequest::read(some.iter().map(queue))).await?;
            answer.ranges().for_each(|range| self.sort_in(range.kvs, &mut found, |_| true));
        }
        Ok(found)
    }

    /// The claims on all locks that match, page by page.
    async fn scan(&self, query: &Query) -> Result<Found, EngineError> {
        let mut found = Found::new();
        let mut range = RangeRequest::under(self.keys.locks()).limit(READ_AT_ONCE);
        loop {
            let page = self.calls.call(range.clone()).await?;
            let next = page.kvs.last().map(|last| after(&last.key));
            self.sort_in(page.kvs, &mut found, |key| query.matches(key.as_str()));
            match next {
                Some(next) if page.more => range.key = next,
                _ => return Ok(found),
            }
        }
    }

    /// Adds claims to those that were found on the same lock.
    fn sort_in(&self, claims: Vec<KeyValue>, found: &mut Found, wanted: impl Fn(&Key) -> bool) {
        for claim in claims {
            let parsed = self.keys.parse(&claim.key);
            if let Some((key, mode)) = parsed.filter(|(key, _)| wanted(key)) {
                found.entry(key).or_default().push((claim, mode));
            }
        }
    }

    /// Those who hold the lock, and those who wait. A lease that several locks share is read once.
    async fn info(
        &self,
        key: Key,
        claims: Vec<(KeyValue, Mode)>,
        left: &mut HashMap<i64, Option<Duration>>,
    ) -> Result<LockInfo, EngineError> {
        let count = modes::holders(claims.iter().map(|(_, mode)| mode));
        let (mut holders, mut waiters) = (Vec::with_capacity(count), Vec::new());
        for (claim, mode) in claims {
            if holders.len() == count {
                let holder = value::holder(&claim.value, None);
                let since = holder.since;
                waiters.push(Waiting::new(holder, since).mode(mode));
                continue;
            }
            let lease = claim.lease;
            let left = match left.get(&lease) {
                Some(known) => *known,
                None => *left.entry(lease).or_insert(self.calls.lease_left(lease).await?),
            };
            let slot = value::slot(&claim.value).flatten();
            holders.push(holding(&claim, left).mode(mode, slot));
        }
        Ok(LockInfo::new(key, holders, Some(waiters)))
    }
}

fn holding(claim: &KeyValue, left: Option<Duration>) -> Holding {
    let holder = value::holder(&claim.value, left);
    let number = value::base(&claim.value).map(|base| base.saturating_add(claim.create_revision));
    let fence = number.and_then(|number| u64::try_from(number).ok()).map(Fence::from_server);
    let fence = fence.filter(|_| !holder.cooling_down);
    Holding::new(holder, fence, value::token(&claim.value))
}

/// The first key after `key` in the order of keys.
fn after(key: &Bytes) -> Bytes {
    [key, &[0][..]].concat().into()
}
