//! `tenure elect` and `tenure leader`: commands that run while their process leads, and who is seen to lead.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::time::{Duration, Instant};
use tenure_testkit::servers::proxy::{Cut, Proxy};

use crate::common::{Done, Running, Space, assert_matches, is_alive, pid_in, wait_for};

/// `2026-11-16T02:00:05.123Z`.
const AT: &str = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z";

fn leader(space: &Space) -> Done {
    space.done(["leader", "k"])
}

/// Writes its process id and its term, and runs until the file `go` exists.
fn term_until(go: &str) -> String {
    format!(
        "echo $TENURE_FENCE >> terms-{go}; echo $$ > new; mv new pid-{go}; \
         while [ ! -e {go} ]; do sleep 0.01; done; exit 7"
    )
}

fn touch(space: &Space, name: &str) {
    std::fs::write(space.path(name), "").unwrap();
}

fn terms(space: &Space, go: &str) -> Vec<u64> {
    space.read(&format!("terms-{go}")).lines().map(|term| term.parse().unwrap()).collect()
}

/// B5, F1: the command runs while its process leads, and its status is that of `elect`. Others see its value, or that
/// nobody leads, also as JSON.
#[test]
fn b5_a_command_leads() {
    for space in [Space::new(), Space::redis()] {
        let none = leader(&space);
        assert_eq!((none.code, none.out.as_str()), (Some(1), ""));
        assert_eq!(none.err, "tenure: nobody leads k\n");
        let run = Running::start(space.sh("elect --value node-1 k", &term_until("one")));
        pid_in(&space.path("pid-one"));
        let term = terms(&space, "one")[0];
        let seen = leader(&space);
        assert_eq!((seen.code, seen.out.as_str()), (Some(0), "node-1\n"));
        let shown = space.done(["leader", "k", "--json"]);
        let shown: Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!((&shown["key"], &shown["leader"]["value"]), (&"k".into(), &"node-1".into()));
        assert_eq!(shown["leader"]["term"], term.to_string());
        assert_eq!(shown["leader"]["program"], "tenure");
        touch(&space, "one");
        let run = run.finish();
        assert_eq!(run.code, Some(7));
        assert_eq!(run.err, format!("tenure: leading k as node-1 (term {term})\n"));
        assert_eq!(leader(&space).code, Some(1));
        let shown = space.done(["leader", "k", "--json"]);
        assert_eq!(shown.code, Some(1));
        assert!(shown.out.ends_with("\"key\":\"k\",\"leader\":null}\n"), "{}", shown.out);
    }
}

/// B5: without a value, the process is shown. A bad key and a missing command are refused before the engine is asked.
#[test]
fn b5_the_value_of_a_process() {
    let space = Space::new();
    let run = space.hold("elect k");
    assert_matches(&leader(&space).out, &format!("WHO/{}\n", run.pid()));
    space.let_go();
    assert_eq!(run.finish().code, Some(0));
    assert_eq!(space.done(["elect", "", "--", "true"]).code, Some(64));
    assert_eq!(space.done(["elect", "k", "--", "no-such-command"]).code, Some(127));
    assert_eq!(space.done(["leader", ""]).code, Some(64));
    assert_eq!(space.done(["leader", "k", "--count", "1"]).code, Some(64));
    let long = "x".repeat(201);
    let refused = space.done(["elect", "--value", &long, "k", "--", "true"]);
    assert_eq!(refused.code, Some(64));
    assert_eq!(
        refused.err,
        "tenure: error: the value of the leader of `k` has 201 characters, and may have at most 200\n"
    );
}

/// B5, F1: `--watch` prints who leads and each change, also that nobody does.
#[test]
fn b5_changes_are_printed() {
    let space = Space::redis();
    let watch = Running::start(space.tenure(["leader", "k", "--watch", "--count", "3"]));
    let json = Running::start(space.tenure(["leader", "k", "--watch", "--json", "--count", "3"]));
    for watch in [&watch, &json] {
        wait_for("the first line", || !watch.printed().is_empty());
    }
    let run = Running::start(space.sh("elect -q --value node-1 k", &term_until("one")));
    pid_in(&space.path("pid-one"));
    for watch in [&watch, &json] {
        wait_for("the second line", || watch.printed().lines().count() == 2);
    }
    let pid = run.pid();
    touch(&space, "one");
    assert_eq!(run.finish().code, Some(7));
    let term = terms(&space, "one")[0];
    let watch = watch.finish();
    assert_eq!((watch.code, watch.err.as_str()), (Some(0), ""));
    assert_matches(
        &watch.out,
        &format!("{AT} k nobody\n{AT} k leader node-1 term {term} by WHO/{pid}\n{AT} k nobody\n"),
    );
    let lines: Vec<Value> =
        json.finish().out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let values: Vec<&Value> = lines.iter().map(|line| &line["leader"]["value"]).collect();
    assert_eq!(values, [&Value::Null, &"node-1".into(), &Value::Null]);
}

