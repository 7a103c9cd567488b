//! Commands as the server wants them, and its replies as answers. Nothing above sees the driver.

use std::io::Write;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisWrite, Script, Value};
use tenure_core::Fence;

use super::command::{Answer, Command, Verb};
use super::error::Error;
use crate::keys::Keys;

static FENCED_TEXT: &str = include_str!("fenced.lua");
static FENCED: LazyLock<Script> = LazyLock::new(|| Script::new(FENCED_TEXT));
/// How long a mark outlives its value. A holder that was paused for longer than its value lived is
/// rare; one that was paused for a day more is not to be expected.
const MARK_LONGER: Duration = Duration::from_secs(24 * 3600);

/// How a script is named: by its hash, or by its text, which makes it known.
#[derive(Clone, Copy)]
pub(super) enum Scripts {
    ByHash,
    ByText,
}

/// The request for `command`.
pub(super) fn spell(keys: &Keys, command: &Command<'_>, scripts: Scripts) -> Result<Cmd, Error> {
    let key = keys.value(&command.key).map_err(|ours| {
        Error::invalid(format!("keys named `{ours}` belong to the locks under the same prefix"))
    })?;
    if let Verb::Set { value, ttl, fence: Some(fence) } = &command.verb {
        let mark = keys.fenced(&command.key);
        return Ok(fenced([key, mark], value, *ttl, *fence, scripts));
    }
    Ok(plain(key, &command.verb))
}

/// A key in two parts: the prefix and the name.
type Parts<'a> = [&'a [u8]; 2];

fn plain(key: Parts<'_>, verb: &Verb<'_>) -> Cmd {
    let mut cmd = begin(key, verb);
    match verb {
        Verb::Get | Verb::Delete | Verb::Exists | Verb::HashGetAll => {}
        Verb::PopLeft | Verb::Members => {}
        Verb::Set { value, ttl, .. } => {
            cmd.arg(value.as_slice());
            if let Some(ttl) = ttl {
                cmd.arg("PX").arg(millis(*ttl));
            }
        }
        Verb::Expire { ttl } => _ = cmd.arg(millis(*ttl)),
        Verb::Add { by } => _ = cmd.arg(*by),
        Verb::HashSet { field, value } => _ = cmd.arg(&**field).arg(value.as_slice()),
        Verb::HashGet { field } => _ = cmd.arg(&**field),
        Verb::PushLeft { value } | Verb::PushRight { value } => _ = cmd.arg(value.as_slice()),
        Verb::Range { start, end } => _ = cmd.arg(*start).arg(*end),
        Verb::SetAdd { member } => _ = cmd.arg(member.as_slice()),
    }
    cmd
}

/// The verb in the server's words, and the key.
fn begin(key: Parts<'_>, verb: &Verb<'_>) -> Cmd {
    let (word, more) = match verb {
        Verb::Get => ("GET", 0),
        Verb::Set { value, .. } => ("SET", value.len() + 16),
        Verb::Delete => ("DEL", 0),
        Verb::Exists => ("EXISTS", 0),
        Verb::Expire { .. } => ("PEXPIRE", 16),
        Verb::Add { .. } => ("INCRBY", 16),
        Verb::HashSet { field, value } => ("HSET", field.len() + value.len()),
        Verb::HashGet { field } => ("HGET", field.len()),
        Verb::HashGetAll => ("HGETALL", 0),
        Verb::PushLeft { value } => ("LPUSH", value.len()),
        Verb::PushRight { value } => ("RPUSH", value.len()),
        Verb::PopLeft => ("LPOP", 0),
        Verb::Range { .. } => ("LRANGE", 40),
        Verb::SetAdd { member } => ("SADD", member.len()),
        Verb::Members => ("SMEMBERS", 0),
    };
    let length = key[0].len() + key[1].len();
    let mut cmd = Cmd::with_capacity(5, word.len() + length + more);
    cmd.arg(word);
    add(&mut cmd, key);
    cmd
}

fn add(cmd: &mut Cmd, key: Parts<'_>) {
    let mut word = cmd.writer_for_next_arg();
    for part in key {
        // Into memory: there is nothing that could go wrong.
        let _ = word.write_all(part);
    }
}

fn fenced(
    keys: [Parts<'_>; 2],
    value: &[u8],
    ttl: Option<Duration>,
    fence: Fence,
    scripts: Scripts,
) -> Cmd {
    let (verb, script) = match scripts {
        Scripts::ByHash => ("EVALSHA", FENCED.get_hash()),
        Scripts::ByText => ("EVAL", FENCED_TEXT),
    };
    let mut cmd = Cmd::new();
    cmd.arg(verb).arg(script).arg(2);
    keys.into_iter().for_each(|key| add(&mut cmd, key));
    cmd.arg(value).arg(ttl.map_or(0, millis)).arg(fence.get()).arg(millis(MARK_LONGER));
    cmd
}

/// Whole milliseconds, rounded up: a ttl is never zero.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What the server's reply to `command` means.
pub(super) fn read(command: &Command<'_>, reply: Value) -> Result<Answer, Error> {
    if let Verb::Set { fence: Some(fence), .. } = command.verb {
        return read_fenced(fence, reply);
    }
    match reply {
        Value::Nil => Ok(Answer::Nothing),
        Value::Okay => Ok(Answer::Done),
        Value::Int(number) => Ok(Answer::Number(number)),
        Value::BulkString(bytes) => Ok(Answer::Bytes(bytes)),
        Value::Array(all) | Value::Set(all) => many(all),
        Value::Map(all) => many(all.into_iter().flat_map(|(field, value)| [field, value])),
        _ => Err(Error::unexpected()),
    }
}

fn read_fenced(fence: Fence, reply: Value) -> Result<Answer, Error> {
    let Value::BulkString(seen) = reply else { return Err(Error::unexpected()) };
    if seen.is_empty() {
        return Ok(Answer::Done);
    }
    let seen = std::str::from_utf8(&seen).ok().and_then(|seen| seen.parse().ok());
    Err(Error::stale_fence(fence, seen.ok_or_else(Error::unexpected)?))
}

fn many(all: impl IntoIterator<Item = Value>) -> Result<Answer, Error> {
    let bytes = |value| match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(Error::unexpected()),
    };
    all.into_iter().map(bytes).collect::<Result<_, _>>().map(Answer::Many)
}
