//! One Redis server behind a proxy, and what can go wrong with them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::arena::{Arena, Fault, Strike};
use crate::servers::proxy::{Cut, Deed, Proxy, Rule, Way};
use crate::servers::{RedisClient, RedisServer, Reply};
use crate::wait::pass;

/// What locks are called at the server.
pub(super) const LOCK: &str = "tenure:lock:";
/// What of a lock's value stands before the label: flag and version, client, token, since, host, pid,
/// user, program.
const BEFORE_LABEL: usize = 8;

/// A server of the campaign's own.
pub struct RedisArena {
    server: RedisServer,
    proxy: Proxy,
    /// The connection that looks, made again when it breaks.
    eye: Mutex<Option<RedisClient>>,
    /// How far the server's clock has been put forward, in seconds.
    ahead: Mutex<u64>,
}

impl RedisArena {
    /// Faults that keep the server's data.
    pub const KEEP: [Fault<Self>; 12] = [
        Fault::new("connections cut", cut),
        Fault::new("replies and requests delayed", delay),
        Fault::new("black hole", black_hole),
        Fault::new("reply swallowed", swallow),
        Fault::new("reply truncated", truncate),
        Fault::new("request doubled", double),
        Fault::new("CLIENT KILL", client_kill),
        Fault::new("CLIENT PAUSE", client_pause),
        Fault::new("SCRIPT FLUSH", script_flush),
        Fault::new("server stopped", stop),
        Fault::new("connections refused", refuse),
        Fault::new("server restarted with its data", restart),
    ];

    /// Faults that destroy it.
    pub const DESTROY: [Fault<Self>; 4] = [
        Fault::new("FLUSHALL", flush),
        Fault::new("lock deleted", delete),
        Fault::new("server restarted empty", restart_empty),
        Fault::new("server clock put forward", put_forward),
    ];

    /// One that writes everything down before it answers.
    pub fn persistent() -> Self {
        Self::of(RedisServer::start_persistent())
    }

    /// One that remembers nothing, with a clock that can be set.
    pub fn forgetful() -> Self {
        Self::of(RedisServer::start_with_clock(&[]))
    }

    fn of(server: RedisServer) -> Self {
        let proxy = Proxy::to(server.port());
        RedisArena { server, proxy, eye: Mutex::default(), ahead: Mutex::default() }
    }

    fn tell(&self, words: &[&str]) -> Reply {
        self.server.client().command(words)
    }

    fn ask(&self, words: &[&str]) -> Option<Reply> {
        let mut eye = self.eye.lock().unwrap_or_else(PoisonError::into_inner);
        if eye.is_none() {
            *eye = self.server.try_client().ok();
        }
        let reply = eye.as_mut()?.try_command(words).ok();
        if reply.is_none() {
            *eye = None;
        }
        reply
    }

    /// A rule on the messages of a while, one connection's or all's.
    fn for_a_while(&self, rules: &[Rule], time: Duration) {
        rules.iter().for_each(|rule| self.proxy.rule(rule.clone()));
        pass(time);
        self.proxy.heal();
    }

    /// The number of an open connection, or none to mean all.
    fn some_connection(&self, strike: &mut Strike<'_>) -> Option<usize> {
        let open = self.proxy.connections();
        (!open.is_empty() && strike.dice.one_in(2)).then(|| *strike.dice.pick(&open))
    }
}

impl Arena for RedisArena {
    fn url(&self) -> String {
        self.proxy.url()
    }

    fn heal(&self) {
        self.proxy.heal();
        self.server.go_on();
        self.tell(&["CLIENT", "UNPAUSE"]);
    }

    fn holders(&self, keys: &[String]) -> Option<Vec<Option<String>>> {
        let locks: Vec<String> = keys.iter().map(|key| format!("{LOCK}{key}")).collect();
        let words: Vec<&str> =
            std::iter::once("MGET").chain(locks.iter().map(String::as_str)).collect();
        let Reply::Many(values) = self.ask(&words)? else { return None };
        Some(values.iter().map(label).collect())
    }

    fn leftovers(&self) -> Vec<String> {
        let Some(Reply::Many(keys)) = self.ask(&["KEYS", "*"]) else { return Vec::new() };
        let fence = Reply::Text("tenure:fence".into());
        keys.iter().filter(|key| **key != fence).map(|key| format!("{key:?}")).collect()
    }
}