/// B5, t116: a leader that is removed by force loses its command, leads again, and ends with its command.
#[test]
fn t116_a_removed_leader_leads_again() {
    let space = Space::redis();
    let mut run = Running::start(space.sh("elect --value node-1 k", &term_until("one")));
    let first = pid_in(&space.path("pid-one"));
    assert!(run.line().starts_with("tenure: leading k as node-1 (term "));
    std::fs::remove_file(space.path("pid-one")).unwrap();
    let forced = space.done(["release", "k", "--force", "--yes", "--reason", "stuck"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let lost = run.line();
    assert!(lost.starts_with("tenure: losing k: ") && lost.contains("sent KILL to "), "{lost}");
    assert_eq!(run.line(), "tenure: lost k, waiting to lead again");
    assert!(!is_alive(first));
    pid_in(&space.path("pid-one"));
    let terms = terms(&space, "one");
    assert!(terms.len() == 2 && terms[0] < terms[1], "{terms:?}");
    touch(&space, "one");
    assert_eq!(run.finish().code, Some(7));
}

/// t93: a leader and its command are stopped for longer than the ttl, and another leads. When the first one
/// continues, its command is killed, and it waits. No observer sees it again.
#[test]
fn t93_a_stopped_leader_is_replaced() {
    let space = Space::redis();
    let watch = Running::start(space.tenure(["leader", "k", "--watch", "--json"]));
    wait_for("the first line", || !watch.printed().is_empty());
    let one = Running::start(space.sh("elect --ttl 2s --value one k", &term_until("one")));
    let command = pid_in(&space.path("pid-one"));
    let two = Running::start(space.sh("elect --ttl 2s --value two k", &term_until("two")));
    one.send(Signal::SIGSTOP);
    kill(Pid::from_raw(command), Signal::SIGSTOP).unwrap();
    pid_in(&space.path("pid-two"));
    one.send(Signal::SIGCONT);
    wait_for("the first command to be killed", || !is_alive(command));
    assert!(terms(&space, "one")[0] < terms(&space, "two")[0]);
    assert_eq!(leader(&space).out, "two\n");
    one.send(Signal::SIGTERM);
    assert_eq!(one.finish().code, Some(143));
    touch(&space, "two");
    assert_eq!(two.finish().code, Some(7));
    let last = |watch: &Running| watch.printed().lines().last().map(|line| line.contains("null"));
    wait_for("nobody to be seen", || last(&watch) == Some(true));
    let seen = watch.printed();
    let lines = seen.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let values: Vec<String> =
        lines.filter_map(|line| Some(line["leader"]["value"].as_str()?.to_owned())).collect();
    assert_eq!(values, ["one", "two"]);
}

/// t110: a leader that is killed is followed within its ttl; its command does not outlive it.
#[test]
fn t110_a_killed_leader_is_followed() {
    for space in [Space::new(), Space::redis()] {
        let one = Running::start(space.sh("elect --ttl 2s --value one k", &term_until("one")));
        let command = pid_in(&space.path("pid-one"));
        let two = Running::start(space.sh("elect --ttl 2s --value two k", &term_until("two")));
        wait_for("it to wait", || match space.show("k")["waiters"].as_array() {
            Some(waiters) => waiters.len() == 1,
            None => space.path("locks/k.wait").exists(),
        });
        let killed = Instant::now();
        one.send(Signal::SIGKILL);
        wait_for("its command to die", || !is_alive(command));
        pid_in(&space.path("pid-two"));
        assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
        assert!(terms(&space, "one")[0] < terms(&space, "two")[0]);
        touch(&space, "two");
        assert_eq!(two.finish().code, Some(7));
    }
}

/// t69, B5, F1: the server is away from the leader only. Its command gets TERM, and KILL: it is dead when the next one
/// leads. Once the server is back, the first one leads again, in a higher term.
#[test]
fn t69_a_leader_loses_its_server() {
    let space = Space::redis();
    let proxy = Proxy::to(space.server().port());
    // The shell would report that TERM ended its `sleep`.
    let stubborn = format!("exec 2> /dev/null; trap 'touch asked' TERM; {}", term_until("one"));
    let mut command = space.sh("elect --ttl 2s --grace 300ms --value one k", &stubborn);
    let mut one = Running::start({
        command.env("TENURE_URL", proxy.url());
        command
    });
    let first = pid_in(&space.path("pid-one"));
    assert!(one.line().starts_with("tenure: leading k as one (term "));
    std::fs::remove_file(space.path("pid-one")).unwrap();
    let alive = format!("grep -q '^State:.[^Z]' /proc/{first}/status 2>/dev/null");
    let next = format!("if {alive}; then exit 1; fi; echo $TENURE_FENCE > terms-two; exit 5");
    let two = Running::start(space.sh("elect --ttl 2s --value two k", &next));
    wait_for("it to wait", || {
        space.show("k")["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
    });
    proxy.refuse();
    proxy.cut(Cut::Reset);
    assert_eq!(two.finish().code, Some(5), "the first command lives");
    assert!(space.path("asked").exists(), "TERM comes first");
    let lost = r"^tenure: losing k: no renewal confirmed for 1s( \(.+\))?; sent TERM to \d+, KILL in \d+ms$";
    assert_matches(&one.line(), lost);
    assert_eq!(one.line(), "tenure: lost k, waiting to lead again");
    proxy.heal();
    pid_in(&space.path("pid-one"));
    let (ours, theirs) = (terms(&space, "one"), terms(&space, "two")[0]);
    assert!(ours.len() == 2 && ours[0] < theirs && theirs < ours[1], "{ours:?}, {theirs}");
    touch(&space, "one");
    assert_eq!(one.finish().code, Some(7));
}

/// B5: a candidate that is asked to end while it waits leaves nothing behind. A signal to a leader ends its command,
/// and then the leader.
#[test]
fn b5_signals_end_it() {
    let space = Space::redis();
    let one = Running::start(space.sh("elect --value one k", &term_until("one")));
    pid_in(&space.path("pid-one"));
    let two = Running::start(space.sh("elect --value two k", &term_until("two")));
    let waiters = || space.show("k")["waiters"].as_array().map_or(0, Vec::len);
    wait_for("it to wait", || waiters() == 1);
    two.send(Signal::SIGINT);
    assert_eq!(two.finish().code, Some(130));
    assert_eq!(waiters(), 0);
    one.send(Signal::SIGTERM);
    assert_eq!(one.finish().code, Some(143));
    assert_eq!(leader(&space).code, Some(1));
}
