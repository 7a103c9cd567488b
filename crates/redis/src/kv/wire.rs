//! Encodes commands for the server, and its replies as answers. No layer above sees the driver.

use std::io::Write;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisWrite, Script, Value};
use tenure_core::Fence;

use tenure_kv::{Answer, Command, Error, Verb, Word};

use crate::wire::keys::Keys;

static FENCED_TEXT: &str = include_str!("fenced.lua");
static FENCED: LazyLock<Script> = LazyLock::new(|| Script::new(FENCED_TEXT));
/// How long a fence mark outlives its value. A holder is rarely paused for longer than its value lives; a
/// pause that is a day longer is not expected.
const MARK_LONGER: Duration = Duration::from_secs(24 * 3600);

/// How many keys one page of a scan visits: a fraction of a millisecond for the server.
const SCANNED_AT_ONCE: usize = 1_000;
const SCORES: &str = "WITHSCORES";

/// How a script is sent: by its hash, or by its text, which also loads it.
#[derive(Clone, Copy)]
pub(super) enum Scripts {
    ByHash,
    ByText,
}

/// Encodes the request for `command`.
pub(super) fn spell(keys: &Keys, command: &Command<'_>, scripts: Scripts) -> Result<Cmd, Error> {
    let key = checked(keys, &command.key)?;
    match &command.verb {
        Verb::Set { value, ttl, fence: Some(fence) } => {
            let mark = keys.fenced(&command.key);
            Ok(fenced([key, mark], value, *ttl, *fence, scripts))
        }
        Verb::Scan { cursor } => Ok(scan(keys, &command.key, cursor)),
        Verb::Any { name, words } => any(keys, name, words),
        verb => plain(key, verb),
    }
}

/// A key of the client with its prefix; rejects keys that belong to the locks.
fn checked<'a>(keys: &'a Keys, key: &'a [u8]) -> Result<Parts<'a>, Error> {
    keys.value(key).map_err(|ours| {
        Error::invalid(format!("keys named `{ours}` belong to the locks under the same prefix"))
    })
}

/// A key in two parts: the prefix and the name.
type Parts<'a> = [&'a [u8]; 2];

fn plain(key: Parts<'_>, verb: &Verb) -> Result<Cmd, Error> {
    let mut cmd = begin(key, verb)?;
    match verb {
        Verb::Set { value, ttl, .. } => {
            cmd.arg(value.as_slice());
            if let Some(ttl) = ttl {
                cmd.arg("PX").arg(millis(*ttl));
            }
        }
        Verb::SetIfAbsent { value, ttl } => {
            cmd.arg(value.as_slice()).arg("NX");
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
        Verb::SetAdd { member } | Verb::SortedScore { member } | Verb::SortedRemove { member } => {
            cmd.arg(member.as_slice());
        }
        Verb::SortedAdd { member, score: number } | Verb::SortedIncrease { member, by: number } => {
            cmd.arg(score(*number)).arg(member.as_slice());
        }
        Verb::SortedRange { start, end } => _ = cmd.arg(*start).arg(*end).arg(SCORES),
        Verb::SortedBetween { min, max } => {
            cmd.arg(score(*min)).arg(score(*max)).arg("BYSCORE").arg(SCORES);
        }
        _ => {}
    }
    Ok(cmd)
}

/// The server's command for the verb, and the key.
fn begin(key: Parts<'_>, verb: &Verb) -> Result<Cmd, Error> {
    let (word, more) = match verb {
        Verb::Get => ("GET", 0),
        Verb::Set { value, .. } | Verb::SetIfAbsent { value, .. } => ("SET", value.len() + 16),
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
        Verb::SortedAdd { member, .. } => ("ZADD", member.len() + 24),
        Verb::SortedIncrease { member, .. } => ("ZINCRBY", member.len() + 24),
        Verb::SortedScore { member } => ("ZSCORE", member.len()),
        Verb::SortedRemove { member } => ("ZREM", member.len()),
        Verb::SortedRange { .. } | Verb::SortedBetween { .. } => ("ZRANGE", 64),
        _ => return Err(Error::invalid("this version of the client does not have the verb")),
    };
    let length = key[0].len() + key[1].len();
    let mut cmd = Cmd::with_capacity(5, word.len() + length + more);
    cmd.arg(word);
    add(&mut cmd, key);
    Ok(cmd)
}

fn add(cmd: &mut Cmd, key: Parts<'_>) {
    let mut word = cmd.writer_for_next_arg();
    for part in key {
        // Writing into memory cannot fail.
        let _ = word.write_all(part);
    }
}

/// A score as the server reads it: `2.5`, `1e300`, `-inf`.
fn score(number: f64) -> String {
    format!("{number:?}")
}

/// The server's cursor is a number, 0 before the first page.
fn scan(keys: &Keys, prefix: &[u8], cursor: &[u8]) -> Cmd {
    let cursor = if cursor.is_empty() { b"0" } else { cursor };
    let mut cmd = Cmd::new();
    cmd.arg("SCAN").arg(cursor).arg("MATCH").arg(keys.all_values(prefix));
    cmd.arg("COUNT").arg(SCANNED_AT_ONCE);
    cmd
}

fn any(keys: &Keys, name: &str, words: &[Word]) -> Result<Cmd, Error> {
    let mut cmd = Cmd::new();
    name.split_ascii_whitespace().for_each(|word| _ = cmd.arg(word));
    let first = name.split_ascii_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    if let Some(why) = refusal(&first, words) {
        return Err(Error::invalid(format!("`{first}` {why}")));
    }
    for word in words {
        match word {
            Word::Key(key) => add(&mut cmd, checked(keys, key)?),
            Word::Arg(arg) => _ = cmd.arg(arg.as_slice()),
        }
    }
    Ok(cmd)
}

/// Why a command cannot be sent on connections that all calls and the locks share.
fn refusal(name: &str, words: &[Word]) -> Option<&'static str> {
    let blocks = |word: &Word| matches!(word, Word::Arg(arg) if arg.eq_ignore_ascii_case(b"BLOCK"));
    match name {
        "" => Some("is no command: the name is empty"),
        "BLPOP" | "BRPOP" | "BLMOVE" | "BLMPOP" | "BRPOPLPUSH" | "BZPOPMIN" | "BZPOPMAX"
        | "BZMPOP" | "WAIT" | "WAITAOF" => Some(BLOCKS),
        "XREAD" | "XREADGROUP" if words.iter().any(blocks) => Some(BLOCKS),
        "MULTI" | "EXEC" | "DISCARD" | "WATCH" | "UNWATCH" => {
            Some("changes the connection that all calls share: use `pipeline(..).atomic()`")
        }
        "AUTH" | "HELLO" | "RESET" | "QUIT" | "SELECT" | "CLIENT" | "READONLY" | "READWRITE"
        | "ASKING" | "MONITOR" | "SYNC" | "PSYNC" | "REPLCONF" | "SUBSCRIBE" | "PSUBSCRIBE"
        | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE" => {
            Some("changes the connection that all calls share: use another client for it")
        }
        "FLUSHALL" | "FLUSHDB" | "SWAPDB" | "SHUTDOWN" | "DEBUG" => {
            Some("would take the locks away: use another client for it")
        }
        _ => None,
    }
}

