//! Three etcd servers, each behind a proxy for clients, and what can go wrong with them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Clock, UnixMillis};

use super::Promise;
use super::arena::{Arena, Fault, Strike};
use super::trace::{Evidence, GivenUp, LOCK, Seen, Usurper};
use crate::servers::proxy::{Cut, Deed, Proxy, Rule, Way};
use crate::servers::{EtcdCluster, Look, Metrics, Past};
use crate::wait::pass;

/// What all keys of a campaign start with.
const ALL: &str = "tenure/";
/// What of a claim's value stands before the label: version, state, token, since, host, pid, user,
/// program.
const BEFORE_LABEL: usize = 8;
/// What clients call to end a lease.
const REVOKE: &str = "LeaseRevoke";
/// How many members there are.
const SIZE: usize = 3;
/// The first versions that are not known to end leases which are kept alive, when a leader goes on
/// that stood still (etcd issue 15247).
const SOUND: [(u32, u32, u32); 3] = [(3, 4, 38), (3, 5, 23), (3, 6, 5)];

/// A cluster of the campaign's own.
pub struct EtcdArena {
    cluster: EtcdCluster,
    ways: Vec<Proxy>,
    clock: Clock,
    /// When which revision was seen.
    looks: Mutex<Vec<Seen>>,
    /// What was read of the servers' history so far.
    past: Mutex<Past>,
    /// Members that had lost their office while they stood still.
    usurpers: Mutex<Vec<Usurper>>,
}

impl EtcdArena {
    /// Faults that keep the servers' data, and in which no version is known to break its word.
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

    /// A leader that stands still for longer than leases last. Versions below the floors then end
    /// leases that are kept alive (etcd issue 15247): on those, two may hold one key.
    pub const STALL: [Fault<Self>; 2] = [
        Fault::new("leader stopped", stop_leader),
        Fault::new("history compacted", read_and_compact),
    ];

    /// Faults that take locks away.
    pub const DESTROY: [Fault<Self>; 3] = [
        Fault::new("claim deleted", delete),
        Fault::new("lease revoked", revoke),
        Fault::new("leader killed", kill_leader),
    ];

    /// Three members.
    pub fn start() -> Self {
        let cluster = EtcdCluster::start();
        let ways = (0..SIZE).map(|index| Proxy::raw(cluster.member(index).port())).collect();
        let (clock, (looks, past, usurpers)) = (Clock::system(), Default::default());
        EtcdArena { cluster, ways, clock, looks, past, usurpers }
    }

    /// What must hold under [`STALL`](Self::STALL), with this version.
    pub fn stalled(&self) -> Promise {
        let version = self.cluster.any().version();
        let known = SOUND.iter().find(|floor| (floor.0, floor.1) == (version.0, version.1));
        match known.map_or(version > SOUND[2], |floor| version >= *floor) {
            true => Promise::Everything,
            false => Promise::Traced,
        }
    }

    /// How many leases were ended by members that had stood still and did not lead any more: what
    /// etcd issue 15247 looks like from outside, seen in the members' own counts.
    pub fn usurped(&self) -> u64 {
        self.usurpers().iter().map(|usurper| usurper.ended).sum()
    }

    /// One way to the servers, or all.
    fn some_ways(&self, strike: &mut Strike<'_>) -> Vec<&Proxy> {
        match strike.dice.one_in(3) {
            true => self.ways.iter().collect(),
            false => vec![strike.dice.pick(&self.ways)],
        }
    }

    /// Rules for a while. What they have broken is cut: half a message must not become a whole one.
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

    /// The last revision, and the last entry of the log, that any member knows of that is not away.
    fn last(&self) -> [u64; 2] {
        let known = self.cluster.metrics();
        let last = |of: fn(&Metrics) -> u64| known.iter().map(of).max().unwrap_or_default();
        [last(Metrics::writes), last(Metrics::agreed)]
    }

    /// Reads the history from where it was last read; until which revision it is known then, if it could be.
    fn read_past(&self) -> Option<u64> {
        let mut past = self.past();
        let next = self.cluster.any().past(ALL, past.until)?;
        past.extend(next);
        Some(past.until)
    }

    /// What a member could not end, on the clock of everybody else.
    fn given_up(&self, index: usize) -> Vec<GivenUp> {
        let (now, by) = (self.clock.now().as_nanos(), self.cluster.asker(index));
        let since_1970 = UnixMillis::now().0 * 1_000_000;
        let at = |then: Duration| {
            let ago = since_1970.saturating_sub(u64::try_from(then.as_nanos()).unwrap_or_default());
            now.saturating_sub(ago)
        };
        let given_up = self.cluster.member(index).gave_up_ending().into_iter();
        given_up.map(|then| GivenUp { at: at(then), by }).collect()
    }

