//! What the scripts answer, typed.

use std::time::Duration;

use redis::Value;

/// Something that a script's reply can be read as.
pub(crate) trait Answer: Sized {
    /// Reads `word` and what follows it; `None` if no script of ours answers so.
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self>;

    /// Reads a reply to the run that carried `token`: a list, or words in one string where none of
    /// them can hold a space.
    fn read(token: &str, reply: Value) -> Option<Self> {
        match reply {
            Value::BulkString(line) => match str::from_utf8(&line) {
                Ok(line) => Self::read_line(token, line),
                // A value that a stranger wrote need not be text.
                Err(_) => Self::read_line(token, &String::from_utf8_lossy(&line)),
            },
            Value::Array(fields) => Self::read_fields(token, fields),
            _ => None,
        }
    }

    /// The usual answers: one string is half the work of a list, for the server and for us.
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

/// What became of a claim. Its `Debug` would show a stranger's value: there is none.
pub(crate) enum Asked {
    Granted {
        fence: u64,
        contended: bool,
    },
    /// Another's, and we do not wait in its queue.
    Held {
        value: Vec<u8>,
        left: Duration,
    },
    /// Another's, and we are in its queue.
    Queued {
        value: Vec<u8>,
        left: Duration,
        place: u64,
        /// Every grant after this answer has a higher fence.
        stamp: u64,
    },
    /// A key that we need is of another type; which.
    WrongType(String),
    /// The key has a value and no end: waiting for it would last for ever.
    Endless,
    /// The fence counter holds so many bytes, which are no count.
    Corrupt(usize),
}

impl Answer for Asked {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "granted" => {
                let fence = number(rest.next()?)?;
                Some(Asked::Granted { fence, contended: text(rest.next()?)? == "*" })
            }
            "held" => Some(Asked::Held { value: bytes(rest.next()?)?, left: left(rest.next()?)? }),
            "type" => Some(Asked::WrongType(lossy(rest.next()?)?)),
            "endless" => Some(Asked::Endless),
            "count" => Some(Asked::Corrupt(bytes(rest.next()?)?.len())),
            _ => None,
        }
    }

    /// The value comes last: it is the one that may hold a space.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        let said = line.strip_prefix(token)?.strip_prefix(' ')?;
        let mut words = said.splitn(5, ' ');
        match words.next()? {
            "granted" => {
                let fence = words.next()?.parse().ok()?;
                Some(Asked::Granted { fence, contended: words.next()? == "*" })
            }
            "queued" => Some(Asked::Queued {
                left: Duration::from_millis(words.next()?.parse().ok()?),
                place: words.next()?.parse().ok()?,
                stamp: words.next()?.parse().ok()?,
                value: words.next()?.into(),
            }),
            _ => None,
        }
    }
}

/// The same of the short form; `None` where it is not plain, and the full form finds out.
impl Answer for Option<Asked> {
    fn of(_: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        None
    }

    fn read_line(token: &str, line: &str) -> Option<Self> {
        match line.strip_prefix(token)? {
            " more" => Some(None),
            _ => Asked::read_line(token, line).map(Some),
        }
    }
}

/// What became of an attempt to take what is plainly free.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Ours, with this fence.
    Yes(u64),
    /// Not plain: the full form finds out. So it does with what would have been refused.
    More,
}

impl Answer for Taken {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "granted" => Some(Taken::Yes(number(rest.next()?)?)),
            "more" | "type" | "count" => Some(Taken::More),
            _ => None,
        }
    }

    /// Without a piece of memory for the fence.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        let said = line.strip_prefix(token)?.strip_prefix(' ')?;
        match said.strip_prefix("granted ") {
            Some(fence) => Some(Taken::Yes(fence.parse().ok()?)),
            None => (said == "more").then_some(Taken::More),
        }
    }
}

/// What became of the same by the bare command, which echoes nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    Yes,
    No,
}

impl Answer for Bare {
    fn of(_: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        None
    }

    fn read(_: &str, reply: Value) -> Option<Self> {
        match reply {
            Value::Okay => Some(Bare::Yes),
            Value::Nil => Some(Bare::No),
            _ => None,
        }
    }
}

