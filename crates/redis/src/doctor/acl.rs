//! Finds the ACL rights that the user lacks.
//!
//! In: a probe connection. Out: what is not allowed, and the `ACL SETUSER` line that would allow it.
//!
//! `ACL DRYRUN` would answer this, but few users may run it. So each command is sent in a form that changes
//! nothing: on keys with a random name, or of a type that makes it fail after the ACL check.

use redis::{Cmd, Pipeline};
use tenure_core::doctor::{Check, Finding};

use super::probe::{Visit, why};
use crate::error::{EngineError, RIGHTS};
use crate::wire::keys::Keys;

/// How long, in milliseconds, a key of ours can remain if we die during the check.
const LEFT_MAX: u32 = 5_000;
/// Commands that locks can do without, at a loss of quality.
const OPTIONAL: [&str; 6] =
    ["publish", "pubsub|numsub", "scan", "client|id", "client|kill", "client|tracking"];
/// Commands that are not tried here. `pubsub.rs` tries the first. The others are needed only with another
/// database or with replicas, and then the server's error names them.
const NOT_TRIED: [&str; 3] = ["subscribe", "select", "wait"];
/// A digest that no script has.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// What was refused.
#[derive(Debug, Default, PartialEq, Eq)]
struct Missing {
    commands: Vec<&'static str>,
    disabled: Vec<&'static str>,
    keys: bool,
    channels: bool,
}

pub(super) async fn rights(visit: &mut Visit, user: &str, keys: &Keys) -> Finding {
    let tried =
        "send every command that locks need, on keys of our own, in a form that changes nothing";
    let check = Check::new("rights", visit.address(), tried);
    let missing = match missing(visit, keys).await {
        Ok(missing) => missing,
        Err(error) => return check.unknown(why(&error)),
    };
    if missing == Missing::default() {
        return check.good("all of them are allowed");
    }
    let advice = missing.advice(&line(user, keys));
    match missing.is_optional() {
        true => check.warning(missing.shown(keys), advice),
        false => check.critical(missing.shown(keys), advice),
    }
}

/// The ACL line that is sufficient.
pub(super) fn line(user: &str, keys: &Keys) -> String {
    format!(
        "ACL SETUSER {user} {}",
        RIGHTS.replace("~PREFIX:*", &keys.patterns()).replace("PREFIX", keys.prefix())
    )
}

/// The names of the commands to try.
fn commands() -> impl Iterator<Item = &'static str> {
    let named = RIGHTS.split(' ').filter_map(|right| right.strip_prefix('+'));
    named.filter(|name| !NOT_TRIED.contains(name))
}

async fn missing(visit: &mut Visit, keys: &Keys) -> Result<Missing, EngineError> {
    let probe = keys.probe()?;
    let mut missing = Missing::default();
    let mut set = redis::cmd("SET");
    set.arg(&probe.text).arg("").arg("NX").arg("PX").arg(LEFT_MAX);
    let may_set = missing.note("set", &visit.ask(&set).await);
    let names: Vec<_> = commands()
        .filter(|name| !matches!(*name, "set" | "del"))
        // `hset` fails on a string; without that key it would create a key that does not expire.
        .filter(|name| may_set || *name != "hset")
        .collect();
    let mut pipe = Pipeline::new();
    names.iter().for_each(|name| _ = pipe.add_command(form(name, &probe.text, &probe.channel)));
    // If a key was created all the same, it expires.
    pipe.add_command(form("pexpire", &probe.text, ""));
    for (name, reply) in names.iter().zip(visit.ask_all(&pipe).await?) {
        missing.note(name, &reply);
    }
    // Reading and writing are separate rights, for every kind of key.
    for key in &probe.keys {
        for (name, command) in
            [("exists", form("exists", key, "")), ("zrem", form("zrem", key, ""))]
        {
            missing.note(name, &visit.ask(&command).await);
        }
    }
    missing.note("del", &visit.ask(&form("del", &probe.text, "")).await);
    Ok(missing)
}

