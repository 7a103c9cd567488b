//! One Redis server behind a proxy, and their faults.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::observer::{LOCK, Observer};
use super::target::{Fault, Injection, Target};
use crate::judge::Snapshot;
use crate::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use crate::servers::{RedisServer, Reply};
use crate::wait::pass;

/// A server that the campaign starts for itself.
pub struct RedisTarget {
    server: RedisServer,
    proxy: Proxy,
    observer: Observer,
    /// How far the server's clock was advanced, in seconds.
    ahead: Mutex<u64>,
}

impl RedisTarget {
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

    /// Faults that destroy the server's data.
    pub const DESTROY: [Fault<Self>; 4] = [
        Fault::new("FLUSHALL", flush),
        Fault::new("lock deleted", delete),
        Fault::new("server restarted empty", restart_empty),
        Fault::new("server clock put forward", put_forward),
    ];

    /// A server that persists every write before it replies.
    pub fn persistent() -> Self {
        Self::of(RedisServer::start_persistent())
    }

    /// A server without persistence, with a clock that can be set.
    pub fn forgetful() -> Self {
        Self::of(RedisServer::start_with_clock(&[]))
    }

    fn of(server: RedisServer) -> Self {
        let proxy = Proxy::to(server.port());
        RedisTarget { server, proxy, observer: Observer::default(), ahead: Mutex::default() }
    }

    fn tell(&self, words: &[&str]) -> Reply {
        self.server.client().command(words)
    }

    /// Applies rules to the messages for a while.
    fn for_a_while(&self, rules: &[Rule], time: Duration) {
        rules.iter().for_each(|rule| self.proxy.rule(rule.clone()));
        pass(time);
        self.proxy.heal();
    }

    /// A random open connection, or `None` for all of them.
    fn some_connection(&self, injection: &mut Injection<'_>) -> Option<usize> {
        let open = self.proxy.connections();
        (!open.is_empty() && injection.rng.one_in(2)).then(|| *injection.rng.pick(&open))
    }
}

impl Target for RedisTarget {
    fn url(&self) -> String {
        self.proxy.url()
    }

    fn heal(&self) {
        self.proxy.heal();
        self.server.go_on();
        self.tell(&["CLIENT", "UNPAUSE"]);
    }

    fn look(&self, keys: &[String]) -> Option<Vec<Snapshot>> {
        self.observer.look(&self.server, keys)
    }

    fn leftovers(&self) -> Vec<String> {
        let Some(Reply::Many(keys)) = self.observer.ask(&self.server, &["KEYS", "*"]) else {
            return Vec::new();
        };
        let fence = Reply::Text("tenure:fence".into());
        keys.iter().filter(|key| **key != fence).map(|key| format!("{key:?}")).collect()
    }
}

fn cut(target: &RedisTarget, injection: &mut Injection<'_>) {
    let how = *injection.rng.pick(&[Cut::Close, Cut::Reset]);
    match target.some_connection(injection) {
        Some(one) => drop(target.proxy.cut_one(one, how)),
        None => drop(target.proxy.cut(how)),
    }
}

fn delay(target: &RedisTarget, injection: &mut Injection<'_>) {
    let deed = Action::Delay(injection.millis(1, 300));
    let rules = [Way::Requests, Way::Replies].map(|way| Rule::on(way, deed.clone()));
    target.for_a_while(&rules, injection.millis(50, 1_000));
}

fn black_hole(target: &RedisTarget, injection: &mut Injection<'_>) {
    let both = [Way::Requests, Way::Replies];
    let ways = *injection.rng.pick(&[&both[..], &both[..1], &both[1..]]);
    let one = target.some_connection(injection);
    let on = |way: &Way| {
        let rule = Rule::on(*way, Action::Swallow);
        one.map_or(rule.clone(), |one| rule.of(one))
    };
    let rules: Vec<Rule> = ways.iter().map(on).collect();
    target.for_a_while(&rules, injection.millis(20, 1_500));
}

/// Mostly replies to an acquire: a lock was granted, but the client does not learn of it.
fn swallow(target: &RedisTarget, injection: &mut Injection<'_>) {
    let what = *injection.rng.pick(&["granted", "freed", "renewed", ""]);
    let rule = Rule::on(Way::Replies, Action::Swallow).containing(what).once();
    target.for_a_while(&[rule], injection.millis(20, 200));
}

fn truncate(target: &RedisTarget, injection: &mut Injection<'_>) {
    let rule = Rule::on(Way::Replies, Action::Truncate).once();
    target.for_a_while(&[rule], injection.millis(20, 200));
}

/// No network does this, but it shifts replies as a faulty proxy would.
fn double(target: &RedisTarget, injection: &mut Injection<'_>) {
    let rule = Rule::on(Way::Requests, Action::Twice).containing("EVALSHA").once();
    target.for_a_while(&[rule], injection.millis(20, 200));
}

fn refuse(target: &RedisTarget, injection: &mut Injection<'_>) {
    target.proxy.refuse();
    target.proxy.cut(Cut::Reset);
    target.for_a_while(&[], injection.millis(20, 500));
}

fn client_kill(target: &RedisTarget, _: &mut Injection<'_>) {
    target.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
}

fn client_pause(target: &RedisTarget, injection: &mut Injection<'_>) {
    let time = injection.millis(20, 1_000).as_millis().to_string();
    let what = *injection.rng.pick(&["WRITE", "ALL"]);
    target.tell(&["CLIENT", "PAUSE", &time, what]);
}

fn script_flush(target: &RedisTarget, _: &mut Injection<'_>) {
    target.tell(&["SCRIPT", "FLUSH"]);
}

fn stop(target: &RedisTarget, injection: &mut Injection<'_>) {
    target.server.pause();
    pass(injection.millis(10, 1_200));
    target.server.go_on();
}

fn restart(target: &RedisTarget, _: &mut Injection<'_>) {
    target.server.restart();
}

fn flush(target: &RedisTarget, injection: &mut Injection<'_>) {
    injection.take_all_away(|| drop(target.tell(&["FLUSHALL"])));
}

fn delete(target: &RedisTarget, injection: &mut Injection<'_>) {
    let key = injection.key();
    injection.take_away(key, || drop(target.tell(&["DEL", &format!("{LOCK}{key}")])));
}

fn restart_empty(target: &RedisTarget, injection: &mut Injection<'_>) {
    injection.take_all_away(|| target.server.restart());
}

/// By more than any ttl. The clock never goes back and keeps its offset through restarts, because fences
/// follow it.
fn put_forward(target: &RedisTarget, injection: &mut Injection<'_>) {
    let mut ahead = target.ahead.lock().unwrap_or_else(PoisonError::into_inner);
    *ahead += 2 + injection.rng.below(60);
    injection.take_all_away(|| target.server.clock().set(&format!("+{}s", *ahead)));
}
