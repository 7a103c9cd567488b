//! The replies of the scripts, typed.

use std::time::Duration;

use redis::Value;

/// A type that the reply of a script can be read as.
pub(crate) trait Answer: Sized {
    /// Reads a reply from its first word and the fields after it; `None` if none of our scripts answers like
    /// this.
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self>;

    /// Reads the reply to a call that carried `token`: a list, or one string of words if no word can contain
    /// a space.
    fn read(token: &str, reply: Value) -> Option<Self> {
        match reply {
            Value::BulkString(line) => match str::from_utf8(&line) {
                Ok(line) => Self::read_line(token, line),
                // A value that another program wrote need not be text.
                Err(_) => Self::read_line(token, &String::from_utf8_lossy(&line)),
            },
            Value::Array(fields) => Self::read_fields(token, fields),
            _ => None,
        }
    }

    /// Reads a reply in one string, the usual form: it is half the work of a list, for the server and for us.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(token)?.strip_prefix(' ')?.split(' ');
        let word = words.next()?;
        Self::of(word, &mut words.map(|word| Value::BulkString(word.into())))
    }

    fn read_fields(token: &str, fields: Vec<Value>) -> Option<Self> {
        let mut fields = fields.into_iter();
        let (echo, word) = (text(fields.next()?)?, text(fields.next()?)?);
        if echo != token {
            return None;
        }
        Self::of(&word, &mut fields)
    }
}

/// The result of an acquire request. It has no `Debug`, which would show the value that another program
/// wrote.
pub(crate) enum AcquireReply {
    Granted {
        fence: u64,
        contended: bool,
        /// The slot of a numbered permit.
        slot: Option<u32>,
    },
    /// Held by another claim, and we do not wait in its queue.
    Held { value: Vec<u8>, left: Duration },
    /// Held by another claim, and we are in its queue.
    Queued {
        value: Vec<u8>,
        left: Duration,
        position: u64,
        /// Every grant after this reply has a higher fence.
        stamp: u64,
    },
    /// A key that we need has another type; its name.
    WrongType(String),
    /// The key has a value and no expiry: a wait for it would never end.
    Endless,
    /// The fence counter is not a number; the length of its value in bytes.
    Corrupt(usize),
}

impl Answer for AcquireReply {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "granted" => {
                let fence = number(rest.next()?)?;
                let contended = text(rest.next()?)? == "*";
                let slot = rest.next().and_then(slot);
                Some(AcquireReply::Granted { fence, contended, slot })
            }
            "held" => {
                Some(AcquireReply::Held { value: bytes(rest.next()?)?, left: left(rest.next()?)? })
            }
            "type" => Some(AcquireReply::WrongType(lossy(rest.next()?)?)),
            "endless" => Some(AcquireReply::Endless),
            "count" => Some(AcquireReply::Corrupt(bytes(rest.next()?)?.len())),
            _ => None,
        }
    }

    /// The value comes last: it is the only field that may contain a space.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        let said = line.strip_prefix(token)?.strip_prefix(' ')?;
        let mut words = said.splitn(5, ' ');
        match words.next()? {
            "granted" => {
                let fence = words.next()?.parse().ok()?;
                Some(AcquireReply::Granted { fence, contended: words.next()? == "*", slot: None })
            }
            "queued" => Some(AcquireReply::Queued {
                left: Duration::from_millis(words.next()?.parse().ok()?),
                position: words.next()?.parse().ok()?,
                stamp: words.next()?.parse().ok()?,
                value: words.next()?.into(),
            }),
            _ => None,
        }
    }
}

/// The result of a short acquire script; `None` if it leaves the case to the full script.
impl Answer for Option<AcquireReply> {
    fn of(_: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        None
    }

    fn read_line(token: &str, line: &str) -> Option<Self> {
        match line.strip_prefix(token)? {
            " use_full" => Some(None),
            _ => AcquireReply::read_line(token, line).map(Some),
        }
    }
}

/// The result of an attempt to acquire a lock that is free and has no waiters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FastAcquireReply {
    /// Ours, with this fence.
    Yes(u64),
    /// Any other case: the full script handles it, also a refusal.
    UseFull,
}

impl Answer for FastAcquireReply {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "granted" => Some(FastAcquireReply::Yes(number(rest.next()?)?)),
            "use_full" | "type" | "count" => Some(FastAcquireReply::UseFull),
            _ => None,
        }
    }

    /// Reads the fence without an allocation.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        let said = line.strip_prefix(token)?.strip_prefix(' ')?;
        match said.strip_prefix("granted ") {
            Some(fence) => Some(FastAcquireReply::Yes(fence.parse().ok()?)),
            None => (said == "use_full").then_some(FastAcquireReply::UseFull),
        }
    }
}

/// The result of the bare `SET NX`, which echoes nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SetNxReply {
    Yes,
    No,
}

impl Answer for SetNxReply {
    fn of(_: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        None
    }

    fn read(_: &str, reply: Value) -> Option<Self> {
        match reply {
            Value::Okay => Some(SetNxReply::Yes),
            Value::Nil => Some(SetNxReply::No),
            _ => None,
        }
    }
}

/// The result of an attempt to free a lock that is ours, or to hand it over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FastReleaseReply {
    Yes,
    /// Any other case: the full script handles it.
    UseFull,
}

