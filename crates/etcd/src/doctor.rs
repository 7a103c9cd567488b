//! What makes locks unsafe on an etcd cluster.
//!
//! In: the endpoints that were named, and the ttl of the locks. Out: findings about each of them, and
//! about what they are together. A lock of a random name is taken for a moment; nothing of it is left.
//!
//! Absent: clocks. For leases etcd counts time that passes; a fence follows the clients' clocks (`epoch.rs`).

use std::sync::Arc;
use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict, latency, trial};
use tokio::task::JoinSet;

use crate::backend::Etcd;
use crate::link::{Cluster, Visit};
use crate::proto::{Alarm, AlarmRequest, RangeRequest, StatusResponse};
use crate::trouble::{Cause, Trouble};
use crate::url::Address;
use crate::version::{Opinion, opinion};

/// How many round trips make a median.
const READS: usize = 11;
/// How full the database may be, in percent.
const FULL: i64 = 80;
/// The quota of a server that was not told another; those before 3.6 do not say theirs.
const QUOTA_DEFAULT: i64 = 2 * 1024 * 1024 * 1024;
const MEBIBYTE: i64 = 1024 * 1024;

/// One endpoint, and what came of asking it.
struct Seen {
    address: Address,
    visit: Result<Visit, Trouble>,
}

impl Etcd {
    pub(crate) async fn look_for_flaws(&self, ttl: Duration) -> Vec<Finding> {
        let cluster = self.shared.calls.cluster();
        let seen = visit_all(cluster).await;
        let mut findings = reachable(&seen);
        let met: Vec<_> = seen
            .iter()
            .filter_map(|seen| Some((&seen.address, seen.visit.as_ref().ok()?)))
            .collect();
        let Some((_, first)) = met.first() else { return findings };
        findings.extend(met.iter().map(|(address, visit)| version(address, &visit.status.version)));
        findings.push(same_cluster(&met));
        findings.push(leader(&met));
        findings.push(alarms(first, &met).await);
        findings.extend(met.iter().map(|(address, visit)| space(address, &visit.status)));
        findings.extend(self.reading(first, cluster, ttl).await);
        if Verdict::worst(&findings) < Verdict::Unsafe {
            findings.push(self.a_lock(ttl).await);
        }
        findings
    }

    /// Whether our keys may be read, and how long that takes: each read is agreed on with the leader.
    async fn reading(&self, visit: &Visit, cluster: &Cluster, ttl: Duration) -> [Finding; 2] {
        let login = Check::new("auth", "etcd", "read our keys as the user that was given");
        let check =
            Check::new("latency", "etcd", format!("read through the leader, {READS} times"));
        let (clock, mut trips) = (&self.shared.clock, Vec::with_capacity(READS));
        for _ in 0..READS {
            let start = clock.now();
            if let Err(trouble) =
                visit.ask(RangeRequest::under(self.shared.keys.locks()).limit(1)).await
            {
                let unread = check.unknown("could not be measured: nothing could be read");
                return [denied(login, &trouble, self.shared.keys.root()), unread];
            }
            trips.push(clock.now().since(start));
        }
        [allowed(login, cluster.user(), visit.is_logged_in()), latency(check, trips, ttl)]
    }

    async fn a_lock(&self, ttl: Duration) -> Finding {
        let mut found = trial(self, ttl).await;
        if found.seen.contains("permission denied") {
            found.advice = Some(grant(self.shared.keys.root()));
        }
        found
    }
}

/// In the order in which they are named.
async fn visit_all(cluster: &Arc<Cluster>) -> Vec<Seen> {
    let mut asked = JoinSet::new();
    for (at, address) in cluster.addresses().cloned().enumerate() {
        let cluster = cluster.clone();
        asked.spawn(async move { (at, Seen { address, visit: Visit::pay(&cluster, at).await }) });
    }
    let mut seen: Vec<_> = asked.join_all().await;
    seen.sort_by_key(|(at, _)| *at);
    seen.into_iter().map(|(_, seen)| seen).collect()
}

