//! Finds what makes locks unsafe on a Redis server.
//!
//! In: the address of the server, and the ttl of the locks. Out: findings. No data is changed; a few keys and
//! a channel with random names are used for a moment.
//!
//! If the user may not run a command (`CONFIG` and `INFO` are often restricted), the check reports that as
//! unknown, not as a fault of the server.
//!
//! In reading order: this file (which servers are examined), `probe` (a connection for it), `server`
//! (version, role, clock), `durability` (whether the server keeps what it stores), `acl`, `pubsub` (whether
//! messages arrive), and `sentinel` (the Sentinels that name the server). Quorums have `quorum/doctor.rs`,
//! clusters `cluster/doctor.rs`.

mod durability;
mod pubsub;
mod acl;
mod sentinel;
mod server;
mod probe;

use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict};
use tenure_core::time::Clock;

use crate::error::{Cause, EngineError};
use crate::link::{ServerInfo, Target};
use crate::url::Address;
use crate::wire::keys::Keys;
use probe::Visit;

/// If one of these checks fails, a test lock is not tried.
const FIRST: [&str; 4] = ["reachable", "version", "role", "rights"];

pub(crate) fn is_usable(findings: &[Finding]) -> bool {
    let stops =
        |finding: &&Finding| FIRST.contains(&finding.check) && finding.verdict == Verdict::Unsafe;
    findings.iter().find(stops).is_none()
}

/// The role of a server for the locks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The only server.
    Alone,
    /// A master under Sentinels; another server can replace it.
    Watched,
    /// A master of a cluster, with some of the slots; a replica can replace it.
    Node,
    /// One of several nodes that vote; `trusted` if its vote counts even if it has just started.
    Voter { trusted: bool },
}

/// The result of examining a server.
pub(crate) struct ServerExam {
    pub(crate) findings: Vec<Finding>,
    /// Its `INFO`, if it could be reached and the user may read it.
    pub(crate) server_info: Option<ServerInfo>,
}

/// What to examine.
pub(crate) struct Exam<'a> {
    pub(crate) target: &'a Target,
    pub(crate) keys: &'a Keys,
    pub(crate) clock: &'a Clock,
    pub(crate) ttl: Duration,
}

impl Exam<'_> {
    /// Examines the server that the route leads to.
    pub(crate) async fn found_server(&self, standing: Standing) -> ServerExam {
        match self.target.route().find().await {
            Ok(found) => self.server(&found.address, standing).await,
            Err(error) => {
                let findings = vec![unreachable(&self.target.shown(), &error)];
                ServerExam { findings, server_info: None }
            }
        }
    }

    /// Examines one server.
    pub(crate) async fn server(&self, address: &Address, standing: Standing) -> ServerExam {
        let start = self.clock.now();
        let mut visit = match Visit::pay(self.target.connector(), address, None).await {
            Ok(visit) => visit,
            Err(error) => {
                return ServerExam {
                    findings: vec![unreachable(address, &error)],
                    server_info: None,
                };
            }
        };
        let took = self.clock.now().since(start);
        let mut findings = vec![reachable(address).good(format!("connected in {took:.1?}"))];
        findings.push(self.latency(&mut visit).await);
        findings.extend(server::what_it_is(&visit, standing));
        findings.push(server::clock(&mut visit, self.clock).await);
        findings.extend(durability::all(&mut visit, standing).await);
        let user = self.target.connector().user();
        // A node serves only its own slots; there the self-test finds such faults.
        if standing == Standing::Node {
            findings.extend(pubsub::uncounted(&mut visit, user).await);
        } else {
            findings.push(self.listening(&mut visit).await);
            findings.push(acl::rights(&mut visit, user, self.keys).await);
        }
        ServerExam { findings, server_info: visit.info().ok().cloned() }
    }
}

fn reachable(target: &dyn std::fmt::Display) -> Check {
    Check::new("reachable", target, "connect, log in, agree on RESP3")
}

pub(crate) fn unreachable(target: &dyn std::fmt::Display, error: &EngineError) -> Finding {
    let advice = match error.cause() {
        Cause::Refused => "correct user, password or certificates",
        Cause::Unsupported => "use Redis or Valkey 6.2 or later",
        Cause::Busy => "wait until the server answers, or find out why it does not",
        _ => "start the server, open the way to it, or correct host and port",
    };
    reachable(target).critical(error.to_string(), advice)
}
