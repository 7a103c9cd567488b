//! Looking at locks from outside: reads only, nothing is disturbed.
//!
//! In: a name or a glob. Out: who holds what, and who waits for it, in order.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, Value};
use tenure_core::backend::{Holding, LockInfo, Query, Waiting};
use tenure_core::fence::{EPOCH, PER_MILLI};
use tenure_core::time::UnixMillis;
use tenure_core::{Key, Token};

use crate::backend::Shared;
use crate::trouble::{Cause, Trouble};
use crate::value::{self, Said};

/// How many keys one step of a scan looks at.
const SCANNED_AT_ONCE: usize = 1_000;
/// How many locks are read in one round trip.
const READ_AT_ONCE: usize = 256;
/// How many commands it takes to read one.
const READS: usize = 4;

impl Shared {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Trouble> {
        let keys: Vec<Key> = match query {
            Query::Key(key) => vec![key.clone()],
            Query::Keys(keys) => keys.clone(),
            Query::Glob(_) => self.scan(query).await?.into_iter().collect(),
        };
        let mut found = Vec::new();
        for some in keys.chunks(READ_AT_ONCE) {
            found.extend(self.read_locks(some).await?);
        }
        Ok(found)
    }

    /// The locks that match, by name. A scan may show a key twice.
    pub(crate) async fn scan(&self, query: &Query) -> Result<BTreeSet<Key>, Trouble> {
        let (mut cursor, mut keys) = (0, BTreeSet::new());
        loop {
            let (next, raw) = self.scan_step(cursor).await?;
            let ours = raw.iter().filter_map(|raw| self.keys.parse_lock(raw));
            keys.extend(ours.filter(|key| query.matches(key.as_str())));
            if next == 0 {
                return Ok(keys);
            }
            cursor = next;
        }
    }

    async fn scan_step(&self, cursor: u64) -> Result<(u64, Vec<Vec<u8>>), Trouble> {
        let link = self.commands.any();
        let live = link.live().await?;
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(self.keys.all_locks()).arg("COUNT").arg(SCANNED_AT_ONCE);
        let reply = link.call(&live, scan).await?;
        redis::from_redis_value(reply).map_err(|_| link.out_of_turn(&live))
    }

    pub(crate) async fn read_locks(&self, keys: &[Key]) -> Result<Vec<LockInfo>, Trouble> {
        let mut pipe = redis::pipe();
        for key in keys {
            let lock = self.keys.lock(key);
            pipe.cmd("GET").arg(&lock).cmd("PTTL").arg(&lock);
            pipe.cmd("ZRANGE").arg(self.keys.queue(key)).arg(0).arg(-1).arg("WITHSCORES");
            pipe.cmd("ZRANGE").arg(self.keys.holders(key)).arg(0).arg(-1);
        }
        let replies = self.read_all(&pipe).await?;
        let infos = keys.iter().zip(replies.chunks_exact(READS));
        infos.filter_map(|(key, replies)| info(key, replies).transpose()).collect()
    }

    /// Reads all of these, also what is on its way to another node of a cluster.
    pub(crate) async fn read_all(&self, pipe: &Pipeline) -> Result<Replies, Trouble> {
        let link = self.commands.any();
        let live = link.live().await?;
        let mut replies = link.call_all(&live, pipe, link.response_timeout()).await?;
        for (command, reply) in pipe.cmd_iter().zip(&mut replies) {
            let sent = reply.as_ref().err().filter(|trouble| trouble.is_moving());
            if let Some(there) = sent.and_then(|trouble| link.elsewhere(trouble.redirect()?)) {
                *reply = there.read(command).await;
            }
        }
        Ok(replies)
    }
}

/// One for each command.
type Replies = Vec<Result<Value, Trouble>>;

/// `None` if it is free by now, or of another type and so no lock.
fn info(key: &Key, replies: &[Result<Value, Trouble>]) -> Result<Option<LockInfo>, Trouble> {
    let [value, left, queue, holders] = replies else { return Ok(None) };
    let value = match value {
        Ok(Value::BulkString(value)) => value,
        Err(trouble) if trouble.cause() != Cause::WrongType => return Err(trouble.clone()),
        _ => return Ok(None),
    };
    let left = match left {
        // A lease that ended between the two reads.
        Ok(Value::Int(-2)) => return Ok(None),
        Ok(Value::Int(millis)) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => None,
    };
    let waiters = waiters(read(queue));
    let holdings = holdings(Said::parse(value), left, read(holders));
    Ok(Some(LockInfo::exclusive(key.clone(), holdings, Some(waiters))))
}

/// What stands there, or nothing where it is of another type.
fn read<T: FromRedisValue + Default>(reply: &Result<Value, Trouble>) -> T {
    let reply = reply.as_ref().ok().cloned();
    reply.and_then(|reply| redis::from_redis_value(reply).ok()).unwrap_or_default()
}

/// One holder; or, where an owner shares the lock with others, the same words for each of its claims.
fn holdings(said: Said, left: Option<Duration>, shared: Vec<String>) -> Vec<Holding> {
    let (own, is_shared) = (said.token(), said.is_shared());
    let holder = said.holder(left);
    let claims = shared.iter().filter_map(|token| Token::parse(token)).map(Some);
    let tokens: Vec<_> = if is_shared { claims.collect() } else { vec![own] };
    tokens.into_iter().map(|token| Holding::new(holder.clone(), None, token)).collect()
}

/// Those in the queue, first come first. A ticket is a fence: the clock when it was given out, or later.
fn waiters(queue: Vec<(Vec<u8>, f64)>) -> Vec<Waiting> {
    let waiter = |(place, ticket): (Vec<u8>, f64)| {
        let since = UnixMillis(EPOCH.0 + ticket as u64 / PER_MILLI);
        let holder = value::waiter(&place, since)?;
        Some(Waiting::new(holder, Some(since)))
    };
    queue.into_iter().filter_map(waiter).collect()
}
