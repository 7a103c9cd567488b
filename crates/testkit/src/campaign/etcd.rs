//! Three etcd servers, each behind a proxy for clients, and their faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Promise;
use super::target::{Fault, Injection, Target};
use crate::history::claim_of;
use crate::judge::Snapshot;
use crate::servers::EtcdCluster;
use crate::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use crate::wait::pass;

/// The prefix of all claims.
const LOCK: &str = "tenure/lock/";
/// The number of fields before the label in a claim's value: version, state, token, since, host, pid, user,
/// program.
const BEFORE_LABEL: usize = 8;
/// The number of members.
const SIZE: usize = 3;
/// The first versions without the known bug: a leader that continues after a pause revokes leases that are
/// kept alive (etcd issue 15247).
const SOUND: [(u32, u32, u32); 3] = [(3, 4, 38), (3, 5, 23), (3, 6, 5)];

/// A cluster that the campaign starts for itself.
pub struct EtcdTarget {
    cluster: EtcdCluster,
    ways: Vec<Proxy>,
    /// Leases revoked by members that had been paused and no longer led.
    wrongly_revoked: AtomicU64,
}

impl EtcdTarget {
    /// Faults that keep the servers' data, and under which no version has a known bug.
    pub const KEEP: [Fault<Self>; 14] = [
        Fault::new("connections cut", cut),
        Fault::new("requests and answers delayed", delay),
        Fault::new("black hole", black_hole),
        Fault::new("connections refused", refuse),
        Fault::new("leader killed", kill_leader),
        Fault::new("follower killed", kill_follower),
        Fault::new("majority killed", kill_majority),
        Fault::new("leader cut off", isolate_leader),
        Fault::new("follower cut off", isolate_follower),
        Fault::new("leader stopped for a moment", stop_leader_briefly),
        Fault::new("follower stopped", stop_follower),
        Fault::new("leader changed", change_leader),
        Fault::new("history compacted", compact),
        Fault::new("member replaced", replace),
    ];

    /// A leader that is paused for longer than the ttl of leases. Versions older than `SOUND` then revoke
    /// leases that are kept alive (etcd issue 15247): on these versions two owners may hold one key.
    pub const STALL: [Fault<Self>; 2] =
        [Fault::new("leader stopped", stop_leader), Fault::new("history compacted", compact)];

    /// Faults that delete locks.
    pub const DESTROY: [Fault<Self>; 3] = [
        Fault::new("claim deleted", delete),
        Fault::new("lease revoked", revoke),
        Fault::new("leader killed", kill_leader),
    ];

    /// Starts three members.
    pub fn start() -> Self {
        let cluster = EtcdCluster::start();
        let ways = (0..SIZE).map(|index| Proxy::raw(cluster.member(index).port())).collect();
        EtcdTarget { cluster, ways, wrongly_revoked: AtomicU64::new(0) }
    }

    /// The promise that must hold under [`STALL`](Self::STALL) with this version.
    pub fn stalled(&self) -> Promise {
        let version = self.cluster.any().version();
        let known = SOUND.iter().find(|floor| (floor.0, floor.1) == (version.0, version.1));
        match known.map_or(version > SOUND[2], |floor| version >= *floor) {
            true => Promise::Everything,
            false => Promise::Order,
        }
    }

    /// The number of leases revoked by members that had been paused and no longer led. This is the symptom of
    /// etcd issue 15247, read from the members' own metrics.
    pub fn wrongly_revoked(&self) -> u64 {
        self.wrongly_revoked.load(Ordering::Relaxed)
    }

    /// One proxy, or all.
    fn some_ways(&self, injection: &mut Injection<'_>) -> Vec<&Proxy> {
        match injection.rng.one_in(3) {
            true => self.ways.iter().collect(),
            false => vec![injection.rng.pick(&self.ways)],
        }
    }

    /// Applies rules for a while. The connections are reset afterwards, so that half a message does not
    /// become a whole one.
    fn for_a_while(&self, ways: &[&Proxy], rules: &[Rule], time: Duration) {
        for way in ways {
            rules.iter().for_each(|rule| way.rule(rule.clone()));
        }
        pass(time);
        for way in ways {
            way.refuse();
            way.cut(Cut::Reset);
            way.heal();
        }
    }

    fn kill_for(&self, index: usize, time: Duration) {
        self.cluster.kill(index);
        pass(time);
        self.cluster.start_again(index);
    }

    fn isolate_for(&self, index: usize, time: Duration) {
        self.cluster.isolate(index);
        pass(time);
        self.cluster.rejoin(index);
    }

    fn stop_for(&self, index: usize, time: Duration) {
        self.cluster.pause(index);
        pass(time);
        self.cluster.go_on(index);
    }
}

impl Target for EtcdTarget {
    fn url(&self) -> String {
        let hosts: Vec<_> =
            self.ways.iter().map(|way| format!("127.0.0.1:{}", way.port())).collect();
        format!("etcd://{}", hosts.join(","))
    }

    fn heal(&self) {
        self.ways.iter().for_each(Proxy::heal);
        self.cluster.is_whole();
    }

