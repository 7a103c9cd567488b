//! `tenure doctor`: every finding, on a real server or directory with that defect, and the exit status.

mod cluster;
mod embedded;
mod etcd;
mod quorum;
mod redis;
mod redis_rights;
mod sentinel;

use std::process::Command;

use serde_json::Value;

use crate::common::{Done, assert_matches, bare, done};

/// The findings of `doctor --json`.
#[derive(Debug)]
struct Checkup {
    code: Option<i32>,
    findings: Vec<Value>,
}

fn doctor(url: &str) -> Checkup {
    doctor_with(url, &[])
}

fn doctor_with(url: &str, more: &[&str]) -> Checkup {
    Checkup::of(done(tool(url, &[&["--json"], more].concat())))
}

/// Runs the tool with text output.
fn printed(url: &str) -> Done {
    done(tool(url, &[]))
}

fn tool(url: &str, more: &[&str]) -> Command {
    let mut command = bare(["doctor"].iter().chain(more));
    command.env("TENURE_URL", url);
    command
}

impl Checkup {
    fn of(run: Done) -> Self {
        let found: Value = serde_json::from_str(&run.out).unwrap_or_else(|_| panic!("{run:?}"));
        assert_eq!(found["schema"], 1);
        let findings = found["findings"].as_array().unwrap().clone();
        let code = match found["verdict"].as_str().unwrap() {
            "good" | "unknown" => 0,
            "warning" => 1,
            _ => 2,
        };
        assert_eq!(run.code, Some(code), "the status follows from the verdict: {run:?}");
        assert_matches(&run.err, r"(tenure: [^\n]+\n)?tenure: \d+ checks?: [^\n]+\n");
        Checkup { code: run.code, findings }
    }

    /// All findings of a check.
    fn all(&self, check: &str) -> Vec<&Value> {
        self.findings.iter().filter(|finding| finding["check"] == check).collect()
    }

    /// Asserts that a finding of `check` has this verdict, and that `seen` matches.
    #[track_caller]
    fn has(&self, check: &str, verdict: &str, seen: &str) -> &Value {
        let all = self.all(check);
        let found = all.iter().find(|finding| finding["verdict"] == verdict);
        let found = found.unwrap_or_else(|| panic!("no `{check}` that is {verdict}: {all:?}"));
        assert_matches(found["seen"].as_str().unwrap(), seen);
        let advised = found["advice"].is_string();
        assert_eq!(advised, matches!(verdict, "warning" | "unsafe"), "{found:?}");
        found
    }

    #[track_caller]
    fn ends_with(&self, code: i32) {
        let bad = self.findings.iter().filter(|found| found["verdict"] != "good");
        assert_eq!(self.code, Some(code), "{:#?}", bad.collect::<Vec<_>>());
    }

    #[track_caller]
    fn all_are(&self, verdict: &str) {
        let other: Vec<_> = self.findings.iter().filter(|one| one["verdict"] != verdict).collect();
        assert!(other.is_empty(), "{other:#?}");
    }
}
