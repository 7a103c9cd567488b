//! Checks whether a server keeps what it has granted: through a restart, when its memory is full, in a
//! failover.
//!
//! In: a probe connection. Out: findings.

use tenure_core::doctor::{Check, Finding, Verdict};

use super::Standing;
use super::probe::{Visit, why};

/// The memory in use, in percent, from which new locks are about to be refused.
const FULL: u64 = 90;

/// The settings with which a server loses no acknowledged write.
const SYNCED: &str = "`appendonly yes` and `appendfsync always`";

pub(super) async fn all(visit: &mut Visit, standing: Standing) -> [Finding; 3] {
    let persistence = weigh(persistence(visit).await, standing);
    [persistence, eviction(visit).await, replication(visit, standing).await]
}

/// In a quorum, the vote of a restarted server does not count until the locks that it may have lost have
/// expired; with `restarted=trusted` it counts at once.
fn weigh(mut found: Finding, standing: Standing) -> Finding {
    match (standing, found.verdict) {
        (Standing::Voter { trusted: false }, Verdict::Warning) => {
            (found.verdict, found.advice) = (Verdict::Good, None);
            found.seen += "; after a restart its vote does not count for a while";
        }
        (Standing::Voter { trusted: true }, Verdict::Warning) => {
            found.verdict = Verdict::Unsafe;
            found.seen += "; and its vote counts at once";
            found.advice = Some(format!("leave `restarted=trusted` out, or set {SYNCED}"));
        }
        _ => {}
    }
    found
}

async fn persistence(visit: &mut Visit) -> Finding {
    let tried = "INFO persistence, CONFIG GET appendonly, appendfsync, save";
    let check = Check::new("persistence", visit.address(), tried);
    let (appendonly, save) = (visit.setting("appendonly").await, visit.setting("save").await);
    let appended = match (&appendonly, visit.field("aof_enabled")) {
        (Ok(set), _) => set == "yes",
        (_, Some(said)) => said == "1",
        (Err(error), None) => return check.unknown(why(error)),
    };
    if let Some(failed) = failed_save(visit, save.as_deref().ok()) {
        let advice = "free space on its disk, see its log: it refuses writes until it can save";
        return check.critical(format!("the last save failed (`{failed}`)"), advice);
    }
    if appended {
        return appended_file(check, visit.setting("appendfsync").await.as_deref().ok());
    }
    let lost = format!("set {SYNCED}, or have the resource check fences");
    match save.as_deref() {
        Ok("") => check.warning("nothing is saved: a restart forgets every lock", lost),
        Ok(save) => check.warning(
            format!("snapshots only (`save {save}`): a restart forgets the locks since the last"),
            lost,
        ),
        Err(_) => check.warning("no append-only file: a restart forgets locks", lost),
    }
}

fn appended_file(check: Check, fsync: Option<&str>) -> Finding {
    let advice = format!("set {SYNCED}, or have the resource check fences");
    match fsync {
        Some("always") => check.good("the append-only file is synced with every write"),
        Some("everysec") => check.warning(
            "the append-only file is synced every second: a machine that dies forgets the locks of the last second or two",
            advice,
        ),
        Some(other) => check.warning(
            format!("the append-only file is synced when the system decides (`appendfsync {other}`): a machine that dies forgets locks"),
            advice,
        ),
        None => check.unknown("there is an append-only file; the user lacks the right to see how often it is synced"),
    }
}

/// The `INFO` field that shows that the server cannot save and therefore refuses writes.
fn failed_save(visit: &Visit, save: Option<&str>) -> Option<&'static str> {
    let failed = |name| visit.field(name) == Some("err");
    let snapshots = save != Some("");
    match (failed("aof_last_write_status"), failed("rdb_last_bgsave_status") && snapshots) {
        (true, _) => Some("aof_last_write_status:err"),
        (_, true) => Some("rdb_last_bgsave_status:err"),
        _ => None,
    }
}

async fn eviction(visit: &mut Visit) -> Finding {
    let tried = "INFO memory, CONFIG GET maxmemory, maxmemory-policy";
    let check = Check::new("eviction", visit.address(), tried);
    let policy = match visit.field("maxmemory_policy").map(ToOwned::to_owned) {
        Some(policy) => policy,
        None => match visit.setting("maxmemory-policy").await {
            Ok(policy) => policy,
            Err(error) => return check.unknown(why(&error)),
        },
    };
    let limit = match visit.field("maxmemory").and_then(|said| said.parse().ok()) {
        Some(limit) => limit,
        None => visit.number("maxmemory").await.unwrap_or(0),
    };
    let used = visit.field("used_memory").and_then(|used| used.parse().ok());
    judge_eviction(check, &policy, limit, used)
}

