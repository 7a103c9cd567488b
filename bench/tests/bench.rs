//! The program from outside: its figures, output and exit status, and that it leaves no keys behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::eventually_blocking;

/// The figures of a Redis server, in order, with their bars.
const ON_REDIS: &[(&str, f64)] = &[
    ("uncontended/1", 1.2),
    ("uncontended/64", 1.5),
    ("uncontended/512", 2.0),
    ("unfenced/64", 1.15),
    ("unfenced/512", 1.3),
    ("read/1", 1.3),
    ("permit/1", 1.35),
    ("lock-all/3", 1.4),
    ("handover/2", 1.35),
    ("handover/8", 1.5),
    ("handover/64", 1.65),
    ("election/resign", 1.6),
    ("handover/writer-after-readers", 1.6),
    ("readers/8-notified", 2.0),
    ("handover/16-on-4-permits", 1.6),
    ("readers/200-behind-a-writer", 2_000.0),
    ("readers/200-notified", f64::INFINITY),
    ("handover/least", f64::INFINITY),
    ("handover/least-64", f64::INFINITY),
    ("local/64", 10.0),
    ("local-read/64", 10.0),
    ("requests/cycle", 1.0),
    ("requests/handover", 1.5),
    ("claims/1000", 1.0),
    ("connections/1000", 1.0),
    ("held/10000", 0.03),
    ("sockets/10000", 1.0),
    ("get/64", 1.1),
    ("set/64", 1.1),
    ("pipeline/100", 1.1),
    ("remember/64", 1.15),
    #[cfg(feature = "peers")]
    ("rslock/gap/p50", 1.0),
    #[cfg(feature = "peers")]
    ("rslock/gap/p99", 1.0),
    #[cfg(feature = "peers")]
    ("rslock/worst-wait", 1.0),
];

/// The output and exit status of a finished run.
#[derive(Debug)]
struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

/// The program, with an environment that names no server.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-bench"));
    command.args(args).env_remove("TENURE_URL").stdin(Stdio::null());
    command
}

/// Runs one bench at a time, however many tests there are, because concurrent runs would disturb the
/// measurements.
fn done(args: &[&str]) -> Done {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    told(program(args).output().unwrap())
}