fn reachable(seen: &[Seen]) -> Vec<Finding> {
    let any = seen.iter().any(|seen| seen.visit.is_ok());
    let found = |seen: &Seen| {
        let check = Check::new("reachable", &seen.address, "connect, log in, ask for its status");
        let trouble = match &seen.visit {
            Ok(_) => return check.good("it answers"),
            Err(trouble) => trouble,
        };
        let advice = match trouble.cause() {
            Cause::Refused | Cause::BadToken => "correct user, password or certificates",
            Cause::Unsupported => "use etcd 3.4 or later",
            _ => "start it, open the way to it, or take it out of the URL",
        };
        // The others are asked instead.
        match any {
            true => check.warning(trouble.to_string(), advice),
            false => check.danger(trouble.to_string(), advice),
        }
    };
    seen.iter().map(found).collect()
}

fn version(address: &Address, version: &str) -> Finding {
    let check = Check::new("version", address, "ask for its status");
    match opinion(version) {
        Opinion::Good => check.good(format!("etcd {version}")),
        Opinion::TooOld => {
            check.danger(format!("etcd {version}"), "use 3.4 or later: an older one is refused")
        }
        Opinion::Buggy(floor) => check.warning(
            format!(
                "etcd {version} has known bugs: a lease can end while it seems to be kept alive"
            ),
            format!("upgrade to {floor} or later (etcd issues 20547, 15247)"),
        ),
    }
}

fn same_cluster(met: &[(&Address, &Visit)]) -> Finding {
    let check = Check::new("cluster", "etcd", "compare the cluster ids of the endpoints");
    let id = |visit: &Visit| visit.status.header.map_or(0, |header| header.cluster_id);
    let mut ids: Vec<_> = met.iter().map(|(_, visit)| id(visit)).collect();
    ids.dedup();
    match ids.as_slice() {
        [one] => check.good(format!("all of them belong to {one:x}")),
        _ => {
            let shown = met.iter().map(|(address, visit)| format!("{address} to {:x}", id(visit)));
            let seen = format!("they belong to several: {}", shown.collect::<Vec<_>>().join(", "));
            check.danger(seen, "name endpoints of one cluster: locks in two exclude nobody")
        }
    }
}

fn leader(met: &[(&Address, &Visit)]) -> Finding {
    let check = Check::new("leader", "etcd", "ask each endpoint whom it follows");
    let without: Vec<_> = met
        .iter()
        .filter(|(_, visit)| visit.status.leader == 0)
        .map(|(at, _)| at.to_string())
        .collect();
    let learners: Vec<_> = met
        .iter()
        .filter(|(_, visit)| visit.status.is_learner)
        .map(|(at, _)| at.to_string())
        .collect();
    let advice = "bring back enough members for a majority, or the way between them";
    match (without.len(), learners.is_empty()) {
        (0, true) => check.good("each of them has one"),
        (0, false) => check.warning(
            format!("{} only learns: it serves no locks", learners.join(", ")),
            "promote it, or take it out of the URL",
        ),
        (count, _) if count == met.len() => check.danger("none of them has one", advice),
        _ => check.warning(format!("{} has none", without.join(", ")), advice),
    }
}

async fn alarms(visit: &Visit, met: &[(&Address, &Visit)]) -> Finding {
    let check = Check::new("alarms", "etcd", "ask for alarms");
    let raised = match visit.ask(AlarmRequest {}).await {
        Ok(answer) => answer.alarms,
        Err(trouble) => return check.unknown(format!("could not be checked: {trouble}")),
    };
    let member = |id: u64| {
        let same = |visit: &Visit| visit.status.header.is_some_and(|header| header.member_id == id);
        let named = met.iter().find(|(_, visit)| same(visit));
        named.map_or_else(|| format!("member {id:x}"), |(address, _)| address.to_string())
    };
    let shown =
        raised.iter().map(|one| format!("{} at {}", alarm_word(one.alarm), member(one.member_id)));
    let seen = shown.collect::<Vec<_>>().join(", ");
    let is = |alarm: Alarm| raised.iter().any(|one| one.alarm == i32::from(alarm));
    match (is(Alarm::Corrupt), raised.is_empty()) {
        (_, true) => check.good("none"),
        (true, _) => check.danger(seen, "replace the member whose data is corrupt before anything else"),
        _ => check.danger(
            seen,
            "no lock is granted: compact, `etcdctl defrag`, raise `--quota-backend-bytes`, then `etcdctl alarm disarm`",
        ),
    }
}

