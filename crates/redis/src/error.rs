//! The errors of a server, by the code at the start of its reply.
//!
//! In: the driver's errors. Out: an [`EngineError`], which becomes the contract's [`Fault`] and also knows
//! whether asking again can help. No message contains a password or a token.

use std::error::Error as _;
use std::sync::Arc;
use std::{fmt, io};

use redis::{ErrorKind, RedisError};
use tenure_core::WaitStatus;
use tenure_core::backend::{Fault, FaultKind};
use tenure_core::time::Time;
use tenure_net::explain_tls;

/// An error, and what it means for a claim that waits.
#[derive(Clone, Debug)]
pub(crate) struct EngineError {
    cause: Cause,
    message: String,
    /// The code of the reply (its first word), if it is one that we know.
    code: &'static str,
    /// Where we were redirected, if at all.
    redirect: Option<Arc<Redirect>>,
}

/// The redirect of a cluster node: to the node that owns the slot, or will own it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    /// Empty if the node does not know it: then it is the host of the node itself.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Redirect {
    /// Parses `slot host:port`, after the code.
    fn parse(rest: &str) -> Option<Self> {
        let (slot, address) = rest.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_start_matches('?');
        Some(Redirect { slot: slot.parse().ok()?, host: host.into(), port: port.parse().ok()? })
    }
}

/// Why there is no usable reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No connection could be made: nothing was sent.
    Unreachable,
    /// The server is loading or busy, and may answer later.
    Busy,
    /// The server is a replica: another server has the locks.
    Demoted,
    /// The request was sent, and no reply came in time.
    TimedOut,
    /// The request executed, and too few replicas acknowledged it.
    NotReplicated,
    /// The connection broke, or replies were out of step, with the request in flight.
    Disconnected,
    /// The server does not know this script, or no longer does.
    NoScript,
    /// A key has another type than we need.
    WrongType,
    /// The server refused permanently.
    Refused,
    /// The server is of a kind that we cannot use.
    Unsupported,
    /// Another node of the cluster has the key.
    Moved,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl EngineError {
    pub(crate) fn new(cause: Cause, address: &dyn fmt::Display, what: impl fmt::Display) -> Self {
        let (message, redirect) = (format!("redis `{address}`: {what}"), None);
        EngineError { cause, message, code: "", redirect }
    }

    /// The code of the reply; empty if there was no reply, or if we do not know the code.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn cause(&self) -> Cause {
        self.cause
    }

    /// Where we were redirected, if at all.
    pub(crate) fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_deref()
    }

    /// Whether the key is moving to another node of a cluster. The request did not execute.
    pub(crate) fn is_moving(&self) -> bool {
        matches!(self.code, "ASK" | "TRYAGAIN")
    }

    /// Whether another node of a cluster has the key for good.
    pub(crate) fn has_moved(&self) -> bool {
        self.code == "MOVED"
    }

    /// Whether there is no server to ask.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self.cause, Cause::Unreachable | Cause::Demoted)
    }

    /// Whether asking again is useless.
    pub(crate) fn is_permanent(&self) -> bool {
        match self.cause {
            Cause::Unreachable
            | Cause::Demoted
            | Cause::Busy
            | Cause::NotReplicated
            | Cause::Moved => false,
            Cause::TimedOut | Cause::Disconnected => false,
            Cause::NoScript | Cause::WrongType | Cause::Refused | Cause::Unsupported => true,
        }
    }

    /// The status for a waiting claim, after a request that began at `from`. An error if asking again is
    /// useless.
    pub(crate) fn status(self, from: Time) -> Result<WaitStatus, Fault> {
        match self.is_unreachable() {
            _ if self.is_permanent() => Err(self.into()),
            true => Ok(WaitStatus::unreachable(self.into(), from)),
            false => Ok(WaitStatus::unanswered(self.into(), from)),
        }
    }

    /// Reads an error that came instead of a reply to a request.
    pub(crate) fn of_request(address: &dyn fmt::Display, error: &RedisError) -> Self {
        match code(error) {
            Some(code) => Self::of_reply(address, &code, error.detail().unwrap_or_default()),
            None => Self::new(
                Cause::Disconnected,
                address,
                format_args!("the connection broke: {error}"),
            ),
        }
    }

    /// Reads an error that prevented us from reaching the server at all. Asking again changes nothing if one
    /// side does not trust the other.
    pub(crate) fn of_open(address: &dyn fmt::Display, error: &io::Error) -> Self {
        match explain_tls(error) {
            Some(why) => Self::new(Cause::Refused, address, why),
            None => Self::new(Cause::Unreachable, address, format_args!("cannot connect: {error}")),
        }
    }

    /// Reads an error that prevented us from connecting.
    pub(crate) fn of_connect(address: &dyn fmt::Display, error: &RedisError) -> Self {
        // The driver recognizes this error by one kind of quotation marks; old servers use another.
        let said = error.detail().unwrap_or_default();
        let unknown = said.starts_with("unknown command") && said.contains("HELLO");
        if error.kind() == ErrorKind::RESP3NotSupported || unknown {
            let what = "the server is too old: version 6.2 or later is needed";
            return Self::new(Cause::Unsupported, address, what);
        }
        // A server that requires a certificate of ours reports this after the handshake.
        if let Some(why) = io_error(error).and_then(explain_tls) {
            return Self::new(Cause::Refused, address, why);
        }
        match code(error) {
            Some(code) => Self::of_reply(address, &code, error.detail().unwrap_or_default()),
            None => Self::new(Cause::Unreachable, address, format_args!("cannot connect: {error}")),
        }
    }

    /// Reads an error reply: its code, and the rest.
    pub(crate) fn of_reply(address: &dyn fmt::Display, code: &str, rest: &str) -> Self {
        let (code, rest) = unwrapped(code, rest);
        let (cause, what) = meaning(code, rest);
        let rest = without_our_arguments(rest);
        let said = format!("{code} {rest}");
        let known = CODES.iter().find(|(known, ..)| *known == code).map_or("", |known| known.0);
        let error = Self::new(cause, address, format_args!("{what}: {}", said.trim_end()));
        let sent = Some(rest).filter(|_| cause == Cause::Moved).and_then(Redirect::parse);
        EngineError { code: known, redirect: sent.map(Arc::new), ..error }
    }
}

