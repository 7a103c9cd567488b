//! `tenure demo`: a fleet and its page, and nothing that stays behind.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use crate::common::{Running, Space, assert_matches, bare, is_alive, pid_in, wait_for};
use crate::http::Served;

/// A demo, the directory of its locks, and its processes.
struct Stage {
    page: Served,
    dir: PathBuf,
    workers: Vec<i32>,
}

fn stage(args: &str) -> Stage {
    let args = format!("demo --listen 127.0.0.1:0 {args}");
    let mut page = Served::start(Running::start(bare(args.split_whitespace())));
    let line = page.run.line();
    assert_matches(&line, r"tenure: \d+ processes compete for locks in /\S+; Ctrl-C ends them");
    let dir = PathBuf::from(line.split(" in ").nth(1).unwrap().split(';').next().unwrap());
    let workers = children(page.run.pid().as_raw());
    Stage { page, dir, workers }
}

fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_gone(dir: &Path, workers: &[i32]) -> bool {
    !dir.exists() && !workers.iter().any(|pid| is_alive(*pid))
}

/// G9: one command without a server shows several processes that hold locks; a signal ends all of them, and the
/// directory is gone.
#[test]
fn g9_a_fleet_with_one_command() {
    let Stage { page, dir, workers } = stage("--processes 4");
    assert_eq!(workers.len(), 4);
    let holders = || {
        let now = page.get("/now", "").1;
        workers.iter().filter(|pid| now.contains(&format!("pid {pid}<"))).count()
    };
    wait_for("two processes to hold locks", || holders() >= 2);
    assert!(page.shows("/now", "lock?key=").contains(&format!("-u file:{}", dir.display())));
    page.run.send(Signal::SIGTERM);
    assert_eq!(page.run.finish().code, Some(128 + 15));
    assert!(is_gone(&dir, &workers), "at its end everything is gone");
}

/// G9: a demo that is killed leaves nothing: its processes notice it, remove the directory and end.
#[test]
fn g9_a_killed_demo_leaves_nothing() {
    let Stage { page, dir, workers } = stage("--processes 3");
    page.shows("/now", "lock?key=");
    page.run.send(Signal::SIGKILL);
    wait_for("everything to be gone", || is_gone(&dir, &workers));
}

/// G9: a demo ends by itself.
#[test]
fn g9_a_demo_has_an_end() {
    let Stage { page, dir, workers } = stage("--processes 2 --time 500ms");
    assert_eq!(page.run.finish().code, Some(0));
    assert!(is_gone(&dir, &workers));
}

/// G9: a demo ends with the process that started it, such as a terminal.
#[test]
fn g9_a_demo_ends_with_its_parent() {
    let space = Space::new();
    let tool = assert_cmd::cargo::cargo_bin!("tenure").display().to_string();
    let script =
        format!("{tool} demo -l 127.0.0.1:0 --processes 2 >out 2>err & echo $! >pid; sleep 60");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(space.path("locks").parent().unwrap());
    let shell = Running::start(shell);
    wait_for("the demo to run", || space.read("err").contains("Ctrl-C"));
    let pid = pid_in(&space.path("pid"));
    let workers = children(pid);
    shell.send(Signal::SIGKILL);
    wait_for("the demo to end", || !is_alive(pid) && !workers.iter().any(|pid| is_alive(*pid)));
    let dir = space.read("err").split(" in ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    assert!(!Path::new(&dir).exists());
}