fn alarm_word(alarm: i32) -> String {
    match Alarm::try_from(alarm) {
        Ok(Alarm::NoSpace) => "NOSPACE".into(),
        Ok(Alarm::Corrupt) => "CORRUPT".into(),
        _ => format!("alarm {alarm}"),
    }
}

fn space(address: &Address, status: &StatusResponse) -> Finding {
    let check = Check::new("space", address, "compare the size of its data with the quota");
    let told = (status.db_size_quota > 0).then_some(status.db_size_quota);
    let quota = told.unwrap_or(QUOTA_DEFAULT);
    let percent = status.db_size.saturating_mul(100) / quota;
    let (size, most) = ((status.db_size + MEBIBYTE - 1) / MEBIBYTE, quota / MEBIBYTE);
    let unless =
        if told.is_none() { " (unless it was set: this version does not say)" } else { "" };
    let seen = format!("{size} of {most} MiB{unless}");
    match percent >= FULL {
        false => check.good(seen),
        true => check.warning(
            format!("{seen}: when it is full, no lock is granted"),
            "compact (`--auto-compaction-retention`), `etcdctl defrag`, or raise `--quota-backend-bytes`",
        ),
    }
}

fn allowed(check: Check, user: Option<&str>, logged_in: bool) -> Finding {
    match (user, logged_in) {
        (Some(user), true) => check.good(format!("allowed, as `{user}`")),
        (Some(user), false) => check.warning(
            format!(
                "allowed, and the cluster asks nobody for a password: `{user}` is not looked at"
            ),
            "`etcdctl auth enable`, or leave the user out of the URL",
        ),
        (None, _) => check.good("allowed, and no user was given"),
    }
}

fn denied(check: Check, trouble: &Trouble, prefix: &str) -> Finding {
    match trouble.cause() {
        Cause::Refused | Cause::BadToken => check.danger(trouble.to_string(), grant(prefix)),
        _ => check.danger(trouble.to_string(), "find out why the cluster does not answer"),
    }
}

/// The command that would be enough.
fn grant(prefix: &str) -> String {
    format!(
        "give a user and this role: `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quota that a server tells counts, else the one that it has unless it was told another.
    #[test]
    fn space_that_is_left() {
        let address = Address { host: "h".into(), port: 1 };
        let of = |db_size, db_size_quota| {
            let status = StatusResponse { db_size, db_size_quota, ..Default::default() };
            space(&address, &status)
        };
        assert_eq!(of(79 * MEBIBYTE, 100 * MEBIBYTE).verdict, Verdict::Good);
        assert_eq!(of(80 * MEBIBYTE, 100 * MEBIBYTE).verdict, Verdict::Warning);
        assert_eq!(of(80 * MEBIBYTE, 0).verdict, Verdict::Good);
        assert_eq!(of(1_700 * MEBIBYTE, 0).verdict, Verdict::Warning);
        assert_eq!(
            of(80 * MEBIBYTE, 0).seen,
            "80 of 2048 MiB (unless it was set: this version does not say)"
        );
    }

    /// Versions, as connecting judges them.
    #[test]
    fn versions() {
        let address = Address { host: "h".into(), port: 1 };
        let verdict = |of| version(&address, of).verdict;
        assert_eq!([verdict("3.4.38"), verdict("3.5.23"), verdict("3.6.5")], [Verdict::Good; 3]);
        assert_eq!([verdict("3.4.37"), verdict("3.5.22"), verdict("3.6.4")], [Verdict::Warning; 3]);
        assert_eq!(verdict("3.3.27"), Verdict::Unsafe);
    }
}
