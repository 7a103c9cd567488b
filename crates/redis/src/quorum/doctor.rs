//! What makes locks unsafe on a quorum.
//!
//! In: the nodes. Out: findings about each of them, as of a single server, and about what they are
//! together: whether enough answer, whether they are different servers, whether their votes count.
//!
//! That their number is odd, and that no address is named twice, is asked of the URL (`place.rs`).

use std::sync::Arc;
use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict, trial};
use tenure_core::time::Time;

use super::Quorum;
use super::crowd::Crowd;
use super::node::Node;
use super::tally::majority;
use crate::doctor::{Exam, Seen, Standing, is_usable};
use crate::link::{Facts, Route};

/// A node by its address, and what was seen.
struct Voter {
    name: String,
    seen: Seen,
    quarantine: Option<Duration>,
}

impl Quorum {
    pub(super) async fn look_for_flaws(&self, ttl: Duration) -> Vec<Finding> {
        let mut voters = self.visit_all(ttl).await;
        let up = voters.iter().filter(|voter| is_up(&voter.seen)).count();
        let enough = up >= majority(voters.len());
        let together = [votes(up, voters.len()), different(&voters)];
        let mut findings = Vec::new();
        for voter in &mut voters {
            findings.append(&mut voter.seen.findings);
            findings.extend(voter.seen.facts.as_ref().map(|facts| age(voter, facts, ttl)));
        }
        // A minority may be away.
        let away = findings.iter_mut().filter(|found| enough && found.check == "reachable");
        away.for_each(|found| found.verdict = found.verdict.min(Verdict::Warning));
        let usable = is_usable(&findings) && Verdict::worst(&together) < Verdict::Unsafe;
        findings.extend(together);
        if usable {
            findings.push(trial(self, ttl).await);
        }
        findings
    }

    /// In the order in which they are named.
    async fn visit_all(&self, ttl: Duration) -> Vec<Voter> {
        let mut crowd = Crowd::new();
        for (number, node) in self.shared.nodes.iter().enumerate() {
            crowd.ask(number, visit(node.clone(), ttl));
        }
        let mut voters = Vec::new();
        while let Some(voter) = crowd.next(self.shared.at_most(Time::NEVER)).await {
            voters.push(voter);
        }
        voters.sort_by_key(|(number, _)| *number);
        voters.into_iter().map(|(_, voter)| voter).collect()
    }
}

async fn visit(node: Arc<Node>, ttl: Duration) -> Voter {
    let shared = node.server();
    let (target, keys, clock) = (shared.server.target(), &shared.keys, &shared.clock);
    let (name, quarantine) = (target.shown(), node.quarantine());
    let standing = Standing::Voter { trusted: quarantine.is_none() };
    let exam = Exam { target, keys, clock, ttl };
    let seen = match target.route() {
        Route::Fixed(address) => exam.server(address, standing).await,
        // No URL of a quorum names Sentinels or a cluster.
        Route::Sentinel(_) | Route::Node(_) => Seen { findings: Vec::new(), facts: None },
    };
    Voter { name, seen, quarantine }
}

fn is_up(seen: &Seen) -> bool {
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
        _ => check.danger(format!("{seen}, and {needed} are needed: no lock can be had"), advice),
    }
}

/// Two names of one server give it two votes.
fn different(voters: &[Voter]) -> Finding {
    let check = Check::new("distinct", "redis+quorum", "compare the run ids of the nodes");
    let id = |voter: &Voter| Some(voter.seen.facts.as_ref()?.field("run_id")?.to_owned());
    let known: Vec<_> = voters.iter().filter_map(|voter| Some((&voter.name, id(voter)?))).collect();
    let twin = known.iter().enumerate().find_map(|(at, (name, id))| {
        let (other, _) = known[..at].iter().find(|(_, before)| before == id)?;
        Some((other, name))
    });
    match twin {
        Some((one, other)) => check.danger(
            format!("{one} and {other} are the same server"),
            "name servers that are independent: one that votes twice can give a lock to two",
        ),
        None => check.good(format!("{} different servers", known.len())),
    }
}

/// A node that has just started may have forgotten a lock.
fn age(voter: &Voter, facts: &Facts, ttl: Duration) -> Finding {
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