/// A command in a form that changes nothing; the key `text` is a string, or absent.
fn form(name: &str, text: &str, channel: &str) -> Cmd {
    let mut words = name.split('|');
    let mut command = redis::cmd(&words.next().unwrap_or_default().to_ascii_uppercase());
    words.for_each(|word| _ = command.arg(word));
    match name {
        "eval" => command.arg("return 1").arg(1).arg(text),
        "evalsha" => command.arg(NO_SCRIPT).arg(1).arg(text),
        "get" | "mget" | "exists" | "pttl" | "type" | "zcard" | "del" => command.arg(text),
        "getrange" | "zrange" | "zrevrange" | "zremrangebyscore" => command.arg(text).arg(0).arg(0),
        "zpopmin" => command.arg(text).arg(0),
        "pexpire" => command.arg(text).arg(LEFT_MAX),
        "zadd" => command.arg(text).arg("XX").arg(0).arg("m"),
        "hset" => command.arg(text).arg("f").arg("v"),
        "zrem" | "zrank" | "zscore" | "hget" | "hdel" => command.arg(text).arg("m"),
        "publish" => command.arg(channel).arg(""),
        "pubsub|numsub" => command.arg(channel),
        "scan" => command.arg(0).arg("MATCH").arg(text).arg("COUNT").arg(1),
        "client|kill" => command.arg("ID").arg(0),
        "client|tracking" => command.arg("OFF"),
        _ => &mut command,
    };
    command
}

impl Missing {
    /// Records the result of a command. Returns whether it is allowed.
    fn note<T>(&mut self, name: &'static str, reply: &Result<T, EngineError>) -> bool {
        let Err(error) = reply else { return true };
        let said = error.to_string();
        match error.code() {
            "NOPERM" if said.contains(" channel") => self.channels = true,
            "NOPERM" if said.contains("a key") || said.contains("the keys") => self.keys = true,
            "NOPERM" => add(&mut self.commands, name),
            _ if said.contains("unknown command") => add(&mut self.disabled, name),
            // It was allowed, and failed as intended.
            _ => return true,
        }
        false
    }

    fn is_optional(&self) -> bool {
        let mut needed = self.commands.iter().chain(&self.disabled);
        !self.keys && needed.all(|name| OPTIONAL.contains(name))
    }

    fn shown(&self, keys: &Keys) -> String {
        let prefix = keys.prefix();
        let commands = self.commands.iter().map(|name| format!("+{name}"));
        let patterns = self.keys.then(|| keys.patterns());
        let channels = self.channels.then(|| format!("&{prefix}:inbox:*"));
        let lacking: Vec<_> = patterns.into_iter().chain(channels).chain(commands).collect();
        let lacking =
            (!lacking.is_empty()).then(|| format!("not allowed: `{}`", lacking.join(" ")));
        let disabled = (!self.disabled.is_empty())
            .then(|| format!("disabled or renamed: `{}`", self.disabled.join(" ")));
        lacking.into_iter().chain(disabled).collect::<Vec<_>>().join("; ")
    }

    fn advice(&self, line: &str) -> String {
        match self.disabled.is_empty() {
            true => format!("this is enough: `{line}`"),
            false => {
                format!("take them out of `rename-command`; for the user this is enough: `{line}`")
            }
        }
    }
}

fn add(names: &mut Vec<&'static str>, name: &'static str) {
    if !names.contains(&name) {
        names.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command is tried with arguments: without them the server reports a wrong number of arguments
    /// before it checks rights.
    #[test]
    fn every_command_has_a_form() {
        let bare = ["time", "info", "ping", "set"];
        for name in commands().filter(|name| !bare.contains(name)) {
            let words = form(name, "k", "c").args_iter().count();
            assert!(words > 1, "`{name}` is tried without arguments");
        }
        assert!(NOT_TRIED.iter().all(|name| RIGHTS.contains(&format!("+{name}"))));
    }

    /// Missing rights are reported in the form of the ACL line.
    #[test]
    fn what_is_missing() {
        let keys = Keys::new("app", None);
        let refused = |rest: &str| -> Result<(), EngineError> {
            Err(EngineError::of_reply(&"h:1", "NOPERM", rest))
        };
        let mut missing = Missing::default();
        assert!(missing.note("get", &Ok(())));
        assert!(
            !missing
                .note("scan", &refused("this user has no permissions to run the 'scan' command"))
        );
        assert!(missing.is_optional());
        assert_eq!(missing.shown(&keys), "not allowed: `+scan`");
        missing.note("get", &refused("No permissions to access a key"));
        missing.note("publish", &refused("No permissions to access a channel"));
        assert!(!missing.is_optional());
        assert_eq!(missing.shown(&keys), "not allowed: `~app:* &app:inbox:* +scan`");
    }
}