fn judge_eviction(check: Check, policy: &str, limit: u64, used: Option<u64>) -> Finding {
    let advice =
        "set `maxmemory-policy noeviction`; if the server is a cache, use another for locks";
    match (policy, limit) {
        ("noeviction", 0) => check.good("`noeviction`, and no limit"),
        ("noeviction", limit) => match used.map(|used| used.saturating_mul(100) / limit) {
            Some(percent @ FULL..) => check.warning(
                format!("`noeviction`, and {percent} % of `maxmemory` is in use: a full server grants no lock"),
                "raise `maxmemory`, or remove what is not needed",
            ),
            _ => check.good("`noeviction`: a full server refuses new locks and keeps those it has"),
        },
        (policy, 0) => check.warning(
            format!("`{policy}`, and no limit yet: with `maxmemory` set, locks would be evicted"),
            advice,
        ),
        (policy, limit) => check.critical(
            format!("`{policy}` with `maxmemory {limit}`: a full server evicts locks that are held"),
            advice,
        ),
    }
}

async fn replication(visit: &mut Visit, standing: Standing) -> Finding {
    let tried = "INFO replication, CONFIG GET min-replicas-to-write, min-replicas-max-lag";
    let check = Check::new("replication", visit.address(), tried);
    if let Err(error) = visit.info() {
        return check.unknown(why(error));
    }
    let number = |name| visit.field(name).and_then(|said| said.parse().ok());
    let (replicas, in_time) =
        (number("connected_slaves").unwrap_or(0), number("min_slaves_good_slaves"));
    let wanted = match (
        visit.number("min-replicas-to-write").await,
        visit.number("min-replicas-max-lag").await,
    ) {
        (Ok(wanted), Ok(lag)) => {
            if lag == 0 {
                0
            } else {
                wanted
            }
        }
        // The server reports this field only if the setting is in effect.
        _ => u64::from(in_time.is_some()),
    };
    judge_replication(check, replicas, wanted, in_time.unwrap_or(0), standing)
}

fn judge_replication(
    check: Check,
    replicas: u64,
    wanted: u64,
    in_time: u64,
    standing: Standing,
) -> Finding {
    if in_time < wanted {
        return check.critical(
            format!(
                "{} in time, and `min-replicas-to-write` is {wanted}: every write is refused",
                counted(in_time)
            ),
            "bring the replicas back, or lower `min-replicas-to-write`",
        );
    }
    match (replicas, wanted, standing) {
        (0, _, Standing::Watched | Standing::Node) => {
            check.warning("no replica: nothing can replace the master", "add a replica, better two")
        }
        (0, ..) => check.good(counted(0)),
        (replicas, 0, _) => check.warning(
            format!("{}, and `min-replicas-to-write 0`: a master that was cut off and replaced goes on granting locks", counted(replicas)),
            "set `min-replicas-to-write 1` and `min-replicas-max-lag 10` on all of them; `?replicas=N` in the URL has grants wait for replicas",
        ),
        (replicas, wanted, _) => check.good(format!("{}; a write needs {wanted} of them up to date", counted(replicas))),
    }
}

fn counted(replicas: u64) -> String {
    match replicas {
        0 => "no replica".into(),
        1 => "1 replica".into(),
        more => format!("{more} replicas"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> Check {
        Check::new("x", "h:1", "look")
    }

    /// An evicting policy is unsafe once there is a limit; `noeviction` is safe until memory is nearly full.
    #[test]
    fn t10_policies() {
        let verdict = |policy, limit, used| judge_eviction(check(), policy, limit, used).verdict;
        assert_eq!(verdict("noeviction", 0, Some(5)), Verdict::Good);
        assert_eq!(verdict("noeviction", 100, Some(89)), Verdict::Good);
        assert_eq!(verdict("noeviction", 100, Some(95)), Verdict::Warning);
        for policy in ["volatile-lru", "volatile-ttl", "allkeys-lru", "allkeys-random"] {
            assert_eq!(verdict(policy, 0, None), Verdict::Warning);
            assert_eq!(verdict(policy, 1, None), Verdict::Unsafe);
        }
    }

    /// Replicas help only if a master knows that it has lost them.
    #[test]
    fn replicas() {
        let verdict = |replicas, wanted, in_time, standing| {
            judge_replication(check(), replicas, wanted, in_time, standing).verdict
        };
        assert_eq!(verdict(0, 0, 0, Standing::Alone), Verdict::Good);
        assert_eq!(verdict(0, 0, 0, Standing::Watched), Verdict::Warning);
        assert_eq!(verdict(2, 0, 0, Standing::Watched), Verdict::Warning);
        assert_eq!(verdict(2, 1, 2, Standing::Watched), Verdict::Good);
        assert_eq!(verdict(2, 2, 1, Standing::Alone), Verdict::Unsafe);
    }
}