const BLOCKS: &str = "blocks the connection that all calls share: use another client for it";

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

/// Reads the server's reply to `command`.
pub(super) fn read(command: &Command<'_>, reply: Value) -> Result<Answer, Error> {
    if let Verb::Set { fence: Some(fence), .. } = command.verb {
        return read_fenced(fence, reply);
    }
    let answer = answer(reply)?;
    match (&command.verb, answer) {
        // Their answers may have any form.
        (Verb::Any { .. } | Verb::Scan { .. }, answer) => Ok(answer),
        (_, Answer::List(all)) => {
            let mut flat = Vec::with_capacity(all.len());
            all.into_iter().try_for_each(|answer| flatten(answer, &mut flat))?;
            Ok(Answer::Many(flat))
        }
        (_, answer) => Ok(answer),
    }
}

/// The reply as an [`Answer`]. A number with a fraction is text, as in RESP2.
fn answer(reply: Value) -> Result<Answer, Error> {
    let list = |all: Vec<Value>| all.into_iter().map(answer).collect::<Result<_, _>>();
    let text = |text: String| Ok(Answer::Bytes(text.into_bytes()));
    match reply {
        Value::Nil => Ok(Answer::Nothing),
        Value::Okay => Ok(Answer::Done),
        Value::Int(number) => Ok(Answer::Number(number)),
        Value::Boolean(yes) => Ok(Answer::Number(yes.into())),
        Value::BulkString(bytes) => Ok(Answer::Bytes(bytes)),
        Value::SimpleString(word) | Value::VerbatimString { text: word, .. } => text(word),
        Value::Double(number) => text(number.to_string()),
        Value::Array(all) | Value::Set(all) => list(all).map(Answer::List),
        Value::Map(all) => {
            let flat = all.into_iter().flat_map(|(field, value)| [field, value]);
            list(flat.collect()).map(Answer::List)
        }
        _ => Err(Error::unexpected()),
    }
}

/// Pairs of member and score arrive as a list of lists.
fn flatten(answer: Answer, flat: &mut Vec<Vec<u8>>) -> Result<(), Error> {
    match answer {
        Answer::Bytes(bytes) => flat.push(bytes),
        Answer::List(all) => return all.into_iter().try_for_each(|inner| flatten(inner, flat)),
        _ => return Err(Error::unexpected()),
    }
    Ok(())
}

/// The content of a scan page: the server's cursor, empty after the last page, and the names of the client's
/// keys. Keys of the locks are left out.
pub(super) fn page(keys: &Keys, answer: Answer) -> Result<(Vec<u8>, Vec<Vec<u8>>), Error> {
    let Answer::List(parts) = answer else { return Err(Error::unexpected()) };
    let Ok([Answer::Bytes(cursor), Answer::List(found)]) = <[Answer; 2]>::try_from(parts) else {
        return Err(Error::unexpected());
    };
    let name = |answer| match answer {
        Answer::Bytes(raw) => keys.parse_value(&raw).map(Into::into),
        _ => None,
    };
    let cursor = if cursor == b"0" { Vec::new() } else { cursor };
    Ok((cursor, found.into_iter().filter_map(name).collect()))
}

fn read_fenced(fence: Fence, reply: Value) -> Result<Answer, Error> {
    let Value::BulkString(seen) = reply else { return Err(Error::unexpected()) };
    if seen.is_empty() {
        return Ok(Answer::Done);
    }
    let seen = std::str::from_utf8(&seen).ok().and_then(|seen| seen.parse().ok());
    Err(Error::stale_fence(fence, seen.ok_or_else(Error::unexpected)?))
}