/// The error inside a script. Before Redis 7 it comes after its position in the script: an error that was
/// raised is wrapped (`ERR Error running script (call to f_…): @user_script:45: @user_script: 45: -OOM …`),
/// an error that was caught and returned starts with the position.
fn unwrapped<'a>(code: &'a str, rest: &'a str) -> (&'a str, &'a str) {
    let located = match code.starts_with(POSITION) {
        true => Some(rest),
        false => rest.rsplit_once(POSITION).map(|(_, located)| located),
    };
    let (code, rest) = match located.and_then(|located| located.split_once(": ")) {
        Some((_, said)) => {
            let said = said.strip_prefix('-').unwrap_or(said);
            let known = |(code, _): &(&str, &str)| CODES.iter().any(|(known, ..)| known == code);
            said.split_once(' ').filter(known).unwrap_or(("ERR", said))
        }
        None => (code, rest),
    };
    // The key left while the script ran, because its slot moves: ask the other node.
    if rest.contains("attempted to access a non local key") {
        ("TRYAGAIN", rest)
    } else {
        (code, rest)
    }
}

/// The start of the position of an error in a script.
const POSITION: &str = "@user_script:";

/// The error for an unknown command quotes the arguments that we sent, tokens included. This removes them.
fn without_our_arguments(rest: &str) -> &str {
    rest.split_once(", with args beginning with").map_or(rest, |(said, _)| said)
}

