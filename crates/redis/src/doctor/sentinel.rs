//! Whether the Sentinels can be relied on: each of them, and all of them together.
//!
//! In: their addresses. Out: findings about them, and about the master that they name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::doctor::{Check, Finding};
use tokio::task::JoinSet;

use super::visit::{Visit, why};
use super::{Exam, Standing, unreachable};
use crate::sentinel::{Sentinels, Word};
use crate::trouble::Trouble;
use crate::url::Address;

/// Fewer cannot outvote one that is cut off.
const SENTINELS_LEAST: usize = 3;

/// What one of them says.
struct Said {
    address: Address,
    answer: Result<Answer, Trouble>,
}

struct Answer {
    word: Word,
    facts: HashMap<String, String>,
    /// What it thinks of a failover now.
    quorum: Result<String, Trouble>,
}

impl Exam<'_> {
    pub(super) async fn sentinels(&self, sentinels: &Arc<Sentinels>) -> Vec<Finding> {
        let said = ask_all(sentinels).await;
        let mut findings = each(sentinels, &said);
        findings.extend(together(sentinels, &said, self.ttl));
        match sentinels.find().await {
            Ok(found) => {
                findings.extend(self.server(&found.address, Standing::Watched).await.findings)
            }
            Err(trouble) => findings.push(unreachable(&sentinels.service(), &trouble)),
        }
        findings
    }
}

/// In the order in which they are named.
async fn ask_all(sentinels: &Arc<Sentinels>) -> Vec<Said> {
    let mut asked = JoinSet::new();
    for (at, address) in sentinels.addresses().iter().cloned().enumerate() {
        let sentinels = sentinels.clone();
        asked.spawn(async move {
            let answer = ask(&sentinels, &address).await;
            (at, Said { address, answer })
        });
    }
    let mut said: Vec<_> = asked.join_all().await;
    said.sort_by_key(|(at, _)| *at);
    said.into_iter().map(|(_, said)| said).collect()
}

async fn ask(sentinels: &Sentinels, address: &Address) -> Result<Answer, Trouble> {
    let word = sentinels.ask(address).await?;
    let mut visit = Visit::pay(sentinels.dial(), address, None).await?;
    let sentinel = |what: &str| {
        let mut command = redis::cmd("SENTINEL");
        command.arg(what).arg(sentinels.service());
        command
    };
    let facts = visit.ask(&sentinel("MASTER")).await?;
    let facts = redis::from_redis_value(facts).unwrap_or_default();
    let quorum = visit.text(&sentinel("CKQUORUM")).await;
    Ok(Answer { word, facts, quorum })
}

impl Answer {
    fn number(&self, name: &str) -> Option<usize> {
        self.facts.get(name)?.parse().ok()
    }
}

fn each(sentinels: &Sentinels, said: &[Said]) -> Vec<Finding> {
    let answered = said.iter().filter(|said| said.answer.is_ok()).count();
    let tried = format!("SENTINEL MASTER {}", sentinels.service());
    let found = |said: &Said| {
        let check = Check::new("sentinel", &said.address, tried.clone());
        let advice = "start it, open the way to it, or take it out of the URL";
        match &said.answer {
            Ok(Answer { word, .. }) => {
                check.good(format!("names {} as the master (epoch {})", word.address, word.epoch))
            }
            Err(trouble) if answered > half(sentinels) => {
                check.warning(trouble.to_string(), advice)
            }
            Err(trouble) => check.danger(trouble.to_string(), advice),
        }
    };
    said.iter().map(found).collect()
}

fn half(sentinels: &Sentinels) -> usize {
    sentinels.addresses().len() / 2
}

fn together(sentinels: &Sentinels, said: &[Said], ttl: Duration) -> Vec<Finding> {
    let answers: Vec<_> =
        said.iter().filter_map(|said| Some((&said.address, said.answer.as_ref().ok()?))).collect();
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
    let mut different: Vec<_> = answers.iter().map(|(_, answer)| &answer.word).collect();
    different.dedup();
    match different.as_slice() {
        [one] => check.good(format!(
            "{} of them name {} (epoch {})",
            answers.len(),
            one.address,
            one.epoch
        )),
        _ => {
            let shown = answers.iter().map(|(who, Answer { word, .. })| {
                format!("{who} names {} (epoch {})", word.address, word.epoch)
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
        (Some(trouble), _) if trouble.word() == "NOPERM" => check.unknown(why(trouble)),
        (Some(trouble), _) => check.warning(
            trouble.to_string(),
            "bring the other Sentinels back: until then nobody takes a dead master's place",
        ),
        (None, Some(said)) => check.good(said.as_str()),
        (None, None) => check.unknown("none of them says"),
    }
}

/// A lease that was just to be renewed has two thirds of its ttl left.
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
