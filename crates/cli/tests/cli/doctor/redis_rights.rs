//! Our user on a Redis server, and its rights.

use tenure_testkit::servers::{RedisServer, Reply};

use crate::common::PASSWORD;

use super::{doctor, printed};

/// Creates a user with these rights, and returns its URL.
fn user(server: &RedisServer, rights: &[&str]) -> String {
    let password = format!(">{PASSWORD}");
    let base = ["ACL", "SETUSER", "limited", "reset", "on", &password];
    let made = server.client().command(&[&base, rights].concat());
    assert_eq!(made, Reply::Text("OK".into()));
    format!("redis://limited:{PASSWORD}@127.0.0.1:{}", server.port())
}

/// t63: missing rights are named, and the advised line is enough: 0.
#[test]
fn t63_rights() {
    let server = RedisServer::start_persistent();
    let url = user(&server, &["~*", "&*", "+@all", "-zadd", "-evalsha", "-scan"]);
    let found = doctor(&url);
    let flaw = found.has("rights", "unsafe", r"not allowed: `\+evalsha \+zadd \+scan`");
    let advice = flaw["advice"].as_str().unwrap().to_owned();
    let line = advice.split('`').nth(1).unwrap();
    let words: Vec<_> = line.split(' ').collect();
    let start = ["ACL", "SETUSER", "limited", "~tenure:*", "resetchannels", "&tenure:inbox:*"];
    assert_eq!(words[..6], start);
    found.ends_with(2);
    let url = user(&server, &words[3..]);
    let found = doctor(&url);
    found.has("rights", "good", "all of them are allowed");
    found.has("pub-sub", "good", "the message arrived, .+");
    found.has(
        "persistence",
        "unknown",
        "there is an append-only file; the user lacks the right .+",
    );
    found.has("lock", "good", "granted .+");
    found.ends_with(0);
}

/// t63: keys and channels need rights of their own.
#[test]
fn t63_keys_and_channels() {
    let server = RedisServer::start_persistent();
    let found = doctor(&user(&server, &["~tenure:lock:*", "&tenure:inbox:*", "+@all"]));
    found.has("rights", "unsafe", r"not allowed: `~tenure:\*`");
    let found = doctor(&user(&server, &["%R~tenure:*", "&tenure:inbox:*", "+@all"]));
    found.has("rights", "unsafe", r"not allowed: `~tenure:\*`");
    found.ends_with(2);
    let found = doctor(&user(&server, &["~tenure:*", "resetchannels", "+@all"]));
    found.has("rights", "warning", r"not allowed: `&tenure:inbox:\*`");
    found.has("pub-sub", "warning", "not allowed: waiters poll at `retry_interval` .+");
    found.ends_with(1);
    let found = doctor(&user(&server, &["~tenure:*", "&*", "+@all", "-subscribe"]));
    found.has("pub-sub", "warning", "not allowed: .+");
    found.ends_with(1);
}

/// A check that the user may not run is unknown, and not a failure: `CONFIG` is often restricted. Without
/// `INFO` and `TIME` locks do not work, so these missing rights are unsafe.
#[test]
fn what_may_not_be_asked() {
    let server = RedisServer::start_persistent();
    let found = doctor(&user(&server, &["~*", "&*", "+@all", "-config"]));
    found.has("persistence", "unknown", ".+");
    found.has("eviction", "good", "`noeviction`, and no limit");
    found.has("replication", "good", "no replica");
    found.ends_with(0);
    let found = doctor(&user(&server, &["~*", "&*", "+@all", "-info", "-config", "-time"]));
    for check in ["version", "role", "persistence", "eviction", "replication", "clock"] {
        found.has(check, "unknown", "could not be checked: the user lacks the right");
    }
    found.has("rights", "unsafe", r"not allowed: `\+time \+info`");
    found.ends_with(2);
}

/// t63: a renamed command is reported as missing.
#[test]
fn t63_renamed_commands() {
    let server = RedisServer::start_with(&["--rename-command", "EVALSHA", ""]);
    let found = doctor(&server.url());
    let flaw = found.has("rights", "unsafe", "disabled or renamed: `evalsha`");
    assert!(
        flaw["advice"].as_str().unwrap().starts_with("take them out of `rename-command`"),
        "{flaw}"
    );
    found.ends_with(2);
}

/// t63, t66: a wrong password is a finding, and no password is ever shown.
#[test]
fn t63_t66_passwords() {
    let server = RedisServer::start_with(&["--requirepass", "another"]);
    let found = doctor(&server.url());
    found.has("reachable", "unsafe", ".+the server wants a password: NOAUTH.+");
    found.ends_with(2);
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", server.port());
    let flaw = doctor(&url);
    let flaw = flaw.has("reachable", "unsafe", ".+the user name or password is wrong: WRONGPASS.+");
    assert_eq!(flaw["advice"], "correct user, password or certificates");
    let said = printed(&url);
    assert!(!said.out.contains(PASSWORD) && !said.err.contains(PASSWORD), "{said:?}");
}
