//! Examines a server: its latency, version, role and clock.
//!
//! In: a probe connection. Out: findings.

use std::time::Duration;

use redis::Value;
use tenure_core::doctor::{Check, Finding, latency};
use tenure_core::time::{Clock, UnixMillis};

use super::probe::{Visit, why};
use super::{Exam, Standing};
use crate::error::EngineError;
use crate::link::VERSION_MIN;

/// The number of round trips; the median counts.
const PINGS: usize = 11;
/// Synchronized clocks never differ by more than this.
const OFFSET_MAX: Duration = Duration::from_secs(1);

impl Exam<'_> {
    pub(super) async fn latency(&self, visit: &mut Visit) -> Finding {
        let check = Check::new("latency", visit.address(), format!("PING, {PINGS} times"));
        let mut trips = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let start = self.clock.now();
            if let Err(error) = visit.ask(&redis::cmd("PING")).await {
                return not_answered(check, &error);
            }
            trips.push(self.clock.now().since(start));
        }
        latency(check, trips, self.ttl)
    }
}

fn not_answered(check: Check, error: &EngineError) -> Finding {
    match error.code() {
        "NOPERM" => check.unknown(why(error)),
        _ => check.critical(error.to_string(), "find out why the server does not answer"),
    }
}

/// Version and role.
pub(super) fn what_it_is(visit: &Visit, standing: Standing) -> [Finding; 2] {
    [version(visit), role(visit, standing)]
}

fn version(visit: &Visit) -> Finding {
    let check = Check::new("version", visit.address(), "INFO server");
    let info = match visit.info() {
        Ok(info) => info,
        Err(error) => return check.unknown(why(error)),
    };
    let ours = info.field("valkey_version").map(|version| format!("Valkey {version}"));
    let shown = info.field("redis_version").unwrap_or("none");
    let seen = ours.unwrap_or_else(|| format!("Redis {shown}"));
    match info.version() {
        Some(version) if version >= VERSION_MIN => check.good(seen),
        Some(_) => check.critical(seen, "use version 6.2 or later: an older one is refused"),
        None => check.critical("it does not say its version", "name a Redis or Valkey server"),
    }
}

fn role(visit: &Visit, standing: Standing) -> Finding {
    let check = Check::new("role", visit.address(), "INFO server, INFO replication");
    if let Err(error) = visit.info() {
        return check.unknown(why(error));
    }
    match (visit.mode(), visit.field("role")) {
        (Some("cluster"), _) if standing != Standing::Node => check.critical(
            "it runs in cluster mode",
            "name the cluster, `redis-cluster://HOST`: locks on one node of it are refused",
        ),
        (Some("sentinel"), _) => {
            check.critical("it is a Sentinel", "name it as `redis+sentinel://HOST/SERVICE`")
        }
        (_, Some("master")) => check.good("master"),
        _ => {
            let field = |name| visit.field(name).unwrap_or("?");
            let master = format!("{}:{}", field("master_host"), field("master_port"));
            let advice = "name the master, or the Sentinels that know it: a replica is refused";
            check.critical(format!("replica of {master}"), advice)
        }
    }
}

/// Compares the server's wall clock with ours. Leases do not depend on it; fences follow it, and so do the
/// ages that are shown.
pub(super) async fn clock(visit: &mut Visit, clock: &Clock) -> Finding {
    let check = Check::new("clock", visit.address(), "TIME");
    let (wall, start) = (UnixMillis::now(), clock.now());
    let answer = visit.ask(&redis::cmd("TIME")).await;
    let trip = clock.now().since(start);
    let theirs = match answer.map(micros) {
        Err(error) => return check.unknown(why(&error)),
        Ok(None) => return check.unknown("it does not report its time"),
        Ok(Some(theirs)) => theirs,
    };
    // The server read its clock at some time between request and reply.
    let ours = i128::from(wall.0) * 1_000 + trip.as_micros().cast_signed() / 2;
    let offset = theirs - ours;
    let apart = Duration::from_micros(u64::try_from(offset.unsigned_abs()).unwrap_or(u64::MAX));
    let way = if offset < 0 { "behind" } else { "ahead of" };
    let seen = format!("{apart:.1?} {way} ours");
    match apart > OFFSET_MAX + trip {
        false => check.good(seen),
        true => check.warning(seen, "keep both clocks right (NTP): if data is lost, fences follow the server's, and ages are shown wrong"),
    }
}

fn micros(reply: Value) -> Option<i128> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(reply).ok()?;
    Some(i128::from(seconds) * 1_000_000 + i128::from(micros))
}
