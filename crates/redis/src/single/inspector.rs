//! What operators do with locks: inspect them, watch them, and release them by force.
//!
//! In: a name or a glob. Out: the holders, and the waiters in order; hints when they change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Pipeline, Value};
use tenure_core::backend::{
    ClaimEnd, Fault, HintSender, Hints, Holding, LockInfo, Loss, Notice, Query, Release, Waiting,
    hints,
};
use tenure_core::fence::{EPOCH, PER_MILLI};
use tenure_core::time::UnixMillis;
use tenure_core::{Key, Token};
use tenure_net::ForkGuard;

use super::releaser::released;
use super::watch::{Watch, warn_unwatched};
use crate::client::Client;
use crate::error::{Cause, EngineError};
use crate::link::{Link, Pool, SendMode, Server};
use crate::scripts::ScriptCall;
use crate::wire::keys::Keys;
use crate::wire::value::{self, LockValue};

/// How many keys one step of a scan visits.
const SCANNED_AT_ONCE: usize = 1_000;
/// How many locks are read in one round trip.
const READ_AT_ONCE: usize = 256;
/// The number of commands that read one lock.
const READS: usize = 4;

/// An operator's text is cut to this many characters: it is stored on the server for a while.
pub(crate) const BY_MAX: usize = 200;

#[derive(Debug)]
pub(crate) struct Inspector {
    pub(super) keys: Keys,
    pub(super) server: Arc<Server>,
    /// The id of this process on the server.
    pub(super) client: String,
    commands: Arc<Pool>,
    fork_guard: ForkGuard,
}

impl Inspector {
    pub(super) fn new(client: &Client) -> Self {
        Inspector {
            keys: client.keys().clone(),
            server: client.server().clone(),
            client: client.writer().client().into(),
            commands: client.commands().clone(),
            fork_guard: client.fork_guard(),
        }
    }

    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, EngineError> {
        let keys: Vec<Key> = match query {
            Query::Key(key) => vec![key.clone()],
            Query::Keys(keys) => keys.clone(),
            Query::Glob(_) => self.scan(query).await?.into_iter().collect(),
        };
        let mut found = Vec::new();
        for some in keys.chunks(READ_AT_ONCE) {
            found.extend(self.read_locks(query, some).await?);
        }
        Ok(found)
    }

