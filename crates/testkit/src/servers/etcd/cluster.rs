//! A cluster of three servers, and a network between them that can be partitioned.
//!
//! The members reach each other through proxies. The sender of a connection names itself in each request
//! (`X-Server-From`), so that one member can be isolated in both directions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::launch::{Running, Setup, TOGETHER};
use super::{EtcdServer, Metrics};
use crate::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use crate::wait::eventually_blocking;

/// The number of members: the fewest that can work without one.
pub(super) const SIZE: usize = 3;

/// Three members. They end when this is dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    /// The proxy in front of each member, for the other members.
    ways: Vec<Proxy>,
    /// The id of each member in the cluster.
    ids: Mutex<Vec<String>>,
    /// The members that a test has made unavailable: killed, paused, or isolated.
    away: Mutex<[bool; SIZE]>,
}

impl EtcdCluster {
    /// Starts three members, and waits until each of them serves.
    ///
    /// # Panics
    ///
    /// If there is no `etcd`, or they do not serve in time.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts three members with additional arguments of their command lines.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(args: &[&str]) -> Self {
        let args = [&TOGETHER, args].concat();
        // Another process may take a port between our check and the server's bind.
        for _ in 0..10 {
            if let Some(cluster) = Self::try_start(&args) {
                return cluster;
            }
        }
        panic!("a cluster ended at once, ten times; its arguments: {args:?}");
    }

    fn try_start(args: &[&str]) -> Option<Self> {
        let (mut setups, mut ways) = (Vec::new(), Vec::new());
        for name in ["one", "two", "three"] {
            let setup = Setup::new(name, args, None);
            let way = Proxy::raw(setup.peer());
            setups.push(setup.found_at(way.port()));
            ways.push(way);
        }
        let all = setups.iter().map(Setup::entry).collect::<Vec<_>>().join(",");
        for setup in &mut setups {
            setup.cluster = Mutex::new(Some((all.clone(), "new")));
        }
        let mut running: Vec<Running> = setups.iter().map(Setup::launch).collect();
        let mut both = setups.iter().zip(&mut running);
        if !both.all(|(setup, running)| setup.is_up(running)) {
            return None;
        }
        let both = setups.into_iter().zip(running);
        let members = both.map(|(setup, running)| EtcdServer::of(setup, running)).collect();
        let cluster = EtcdCluster { members, ways, ids: Mutex::default(), away: Mutex::default() };
        cluster.learn_ids();
        Some(cluster)
    }

    /// `etcd://127.0.0.1:A,127.0.0.1:B,127.0.0.1:C`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// One member, for inspection or for `etcdctl`.
    pub fn member(&self, index: usize) -> &EtcdServer {
        &self.members[index]
    }

    /// A member that serves, for `etcdctl`.
    ///
    /// # Panics
    ///
    /// If no member serves in time.
    pub fn any(&self) -> &EtcdServer {
        &self.members[self.leader()]
    }

    /// The leader; waits until an available member leads.
    ///
    /// # Panics
    ///
    /// If none does in time.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually_blocking("a leader", || {
            let away = *self.away();
            leader = (0..SIZE).find(|index| !away[*index] && self.members[*index].is_leader());
            leader.is_some_and(|leader| self.members[leader].is_healthy())
        });
        leader.expect("waited for")
    }

    /// An available member that does not lead.
    ///
    /// # Panics
    ///
    /// As [`leader`](Self::leader), or if there is no other.
    pub fn follower(&self) -> usize {
        let (leader, away) = (self.leader(), *self.away());
        let others = (1..SIZE).map(|step| (leader + step) % SIZE);
        others.into_iter().find(|index| !away[*index]).expect("a member that follows")
    }

    /// Waits until every available member serves.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub fn is_whole(&self) {
        let away = *self.away();
        let here = || (0..SIZE).filter(|index| !away[*index]);
        eventually_blocking("every member to serve", || {
            here().all(|index| self.members[index].is_healthy())
        });
    }

    /// All members that are not killed, paused or isolated.
    pub fn here(&self) -> Vec<&EtcdServer> {
        let away = *self.away();
        let here = self.members.iter().zip(away).filter(|(_, away)| !away);
        here.map(|(member, _)| member).collect()
    }

    /// The metrics of each available member.
    pub fn metrics(&self) -> Vec<Metrics> {
        self.here().into_iter().map(EtcdServer::metrics).collect()
    }

    /// Pauses a member (`SIGSTOP`).
    pub fn pause(&self, index: usize) {
        self.away()[index] = true;
        self.members[index].pause();
    }

    /// Continues a paused member.
    pub fn go_on(&self, index: usize) {
        self.members[index].go_on();
        self.away()[index] = false;
    }

    /// Kills a member.
    pub fn kill(&self, index: usize) {
        self.away()[index] = true;
        self.members[index].kill();
    }

    /// Starts a member again after a [`kill`](Self::kill), with its data, and does not wait for it.
    pub fn start_again(&self, index: usize) {
        self.members[index].start_again();
        self.away()[index] = false;
    }

    /// Isolates a member from the others, like a network that drops packets. Clients still reach it.
    pub fn isolate(&self, index: usize) {
        let said = format!("X-Server-From: {}\r\n", self.ids()[index]);
        self.away()[index] = true;
        for (other, way) in self.ways.iter().enumerate() {
            for direction in [Way::Requests, Way::Replies] {
                let rule = Rule::on(direction, Action::Swallow);
                way.rule(if other == index { rule } else { rule.of_who_said(&said) });
            }
        }
    }

    /// Ends the isolation.
    pub fn rejoin(&self, index: usize) {
        self.reconnect();
        self.away()[index] = false;
    }

    /// Ends every isolation. Open connections are reset: half a message must not become a whole one.
    fn reconnect(&self) {
        for way in &self.ways {
            way.refuse();
            way.cut(Cut::Reset);
        }
        eventually_blocking("old connections to end", || {
            self.ways.iter().all(|way| way.connections().is_empty())
        });
        self.ways.iter().for_each(Proxy::heal);
    }

    /// Ends all faults, and waits until every member serves.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub fn heal(&self) {
        for index in 0..SIZE {
            self.members[index].go_on();
            if !self.members[index].is_running() {
                self.members[index].start_again();
            }
        }
        self.reconnect();
        *self.away() = [false; SIZE];
        self.is_whole();
    }

    /// Moves the leadership to another member. Returns whether the request succeeded.
    pub fn hand_on(&self) -> bool {
        let (from, to) = (self.leader(), self.follower());
        let id = self.ids()[to].clone();
        self.members[from].try_ctl(&["move-leader", &id]).is_ok()
    }

    /// Removes a member for good, and adds a new one without data at the same addresses.
    ///
    /// # Panics
    ///
    /// If the new member does not serve in time.
    pub fn replace(&self, index: usize) {
        self.kill(index);
        let (old, setup) = (self.ids()[index].clone(), &self.members[index].setup);
        self.insist(&["member", "remove", &old], |all| !all.contains(&old));
        let entry = setup.entry();
        let (name, url) = entry.split_once('=').expect("a name and an address");
        let add = ["member", "add", name, &format!("--peer-urls={url}")];
        self.insist(&add, |all| all.contains(url));
        let all = self.members.iter().map(|member| member.setup.entry()).collect::<Vec<_>>();
        let founding = Some((all.join(","), "existing"));
        *setup.cluster.lock().unwrap_or_else(PoisonError::into_inner) = founding;
        self.members[index].restart_empty();
        self.away()[index] = false;
        self.learn_ids();
    }

    /// Repeats a command of the operator until the list of members shows its effect: a reply may be lost in a
    /// change of leaders, and the repeated command is then refused.
    fn insist(&self, words: &[&str], is_done: impl Fn(&str) -> bool) {
        eventually_blocking("the members to change", || {
            let _ = self.any().try_ctl(words);
            self.any().try_ctl(&["member", "list"]).is_ok_and(|all| is_done(&all))
        });
    }

    fn learn_ids(&self) {
        eventually_blocking("every member to be known by name", || {
            // Lines such as "8e9e05c52164694d, started, one, …".
            let said = self.any().try_ctl(&["member", "list"]).unwrap_or_default();
            let fields = |line: &str| line.split(", ").map(String::from).collect::<Vec<_>>();
            let lines: Vec<_> = said.lines().map(fields).collect();
            let id = |member: &EtcdServer| {
                let line = lines.iter().find(|line| line.get(2) == Some(&member.setup.name));
                line.map(|line| line[0].clone())
            };
            let ids: Option<Vec<String>> = self.members.iter().map(id).collect();
            ids.map(|ids| *self.ids() = ids).is_some()
        });
    }

    fn ids(&self) -> MutexGuard<'_, Vec<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn away(&self) -> MutexGuard<'_, [bool; SIZE]> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
