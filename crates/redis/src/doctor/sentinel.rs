//! Checks whether the Sentinels can be relied on: each of them, and all of them together.
//!
//! In: their addresses. Out: findings about them, and about the master that they name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::doctor::{Check, Finding};
use tokio::task::JoinSet;

use super::probe::{Visit, why};
use super::{Exam, Standing, unreachable};
use crate::error::EngineError;
use crate::sentinel::{MasterReport, Sentinels};
use crate::url::Address;

/// Fewer Sentinels cannot outvote one that is partitioned.
const SENTINELS_LEAST: usize = 3;

/// A Sentinel and its answer.
struct SentinelExam {
    address: Address,
    answer: Result<Answer, EngineError>,
}

struct Answer {
    report: MasterReport,
    fields: HashMap<String, String>,
    /// Its reply to `SENTINEL CKQUORUM`: whether a failover is possible now.
    quorum: Result<String, EngineError>,
}

impl Exam<'_> {
    /// Examines the Sentinels, and the master that they name.
    pub(crate) async fn sentinels(&self, sentinels: &Arc<Sentinels>) -> Vec<Finding> {
        let exams = ask_all(sentinels).await;
        let mut findings = each(sentinels, &exams);
        findings.extend(all_together(sentinels, &exams, self.ttl));
        match sentinels.find().await {
            Ok(found) => {
                findings.extend(self.server(&found.address, Standing::Watched).await.findings)
            }
            Err(error) => findings.push(unreachable(&sentinels.service(), &error)),
        }
        findings
    }
}

/// Asks all Sentinels; results are in the order of the URL.
async fn ask_all(sentinels: &Arc<Sentinels>) -> Vec<SentinelExam> {
    let mut asked = JoinSet::new();
    for (at, address) in sentinels.addresses().iter().cloned().enumerate() {
        let sentinels = sentinels.clone();
        asked.spawn(async move {
            let answer = ask(&sentinels, &address).await;
            (at, SentinelExam { address, answer })
        });
    }
    let mut exams: Vec<_> = asked.join_all().await;
    exams.sort_by_key(|(at, _)| *at);
    exams.into_iter().map(|(_, exam)| exam).collect()
}

async fn ask(sentinels: &Sentinels, address: &Address) -> Result<Answer, EngineError> {
    let report = sentinels.ask(address).await?;
    let mut visit = Visit::pay(sentinels.connector(), address, None).await?;
    let sentinel = |what: &str| {
        let mut command = redis::cmd("SENTINEL");
        command.arg(what).arg(sentinels.service());
        command
    };
    let fields = visit.ask(&sentinel("MASTER")).await?;
    let fields = redis::from_redis_value(fields).unwrap_or_default();
    let quorum = visit.text(&sentinel("CKQUORUM")).await;
    Ok(Answer { report, fields, quorum })
}

impl Answer {
    fn number(&self, name: &str) -> Option<usize> {
        self.fields.get(name)?.parse().ok()
    }
}

fn each(sentinels: &Sentinels, exams: &[SentinelExam]) -> Vec<Finding> {
    let answered = exams.iter().filter(|exam| exam.answer.is_ok()).count();
    let tried = format!("SENTINEL MASTER {}", sentinels.service());
    let found = |exam: &SentinelExam| {
        let check = Check::new("sentinel", &exam.address, tried.clone());
        let advice = "start it, open the way to it, or take it out of the URL";
        match &exam.answer {
            Ok(Answer { report, .. }) => check
                .good(format!("names {} as the master (epoch {})", report.address, report.epoch)),
            Err(error) if answered > half(sentinels) => check.warning(error.to_string(), advice),
            Err(error) => check.critical(error.to_string(), advice),
        }
    };
    exams.iter().map(found).collect()
}

fn half(sentinels: &Sentinels) -> usize {
    sentinels.addresses().len() / 2
}

fn all_together(sentinels: &Sentinels, exams: &[SentinelExam], ttl: Duration) -> Vec<Finding> {
    let answers: Vec<_> =
        exams.iter().filter_map(|exam| Some((&exam.address, exam.answer.as_ref().ok()?))).collect();
    if answers.is_empty() {
        return Vec::new();
    }
    let named = sentinels.addresses().len();
    let known = answers.iter().filter_map(|(_, answer)| answer.number("num-other-sentinels")).max();
    let check = |name, tried: &str| Check::new(name, sentinels.service(), tried);
    let slowest =
        answers.iter().filter_map(|(_, answer)| answer.number("down-after-milliseconds")).max();
    vec![
        agreement(check("sentinels-agree", "compare what they name"), &answers),
        number(
            check("sentinels-named", "compare the URL with whom they know"),
            named,
            known.map(|others| others + 1),
        ),
        failover(check("failover-votes", "SENTINEL CKQUORUM"), &answers),
        notice(
            check("failover-time", "compare `down-after-milliseconds` with the ttl"),
            slowest,
            ttl,
        ),
    ]
}

fn agreement(check: Check, answers: &[(&Address, &Answer)]) -> Finding {
    let mut different: Vec<_> = answers.iter().map(|(_, answer)| &answer.report).collect();
    different.dedup();
    match different.as_slice() {
        [one] => check.good(format!(
            "{} of them name {} (epoch {})",
            answers.len(),
            one.address,
            one.epoch
        )),
        _ => {
            let shown = answers.iter().map(|(who, Answer { report, .. })| {
                format!("{who} names {} (epoch {})", report.address, report.epoch)
            });
            let seen = shown.collect::<Vec<_>>().join(", ");
            check.warning(seen, "unless a failover is under way: find out which of them is cut off")
        }
    }
}

fn number(check: Check, named: usize, known: Option<usize>) -> Finding {
    match known {
        None => check.unknown("they do not say how many they are"),
        Some(known) if known > named => check.warning(
            format!("the URL names {named} of {known}: those that are not named are not asked"),
            "name all of them in the URL",
        ),
        Some(known) if known < SENTINELS_LEAST => check.warning(
            format!(
                "{known} in all: fewer than {SENTINELS_LEAST} cannot fail over when one is gone"
            ),
            "run three Sentinels, on three machines",
        ),
        Some(known) => check.good(format!("the URL names {named}, and they know of {known}")),
    }
}

fn failover(check: Check, answers: &[(&Address, &Answer)]) -> Finding {
    let refused = answers.iter().find_map(|(_, answer)| answer.quorum.as_ref().err());
    let agreed = answers.iter().find_map(|(_, answer)| answer.quorum.as_ref().ok());
    match (refused, agreed) {
        (Some(error), _) if error.code() == "NOPERM" => check.unknown(why(error)),
        (Some(error), _) => check.warning(
            error.to_string(),
            "bring the other Sentinels back: until then nothing replaces a dead master",
        ),
        (None, Some(reply)) => check.good(reply.as_str()),
        (None, None) => check.unknown("none of them says"),
    }
}

/// In the worst case the master dies just before a renewal, when two thirds of the ttl are left.
fn notice(check: Check, down_after: Option<usize>, ttl: Duration) -> Finding {
    let Some(millis) = down_after else { return check.unknown("they do not say it") };
    let down_after = Duration::from_millis(millis as u64);
    let seen = format!("a dead master is noticed after {down_after:?}; a lease lasts {ttl:?}");
    match down_after * 3 > ttl * 2 {
        false => check.good(seen),
        true => check.warning(
            format!("{seen}: it ends before another server can renew it"),
            format!(
                "set `down-after-milliseconds` to 5000, or use a ttl above {:?}",
                down_after * 3 / 2
            ),
        ),
    }
}