/// The driver keeps the error of the stream in an `Arc`.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let kept = error.source()?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    kept.downcast_ref()
}

/// The code of an error reply; `None` if it is not a reply.
fn code(error: &RedisError) -> Option<String> {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => error.code().map(Into::into),
        _ => None,
    }
}

/// The meaning of the codes. None of these requests executed.
const CODES: [(&str, Cause, &str); 18] = [
    ("NOSCRIPT", Cause::NoScript, "the script is not known"),
    ("LOADING", Cause::Busy, "the server is loading its data"),
    ("BUSY", Cause::Busy, "the server is busy with a slow script"),
    ("READONLY", Cause::Demoted, "the server is a replica; locks need the master"),
    ("MASTERDOWN", Cause::Demoted, "the server is a replica without its master"),
    ("CLUSTERDOWN", Cause::Busy, "the cluster is down"),
    ("TRYAGAIN", Cause::Busy, "the cluster is moving the key"),
    ("OOM", Cause::Refused, "the server is full (maxmemory)"),
    ("MISCONF", Cause::Refused, "the server cannot save its data and refuses all writes"),
    ("NOREPLICAS", Cause::Refused, "the server has too few replicas and refuses all writes"),
    ("NOAUTH", Cause::Refused, "the server wants a password"),
    ("WRONGPASS", Cause::Refused, "the user name or password is wrong"),
    ("NOPERM", Cause::Refused, NOPERM),
    ("WRONGTYPE", Cause::WrongType, "the key holds a value of another type"),
    ("MOVED", Cause::Moved, "another node of the cluster has the key"),
    ("ASK", Cause::Moved, "another node of the cluster has the key"),
    ("CROSSSLOT", Cause::Unsupported, "the server belongs to a cluster"),
    ("UNKILLABLE", Cause::Busy, "the server is busy with a slow script"),
];

macro_rules! rights {
    () => {
        "~PREFIX:* resetchannels &PREFIX:inbox:* +eval +evalsha +get +mget +getrange +set +del +exists +pttl +pexpire \
         +time +type +zadd +zrem +zrange +zrevrange +zrank +zscore +zcard +zpopmin +zremrangebyscore +hget \
         +hset +hdel +publish +subscribe +pubsub|numsub +scan +select +wait +info +ping +client|id \
         +client|kill +client|tracking"
    };
}

/// The rights that are enough, in the form of an ACL.
pub(crate) const RIGHTS: &str = rights!();
/// The server does not always name the right that is missing inside a script.
pub(crate) const NOPERM: &str = concat!(
    "the user lacks a right; these are enough: `",
    rights!(),
    "`; `lock_key` also needs a pattern of its own"
);

