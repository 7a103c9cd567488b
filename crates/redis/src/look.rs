//! Looking at locks from outside: reads only, nothing is disturbed.
//!
//! In: a name or a glob. Out: who holds what. Who waits is not known: waiters poll.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::Value;
use tenure_core::Key;
use tenure_core::backend::{Holding, LockInfo, Query};

use crate::backend::Shared;
use crate::trouble::{Cause, Trouble};
use crate::value::Said;

/// How many keys one step of a scan looks at.
const SCANNED_AT_ONCE: usize = 1_000;
/// How many locks are read in one round trip.
const READ_AT_ONCE: usize = 256;

impl Shared {
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Trouble> {
        let keys: Vec<Key> = match query {
            Query::Key(key) => vec![key.clone()],
            Query::Glob(_) => self.scan(query).await?.into_iter().collect(),
        };
        let mut found = Vec::new();
        for some in keys.chunks(READ_AT_ONCE) {
            found.extend(self.read_locks(some).await?);
        }
        Ok(found)
    }

    /// The locks that match, by name. A scan may show a key twice.
    async fn scan(&self, query: &Query) -> Result<BTreeSet<Key>, Trouble> {
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
        let reply = link.call(&live, &scan).await?;
        redis::from_redis_value(reply).map_err(|_| link.out_of_turn(&live))
    }

    async fn read_locks(&self, keys: &[Key]) -> Result<Vec<LockInfo>, Trouble> {
        let link = self.commands.any();
        let live = link.live().await?;
        let mut pipe = redis::pipe();
        for key in keys {
            let lock = self.keys.lock(key);
            pipe.cmd("GET").arg(&lock).cmd("PTTL").arg(&lock);
        }
        let within = link.response_timeout();
        let replies = link.call_all(&live, &pipe, within).await?;
        let pairs = replies.chunks_exact(2);
        let infos = keys.iter().zip(pairs).map(|(key, pair)| info(key, pair));
        infos.filter_map(Result::transpose).collect()
    }
}

/// `None` if it is free by now, or of another type and so no lock.
fn info(key: &Key, pair: &[Result<Value, Trouble>]) -> Result<Option<LockInfo>, Trouble> {
    let [value, left] = pair else { return Ok(None) };
    let value = match value {
        Ok(Value::BulkString(value)) => value,
        Err(trouble) if !is_wrong_type(trouble) => return Err(trouble.clone()),
        _ => return Ok(None),
    };
    let left = match left {
        // A lease that ended between the two reads.
        Ok(Value::Int(-2)) => return Ok(None),
        Ok(Value::Int(millis)) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => None,
    };
    let said = Said::parse(value);
    let token = said.token();
    let holding = Holding::new(said.holder(left), None, token);
    Ok(Some(LockInfo::exclusive(key.clone(), vec![holding], None)))
}

fn is_wrong_type(trouble: &Trouble) -> bool {
    trouble.cause() == Cause::WrongType
}
