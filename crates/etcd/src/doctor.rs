//! Checks for problems that make locks unsafe on an etcd cluster.
//!
//! In: the endpoints, and the ttl of the locks. Out: findings about each endpoint, and about the cluster as a
//! whole. A lock with a random name is acquired for a moment; nothing of it stays.
//!
//! The clocks of the servers are not checked. For leases, etcd uses a monotonic clock; a fence follows the clients'
//! clocks (`epoch.rs`).

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::Backend;
use tenure_core::doctor::{Check, Finding, Verdict, latency, self_test};
use tokio::task::JoinSet;

use crate::error::{EngineError, ErrorKind};
use crate::keys::Keys;
use crate::link::{Cluster, Link, Probe};
use crate::proto::{Alarm, AlarmRequest, RangeRequest, StatusResponse};
use crate::url::Address;
use crate::version::{Support, support};

/// How many round trips are measured for the median.
const READS: usize = 11;
/// From this percentage of the quota on, the database counts as nearly full.
const FULL: i64 = 80;
/// The default quota of a server. Servers before 3.6 do not report theirs.
const QUOTA_DEFAULT: i64 = 2 * 1024 * 1024 * 1024;
const MEBIBYTE: i64 = 1024 * 1024;

/// One endpoint, and the result of probing it.
struct Probed {
    address: Address,
    probe: Result<Probe, EngineError>,
}

#[derive(Debug)]
pub(crate) struct Doctor {
    pub(crate) keys: Arc<Keys>,
    pub(crate) calls: Arc<Link>,
}

impl Doctor {
    pub(crate) async fn diagnose(&self, backend: &dyn Backend, ttl: Duration) -> Vec<Finding> {
        let cluster = self.calls.cluster();
        let seen = probe_all(cluster).await;
        let mut findings = reachable(&seen);
        let met: Vec<_> = seen
            .iter()
            .filter_map(|seen| Some((&seen.address, seen.probe.as_ref().ok()?)))
            .collect();
        let Some((_, first)) = met.first() else { return findings };
        findings.extend(met.iter().map(|(address, probe)| version(address, &probe.status.version)));
        findings.push(same_cluster(&met));
        findings.push(leader(&met));
        findings.push(alarms(first, &met).await);
        findings.extend(met.iter().map(|(address, probe)| space(address, &probe.status)));
        findings.extend(self.read_test(first, cluster, ttl).await);
        if Verdict::worst(&findings) < Verdict::Unsafe {
            findings.push(self.lock_test(backend, ttl).await);
        }
        findings
    }

    /// Whether our keys may be read, and how long a read takes. Each read is agreed on with the leader.
    async fn read_test(&self, probe: &Probe, cluster: &Cluster, ttl: Duration) -> [Finding; 2] {
        let login = Check::new("auth", "etcd", "read our keys as the user that was given");
        let check =
            Check::new("latency", "etcd", format!("read through the leader, {READS} times"));
        let (clock, mut trips) = (self.calls.clock(), Vec::with_capacity(READS));
        for _ in 0..READS {
            let start = clock.now();
            if let Err(error) = probe.call(RangeRequest::under(self.keys.locks()).limit(1)).await {
                let unread = check.unknown("could not be measured: nothing could be read");
                return [denied(login, &error, self.keys.root()), unread];
            }
            trips.push(clock.now().since(start));
        }
        [allowed(login, cluster.user(), probe.is_logged_in()), latency(check, trips, ttl)]
    }

    async fn lock_test(&self, backend: &dyn Backend, ttl: Duration) -> Finding {
        let mut found = self_test(backend, ttl).await;
        if found.seen.contains("permission denied") {
            found.advice = Some(grant(self.keys.root()));
        }
        found
    }
}

/// The endpoints in the order in which they were named.
async fn probe_all(cluster: &Arc<Cluster>) -> Vec<Probed> {
    let mut sent = JoinSet::new();
    for (at, address) in cluster.addresses().iter().cloned().enumerate() {
        let cluster = cluster.clone();
        sent.spawn(
            async move { (at, Probed { address, probe: Probe::connect(&cluster, at).await }) },
        );
    }
    let mut seen: Vec<_> = sent.join_all().await;
    seen.sort_by_key(|(at, _)| *at);
    seen.into_iter().map(|(_, seen)| seen).collect()
}

fn reachable(seen: &[Probed]) -> Vec<Finding> {
    let any = seen.iter().any(|seen| seen.probe.is_ok());
    let found = |seen: &Probed| {
        let check = Check::new("reachable", &seen.address, "connect, log in, ask for its status");
        let error = match &seen.probe {
            Ok(_) => return check.good("it answers"),
            Err(error) => error,
        };
        let advice = match error.kind() {
            ErrorKind::Refused | ErrorKind::BadToken => "correct user, password or certificates",
            ErrorKind::Unsupported => "use etcd 3.4 or later",
            _ => "start it, open the way to it, or take it out of the URL",
        };
        // If other endpoints answer, they are asked instead.
        match any {
            true => check.warning(error.to_string(), advice),
            false => check.critical(error.to_string(), advice),
        }
    };
    seen.iter().map(found).collect()
}

