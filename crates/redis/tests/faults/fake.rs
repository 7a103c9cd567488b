//! Servers with behaviour that a real one cannot be made to show: a few lines that send fixed replies.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::backend::{Backend, FaultKind};
use tenure_redis::Redis;
use tenure_testkit::wait::within;

use crate::support::{claim, whole};

/// Starts a server that answers `INFO` with `info` and scripts with `script`. Returns its URL and its count
/// of connections.
fn fake(info: &'static str, script: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = accepted.clone();
    // The thread ends with the test's process: it waits for a connection that never comes.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || serve(stream, info, script));
        }
    });
    (url, accepted)
}

fn serve(stream: TcpStream, info: &str, script: &str) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let reply = match request(&mut reader)?.as_str() {
            "HELLO" => "%0\r\n".into(),
            "INFO" => format!("${}\r\n{info}\r\n", info.len()),
            "CLIENT" => ":7\r\n".into(),
            "EVALSHA" | "EVAL" => script.into(),
            _ => "+OK\r\n".to_owned(),
        };
        writer.write_all(reply.as_bytes()).ok()?;
    }
}

/// Reads one request and returns its first word.
fn request(reader: &mut impl BufRead) -> Option<String> {
    let count = number(reader)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(reader)? + 2];
        reader.read_exact(&mut word).ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_uppercase());
    }
    words.into_iter().next()
}

fn number(reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

const GOOD: &str = "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master\r\nrun_id:a\r\n";

async fn unsupported(info: &'static str) -> String {
    let error = within("a refusal", Redis::connect(&fake(info, "").0)).await.unwrap_err();
    assert!(error.is_unsupported(), "{error:?}");
    whole(&error)
}

/// t64, t124: a server that reports a version that is too old, or cluster mode, is refused with the reason. (The server
/// is a fake that only reports it.)
#[tokio::test]
async fn t64_old_and_other_servers_are_refused() {
    let old = unsupported("redis_version:6.0.16\r\nrole:master\r\n").await;
    assert!(old.contains("its version 6.0.16 is too old, 6.2 or later is needed"), "{old}");
    let none = unsupported("role:master\r\n").await;
    assert!(none.contains("it does not say its version"), "{none}");
    let cluster = unsupported("redis_version:7.0.0\r\nredis_mode:cluster\r\nrole:master\r\n").await;
    assert!(cluster.contains("cluster mode"), "{cluster}");
    // Valkey 8 uses another name for the field.
    let valkey = unsupported("redis_version:7.2.4\r\nserver_mode:cluster\r\nrole:master\r\n").await;
    assert!(valkey.contains("cluster mode"), "{valkey}");
}

/// t38: connecting to a replica is refused.
#[tokio::test]
async fn t38_a_replica_is_refused() {
    let (url, _) = fake("redis_version:7.0.0\r\nrole:slave\r\n", "");
    let error = Redis::connect(&url).await.unwrap_err();
    assert!(error.is_unavailable() && whole(&error).contains("replica"), "{}", whole(&error));
}

/// t27: a reply that belongs to another request is not accepted for ours, and its connection is dropped.
#[tokio::test]
async fn t27_a_reply_to_another_request() {
    let granted =
        "*4\r\n$32\r\nffffffffffffffffffffffffffffffff\r\n$7\r\ngranted\r\n$1\r\n5\r\n$1\r\n-\r\n";
    let (url, connections) = fake(GOOD, granted);
    let store = Redis::connect(&url).await.unwrap();
    let one = claim("k", Duration::from_secs(20));
    let fault = store.try_acquire(&one).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unknown);
    assert!(fault.to_string().contains("belongs to another request"), "{fault}");
    assert!(connections.load(Ordering::Relaxed) >= 2, "the connection was replaced");
}