impl Answer for FastReleaseReply {
    fn of(word: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        (word == "use_full").then_some(FastReleaseReply::UseFull)
    }

    /// The usual reply is only the echo. The echo has the client before the token.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        match line.rsplit_once(':')?.1.strip_prefix(token)? {
            "" => Some(FastReleaseReply::Yes),
            " use_full" => Some(FastReleaseReply::UseFull),
            _ => None,
        }
    }
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    Yes,
    /// So many other claims of the same shared owner still hold the lock.
    Still(u32),
    NotHeld,
}

impl Answer for ReleaseReply {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "freed" => Some(ReleaseReply::Yes),
            "still" => Some(ReleaseReply::Still(position(rest.next()?)?.try_into().ok()?)),
            "not_held" => Some(ReleaseReply::NotHeld),
            _ => None,
        }
    }
}

/// The result of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RenewReply {
    /// `contended` is `None` if the queue could not be seen.
    Yes {
        contended: Option<bool>,
    },
    Gone,
    Forced(String),
}

impl Answer for RenewReply {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "renewed" => {
                let flag = text(rest.next()?)?;
                Some(RenewReply::Yes { contended: (flag != "?").then_some(flag == "*") })
            }
            "gone" => Some(RenewReply::Gone),
            "forced" => Some(RenewReply::Forced(lossy(rest.next()?)?)),
            _ => None,
        }
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn text(value: Value) -> Option<String> {
    String::from_utf8(bytes(value)?).ok()
}

/// Text for people; invalid UTF-8 is replaced.
fn lossy(value: Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn number(value: Value) -> Option<u64> {
    text(value)?.parse().ok()
}

/// A slot: a number, or its text if it was read from a member of the lock.
fn slot(value: Value) -> Option<u32> {
    match value {
        Value::Int(slot) => slot.try_into().ok(),
        other => text(other)?.parse().ok(),
    }
}

fn position(value: Value) -> Option<u64> {
    match value {
        Value::Int(position) => position.try_into().ok(),
        _ => None,
    }
}

fn left(value: Value) -> Option<Duration> {
    match value {
        Value::Int(millis) => Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(fields: &[&str]) -> Value {
        let fields = fields.iter().map(|field| Value::BulkString(field.as_bytes().to_vec()));
        Value::Array(fields.collect())
    }

    /// t27: a reply to another claim's request is not accepted as ours.
    #[test]
    fn t27_the_token_is_checked() {
        assert_eq!(ReleaseReply::read("a", reply(&["a", "freed"])), Some(ReleaseReply::Yes));
        assert_eq!(ReleaseReply::read("a", reply(&["b", "freed"])), None);
        assert_eq!(ReleaseReply::read("a", Value::Okay), None);
        let line = |text: &str| ReleaseReply::read("a", Value::BulkString(text.into()));
        assert_eq!(line("a freed"), Some(ReleaseReply::Yes));
        assert_eq!(
            (line("b freed"), line("aa freed"), line("a"), line("")),
            (None, None, None, None)
        );
        assert_eq!(ReleaseReply::read("a", reply(&["a", "renewed", "-"])), None);
    }

    /// t27: the token is checked in short replies too.
    #[test]
    fn t27_the_token_is_checked_in_short_answers() {
        let given = |text: &str| FastReleaseReply::read("a", Value::BulkString(text.into()));
        assert_eq!(
            (given("-t1:c:a"), given("-t1:c:a use_full")),
            (Some(FastReleaseReply::Yes), Some(FastReleaseReply::UseFull))
        );
        assert_eq!(
            (given("-t1:c:b"), given("-t1:c:ab"), given("a"), given("")),
            (None, None, None, None)
        );
        let taken = |text: &str| FastAcquireReply::read("a", Value::BulkString(text.into()));
        assert_eq!(
            (taken("a granted 17"), taken("a use_full")),
            (Some(FastAcquireReply::Yes(17)), Some(FastAcquireReply::UseFull))
        );
        assert_eq!(
            (taken("b granted 17"), taken("a"), taken("a granted x"), taken("granted 17")),
            (None, None, None, None)
        );
    }

    /// The reply to a waiter is one line; the value of the lock in it may have any bytes.
    #[test]
    fn a_value_of_any_bytes_is_read() {
        let line = b"a queued 30000 2 17 *t1:c:b:1:a host:\xff ".to_vec();
        let Some(AcquireReply::Queued { value, left, position, stamp }) =
            AcquireReply::read("a", Value::BulkString(line))
        else {
            panic!("it waits");
        };
        assert_eq!((left, position, stamp), (Duration::from_secs(30), 2, 17));
        assert_eq!(value, "*t1:c:b:1:a host:\u{fffd} ".as_bytes());
        assert!(
            AcquireReply::read("a", Value::BulkString(b"b queued 30000 2 17 x".to_vec())).is_none()
        );
    }

    /// Contention is read from the flag.
    #[test]
    fn the_flag_is_read() {
        let renewed = |flag| RenewReply::read("a", reply(&["a", "renewed", flag]));
        for (flag, contended) in [("-", Some(false)), ("*", Some(true)), ("?", None)] {
            assert_eq!(renewed(flag), Some(RenewReply::Yes { contended }));
        }
    }
}