fn meaning(code: &str, rest: &str) -> (Cause, &'static str) {
    if let Some((_, cause, what)) = CODES.iter().find(|(known, ..)| *known == code) {
        return (*cause, what);
    }
    match rest {
        "max number of clients reached" => (Cause::Busy, "the server has too many clients"),
        // The texts for missing rights inside a script, up to version 7.0 and from 7.2 on; and for a missing
        // right to a database, whose refusal the driver reports without its code.
        rest if [
            "The user executing the script can't",
            "ACL failure in script",
            "no permissions to run",
        ]
        .iter()
        .any(|text| rest.contains(text)) =>
        {
            (Cause::Refused, NOPERM)
        }
        rest if rest.contains("unknown command") => {
            (Cause::Refused, "a command that we need is disabled or renamed")
        }
        _ => (Cause::Refused, "the server refused"),
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Fault {
        let kind = match error.cause {
            Cause::Unreachable
            | Cause::Busy
            | Cause::Demoted
            | Cause::NotReplicated
            | Cause::Moved => FaultKind::Unavailable,
            Cause::TimedOut | Cause::Disconnected => FaultKind::Unknown,
            Cause::NoScript | Cause::WrongType | Cause::Refused => FaultKind::Refused,
            Cause::Unsupported => FaultKind::Unsupported,
        };
        Fault::new(kind, error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: &str, rest: &str) -> (FaultKind, String) {
        let fault = Fault::from(EngineError::of_reply(&"h:1", code, rest));
        (fault.kind(), fault.to_string())
    }

    /// Each code means what the table of replies states.
    #[test]
    fn replies_by_their_code() {
        let unavailable = ["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"];
        for code in unavailable {
            assert_eq!(read(code, "").0, FaultKind::Unavailable, "{code}");
        }
        for code in ["OOM", "MISCONF", "NOREPLICAS", "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"] {
            assert_eq!(read(code, "").0, FaultKind::Refused, "{code}");
        }
        assert_eq!(read("ERR", "anything else").0, FaultKind::Refused);
    }

    /// A message has the server, the error, and the text of the server.
    #[test]
    fn messages() {
        assert_eq!(
            read("OOM", "command not allowed").1,
            "redis `h:1`: the server is full (maxmemory): OOM command not allowed"
        );
        assert_eq!(
            read("ERR", "unknown command `EVALSHA`").1,
            "redis `h:1`: a command that we need is disabled or renamed: ERR unknown command `EVALSHA`"
        );
    }

    /// t66: the arguments that we sent are not shown.
    #[test]
    fn t66_our_arguments_are_cut() {
        let said = read("ERR", "unknown command 'SET', with args beginning with: 'k' 'secret' ").1;
        assert!(said.ends_with(": ERR unknown command 'SET'"), "{said}");
    }

    /// There are three texts for a right that is missing inside a script.
    #[test]
    fn rights_missing_inside_a_script() {
        for rest in [
            "Error running script (call to f_1): @user_script:14: @user_script: 14: The user executing \
             the script can't run this command or subcommand",
            "The user executing the script can't access at least one of the keys mentioned in the \
             command arguments script: 1, on @user_script:1.",
            "ACL failure in script: User u has no permissions to run the 'del' command script: 1, on \
             @user_script:1.",
        ] {
            assert!(read("ERR", rest).1.contains("the user lacks a right"), "{rest}");
        }
    }

    /// Before version 7 the code is inside, whether the script raised the error or returned it.
    #[test]
    fn errors_inside_old_scripts() {
        for (code, start) in [
            ("ERR", "Error running script (call to f_1): @user_script:45: @user_script: 45:"),
            ("@user_script:", "45:"),
        ] {
            let of = |said: &str| EngineError::of_reply(&"h:1", code, &format!("{start} {said}"));
            let full = of("-OOM command not allowed when used memory > 'maxmemory'.");
            assert!(full.to_string().contains("is full (maxmemory): OOM command not"), "{full}");
            let replica = of("-READONLY You can't write against a read only replica.");
            assert_eq!((replica.cause(), replica.code()), (Cause::Demoted, "READONLY"));
            let broken = of("-MISCONF Redis is BUSY and LOADING");
            assert_eq!((broken.cause(), broken.code()), (Cause::Refused, "MISCONF"));
            let other = of("WRONGTYPE Operation against a key holding the wrong kind of value");
            assert_eq!(other.cause(), Cause::WrongType);
            let denied = of("The user executing the script can't run this command or subcommand");
            assert!(denied.to_string().contains(NOPERM), "{denied}");
        }
    }

    /// A key that leaves while a script runs, because its slot moves, is not a refusal: it is requested
    /// again.
    #[test]
    fn a_key_that_is_not_local_any_more() {
        for rest in [
            "Script attempted to access a non local key in a cluster node script: aa, on @user_script:82.",
            "Error running script (call to f_1): @user_script:3: @user_script: 3: Lua script attempted to \
             access a non local key in a cluster node",
        ] {
            let error = EngineError::of_reply(&"h:1", "ERR", rest);
            assert!(error.is_moving() && !error.is_permanent(), "{error}");
        }
    }
}
