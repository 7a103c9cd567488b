//! Looks at keys on Redis servers, on connections of its own.
//!
//! In: a node, and a key. Out: a [`Snapshot`] of the key, all of it at one moment.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::history::claim_of;
use crate::judge::{Claimed, Queued, Snapshot};
use crate::servers::{RedisClient, RedisServer, Reply};

/// The prefix of a lock's key on the server.
pub(super) const LOCK: &str = "tenure:lock:";
/// The prefix of the key of its queue.
const QUEUE: &str = "tenure:queue:";
/// The positions of the token and the label in a lock's value: flag and version, client, token, since, host, pid,
/// user, program, label.
const TOKEN_AT: usize = 2;
const LABEL_AT: usize = 8;
/// The position of the label in an entry: token and mode, host, pid, user, program, label.
const ENTRY_LABEL_AT: usize = 5;

/// Returns the holders, the waiters with their tickets, how many clients are subscribed to the inbox of each waiter,
/// and how many connections the server has accepted. Holders whose lease has ended are left out. In a cluster (without
/// `queue`) the ends of leases are not by the clock of the node, but the key expires with the last of them.
const LOOK: &str = "
local lock, queue, holders, subscribed = KEYS[1], KEYS[2], {}, {}
local kind, time = redis.call('TYPE', lock).ok, redis.call('TIME')
if kind == 'string' then holders[1] = redis.call('GET', lock) end
if kind == 'zset' then
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if not queue then
    now = redis.call('ZREVRANGE', lock, 0, 0, 'WITHSCORES')[2] - redis.call('PTTL', lock)
  end
  holders = redis.call('ZRANGEBYSCORE', lock, string.format('(%d', now), '+inf')
end
local waiters = queue and redis.call('ZRANGE', queue, 0, -1, 'WITHSCORES') or {}
for at = 1, #waiters, 2 do
  local inbox = 'tenure:inbox:' .. string.sub(waiters[at], 34, 49)
  subscribed[#subscribed + 1] = redis.call('PUBSUB', 'NUMSUB', inbox)[2]
end
local accepted = string.match(redis.call('INFO', 'stats'), 'total_connections_received:(%d+)')
return { holders, waiters, subscribed, accepted }";

/// The connections by port; a broken one is replaced.
#[derive(Default)]
pub(super) struct Observer(Mutex<HashMap<u16, RedisClient>>);

impl Observer {
    /// Sends a command to `node`, which may not reply.
    pub(super) fn ask(&self, node: &RedisServer, words: &[&str]) -> Option<Reply> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let port = node.port();
        let mut client = match clients.remove(&port) {
            Some(client) => client,
            None => node.try_client().and_then(RedisClient::soon).ok()?,
        };
        let reply = client.try_command(words).ok()?;
        clients.insert(port, client);
        Some(reply)
    }

    /// The keys on `node`, with their queues.
    pub(super) fn look(&self, node: &RedisServer, keys: &[String]) -> Option<Vec<Snapshot>> {
        let look = |key: &String| {
            let (lock, queue) = (format!("{LOCK}{key}"), format!("{QUEUE}{key}"));
            snapshot(&self.ask(node, &["EVAL", LOOK, "2", &lock, &queue])?)
        };
        keys.iter().map(look).collect()
    }

    /// The holders of a key of a cluster; `None` if the node does not serve the key. The queue is left out: while a
    /// slot moves, a claim may be granted the key without a look at it.
    pub(super) fn look_without_queue(&self, node: &RedisServer, key: &str) -> Option<Snapshot> {
        snapshot(&self.ask(node, &["EVAL", LOOK, "1", &format!("{LOCK}{key}")])?)
    }
}

fn snapshot(reply: &Reply) -> Option<Snapshot> {
    let Reply::Many(parts) = reply else { return None };
    let [Reply::Many(holders), Reply::Many(waiters), Reply::Many(subscribed), accepted] =
        &parts[..]
    else {
        return None;
    };
    let queued = |(entry, subscribed): (&[Reply], &Reply)| {
        let (claim, ticket) = (claimed(text(&entry[0])?)?, text(&entry[1])?.into());
        Some(Queued { claim, ticket, listens: *subscribed != Reply::Int(0) })
    };
    Some(Snapshot {
        holders: holders.iter().filter_map(text).filter_map(claimed).collect(),
        waiters: waiters.chunks(2).zip(subscribed).filter_map(queued).collect(),
        connections: text(accepted)?.parse().ok()?,
    })
}

/// The claim in a lock's value or in an entry. `None` for the second and later permits of a claim.
fn claimed(text: &str) -> Option<Claimed> {
    let fields: Vec<&str> = text.split(':').collect();
    let (token, label) = match fields[0].split_once(' ') {
        Some((token, _)) => (token, fields.get(ENTRY_LABEL_AT)?),
        None => (*fields.get(TOKEN_AT)?, fields.get(LABEL_AT)?),
    };
    Some(Claimed { token: token.into(), label: claim_of(label).into() })
}

pub(super) fn text(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Text(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tenure::redis::Redis;
    use tenure_core::Locker;

    use super::*;
    use crate::wait::eventually;

    async fn locker(server: &RedisServer) -> Locker {
        Locker::new(Redis::connect(&server.url()).await.unwrap())
    }

    /// A snapshot has the claims that hold a key, alone or together, those that wait in their order, and whether they
    /// can be notified.
    #[tokio::test]
    async fn a_snapshot_has_holders_and_waiters() {
        let (server, observer) = (RedisServer::start(), Observer::default());
        let look = || observer.look(&server, &["k".into()]).unwrap().remove(0);
        let label = |claim: &Claimed| claim.label.clone();
        let (one, other) = (locker(&server).await, locker(&server).await);
        let permits = one.semaphore("k", 3).acquire_many(2).label("a/0/0").await.unwrap();
        let permit = other.semaphore("k", 3).acquire().numbered().label("b/0/0").await.unwrap();
        let mut holders: Vec<_> = look().holders.iter().map(label).collect();
        holders.sort();
        assert_eq!(holders, ["a/0/0", "b/0/0"]);
        let first = tokio::spawn(one.lock("k").label("a/0/1").into_future());
        eventually("a waiter", || async { look().waiters.len() == 1 }).await;
        let second = tokio::spawn(other.read("k").label("b/0/1").into_future());
        eventually("two waiters that listen", || async {
            let waiters = look().waiters;
            let labels: Vec<_> = waiters.iter().map(|waiter| label(&waiter.claim)).collect();
            labels == ["a/0/1", "b/0/1"] && waiters.iter().all(|waiter| waiter.listens)
        })
        .await;
        permits.release().await.unwrap();
        permit.release().await.unwrap();
        let alone = first.await.unwrap().unwrap();
        let seen = look();
        assert_eq!(seen.holders.iter().map(label).collect::<Vec<_>>(), ["a/0/1"]);
        assert_eq!(seen.waiters.len(), 1);
        locker(&server).await;
        assert!(look().connections > seen.connections);
        drop(alone);
        drop(second);
    }
}