/// What became of an attempt to free what is plainly ours, or to pass it on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Given {
    Yes,
    /// Not plain: the full form finds out.
    More,
}

impl Answer for Given {
    fn of(word: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        (word == "more").then_some(Given::More)
    }

    /// The echo is all there is in the usual case, and has the client before the token.
    fn read_line(token: &str, line: &str) -> Option<Self> {
        match line.rsplit_once(':')?.1.strip_prefix(token)? {
            "" => Some(Given::Yes),
            " more" => Some(Given::More),
            _ => None,
        }
    }
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    Yes,
    /// So many others of the same shared owner hold on.
    Still(u32),
    NotHeld,
}

impl Answer for Freed {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "freed" => Some(Freed::Yes),
            "still" => Some(Freed::Still(place(rest.next()?)?.try_into().ok()?)),
            "not_held" => Some(Freed::NotHeld),
            _ => None,
        }
    }
}

/// What became of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Yes { contended: bool },
    Gone,
    Forced(String),
}

impl Answer for Renewed {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "renewed" => Some(Renewed::Yes { contended: text(rest.next()?)? == "*" }),
            "gone" => Some(Renewed::Gone),
            "forced" => Some(Renewed::Forced(lossy(rest.next()?)?)),
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

/// For people: what is not text is shown as far as it is.
fn lossy(value: Value) -> Option<String> {
    bytes(value).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn number(value: Value) -> Option<u64> {
    text(value)?.parse().ok()
}

fn place(value: Value) -> Option<u64> {
    match value {
        Value::Int(place) => place.try_into().ok(),
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

    /// t27: a reply to another's request is not taken for ours.
    #[test]
    fn t27_the_token_is_checked() {
        assert_eq!(Freed::read("a", reply(&["a", "freed"])), Some(Freed::Yes));
        assert_eq!(Freed::read("a", reply(&["b", "freed"])), None);
        assert_eq!(Freed::read("a", Value::Okay), None);
        let line = |text: &str| Freed::read("a", Value::BulkString(text.into()));
        assert_eq!(line("a freed"), Some(Freed::Yes));
        assert_eq!(
            (line("b freed"), line("aa freed"), line("a"), line("")),
            (None, None, None, None)
        );
        assert_eq!(Freed::read("a", reply(&["a", "renewed", "-"])), None);
    }

    /// t27: nor are the short answers.
    #[test]
    fn t27_the_token_is_checked_in_short_answers() {
        let given = |text: &str| Given::read("a", Value::BulkString(text.into()));
        assert_eq!(
            (given("-t1:c:a"), given("-t1:c:a more")),
            (Some(Given::Yes), Some(Given::More))
        );
        assert_eq!(
            (given("-t1:c:b"), given("-t1:c:ab"), given("a"), given("")),
            (None, None, None, None)
        );
        let taken = |text: &str| Taken::read("a", Value::BulkString(text.into()));
        assert_eq!(
            (taken("a granted 17"), taken("a more")),
            (Some(Taken::Yes(17)), Some(Taken::More))
        );
        assert_eq!(
            (taken("b granted 17"), taken("a"), taken("a granted x"), taken("granted 17")),
            (None, None, None, None)
        );
    }

    /// One that waits is told so in one line, whatever the lock's value holds.
    #[test]
    fn a_value_of_any_bytes_is_read() {
        let line = b"a queued 30000 2 17 *t1:c:b:1:a host:\xff ".to_vec();
        let Some(Asked::Queued { value, left, place, stamp }) =
            Asked::read("a", Value::BulkString(line))
        else {
            panic!("it waits");
        };
        assert_eq!((left, place, stamp), (Duration::from_secs(30), 2, 17));
        assert_eq!(value, "*t1:c:b:1:a host:\u{fffd} ".as_bytes());
        assert!(Asked::read("a", Value::BulkString(b"b queued 30000 2 17 x".to_vec())).is_none());
    }

    /// Contention is read from the flag.
    #[test]
    fn the_flag_is_read() {
        let renewed = |flag| Renewed::read("a", reply(&["a", "renewed", flag]));
        assert_eq!(renewed("-"), Some(Renewed::Yes { contended: false }));
        assert_eq!(renewed("*"), Some(Renewed::Yes { contended: true }));
    }
}