fn told(output: Output) -> Done {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn bench(server: &RedisServer, args: &[&str]) -> Done {
    done(&[&["-u", &server.url(), "--quick", "--rounds", "1"], args].concat())
}

fn keys(server: &RedisServer) -> Reply {
    server.client().command(&["KEYS", "*"])
}

/// The JSON has its version, the engine, and every figure with all its fields; no key is left.
#[test]
fn json_of_a_redis_server() {
    let server = RedisServer::start();
    let run = bench(&server, &["--json", "-q"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{run:?}");
    assert_eq!(run.out.matches('\n').count(), 1);
    assert!(
        run.out.starts_with(r#"{"schema":1,"backend":"redis","results":[{"name":"#),
        "{}",
        run.out
    );
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let results = report["results"].as_array().unwrap();
    // A figure without a bar has `null`.
    let bar = |result: &Value| match &result["bar"] {
        Value::Null => f64::INFINITY,
        bar => bar.as_f64().unwrap(),
    };
    let found: Vec<_> = results.iter().map(|r| (r["name"].as_str().unwrap(), bar(r))).collect();
    assert_eq!(found, ON_REDIS);
    for result in results {
        match (&result["ours_us"], &result["bare_us"]) {
            (Value::Null, Value::Null) => {
                assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}")
            }
            (ours, Value::Null) => assert!(ours.as_f64().unwrap() > 0.0, "{result}"),
            (ours, bare) => {
                let ratio = ours.as_f64().unwrap() / bare.as_f64().unwrap();
                assert!((ratio / result["ratio"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{result}");
            }
        }
    }
    assert_eq!(keys(&server), Reply::Many(vec![]));
}

/// Counts that do not depend on time are exact: two requests for a cycle, one claim and three connections for
/// each of ten lockers with a hundred waiters, and as many sockets for ten thousand locks as for one.
#[test]
fn counts_are_exact() {
    let server = RedisServer::start();
    for name in ["requests/cycle", "claims/1000", "connections/1000", "sockets/10000"] {
        let run = bench(&server, &["--json", "--only", name]);
        let report: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(report["results"].as_array().unwrap().len(), 1, "{run:?}");
        assert_eq!(report["results"][0]["ratio"], 1.0, "{run:?}");
    }
}

/// A hand-over is one request to release and one to acquire; heartbeats are few. The least of all rounds counts: a
/// round in which the machine stood still has few hand-overs and as many requests to begin and to end.
#[test]
fn a_hand_over_is_at_most_three_requests() {
    let server = RedisServer::start();
    let run = done(&["-u", &server.url(), "--quick", "--json", "--only", "requests/handover"]);
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let ratio = report["results"][0]["ratio"].as_f64().unwrap();
    assert!((0.9..=1.5).contains(&ratio), "{run:?}");
}

/// The table goes to stdout; the progress bar is for terminals only.
#[test]
fn a_table_for_people() {
    let server = RedisServer::start();
    let run = bench(&server, &["--only", "requests/cycle"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let table = "^FIGURE +OURS +BARE +RATIO +SPREAD +BAR +CPU +CPU BARE\n\
                 requests/cycle +2\\.00 +2\\.00 +1\\.00 +- +1\\.00 +- +-\n$";
    assert!(regex::Regex::new(table).unwrap().is_match(&run.out), "{run:?}");
}

/// Without a server the embedded engines are measured, and a directory named in the URL is not touched.
#[test]
fn the_embedded_engines() {
    let run = done(&["--quick", "--rounds", "1", "--json", "-q"]);
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &report["backend"]), (Some(0), &"embedded".into()));
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["local/64", "macro/1", "held/10000", "file/waiting/10", "file/handover/10"]);
    let run = done(&["-u", "file:nowhere", "--quick", "--rounds", "1", "--only", "local"]);
    assert_eq!(run.code, Some(0));
    let said = "tenure-bench: embedded engines are measured in a space of their own, not in the one that was \
                named\n";
    assert!(run.err.starts_with(said), "{run:?}");
    assert!(!std::path::Path::new("nowhere").exists());
}

/// Errors have the exact message and exit status, and no password is shown.
#[test]
fn refusals() {
    let run = done(&["--only", "nothing"]);
    assert_eq!(
        (run.code, run.out.as_str(), run.err.as_str()),
        (
            Some(64),
            "",
            "tenure-bench: error: no figure is called `nothing`; there are local/64, macro/1, held/10000, \
             file/waiting/10, file/handover/10\n"
        )
    );
    let run = done(&["-u", "zoo://:hunter2@h"]);
    assert_eq!(run.code, Some(64));
    assert_eq!(run.err, "tenure-bench: error: `zoo:` has no bench yet\n");
    let run = done(&["-u", "redis://:hunter2@127.0.0.1:1"]);
    assert_eq!((run.code, run.out.as_str()), (Some(69), ""));
    assert!(!run.err.contains("hunter2"), "{}", run.err);
}

/// Ctrl-C ends the run, and no key is left behind: neither of many locks, nor of many waiters for one lock.
#[test]
fn an_interrupted_bench_leaves_nothing() {
    // For the hand-over: a lock, its queue and its heartbeats; and the fences.
    for (figure, enough) in [("held/10000", 5_000), ("handover/64", 4)] {
        interrupted(figure, enough);
    }
}

fn interrupted(figure: &str, enough: usize) {
    let server = RedisServer::start();
    let mut command = program(&["-u", &server.url(), "--only", figure]);
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let count = || match keys(&server) {
        Reply::Many(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    eventually_blocking("many keys to be there", || count() >= enough);
    kill(Pid::from_raw(running.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let run = told(running.wait_with_output().unwrap());
    assert_eq!((run.code, run.out.as_str()), (Some(130), ""));
    assert_eq!(run.err, "tenure-bench: stopped, nothing is left behind\n");
    assert_eq!(keys(&server), Reply::Many(vec![]));
}
