//! What makes locks unsafe in a cluster.
//!
//! In: the nodes. Out: findings about each master, as of a single server, and about all of them: whether
//! every slot has one.

use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict, trial};

use super::Cluster;
use super::nodes::{Node, Nodes};
use super::slot::SLOTS;
use crate::doctor::{Exam, Standing, is_usable, unreachable};

impl Cluster {
    pub(super) async fn look_for_flaws(&self, ttl: Duration) -> Vec<Finding> {
        let nodes = &self.shared.nodes;
        if let Err(trouble) = nodes.ask_again().await {
            return vec![unreachable(&nodes.shown(), &trouble)];
        }
        let mut masters = nodes.masters();
        masters.sort_by_key(|node| node.address().to_string());
        let mut findings = Vec::new();
        for node in &masters {
            findings.extend(visit(node, ttl).await);
        }
        let slots = covered(nodes);
        let usable = is_usable(&findings) && slots.verdict == Verdict::Good;
        findings.push(slots);
        if usable {
            findings.push(trial(self, ttl).await);
        }
        findings
    }
}

async fn visit(node: &Node, ttl: Duration) -> Vec<Finding> {
    let shared = node.keeper();
    let (target, keys, clock) = (shared.server.target(), &shared.keys, &shared.clock);
    let exam = Exam { target, keys, clock, ttl };
    exam.server(node.address(), Standing::Node).await.findings
}

fn covered(nodes: &Nodes) -> Finding {
    let tried = "CLUSTER NODES: count the slots that have a master in good health";
    let check = Check::new("slots", "redis-cluster", tried);
    match nodes.served() {
        SLOTS => check.good(format!("{SLOTS} of {SLOTS}")),
        served => check.danger(
            format!("{served} of {SLOTS}: no lock in the others can be had"),
            "bring their masters back, or give the slots to others (`redis-cli --cluster fix`)",
        ),
    }
}
