//! Processes on etcd that are stopped, killed, forked, or exit.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_core::{Guard, Locker};
use tenure_etcd::Etcd;
use tenure_testkit::process::Program;
use tenure_testkit::register::FileRegister;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Action, Cut, Proxy, Rule, Way};
use tenure_testkit::wait::{eventually, eventually_blocking, within};

/// The ttl of the locks of these programs.
const TTL: Duration = Duration::from_secs(2);
/// The latest time at which another process gets the lock of a dead one: a server checks leases twice a
/// second, and a slow machine may take 0.9 s longer. A waiter that is not notified would need more time than this.
const FREED_WITHIN: Duration = TTL.saturating_add(Duration::from_millis(1_400));

/// Acquires the lock `key` after its process has died.
async fn inherited(rival: &Locker, key: &str) -> Guard {
    let gone = Instant::now();
    let guard = within("the rival's turn", rival.lock(key).into_future()).await;
    let guard = guard.expect("it is freed");
    assert!(gone.elapsed() < FREED_WITHIN, "{:?}", gone.elapsed());
    guard
}

fn holder(command: &str, url: &str, key: &str) -> Command {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_holder"));
    holder.args([command, "--url", url, &format!("--key={key}")]);
    holder
}

/// A program that holds `key` until it is ended, and the directory of its registers.
fn holds(key: &str) -> (Program, PathBuf) {
    let server = EtcdServer::shared();
    hold(holder("hold", &server.url(), key), server)
}

fn hold(mut command: Command, server: &EtcdServer) -> (Program, PathBuf) {
    let dir = tempfile::tempdir_in(server.dir()).expect("a directory").keep();
    command.args(["--owner=p", "--hold-least=1h", "--hold-most=1h", "--ttl=2s"]);
    command.arg("--history").arg(dir.join("p.jsonl")).arg("--registers").arg(&dir);
    let mut program = Program::spawn(&mut command);
    program.wait_for("held");
    (program, dir)
}

async fn locker() -> Locker {
    let connected = Etcd::connect(&EtcdServer::shared().url()).await;
    Locker::new(connected.expect("the server can be used"))
}

/// t01: the lock of a process that is stopped for longer than its ttl goes to a rival. When the process
/// resumes, the rival keeps the lock, the fence refuses the process's write, and its release fails.
#[tokio::test]
async fn t01_a_stopped_process_loses_its_lock() {
    let ((mut program, dir), rival) = (holds("t01"), locker().await);
    let shown = rival.inspect("t01").await.unwrap().unwrap();
    assert_eq!(shown.holders[0].holder.process.as_ref().unwrap().pid, program.pid());
    program.stop();
    let guard = inherited(&rival, "t01").await;
    let register = FileRegister::open(&dir.join("t01")).unwrap();
    let seen = register.read(guard.fence()).unwrap();
    assert!(register.write(seen).unwrap());
    program.forget_lines();
    program.go_on();
    program.wait_for("lost");
    let said = program.wait_for("not released:");
    assert!(said.contains("lock `t01` was lost"), "{said}");
    let tally = register.tally().unwrap();
    assert_eq!((tally.fenced_writes, tally.refused, tally.fenced_lost()), (1, 1, 0));
    assert!(guard.is_held());
    let shown = rival.inspect("t01").await.unwrap().unwrap();
    assert_eq!(shown.holders[0].holder.process.as_ref().unwrap().pid, std::process::id());
    guard.release().await.unwrap();
}

/// t32: a killed process's lock goes to the next claim when its ttl has passed.
#[tokio::test]
async fn t32_a_killed_process_frees_its_lock() {
    let ((mut program, _), rival) = (holds("t32"), locker().await);
    program.kill();
    let guard = inherited(&rival, "t32").await;
    guard.release().await.unwrap();
    eventually("nothing to be left", || async { rival.inspect("t32").await.unwrap().is_none() })
        .await;
}

/// t53: a forked child can neither release nor acquire; the parent keeps its lock.
#[test]
fn t53_a_forked_child_cannot_use_the_lock() {
    let url = EtcdServer::shared().url();
    let mut program = Program::spawn(&mut holder("fork", &url, "t53"));
    program.wait_for("held");
    let said = program.wait_for("child");
    let forked = "belongs to the process that forked this one";
    assert_eq!(said.matches(forked).count(), 2, "{said}");
    assert_eq!(program.wait_for("parent holds"), "true");
    assert!(program.wait().success());
}

/// t54: the lock of a process that exits without a release is freed by its ttl.
#[tokio::test]
async fn t54_a_process_that_exits() {
    let (url, rival) = (EtcdServer::shared().url(), locker().await);
    let mut program = Program::spawn(holder("exit", &url, "t54").arg("--ttl=2s"));
    program.wait_for("held");
    assert!(program.wait().success());
    assert!(rival.inspect("t54").await.unwrap().is_some(), "nobody has released it");
    assert!(inherited(&rival, "t54").await.is_held());
}

/// How many descriptors a process has open.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is there").count()
}

/// With a proxy that accepts and resets connections, as a load balancer does in front of a dead member,
/// every socket that is reset is closed, also while the process continues to connect.
#[test]
fn connections_that_are_reset_are_closed() {
    /// About every other of these attempts used to leave a socket open.
    const ATTEMPTS: usize = 30;
    /// Attempts that may be under way at the same time, on both connections of a process.
    const SPARE: usize = 6;
    let server = EtcdServer::start();
    let proxy = Proxy::raw(server.port());
    let url = format!("etcd://127.0.0.1:{}", proxy.port());
    let (mut program, _) = hold(holder("hold", &url, "k"), &server);
    let (open, made) = (descriptors(program.pid()), proxy.accepted());
    proxy.rule(Rule::on(Way::Requests, Action::End(Cut::Reset)));
    proxy.cut(Cut::Reset);
    eventually_blocking("attempts to connect", || proxy.accepted() > made + ATTEMPTS);
    let now = descriptors(program.pid());
    assert!(now <= open + SPARE, "{now} descriptors, {open} before {ATTEMPTS} resets");
    proxy.heal();
    program.forget_lines();
    program.wait_for("held");
    let now = descriptors(program.pid());
    assert!(now <= open + SPARE, "{now} descriptors, {open} before {ATTEMPTS} resets");
}

/// The environment variables of `etcdctl` for endpoints and user apply to us too.
#[tokio::test]
async fn the_variables_of_etcdctl() {
    let server = EtcdServer::start();
    server.enable_auth("root-secret");
    server.add_user("app", "hers:too", "tenure/");
    let mut command = holder("hold", "etcd://", "k");
    command.env("ETCDCTL_ENDPOINTS", format!("http://127.0.0.1:1,{}", server.endpoint()));
    command.env("ETCDCTL_USER", "app:hers:too");
    let (mut program, _) = hold(command, &server);
    assert_eq!(server.keys("tenure/lock/k/").len(), 1);
    program.kill();
    let mut command = holder("hold", "etcd://", "k2");
    command.env("ETCDCTL_ENDPOINTS", server.endpoint());
    command.env("ETCDCTL_USER", "app").env("ETCDCTL_PASSWORD", "hers:too");
    let _program = hold(command, &server);
    assert_eq!(server.keys("tenure/lock/k2/").len(), 1);
}