fn version(address: &Address, version: &str) -> Finding {
    let check = Check::new("version", address, "ask for its status");
    match support(version) {
        Support::Good => check.good(format!("etcd {version}")),
        Support::TooOld => {
            check.critical(format!("etcd {version}"), "use 3.4 or later: an older one is refused")
        }
        Support::Buggy(floor) => check.warning(
            format!(
                "etcd {version} has known bugs: a lease can end while it seems to be kept alive"
            ),
            format!("upgrade to {floor} or later (etcd issues 20547, 15247)"),
        ),
    }
}

fn same_cluster(met: &[(&Address, &Probe)]) -> Finding {
    let check = Check::new("cluster", "etcd", "compare the cluster ids of the endpoints");
    let id = |probe: &Probe| probe.status.header.map_or(0, |header| header.cluster_id);
    let mut ids: Vec<_> = met.iter().map(|(_, probe)| id(probe)).collect();
    ids.dedup();
    match ids.as_slice() {
        [one] => check.good(format!("all of them belong to {one:x}")),
        _ => {
            let shown = met.iter().map(|(address, probe)| format!("{address} to {:x}", id(probe)));
            let seen = format!("they belong to several: {}", shown.collect::<Vec<_>>().join(", "));
            check.critical(
                seen,
                "name endpoints of one cluster: locks in two clusters do not exclude each other",
            )
        }
    }
}

fn leader(met: &[(&Address, &Probe)]) -> Finding {
    let check = Check::new("leader", "etcd", "ask each endpoint whom it follows");
    let without: Vec<_> = met
        .iter()
        .filter(|(_, probe)| probe.status.leader == 0)
        .map(|(at, _)| at.to_string())
        .collect();
    let learners: Vec<_> = met
        .iter()
        .filter(|(_, probe)| probe.status.is_learner)
        .map(|(at, _)| at.to_string())
        .collect();
    let advice = "bring back enough members for a majority, or the way between them";
    match (without.len(), learners.is_empty()) {
        (0, true) => check.good("each of them has one"),
        (0, false) => check.warning(
            format!("{} only learns: it serves no locks", learners.join(", ")),
            "promote it, or take it out of the URL",
        ),
        (count, _) if count == met.len() => check.critical("none of them has one", advice),
        _ => check.warning(format!("{} has none", without.join(", ")), advice),
    }
}

async fn alarms(probe: &Probe, met: &[(&Address, &Probe)]) -> Finding {
    let check = Check::new("alarms", "etcd", "ask for alarms");
    let raised = match probe.call(AlarmRequest {}).await {
        Ok(answer) => answer.alarms,
        Err(error) => return check.unknown(format!("could not be checked: {error}")),
    };
    let member = |id: u64| {
        let same = |probe: &Probe| probe.status.header.is_some_and(|header| header.member_id == id);
        let named = met.iter().find(|(_, probe)| same(probe));
        named.map_or_else(|| format!("member {id:x}"), |(address, _)| address.to_string())
    };
    let shown =
        raised.iter().map(|one| format!("{} at {}", alarm_word(one.alarm), member(one.member_id)));
    let seen = shown.collect::<Vec<_>>().join(", ");
    let is = |alarm: Alarm| raised.iter().any(|one| one.alarm == i32::from(alarm));
    match (is(Alarm::Corrupt), raised.is_empty()) {
        (_, true) => check.good("none"),
        (true, _) => check.critical(seen, "replace the member whose data is corrupt before anything else"),
        _ => check.critical(
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
    let reported = (status.db_size_quota > 0).then_some(status.db_size_quota);
    let quota = reported.unwrap_or(QUOTA_DEFAULT);
    let percent = status.db_size.saturating_mul(100) / quota;
    let (size, most) = ((status.db_size + MEBIBYTE - 1) / MEBIBYTE, quota / MEBIBYTE);
    let unless =
        if reported.is_none() { " (unless it was set: this version does not say)" } else { "" };
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
            format!("allowed, and the cluster does not ask for passwords: `{user}` is not checked"),
            "`etcdctl auth enable`, or leave the user out of the URL",
        ),
        (None, _) => check.good("allowed, and no user was given"),
    }
}

fn denied(check: Check, error: &EngineError, prefix: &str) -> Finding {
    match error.kind() {
        ErrorKind::Refused | ErrorKind::BadToken => {
            check.critical(error.to_string(), grant(prefix))
        }
        _ => check.critical(error.to_string(), "find out why the cluster does not answer"),
    }
}

/// The command that grants enough rights.
fn grant(prefix: &str) -> String {
    format!(
        "give a user and this role: `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quota that a server reports counts; otherwise the default quota.
    #[test]
    fn space_left() {
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

    /// Versions are judged as they are when connecting.
    #[test]
    fn versions() {
        let address = Address { host: "h".into(), port: 1 };
        let verdict = |of| version(&address, of).verdict;
        assert_eq!([verdict("3.4.38"), verdict("3.5.23"), verdict("3.6.5")], [Verdict::Good; 3]);
        assert_eq!([verdict("3.4.37"), verdict("3.5.22"), verdict("3.6.4")], [Verdict::Warning; 3]);
        assert_eq!(verdict("3.3.27"), Verdict::Unsafe);
    }
}
