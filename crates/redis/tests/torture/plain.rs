//! The scripts in the form that servers before version 7 get: without flags. Run on the server that
//! is here, since no older one is; that a 6.2 takes them is shown only as far as that goes.

use tenure_testkit::servers::{RedisClient, RedisServer, Reply};

const ACQUIRE: &str = include_str!("../../src/scripts/acquire.lua");
const RELEASE: &str = include_str!("../../src/scripts/release.lua");
const RENEW: &str = include_str!("../../src/scripts/renew.lua");
const FORCE: &str = include_str!("../../src/scripts/force.lua");
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const RIVAL: &str = "ffffffffffffffffffffffffffffffff";

fn words(reply: &Reply) -> Vec<String> {
    let Reply::Many(fields) = reply else { panic!("{reply:?}") };
    let text = |field: &Reply| match field {
        Reply::Text(text) => text.clone(),
        Reply::Int(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    fields.iter().map(text).collect()
}

fn acquire(raw: &mut RedisClient, token: &str) -> Vec<String> {
    let value = format!("-t1:0:{token}:1:h:1:u:p");
    words(&raw.command(&["EVAL", ACQUIRE, "2", "l", "f", token, &value, "20000"]))
}

fn run(raw: &mut RedisClient, script: &str, keys: &[&str], args: &[&str]) -> Vec<String> {
    let count = keys.len().to_string();
    words(&raw.command(&[&["EVAL", script, &count], keys, args].concat()))
}

/// Every script does its work and echoes the token, also without flags.
#[test]
fn scripts_run_without_flags() {
    let server = RedisServer::start();
    let mut raw = server.client();
    let first = acquire(&mut raw, TOKEN);
    assert_eq!((first[0].as_str(), first[1].as_str(), first[3].as_str()), (TOKEN, "granted", "-"));
    let again = acquire(&mut raw, TOKEN);
    assert!(again[2].parse::<u64>().unwrap() > first[2].parse().unwrap());
    assert_eq!(acquire(&mut raw, RIVAL)[..2], [RIVAL, "held"]);
    assert_eq!(run(&mut raw, RENEW, &["l", "o"], &[TOKEN, "1"]), [TOKEN, "renewed", "-"]);
    assert_eq!(run(&mut raw, RENEW, &["l", "o"], &[RIVAL, "1"]), [RIVAL, "gone"]);
    assert_eq!(run(&mut raw, RELEASE, &["l"], &[RIVAL, "0"]), [RIVAL, "not_held"]);
    assert_eq!(run(&mut raw, FORCE, &["l", "o"], &[TOKEN, "ann"]), [TOKEN, "freed"]);
    assert_eq!(run(&mut raw, RENEW, &["l", "o"], &[TOKEN, "1"]), [TOKEN, "forced", "ann"]);
    assert_eq!(acquire(&mut raw, RIVAL)[1], "granted");
    assert_eq!(run(&mut raw, RELEASE, &["l"], &[RIVAL, "9000"]), [RIVAL, "freed"]);
    assert_eq!(raw.text(&["GET", "l"]).as_deref(), Some("-t1:closed::1:h:1:u:p"));
    assert_eq!(run(&mut raw, RELEASE, &["l"], &[RIVAL, "0"]), [RIVAL, "not_held"]);
}
