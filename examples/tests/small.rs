//! The small programs do what they say.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tenure_testkit::process::Program;
use tenure_testkit::servers::{EtcdServer, RedisServer};

/// Runs `threads` on an engine, and checks that no thread begins before the one before it has ended.
fn threads_take_turns(url: &str) {
    let mut program = Program::spawn(Command::new(env!("CARGO_BIN_EXE_threads")).arg(url));
    let mut fences = Vec::new();
    for _ in 0..3 {
        let begins = program.line().unwrap();
        let (name, rest) = begins.split_once(" begins, 2 deep, fence ").unwrap();
        fences.push(rest.parse::<u64>().unwrap());
        assert_eq!(program.line().unwrap(), format!("{name} ends"), "{url}");
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "{url}: {fences:?}");
    assert!(program.wait().success());
}

/// G2: threads take turns, and re-enter, on every engine.
#[test]
fn threads_on_every_engine() {
    let dir = tempfile::tempdir().unwrap();
    threads_take_turns("memory:");
    threads_take_turns(&format!("file:{}", dir.path().display()));
    threads_take_turns(&RedisServer::start().url());
    threads_take_turns(&EtcdServer::start().url());
}

/// The lines of a program that ends by itself.
fn lines(program: &str, url: &str) -> Vec<String> {
    let mut program = Program::spawn(Command::new(program).arg(url));
    let lines: Vec<String> = std::iter::from_fn(|| program.line()).collect();
    assert!(program.wait().success(), "{url}: {lines:?}");
    lines
}

/// B2, G2: two read at once; the long reader stops when the writer waits, and the writer comes after it.
#[test]
fn b2_readers_give_way() {
    let server = RedisServer::start();
    for url in ["memory:", &server.url()] {
        let seen = lines(env!("CARGO_BIN_EXE_readers"), url);
        assert!(seen[0].starts_with("two read, fences "), "{url}: {seen:?}");
        assert_eq!(seen[1], "somebody waits: the report stops early", "{url}");
        assert!(seen[2].starts_with("one writes, fence ") && seen.len() == 3, "{url}: {seen:?}");
    }
}

/// B3, G2: at most two exports run at a time, in different directories, and all of them run.
#[test]
fn b3_two_exports_at_a_time() {
    let server = RedisServer::start();
    for url in ["memory:", &server.url()] {
        let (seen, mut used) = (lines(env!("CARGO_BIN_EXE_permits"), url), Vec::new());
        assert_eq!(seen.len(), 12, "{url}: {seen:?}");
        for line in &seen {
            let slot = line.split("scratch-").nth(1).unwrap().split(',').next().unwrap();
            match line.contains(" begins ") {
                true => {
                    assert!(!used.contains(&slot) && ["0", "1"].contains(&slot), "{url}: {seen:?}");
                    used.push(slot);
                }
                false => used.retain(|other| *other != slot),
            }
        }
        assert!(used.is_empty(), "{url}: {seen:?}");
    }
}

/// B4, G2: transfers with an account in common run one after the other, whatever their order.
#[test]
fn b4_transfers_take_turns() {
    let server = RedisServer::start();
    for url in ["memory:", &server.url()] {
        let seen = lines(env!("CARGO_BIN_EXE_several_keys"), url);
        assert_eq!(seen.len(), 6, "{url}: {seen:?}");
        for pair in seen.chunks(2) {
            let (transfer, _) = pair[0].split_once(" begins, fences ").unwrap();
            assert_eq!(pair[1], format!("{transfer} ends"), "{url}: {seen:?}");
        }
    }
}

/// A26: a service that is asked to end finishes the request under its lock, and leaves no lock.
#[test]
fn a_request_outlives_the_signal() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graceful"));
    let mut program = Program::spawn(command.args(["memory:", "127.0.0.1:0"]));
    let mut connection = TcpStream::connect(program.wait_for("listening on ")).unwrap();
    let request =
        "POST /report HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    connection.write_all(request.as_bytes()).unwrap();
    program.wait_for("writing");
    let pid = program.pid().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut reply = String::new();
    connection.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("report with fence"), "{reply}");
    assert_eq!(program.wait_for("ended; "), "0 locks were still held");
    assert!(program.wait().success());
}

/// B5: three instances lead one after the other, with rising terms, and each sees who leads: who leads before all of
/// them, then itself, and any others in the order of their terms.
#[tokio::test]
async fn b5_instances_lead_in_turn() {
    let server = RedisServer::start();
    let locker = tenure::connect(&server.url()).await.unwrap();
    let first = locker.election("leader:example").campaign("this test").await.unwrap();
    let nodes = ["one", "two", "three"].map(|name| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leader"));
        let mut node = Program::spawn(command.args([&server.url(), name]));
        assert_eq!(node.line().unwrap(), "this test leads");
        (name, node)
    });
    first.resign().await.unwrap();
    let mut terms = BTreeMap::new();
    let all = nodes.map(|(name, mut node)| {
        let lines: Vec<String> = std::iter::from_fn(|| node.line()).collect();
        assert!(node.wait().success(), "{lines:?}");
        let term = lines.iter().find_map(|line| line.strip_prefix("leading, term ")).unwrap();
        terms.insert(term.parse::<u64>().unwrap(), name);
        (name, lines)
    });
    let order: Vec<&str> = terms.values().copied().collect();
    assert_eq!(order.len(), 3, "{terms:?}");
    for (name, lines) in all {
        let leaders = lines.iter().filter_map(|line| line.strip_suffix(" leads"));
        let seen: Vec<&str> = leaders.filter(|leader| *leader != "nobody").collect();
        let place = |leader: &&str| order.iter().position(|name| name == leader);
        assert!(seen.contains(&name) && seen.iter().map(place).is_sorted(), "{order:?}: {lines:?}");
    }
}
