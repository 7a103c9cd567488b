//! Finds what makes locks unsafe in a cluster.
//!
//! In: the nodes. Out: findings about each master, as for a single server, and about the cluster: whether
//! every slot has a master.

use std::time::Duration;

use tenure_core::doctor::{Check, Finding, Verdict, self_test};

use super::Cluster;
use super::topology::{ClusterNode, Nodes};
use crate::doctor::{Exam, Standing, is_usable, unreachable};
use crate::wire::slot::SLOTS;

impl Cluster {
    pub(super) async fn findings(&self, ttl: Duration) -> Vec<Finding> {
        let nodes = &self.shared.nodes;
        if let Err(error) = nodes.ask_again().await {
            return vec![unreachable(&nodes.shown(), &error)];
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
            findings.push(self_test(self, ttl).await);
        }
        findings
    }
}

async fn visit(node: &ClusterNode, ttl: Duration) -> Vec<Finding> {
    let locks = node.locks();
    let (target, keys, clock) = (locks.server().target(), locks.keys(), locks.clock());
    let exam = Exam { target, keys, clock, ttl };
    exam.server(node.address(), Standing::Node).await.findings
}

fn covered(nodes: &Nodes) -> Finding {
    let tried = "CLUSTER NODES: count the slots that have a master in good health";
    let check = Check::new("slots", "redis-cluster", tried);
    match nodes.served() {
        SLOTS => check.good(format!("{SLOTS} of {SLOTS}")),
        served => check.critical(
            format!("{served} of {SLOTS}: no lock in the others can be acquired"),
            "bring their masters back, or give the slots to others (`redis-cli --cluster fix`)",
        ),
    }
}