    /// The locks that match, by name. A scan may return a key twice.
    pub(crate) async fn scan(&self, query: &Query) -> Result<BTreeSet<Key>, EngineError> {
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

    async fn scan_step(&self, cursor: u64) -> Result<(u64, Vec<Vec<u8>>), EngineError> {
        let link = self.commands.any();
        let live = link.live().await?;
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(self.keys.all_locks()).arg("COUNT").arg(SCANNED_AT_ONCE);
        let reply = link.call(&live, scan).await?;
        redis::from_redis_value(reply).map_err(|_| link.desynced(&live))
    }

    /// Reads these keys. If locks have bare names (`lock_key={key}`), every key could be a lock, so a search
    /// shows only values that tenure wrote. A lock that is requested by its name is shown with any holder.
    pub(crate) async fn read_locks(
        &self,
        query: &Query,
        keys: &[Key],
    ) -> Result<Vec<LockInfo>, EngineError> {
        let by_name = matches!(query, Query::Key(_));
        let hides = |key: &Key, value: &LockValue| {
            let foreign = *value == LockValue::Foreign && self.keys.are_bare() && !by_name;
            foreign || self.keys.is_reserved(key)
        };
        // A type is asked for, because a command for another type counts as an error in the server's statistics.
        let mut types = redis::pipe();
        for key in keys {
            types.cmd("TYPE").arg(self.keys.lock(key));
        }
        let types = self.read_all(&types).await?;
        let mut pipe = redis::pipe();
        for (key, kind) in keys.iter().zip(types) {
            let (lock, kind) = (self.keys.lock(key), kind?);
            match kind {
                Value::SimpleString(kind) if kind == "zset" => {
                    pipe.cmd("ZRANGE").arg(&lock).arg(0).arg(-1).arg("WITHSCORES");
                    // In a cluster the clock of the ends is that of the key: see `scripts/value.lua`.
                    match self.keys.has_slots() {
                        true => pipe.cmd("PTTL").arg(&lock),
                        false => pipe.cmd("TIME"),
                    };
                }
                _ => drop(pipe.cmd("GET").arg(&lock).cmd("PTTL").arg(&lock)),
            }
            pipe.cmd("ZRANGE").arg(self.keys.queue(key)).arg(0).arg(-1).arg("WITHSCORES");
            pipe.cmd("ZRANGE").arg(self.keys.holders(key)).arg(0).arg(-1);
        }
        let replies = self.read_all(&pipe).await?;
        let infos = keys.iter().zip(replies.chunks_exact(READS));
        infos.filter_map(|(key, replies)| info(key, replies, &hides).transpose()).collect()
    }

    /// Runs all these reads, also for keys that are moving to another node of a cluster.
    pub(crate) async fn read_all(&self, pipe: &Pipeline) -> Result<Replies, EngineError> {
        let link = self.commands.any();
        let live = link.live().await?;
        let mut replies = link.call_all(&live, pipe, link.response_timeout()).await?;
        for (command, reply) in pipe.cmd_iter().zip(&mut replies) {
            let sent = reply.as_ref().err().filter(|error| error.is_moving());
            if let Some(there) = sent.and_then(|error| link.redirect_target(error.redirect()?)) {
                *reply = read_at(there.any(), command).await;
            }
        }
        Ok(replies)
    }

    /// Hints about the locks of `query` from now on; `None` if the server does not report changes.
    pub(crate) async fn hints(&self, query: &Query) -> Result<Option<Hints>, EngineError> {
        let (hinter, hints) = hints(self.server.clock());
        let watch = self.watch(hinter, query);
        match watch.open().await {
            Ok(live) => Ok(Some(hints.kept_by(tokio::spawn(watch.keep_open(live)).abort_handle()))),
            Err(error) if error.is_permanent() => {
                warn_unwatched(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A connection that receives the changes; it is not open yet.
    pub(crate) fn watch(&self, hinter: HintSender, query: &Query) -> Watch {
        Watch::new(self, hinter, query)
    }

    /// Which operator ended these claims by force, if one did.
    pub(crate) async fn end_reasons(
        &self,
        ended: &[(Key, Token)],
    ) -> Result<Vec<Option<ClaimEnd>>, EngineError> {
        let mut pipe = redis::pipe();
        for (key, token) in ended {
            pipe.cmd("GET").arg(self.keys.forced(key, *token));
        }
        let replies = self.read_all(&pipe).await?;
        replies.into_iter().map(|by| Ok(forced(by?))).collect()
    }

    pub(crate) async fn force_release(
        &self,
        key: &Key,
        seen: Token,
        by: &str,
    ) -> Result<Release, Fault> {
        self.fork_guard.refuse_forked()?;
        let by: String = by.chars().take(BY_MAX).collect();
        let run = ScriptCall::force(&self.keys, key, seen, &by);
        let answer = released(run.on(self.commands.of(key)).await?);
        if answer != Release::NotHeld {
            // For a holder in this process. Other holders are notified in their inbox, or their next renewal
            // finds the key `forced`.
            let loss = Loss::Forced(by);
            self.server.notify(Notice::Lost { key: key.clone(), token: seen, loss });
        }
        Ok(answer)
    }
}

fn forced(by: Value) -> Option<ClaimEnd> {
    let by: Option<String> = redis::from_redis_value(by).ok()?;
    by.map(|by| Loss::Forced(by).into())
}

/// Sends a read-only command to a node that has the key but does not own its slot yet.
async fn read_at(link: &Link, command: &Cmd) -> Result<Value, EngineError> {
    link.call_by(&link.live().await?, command.clone(), SendMode::Asking).await
}

/// One reply for each command.
type Replies = Vec<Result<Value, EngineError>>;

/// `None` if the lock is free by now, hidden, or of another type and so not a lock.
fn info(
    key: &Key,
    replies: &[Result<Value, EngineError>],
    hides: &impl Fn(&Key, &LockValue) -> bool,
) -> Result<Option<LockInfo>, EngineError> {
    let [value, left, queue, holders] = replies else { return Ok(None) };
    let value = match value {
        Ok(Value::BulkString(value)) => value,
        Ok(Value::Array(_)) => {
            let holdings = members(read(value), left);
            let waiters = waiters(read(queue));
            let info = LockInfo::new(key.clone(), holdings, Some(waiters));
            return Ok((!info.holders.is_empty()).then_some(info));
        }
        Err(error) if error.cause() != Cause::WrongType => return Err(error.clone()),
        _ => return Ok(None),
    };
    let left = match left {
        // The lease ended between the two reads.
        Ok(Value::Int(-2)) => return Ok(None),
        Ok(Value::Int(millis)) => u64::try_from(*millis).ok().map(Duration::from_millis),
        _ => None,
    };
    let value = LockValue::parse(value);
    if hides(key, &value) {
        return Ok(None);
    }
    let waiters = waiters(read(queue));
    let holdings = holdings(value, left, read(holders));
    Ok(Some(LockInfo::new(key.clone(), holdings, Some(waiters))))
}

/// The value, or the default if the key has another type.
fn read<T: FromRedisValue + Default>(reply: &Result<Value, EngineError>) -> T {
    let reply = reply.as_ref().ok().cloned();
    reply.and_then(|reply| redis::from_redis_value(reply).ok()).unwrap_or_default()
}

/// One holder; or, for a shared owner, the same fields for each of its claims.
fn holdings(value: LockValue, left: Option<Duration>, shared: Vec<String>) -> Vec<Holding> {
    let (own, is_shared, fence) = (value.token(), value.is_shared(), value.fence());
    let holder = value.holder(left);
    let claims = shared.iter().filter_map(|token| Token::parse(token)).map(Some);
    let tokens: Vec<_> = if is_shared { claims.collect() } else { vec![own] };
    tokens.into_iter().map(|token| Holding::new(holder.clone(), fence, token)).collect()
}

/// The holders of a lock that several claims hold together, whose lease has not ended by the server's clock, or by that
/// of the key, which is the rest of its ttl before the last end.
fn members(members: Vec<(Vec<u8>, f64)>, clock: &Result<Value, EngineError>) -> Vec<Holding> {
    let last = members.last().map_or(0, |(_, end)| *end as u64);
    let now = match clock {
        Ok(Value::Int(left)) => last.saturating_sub(u64::try_from(*left).unwrap_or(0)),
        time => {
            let (seconds, micros): (u64, u64) = read(time);
            seconds * 1_000 + micros / 1_000
        }
    };
    let holding = |(member, end): (Vec<u8>, f64)| {
        let (mut holder, token, mode, slot) = value::member(&member)?;
        let left = (end as u64).checked_sub(now).filter(|left| *left > 0)?;
        holder.lease_left = Some(Duration::from_millis(left));
        Some(Holding::new(holder, None, Some(token)).mode(mode, slot))
    };
    members.into_iter().filter_map(holding).collect()
}

/// The waiters in the queue, in order. A ticket is a fence: the clock when it was drawn, or later.
fn waiters(queue: Vec<(Vec<u8>, f64)>) -> Vec<Waiting> {
    let waiter = |(entry, ticket): (Vec<u8>, f64)| {
        let since = UnixMillis(EPOCH.0 + ticket as u64 / PER_MILLI);
        let holder = value::waiter(&entry, since)?;
        let (mode, _) = value::parse_mode(str::from_utf8(&entry).ok()?);
        Some(Waiting::new(holder, Some(since)).mode(mode))
    };
    queue.into_iter().filter_map(waiter).collect()
}
