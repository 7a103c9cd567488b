//! `etcd:` does what every engine must do.

#![allow(clippy::expect_used, reason = "test code, also outside of `#[test]` functions")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::Locker;
use tenure_core::backend::Backend;
use tenure_etcd::Etcd;
use tenure_testkit::conformance::Fixture;
use tenure_testkit::servers::EtcdServer;

/// Keys that no other test uses, on the server that all share.
struct Place(String);

impl Place {
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Place(format!("case-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    async fn connect(&self) -> Etcd {
        let builder = Etcd::builder(&EtcdServer::shared().url()).prefix(self.0.as_str());
        builder.connect().await.expect("the server can be used")
    }
}

impl Fixture for Place {
    async fn locker(&self) -> Locker {
        Locker::new(self.connect().await)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.connect().await)
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }
}

mod etcd {
    use super::Place;

    tenure_testkit::conformance!(Place::fresh());
}

/// Processes that are stopped, killed, forked, or leave.
mod process {
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use tenure_core::{Guard, Locker};
    use tenure_etcd::Etcd;
    use tenure_testkit::process::Program;
    use tenure_testkit::register::FileRegister;
    use tenure_testkit::servers::EtcdServer;
    use tenure_testkit::servers::proxy::{Cut, Deed, Proxy, Rule, Way};
    use tenure_testkit::wait::{eventually, eventually_blocking, within};

    /// How long the locks of these programs last that nobody keeps.
    const TTL: Duration = Duration::from_secs(2);
    /// When the lock of a process that is gone is had by another: a server looks at leases twice a second, and a slow
    /// machine takes a little. Whoever waits and is not told of it looks later than that.
    const FREED_WITHIN: Duration = TTL.saturating_add(Duration::from_millis(2_400));

    /// Has the lock `key`, which a process leaves that is gone now.
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

    /// A program that holds `key` until it is ended, and where its registers are.
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

    /// t01: the lock of a process that is stopped for longer than its ttl goes to a rival, and stays
    /// the rival's when the process goes on: its write is refused by the fence, and its release errs.
    #[tokio::test]
    async fn t01_a_stopped_process_loses_its_lock() {
        let ((mut program, dir), rival) = (holds("t01"), locker().await);
        let shown = rival.inspect("t01").await.unwrap().unwrap();
        assert_eq!(shown.holders[0].holder.client.as_ref().unwrap().pid, program.pid());
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
        assert_eq!(shown.holders[0].holder.client.as_ref().unwrap().pid, std::process::id());
        guard.release().await.unwrap();
    }

    /// How much later than its ttl the lock of a dead process may go to a waiter: etcd revokes leases a
    /// t32: a killed process's lock goes to whoever waits, when its ttl has passed.
    #[tokio::test]
    async fn t32_a_killed_process_frees_its_lock() {
        let ((mut program, _), rival) = (holds("t32"), locker().await);
        program.kill();
        let guard = inherited(&rival, "t32").await;
        guard.release().await.unwrap();
        eventually("nothing to be left", || async {
            rival.inspect("t32").await.unwrap().is_none()
        })
        .await;
    }

    /// t53: a forked child neither releases nor locks; the parent keeps what it holds.
    #[test]
    fn t53_a_forked_child_has_no_say() {
        let url = EtcdServer::shared().url();
        let mut program = Program::spawn(&mut holder("fork", &url, "t53"));
        program.wait_for("held");
        let said = program.wait_for("child");
        let forked = "belongs to the process that forked this one";
        assert_eq!(said.matches(forked).count(), 2, "{said}");
        assert_eq!(program.wait_for("parent holds"), "true");
        assert!(program.wait().success());
    }

    /// t54: what a process leaves that exits without a word is freed by its ttl.
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

    /// A hop that accepts and resets, as a load balancer does before a dead member: every socket that it resets
    /// is closed, also while the process goes on trying to connect.
    #[test]
    fn connections_that_are_reset_are_closed() {
        /// About every other of these attempts left a socket open once.
        const ATTEMPTS: usize = 30;
        /// Attempts that are under way at the same time, on both connections of a process.
        const SPARE: usize = 6;
        let server = EtcdServer::start();
        let proxy = Proxy::raw(server.port());
        let url = format!("etcd://127.0.0.1:{}", proxy.port());
        let (mut program, _) = hold(holder("hold", &url, "k"), &server);
        let (open, made) = (descriptors(program.pid()), proxy.accepted());
        proxy.rule(Rule::on(Way::Requests, Deed::End(Cut::Reset)));
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

    /// What `etcdctl` is told by its variables, we are told too: where, and who.
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
}
