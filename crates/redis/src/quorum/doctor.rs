//! Finds what makes locks unsafe on a quorum.
//!
//! In: the nodes. Out: findings about each node, as for a single server, and about all of them together:
//! whether enough of them answer, whether they are different servers, whether their votes count.
//!
//! The URL is checked elsewhere (`url.rs`): the number of nodes is odd, and no address is named twice.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict, self_test};
use tenure_core::time::Time;

use super::Quorum;
use super::fanout::Fanout;
use super::node::QuorumNode;
use super::tally::majority;
use crate::doctor::{Exam, ServerExam, Standing, is_usable};
use crate::link::ServerInfo;

/// A node with its address and the findings about it.
struct Voter {
    name: String,
    seen: ServerExam,
    quarantine: Option<Duration>,
}

impl Quorum {
    pub(super) async fn findings(&self, ttl: Duration) -> Vec<Finding> {
        let mut voters = self.visit_all(ttl).await;
        let up = voters.iter().filter(|voter| is_up(&voter.seen)).count();
        let enough = up >= majority(voters.len());
        let together = [votes(up, voters.len()), different(&voters)];
        let mut findings = Vec::new();
        for voter in &mut voters {
            findings.append(&mut voter.seen.findings);
            findings.extend(voter.seen.server_info.as_ref().map(|facts| age(voter, facts, ttl)));
        }
        // A minority may be down.
        let away = findings.iter_mut().filter(|found| enough && found.check == "reachable");
        away.for_each(|found| found.verdict = found.verdict.min(Verdict::Warning));
        let usable = is_usable(&findings) && Verdict::worst(&together) < Verdict::Unsafe;
        findings.extend(together);
        if usable {
            findings.push(self_test(self, ttl).await);
        }
        findings
    }

    /// Examines all nodes; results are in the order of the URL.
    async fn visit_all(&self, ttl: Duration) -> Vec<Voter> {
        let mut fanout = Fanout::new();
        for (number, node) in self.shared.nodes.iter().enumerate() {
            fanout.ask(number, visit(node.clone(), ttl));
        }
        let mut voters = Vec::new();
        while let Some(voter) = fanout.next(self.shared.at_most(Time::NEVER)).await {
            voters.push(voter);
        }
        voters.sort_by_key(|(number, _)| *number);
        voters.into_iter().map(|(_, voter)| voter).collect()
    }
}

async fn visit(node: Arc<QuorumNode>, ttl: Duration) -> Voter {
    let shared = node.server();
    let (target, keys, clock) = (shared.server().target(), shared.keys(), shared.clock());
    let (name, quarantine) = (target.shown(), node.quarantine());
    let standing = Standing::Voter { trusted: quarantine.is_none() };
    let exam = Exam { target, keys, clock, ttl };
    let seen = exam.found_server(standing).await;
    Voter { name, seen, quarantine }
}

fn is_up(seen: &ServerExam) -> bool {
    let reached = |found: &Finding| found.check == "reachable" && found.verdict == Verdict::Good;
    seen.findings.iter().any(reached)
}

fn votes(up: usize, all: usize) -> Finding {
    let check = Check::new("majority", "redis+quorum", "count the nodes that answer");
    let (seen, needed) = (format!("{up} of {all}"), majority(all));
    let advice = "start the others, or open the way to them";
    match up {
        up if up == all => check.good(seen),
        up if up >= needed => {
            let left = up - needed;
            check.warning(format!("{seen}: no more than {left} may still fail"), advice)
        }
        _ => check
            .critical(format!("{seen}, and {needed} are needed: no lock can be acquired"), advice),
    }
}

/// Two names for one server would give it two votes.
fn different(voters: &[Voter]) -> Finding {
    let check = Check::new("distinct", "redis+quorum", "compare the run ids of the nodes");
    let id = |voter: &Voter| Some(voter.seen.server_info.as_ref()?.field("run_id")?.to_owned());
    let known: Vec<_> = voters.iter().filter_map(|voter| Some((&voter.name, id(voter)?))).collect();
    let twin = known.iter().enumerate().find_map(|(at, (name, id))| {
        let (other, _) = known[..at].iter().find(|(_, before)| before == id)?;
        Some((other, name))
    });
    match twin {
        Some((one, other)) => check.critical(
            format!("{one} and {other} are the same server"),
            "name servers that are independent: one that votes twice can give a lock to two",
        ),
        None if known.len() < voters.len() => check.warning(
            format!("{} of {} could be compared", known.len(), voters.len()),
            "run doctor again when all of them answer",
        ),
        None => check.good(format!("{} different servers", known.len())),
    }
}

/// A node that has just started may have forgotten a lock.
fn age(voter: &Voter, facts: &ServerInfo, ttl: Duration) -> Finding {
    let check = Check::new("restarted", &voter.name, "INFO server: how long it has run");
    let up = facts.uptime();
    let seen = format!("it has run for {}s", up.as_secs());
    match voter.quarantine.map(|quarantine| quarantine.max(ttl)) {
        None => check.good(format!("{seen}; its vote counts at once (`restarted=trusted`)")),
        Some(needed) if up >= needed => check.good(seen),
        Some(needed) => check.warning(
            format!("{seen}: its vote counts after {needed:?}"),
            "wait; or, if the nodes forget nothing, say `restarted=trusted` in the URL",
        ),
    }
}