    fn looks(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usurpers(&self) -> MutexGuard<'_, Vec<Usurper>> {
        self.usurpers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena for EtcdArena {
    fn url(&self) -> String {
        let hosts: Vec<_> =
            self.ways.iter().map(|way| format!("127.0.0.1:{}", way.port())).collect();
        format!("etcd://{}", hosts.join(","))
    }

    fn heal(&self) {
        self.ways.iter().for_each(Proxy::heal);
        self.cluster.is_whole();
    }

    fn holders(&self, keys: &[String]) -> Option<Vec<Option<String>>> {
        let from = self.clock.now().as_nanos();
        let Look { revision, pairs: claims } =
            self.cluster.here().into_iter().find_map(|member| member.look(LOCK))?;
        let until = self.clock.now().as_nanos();
        self.looks().push(Seen { from, until, revision });
        let holder = |key: &String| {
            let queue = format!("{LOCK}{key}/");
            let first = claims.iter().find(|(name, _)| name.starts_with(&queue));
            first.and_then(|(_, value)| label(value))
        };
        Some(keys.iter().map(holder).collect())
    }

    fn leftovers(&self) -> Vec<String> {
        let found = self.cluster.any().oldest_first("").into_iter().flatten();
        found.map(|(name, _)| name).filter(|name| name != EPOCH).collect()
    }

    fn evidence(&self) -> Evidence {
        self.read_past().expect("the history can be read");
        let (gone, usurpers) = (self.past().gone.clone(), self.usurpers().clone());
        let (seen, endings) = (self.looks().clone(), self.cluster.any().who_ended());
        let given_up = (0..SIZE).flat_map(|index| self.given_up(index)).collect();
        Evidence { gone, usurpers, endings, given_up, seen }
    }
}

/// The base of fences, the one key that is to stay.
const EPOCH: &str = "tenure/epoch";

/// The label in a claim's value.
fn label(value: &str) -> Option<String> {
    value.split(':').nth(BEFORE_LABEL).filter(|label| !label.is_empty()).map(Into::into)
}

fn cut(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let how = *strike.dice.pick(&[Cut::Close, Cut::Reset]);
    for way in arena.some_ways(strike) {
        way.cut(how);
    }
}

fn delay(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let deed = Deed::Delay(strike.millis(1, 500));
    let rules = [Way::Requests, Way::Replies].map(|way| Rule::on(way, deed.clone()));
    let ways = arena.some_ways(strike);
    arena.for_a_while(&ways, &rules, strike.millis(100, 2_000));
}

fn black_hole(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let both = [Way::Requests, Way::Replies].map(|way| Rule::on(way, Deed::Swallow));
    let rules = *strike.dice.pick(&[&both[..], &both[..1], &both[1..]]);
    let ways = arena.some_ways(strike);
    arena.for_a_while(&ways, rules, strike.millis(100, 3_000));
}

fn refuse(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let ways = arena.some_ways(strike);
    for way in &ways {
        way.refuse();
        way.cut(Cut::Reset);
    }
    pass(strike.millis(100, 2_000));
    ways.iter().for_each(|way| way.heal());
}

fn kill_leader(arena: &EtcdArena, strike: &mut Strike<'_>) {
    arena.kill_for(arena.cluster.leader(), strike.millis(10, 2_500));
}

fn kill_follower(arena: &EtcdArena, strike: &mut Strike<'_>) {
    arena.kill_for(arena.cluster.follower(), strike.millis(10, 2_500));
}

fn kill_majority(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let (leader, follower) = (arena.cluster.leader(), arena.cluster.follower());
    arena.cluster.kill(follower);
    arena.kill_for(leader, strike.millis(10, 2_500));
    arena.cluster.start_again(follower);
}

fn isolate_leader(arena: &EtcdArena, strike: &mut Strike<'_>) {
    arena.isolate_for(arena.cluster.leader(), strike.millis(500, 4_000));
}

fn isolate_follower(arena: &EtcdArena, strike: &mut Strike<'_>) {
    arena.isolate_for(arena.cluster.follower(), strike.millis(500, 4_000));
}

/// For far less than an election takes, also on a busy machine: it must not lose its office by that.
fn stop_leader_briefly(arena: &EtcdArena, strike: &mut Strike<'_>) {
    arena.stop_for(arena.cluster.leader(), strike.millis(10, 400));
}

fn stop_follower(arena: &EtcdArena, strike: &mut Strike<'_>) {
    arena.stop_for(arena.cluster.follower(), strike.millis(100, 4_000));
}

fn stop_leader(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let leader = arena.cluster.leader();
    let before = arena.cluster.member(leader).metrics();
    arena.cluster.pause(leader);
    pass(strike.millis(1_000, 6_000));
    let (from, went_on) = (arena.last(), arena.clock.now().as_nanos());
    arena.cluster.go_on(leader);
    // It hears of its successor at once, and does not need longer than this to act as if it had not.
    pass(Duration::from_millis(700));
    let member = arena.cluster.member(leader);
    if !member.is_leader() {
        let (after, until) = (member.metrics(), arena.last());
        arena.usurpers().push(Usurper {
            name: member.name().into(),
            asker: arena.cluster.asker(leader),
            went_on,
            revisions: from[0] + 1..=until[0],
            entries: from[1] + 1..=until[1],
            ended: after.leases_ended() - before.leases_ended(),
            asked: after.calls(REVOKE) - before.calls(REVOKE),
        });
    }
}

fn change_leader(arena: &EtcdArena, _: &mut Strike<'_>) {
    arena.cluster.hand_on();
}

fn compact(arena: &EtcdArena, _: &mut Strike<'_>) {
    arena.cluster.any().try_compact();
}

/// Only what was read, so that every overlap can be traced.
fn read_and_compact(arena: &EtcdArena, _: &mut Strike<'_>) {
    if let Some(revision) = arena.read_past() {
        arena.cluster.any().try_compact_to(revision);
    }
}

fn replace(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let (leader, follower) = (arena.cluster.leader(), arena.cluster.follower());
    arena.cluster.replace(*strike.dice.pick(&[leader, follower]));
}

fn delete(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let key = strike.key();
    strike.take_away(key, || {
        let _ = arena.cluster.any().try_ctl(&["del", "--prefix", &format!("{LOCK}{key}/")]);
    });
}

fn revoke(arena: &EtcdArena, strike: &mut Strike<'_>) {
    let any = arena.cluster.any();
    let said = any.try_ctl(&["lease", "list"]).unwrap_or_default();
    let leases: Vec<&str> = said.lines().skip(1).collect();
    if leases.is_empty() {
        return;
    }
    let lease = *strike.dice.pick(&leases);
    strike.take_all_away(|| drop(any.try_ctl(&["lease", "revoke", lease])));
}
