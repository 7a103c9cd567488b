//! The tool on an etcd server: the result of each command, and what stays on the server.

use crate::common::{Done, Running, Space, assert_matches, done, wait_for};
use std::process::Command;
use tenure_testkit::servers::EtcdServer;

/// A server, and a directory for a test's files.
struct Place {
    server: EtcdServer,
    space: Space,
}

impl Place {
    fn new() -> Self {
        Place { server: EtcdServer::start(), space: Space::untouched() }
    }

    fn tenure(&self, args: &str) -> Command {
        let mut command = self.space.tenure(args.split_whitespace());
        command.env("TENURE_URL", self.server.url());
        command
    }

    fn done(&self, args: &str) -> Done {
        done(self.tenure(args))
    }

    fn sh(&self, args: &str, script: &str) -> Command {
        let mut command = self.space.sh(args, script);
        command.env("TENURE_URL", self.server.url());
        command
    }

    /// Starts a run that holds the lock until the file `held` is removed.
    fn hold(&self, args: &str) -> Running {
        let script = "touch held; while [ -e held ]; do sleep 0.01; done";
        let running = Running::start(self.sh(args, script));
        wait_for("the lock to be held", || self.space.path("held").exists());
        running
    }
}

/// Runs on one server exclude each other, fences rise, and no lock is left.
#[test]
fn runs_exclude_each_other() {
    let place = Place::new();
    let script = "echo in >> log; sleep 0.05; echo out >> log; echo $TENURE_FENCE";
    let runs: Vec<Running> = (0..4).map(|_| Running::start(place.sh("run -q k", script))).collect();
    let mut fences: Vec<u64> = Vec::new();
    for run in runs {
        let run = run.finish();
        assert_eq!(run.code, Some(0), "{run:?}");
        fences.push(run.out.trim().parse().unwrap());
    }
    assert_eq!(place.space.read("log"), "in\nout\n".repeat(4));
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 4);
    assert_eq!(place.done("ls").err, "tenure: no locks\n");
}

/// `ls` and `show` have the holder, the waiters and the fence. The waiter's message names the holder, and the
/// waiter acquires the lock after it.
#[test]
fn inspecting_and_waiting() {
    let place = Place::new();
    let holder = place.hold("run --reason release_41 db-migrate");
    let mut waiter = Running::start(place.sh("run db-migrate", "true"));
    let pid = holder.pid();
    assert_matches(
        &waiter.line(),
        &format!(
            "tenure: waiting for db-migrate: held \\d+s by WHO \\(pid {pid}, \"release_41\"\\), \
             [23]\\ds of lease left, you are 1st"
        ),
    );
    assert_matches(
        &place.done("ls").out,
        &format!(
            "KEY +MODE +HOLDER +HELD FOR +LEASE LEFT +WAITERS +FENCE +REASON\n\
             db-migrate +exclusive +WHO pid {pid} +\\d+s +[23]\\ds +1 +\\d+ +release_41\n"
        ),
    );
    assert_matches(&place.done("show db-migrate").out, "db-migrate\n.+WHO.+queue.+WHO.+");
    let busy = place.done("run -n db-migrate -- true");
    assert_eq!(busy.code, Some(75));
    place.space.let_go();
    assert_eq!((holder.finish().code, waiter.finish().code), (Some(0), Some(0)));
}

/// One process acquires a lock and another releases it with the token. `--min-hold` keeps it closed for a
/// while.
#[test]
fn acquire_release_and_close() {
    let place = Place::new();
    let token = place.done("acquire k --ttl 20s").out.trim().to_owned();
    assert_eq!(token.len(), 32);
    assert_eq!(place.done("acquire -n k --ttl 20s").code, Some(75));
    assert_eq!(place.done(&format!("release k --token {token}")).code, Some(0));
    assert_eq!(place.done(&format!("release k --token {token}")).code, Some(79));
    assert_eq!(place.done("run --min-hold 1m k -- true").code, Some(0));
    let twin = place.done("run -n k -- true");
    assert_eq!(twin.code, Some(75));
    assert_matches(
        &twin.err,
        "tenure: not acquired: k was released by WHO and is kept closed for another [0-9m]+s\n\
         hint: tenure show k\n",
    );
    let odd = place.done("acquire other --ttl 2500ms");
    assert_eq!(
        (odd.code, odd.err.as_str()),
        (
            Some(64),
            "tenure: error: ttl (2.5s) must be whole seconds, at least 2s, on `etcd`: 3s would do\n"
        )
    );
}

/// `watch` reports an acquired lock and its forced release; the command that ran under the lock is ended.
#[test]
fn watch_and_force() {
    let place = Place::new();
    let mut watch = Running::start(place.tenure("watch --count 2"));
    assert_eq!(watch.line(), "tenure: watching, 0 locks are held now");
    let holder = place.hold("run k");
    wait_for("the first event", || watch.printed().contains("acquired"));
    let forced = place.done("release k --force --yes --reason stuck");
    assert_eq!(forced.code, Some(0), "{forced:?}");
    assert_eq!(holder.finish().code, Some(79));
    let told = watch.finish();
    assert_eq!(told.code, Some(0));
    assert_matches(
        &told.out,
        "[^\n]+ k acquired by WHO [^\n]+\n[^\n]+ k forced from WHO [^\n]+ by WHO: stuck\n",
    );
}