    fn look(&self, keys: &[String]) -> Option<Vec<Snapshot>> {
        let claims =
            self.cluster.here().into_iter().find_map(|member| member.oldest_first(LOCK))?;
        let holder = |key: &String| {
            let queue = format!("{LOCK}{key}/");
            let first = claims.iter().find(|(name, _)| name.starts_with(&queue));
            first.and_then(|(_, value)| label(value))
        };
        Some(keys.iter().map(holder).map(Snapshot::of).collect())
    }

    fn leftovers(&self) -> Vec<String> {
        let found = self.cluster.any().oldest_first("").into_iter().flatten();
        found.map(|(name, _)| name).filter(|name| name != EPOCH).collect()
    }
}

/// The base of fences: the only key that stays.
const EPOCH: &str = "tenure/epoch";

/// The label in a claim's value.
fn label(value: &str) -> Option<String> {
    let label = value.split(':').nth(BEFORE_LABEL).map(claim_of);
    label.filter(|label| !label.is_empty()).map(Into::into)
}

fn cut(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let how = *injection.rng.pick(&[Cut::Close, Cut::Reset]);
    for way in target.some_ways(injection) {
        way.cut(how);
    }
}

fn delay(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let deed = Action::Delay(injection.millis(1, 500));
    let rules = [Way::Requests, Way::Replies].map(|way| Rule::on(way, deed.clone()));
    let ways = target.some_ways(injection);
    target.for_a_while(&ways, &rules, injection.millis(100, 2_000));
}

fn black_hole(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let both = [Way::Requests, Way::Replies].map(|way| Rule::on(way, Action::Swallow));
    let rules = *injection.rng.pick(&[&both[..], &both[..1], &both[1..]]);
    let ways = target.some_ways(injection);
    target.for_a_while(&ways, rules, injection.millis(100, 3_000));
}

fn refuse(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let ways = target.some_ways(injection);
    for way in &ways {
        way.refuse();
        way.cut(Cut::Reset);
    }
    pass(injection.millis(100, 2_000));
    ways.iter().for_each(|way| way.heal());
}

fn kill_leader(target: &EtcdTarget, injection: &mut Injection<'_>) {
    target.kill_for(target.cluster.leader(), injection.millis(10, 2_500));
}

fn kill_follower(target: &EtcdTarget, injection: &mut Injection<'_>) {
    target.kill_for(target.cluster.follower(), injection.millis(10, 2_500));
}

fn kill_majority(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let (leader, follower) = (target.cluster.leader(), target.cluster.follower());
    target.cluster.kill(follower);
    target.kill_for(leader, injection.millis(10, 2_500));
    target.cluster.start_again(follower);
}

fn isolate_leader(target: &EtcdTarget, injection: &mut Injection<'_>) {
    target.isolate_for(target.cluster.leader(), injection.millis(500, 4_000));
}

fn isolate_follower(target: &EtcdTarget, injection: &mut Injection<'_>) {
    target.isolate_for(target.cluster.follower(), injection.millis(500, 4_000));
}

/// Far shorter than an election, also on a busy machine: the leader must not be replaced.
fn stop_leader_briefly(target: &EtcdTarget, injection: &mut Injection<'_>) {
    target.stop_for(target.cluster.leader(), injection.millis(10, 400));
}

fn stop_follower(target: &EtcdTarget, injection: &mut Injection<'_>) {
    target.stop_for(target.cluster.follower(), injection.millis(100, 4_000));
}

fn stop_leader(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let leader = target.cluster.leader();
    let before = target.cluster.member(leader).metrics();
    target.cluster.pause(leader);
    pass(injection.millis(1_000, 6_000));
    target.cluster.go_on(leader);
    // The member learns of its successor at once. If it revokes leases wrongly, it does so within this time.
    pass(Duration::from_millis(700));
    let member = target.cluster.member(leader);
    if !member.is_leader() {
        let revoked = member.metrics().leases_ended() - before.leases_ended();
        target.wrongly_revoked.fetch_add(revoked, Ordering::Relaxed);
    }
}

fn change_leader(target: &EtcdTarget, _: &mut Injection<'_>) {
    target.cluster.hand_on();
}

fn compact(target: &EtcdTarget, _: &mut Injection<'_>) {
    target.cluster.any().try_compact();
}

fn replace(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let (leader, follower) = (target.cluster.leader(), target.cluster.follower());
    target.cluster.replace(*injection.rng.pick(&[leader, follower]));
}

fn delete(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let key = injection.key();
    injection.take_away(key, || {
        let _ = target.cluster.any().try_ctl(&["del", "--prefix", &format!("{LOCK}{key}/")]);
    });
}

fn revoke(target: &EtcdTarget, injection: &mut Injection<'_>) {
    let any = target.cluster.any();
    let said = any.try_ctl(&["lease", "list"]).unwrap_or_default();
    let leases: Vec<&str> = said.lines().skip(1).collect();
    if leases.is_empty() {
        return;
    }
    let lease = *injection.rng.pick(&leases);
    injection.take_all_away(|| drop(any.try_ctl(&["lease", "revoke", lease])));
}
