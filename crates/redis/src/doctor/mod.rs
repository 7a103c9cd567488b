//! What makes locks unsafe on a Redis server.
//!
//! In: where the server is, and the ttl of the locks. Out: findings. Nothing is changed; a few keys and
//! a channel of random names are used for a moment.
//!
//! Where a server may not be asked (`CONFIG` and `INFO` are not for everybody), the check says so: that
//! is no fault of the server's.
//!
//! In reading order: this file (who is looked at), `visit` (a connection for looking), `server` (what it
//! is), `keeping` (whether it keeps what it is told), `rights`, `listening` (whether messages arrive), and
//! `sentinel` (those who say which server it is). A quorum's own is in `quorum/doctor.rs`, a cluster's
//! in `cluster/doctor.rs`.

mod keeping;
mod listening;
mod rights;
mod sentinel;
mod server;
mod visit;

use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict, trial};
use tenure_core::time::Clock;

use crate::backend::Redis;
use crate::keys::Keys;
use crate::link::{Facts, Route, Target};
use crate::trouble::{Cause, Trouble};
use crate::url::Address;
use visit::Visit;

/// Without these there is no use in trying a lock.
const FIRST: [&str; 4] = ["reachable", "version", "role", "rights"];

impl Redis {
    pub(crate) async fn look_for_flaws(&self, ttl: Duration) -> Vec<Finding> {
        let (target, keys) = (self.shared.server.target(), &self.shared.keys);
        let exam = Exam { target, keys, clock: &self.shared.clock, ttl };
        let mut findings = match target.route() {
            Route::Fixed(address) => exam.server(address, Standing::Alone).await.findings,
            Route::Sentinel(sentinels) => exam.sentinels(sentinels).await,
            Route::Node(spot) => exam.server(spot.address(), Standing::Node).await.findings,
        };
        if is_usable(&findings) {
            findings.push(trial(self, ttl).await);
        }
        findings
    }
}

pub(crate) fn is_usable(findings: &[Finding]) -> bool {
    let stops =
        |finding: &&Finding| FIRST.contains(&finding.check) && finding.verdict == Verdict::Unsafe;
    findings.iter().find(stops).is_none()
}

/// What a server is to the locks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The only one there is.
    Alone,
    /// Others can take its place: Sentinels see to that.
    Watched,
    /// A master of a cluster, with some of the slots; a replica can take its place.
    Node,
    /// One of several that vote; whether its vote counts although it has just started.
    Voter { trusted: bool },
}

/// What came of looking at a server.
pub(crate) struct Seen {
    pub(crate) findings: Vec<Finding>,
    /// What it says of itself, if it could be reached and may be asked.
    pub(crate) facts: Option<Facts>,
}

/// What is to be looked at.
pub(crate) struct Exam<'a> {
    pub(crate) target: &'a Target,
    pub(crate) keys: &'a Keys,
    pub(crate) clock: &'a Clock,
    pub(crate) ttl: Duration,
}

impl Exam<'_> {
    /// Everything about one server.
    pub(crate) async fn server(&self, address: &Address, standing: Standing) -> Seen {
        let start = self.clock.now();
        let mut visit = match Visit::pay(self.target.dial(), address, None).await {
            Ok(visit) => visit,
            Err(trouble) => {
                return Seen { findings: vec![unreachable(address, &trouble)], facts: None };
            }
        };
        let took = self.clock.now().since(start);
        let mut findings = vec![reachable(address).good(format!("connected in {took:.1?}"))];
        findings.push(self.latency(&mut visit).await);
        findings.extend(server::what_it_is(&visit, standing));
        findings.push(server::clock(&mut visit, self.clock).await);
        findings.extend(keeping::all(&mut visit, standing).await);
        // A node answers for its own slots only: there the lock on trial finds out.
        if standing != Standing::Node {
            findings.push(self.listening(&mut visit).await);
            findings.push(rights::rights(&mut visit, self.target.dial().user(), self.keys).await);
        }
        Seen { findings, facts: visit.info().ok().cloned() }
    }
}

fn reachable(place: &dyn std::fmt::Display) -> Check {
    Check::new("reachable", place, "connect, log in, agree on RESP3")
}

pub(crate) fn unreachable(place: &dyn std::fmt::Display, trouble: &Trouble) -> Finding {
    let advice = match trouble.cause() {
        Cause::Refused => "correct user, password or certificates",
        Cause::Unsupported => "use Redis or Valkey 6.2 or later",
        Cause::NotNow => "wait until the server answers, or find out why it does not",
        _ => "start the server, open the way to it, or correct host and port",
    };
    reachable(place).danger(trouble.to_string(), advice)
}
