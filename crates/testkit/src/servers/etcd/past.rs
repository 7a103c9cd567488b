//! What became of keys, by the server's own history: `etcdctl watch` from a revision on.
//!
//! In: the first revision that is not known yet. Out: every key that went since, with the lease that it hung
//! on. What is compacted cannot be read any more, so whoever compacts reads first.

use serde_json::Value;

use super::EtcdServer;
use super::look::decode;
use crate::process::Program;

/// A key that went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// When. What went at one revision went at once.
    pub revision: u64,
    /// Its name.
    pub key: String,
    /// The server's number of its fence, if it was a claim: the revision at which it was created, and the base that it
    /// says.
    pub number: u64,
    /// What it hung on at the end; zero for none.
    pub lease: i64,
}

/// A part of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The last revision of it.
    pub until: u64,
    /// What went, in the order in which it did.
    pub gone: Vec<Gone>,
}

impl EtcdServer {
    /// What went of the keys that start with `prefix`, from the revision after `known` until now; `None` if
    /// it does not tell in time. Nobody may write to other keys: it is by events that the end is seen.
    pub fn past(&self, prefix: &str, known: u64) -> Option<Past> {
        let (mut past, now) = (Past { until: known, gone: Vec::new() }, self.try_revision()?);
        let from = format!("--rev={}", known + 1);
        let words = ["watch", "--prefix", "--prev-kv", "--write-out=json", &from, prefix];
        let mut telling = Program::spawn(self.etcdctl().args(words));
        while past.until < now {
            past.add(&serde_json::from_str(&telling.line()?).ok()?)?;
        }
        Some(past)
    }
}

impl Past {
    /// Takes in what was told at once; `None` if that is no piece of history.
    fn add(&mut self, told: &Value) -> Option<()> {
        for event in told["Events"].as_array()? {
            self.until = event["kv"]["mod_revision"].as_u64()?;
            // A write has no type: it is the one that is zero.
            if event["type"].as_u64() == Some(1) {
                self.gone.push(gone(self.until, &event["prev_kv"])?);
            }
        }
        Some(())
    }

    /// The same with what came next.
    pub fn extend(&mut self, next: Past) {
        self.until = next.until;
        self.gone.extend(next.gone);
    }
}

fn gone(revision: u64, before: &Value) -> Option<Gone> {
    let (key, created) = (decode(before["key"].as_str()?), before["create_revision"].as_u64()?);
    let value = decode(before["value"].as_str().unwrap_or_default());
    let base = value.strip_prefix("t1:").and_then(|rest| rest.rsplit(':').next()?.parse().ok());
    let (number, lease) = (created + base.unwrap_or(0), before["lease"].as_i64());
    Some(Gone { revision, key, number, lease: lease.unwrap_or_default() })
}
