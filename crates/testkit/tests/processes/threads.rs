//! Which threads a process has for its locks.

use std::fs;
use std::process::Command;

use tenure_testkit::process::Program;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::eventually_blocking;

/// Waits until these are the names of our threads in a process that holds a lock at `url`. A thread has its name a
/// moment after it was started.
fn threads_are(url: &str, how: &str, expected: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("go");
    let words = [url, how, file.to_str().unwrap()];
    let mut program = Program::spawn(Command::new(env!("CARGO_BIN_EXE_exits")).args(words));
    program.wait_for("holds");
    eventually_blocking("the threads", || ours(program.pid()) == expected);
    fs::write(&file, "").unwrap();
    program.wait();
}

/// The names of our threads in the process `pid`.
fn ours(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let names = tasks.map(|task| name(task.unwrap()).trim_end().to_owned());
    let mut ours: Vec<_> = names.filter(|name| name.starts_with("tenure")).collect();
    ours.sort();
    ours
}

/// There is one thread for renewals and one for time-outs, however many connections there are.
#[test]
fn one_thread_for_all_time_outs() {
    let server = RedisServer::start();
    for how in ["returns", "many"] {
        threads_are(&server.url(), how, &["tenure", "tenure-timeouts"]);
    }
}

/// A quorum has one more thread, which sends the requests to its nodes.
#[test]
fn a_quorum_adds_one_thread() {
    let nodes = [(); 5].map(|()| RedisServer::start());
    let hosts = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port()));
    let url = format!("redis+quorum://{}?restarted=trusted", hosts.join(","));
    threads_are(&url, "returns", &["tenure", "tenure-quorum", "tenure-timeouts"]);
}