/// The label in a lock's value.
pub(super) fn label(value: &Reply) -> Option<String> {
    text(value)?.split(':').nth(BEFORE_LABEL).map(Into::into)
}

pub(super) fn text(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Text(text) => Some(text),
        _ => None,
    }
}

fn cut(arena: &RedisArena, strike: &mut Strike<'_>) {
    let how = *strike.dice.pick(&[Cut::Close, Cut::Reset]);
    match arena.some_connection(strike) {
        Some(one) => drop(arena.proxy.cut_one(one, how)),
        None => drop(arena.proxy.cut(how)),
    }
}

fn delay(arena: &RedisArena, strike: &mut Strike<'_>) {
    let deed = Deed::Delay(strike.millis(1, 300));
    let rules = [Way::Requests, Way::Replies].map(|way| Rule::on(way, deed.clone()));
    arena.for_a_while(&rules, strike.millis(50, 1_000));
}

fn black_hole(arena: &RedisArena, strike: &mut Strike<'_>) {
    let both = [Way::Requests, Way::Replies];
    let ways = *strike.dice.pick(&[&both[..], &both[..1], &both[1..]]);
    let one = arena.some_connection(strike);
    let on = |way: &Way| {
        let rule = Rule::on(*way, Deed::Swallow);
        one.map_or(rule.clone(), |one| rule.of(one))
    };
    let rules: Vec<Rule> = ways.iter().map(on).collect();
    arena.for_a_while(&rules, strike.millis(20, 1_500));
}

/// Of an acquire, mostly: what was granted and not heard of.
fn swallow(arena: &RedisArena, strike: &mut Strike<'_>) {
    let what = *strike.dice.pick(&["granted", "freed", "renewed", ""]);
    let rule = Rule::on(Way::Replies, Deed::Swallow).containing(what).once();
    arena.for_a_while(&[rule], strike.millis(20, 200));
}

fn truncate(arena: &RedisArena, strike: &mut Strike<'_>) {
    let rule = Rule::on(Way::Replies, Deed::Truncate).once();
    arena.for_a_while(&[rule], strike.millis(20, 200));
}

/// No network does that, but it shifts replies as a faulty proxy would.
fn double(arena: &RedisArena, strike: &mut Strike<'_>) {
    let rule = Rule::on(Way::Requests, Deed::Twice).containing("EVALSHA").once();
    arena.for_a_while(&[rule], strike.millis(20, 200));
}

fn refuse(arena: &RedisArena, strike: &mut Strike<'_>) {
    arena.proxy.refuse();
    arena.proxy.cut(Cut::Reset);
    arena.for_a_while(&[], strike.millis(20, 500));
}

fn client_kill(arena: &RedisArena, _: &mut Strike<'_>) {
    arena.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
}

fn client_pause(arena: &RedisArena, strike: &mut Strike<'_>) {
    let time = strike.millis(20, 1_000).as_millis().to_string();
    let what = *strike.dice.pick(&["WRITE", "ALL"]);
    arena.tell(&["CLIENT", "PAUSE", &time, what]);
}

fn script_flush(arena: &RedisArena, _: &mut Strike<'_>) {
    arena.tell(&["SCRIPT", "FLUSH"]);
}

fn stop(arena: &RedisArena, strike: &mut Strike<'_>) {
    arena.server.pause();
    pass(strike.millis(10, 1_200));
    arena.server.go_on();
}

fn restart(arena: &RedisArena, _: &mut Strike<'_>) {
    arena.server.restart();
}

fn flush(arena: &RedisArena, strike: &mut Strike<'_>) {
    strike.take_all_away(|| drop(arena.tell(&["FLUSHALL"])));
}

fn delete(arena: &RedisArena, strike: &mut Strike<'_>) {
    let key = strike.key();
    strike.take_away(key, || drop(arena.tell(&["DEL", &format!("{LOCK}{key}")])));
}

fn restart_empty(arena: &RedisArena, strike: &mut Strike<'_>) {
    strike.take_all_away(|| arena.server.restart());
}

/// By more than any ttl; never back, and kept through restarts: fences follow this clock.
fn put_forward(arena: &RedisArena, strike: &mut Strike<'_>) {
    let mut ahead = arena.ahead.lock().unwrap_or_else(PoisonError::into_inner);
    *ahead += 2 + strike.dice.below(60);
    strike.take_all_away(|| arena.server.clock().set(&format!("+{}s", *ahead)));
}
