//! What can go wrong with a server, read from the first word of its reply.
//!
//! In: the driver's errors. Out: a [`Trouble`], which becomes the contract's [`Fault`] and knows
//! besides whether waiting helps. No message carries a password or a token.

use std::error::Error as _;
use std::sync::Arc;
use std::{fmt, io};

use redis::{ErrorKind, RedisError};
use tenure_core::backend::{Fault, FaultKind};
use tokio_rustls::rustls;
use tokio_rustls::rustls::{AlertDescription as Alert, CertificateError as Flaw};

/// What went wrong, and what that means for whoever waits.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    cause: Cause,
    message: String,
    /// The first word of the reply, if it was one that we know.
    word: &'static str,
    /// Where we were sent, if anywhere.
    redirect: Option<Arc<Redirect>>,
}

/// Where a node of a cluster sends us: to the one that has the slot, or is about to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    /// Empty where the node does not know: that of the node itself.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Redirect {
    /// `slot host:port`, after the word.
    fn parse(rest: &str) -> Option<Self> {
        let (slot, address) = rest.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_start_matches('?');
        Some(Redirect { slot: slot.parse().ok()?, host: host.into(), port: port.parse().ok()? })
    }
}

/// Why there is no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No connection could be made: nothing was asked.
    Down,
    /// The server said "not now": it is loading or busy.
    NotNow,
    /// It is a replica, and was a master before: another server has the locks now.
    Demoted,
    /// It was asked, and did not answer in time.
    Silent,
    /// It was carried out, and too few replicas know.
    TooFew,
    /// The connection broke, or answered out of turn, with the request under way.
    Cut,
    /// The server does not know this script (any more).
    NoScript,
    /// A key is not of the type that we need.
    WrongType,
    /// It said no for good.
    Refused,
    /// It is of a kind that we cannot use.
    Unsupported,
    /// Another node of the cluster has the key.
    Moved,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Trouble {
    pub(crate) fn new(cause: Cause, address: &dyn fmt::Display, what: impl fmt::Display) -> Self {
        let (message, redirect) = (format!("redis `{address}`: {what}"), None);
        Trouble { cause, message, word: "", redirect }
    }

    /// The first word of the reply; empty if it was none, or none that we know.
    pub(crate) fn word(&self) -> &'static str {
        self.word
    }

    pub(crate) fn cause(&self) -> Cause {
        self.cause
    }

    /// Where we were sent, if anywhere.
    pub(crate) fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_deref()
    }

    /// Whether the key is on its way to another node of a cluster. Nothing was carried out.
    pub(crate) fn is_moving(&self) -> bool {
        matches!(self.word, "ASK" | "TRYAGAIN")
    }

    /// Whether another node of a cluster has the key for good.
    pub(crate) fn has_moved(&self) -> bool {
        self.word == "MOVED"
    }

    /// Whether there is no server to ask.
    pub(crate) fn is_absence(&self) -> bool {
        matches!(self.cause, Cause::Down | Cause::Demoted)
    }

    /// Whether asking again is of no use.
    pub(crate) fn is_final(&self) -> bool {
        match self.cause {
            Cause::Down | Cause::Demoted | Cause::NotNow | Cause::TooFew | Cause::Moved => false,
            Cause::Silent | Cause::Cut => false,
            Cause::NoScript | Cause::WrongType | Cause::Refused | Cause::Unsupported => true,
        }
    }

    /// Reads an error that came instead of a reply to a request.
    pub(crate) fn of_request(address: &dyn fmt::Display, error: &RedisError) -> Self {
        match word(error) {
            Some(word) => Self::of_reply(address, &word, error.detail().unwrap_or_default()),
            None => Self::new(Cause::Cut, address, format_args!("the connection broke: {error}")),
        }
    }

    /// Reads an error that kept us from reaching the server at all.
    pub(crate) fn of_open(address: &dyn fmt::Display, error: &io::Error) -> Self {
        match tls_error(error) {
            Some(error) => Self::of_tls(address, error),
            None => Self::new(Cause::Down, address, format_args!("cannot connect: {error}")),
        }
    }

    /// Reads why a server is not to be trusted, or does not trust us. Asking again changes neither.
    fn of_tls(address: &dyn fmt::Display, error: &rustls::Error) -> Self {
        let what = match error {
            rustls::Error::InvalidCertificate(flaw) => meaning_of_flaw(flaw),
            rustls::Error::AlertReceived(alert) => meaning_of_alert(*alert),
            rustls::Error::InvalidMessage(_) => "the server does not speak TLS here",
            _ => "no TLS connection can be agreed on",
        };
        Self::new(Cause::Refused, address, format_args!("{what}: {error}"))
    }

    /// Reads an error that kept us from connecting.
    pub(crate) fn of_connect(address: &dyn fmt::Display, error: &RedisError) -> Self {
        // The driver knows it by one kind of quotation marks; old servers use another.
        let said = error.detail().unwrap_or_default();
        let unknown = said.starts_with("unknown command") && said.contains("HELLO");
        if error.kind() == ErrorKind::RESP3NotSupported || unknown {
            let what = "the server is too old: version 6.2 or later is needed";
            return Self::new(Cause::Unsupported, address, what);
        }
        // A server that wants a certificate of ours says so after the handshake.
        if let Some(error) = io_error(error).and_then(tls_error) {
            return Self::of_tls(address, error);
        }
        match word(error) {
            Some(word) => Self::of_reply(address, &word, error.detail().unwrap_or_default()),
            None => Self::new(Cause::Down, address, format_args!("cannot connect: {error}")),
        }
    }

    /// Reads an error reply: its first word, and the rest.
    pub(crate) fn of_reply(address: &dyn fmt::Display, word: &str, rest: &str) -> Self {
        let (word, rest) = unwrapped(word, rest);
        let (cause, what) = meaning(word, rest);
        let rest = without_our_words(rest);
        let said = format!("{word} {rest}");
        let known = WORDS.iter().find(|(known, ..)| *known == word).map_or("", |known| known.0);
        let trouble = Self::new(cause, address, format_args!("{what}: {}", said.trim_end()));
        let sent = Some(rest).filter(|_| cause == Cause::Moved).and_then(Redirect::parse);
        Trouble { word: known, redirect: sent.map(Arc::new), ..trouble }
    }
}

/// What a script ran into. Before version 7 that stands behind its place in the script: an error that was
/// raised is wrapped (`ERR Error running script (call to f_…): @user_script:45: @user_script: 45: -OOM …`),
/// one that was caught and returned starts with the place.
fn unwrapped<'a>(word: &'a str, rest: &'a str) -> (&'a str, &'a str) {
    let placed = match word.starts_with(PLACE) {
        true => Some(rest),
        false => rest.rsplit_once(PLACE).map(|(_, placed)| placed),
    };
    let (word, rest) = match placed.and_then(|placed| placed.split_once(": ")) {
        Some((_, said)) => {
            let said = said.strip_prefix('-').unwrap_or(said);
            let known = |(word, _): &(&str, &str)| WORDS.iter().any(|(known, ..)| known == word);
            said.split_once(' ').filter(known).unwrap_or(("ERR", said))
        }
        None => (word, rest),
    };
    // A key that goes under a script, while its slot moves to another node, is asked for there.
    if rest.contains("attempted to access a non local key") {
        ("TRYAGAIN", rest)
    } else {
        (word, rest)
    }
}

/// What the place of an error in a script starts with.
const PLACE: &str = "@user_script:";

/// What a server says of a command that it does not know goes on with what we sent, tokens included.
fn without_our_words(rest: &str) -> &str {
    rest.split_once(", with args beginning with").map_or(rest, |(said, _)| said)
}

/// The driver keeps what the stream said in an `Arc`.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let kept = error.source()?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    kept.downcast_ref()
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn meaning_of_flaw(flaw: &Flaw) -> &'static str {
    match flaw {
        Flaw::Expired | Flaw::ExpiredContext { .. } => "the server's certificate has expired",
        Flaw::NotValidYet | Flaw::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet"
        }
        Flaw::NotValidForName | Flaw::NotValidForNameContext { .. } => {
            "the server's certificate is for another host"
        }
        Flaw::UnknownIssuer => "the server's certificate is from nobody that we trust (`ca_file`)",
        _ => "the server's certificate is not acceptable",
    }
}

fn meaning_of_alert(alert: Alert) -> &'static str {
    match alert {
        Alert::CertificateRequired | Alert::NoCertificate => {
            "the server wants a certificate of ours (`client_cert`)"
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::DecryptError => "the server does not accept our certificate (`client_cert`)",
        _ => "the server does not agree to a TLS connection",
    }
}

/// The first word of an error reply; `None` if it is no reply.
fn word(error: &RedisError) -> Option<String> {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => error.code().map(Into::into),
        _ => None,
    }
}

/// What the first words mean. None of these was carried out.
const WORDS: [(&str, Cause, &str); 18] = [
    ("NOSCRIPT", Cause::NoScript, "the script is not known"),
    ("LOADING", Cause::NotNow, "the server is loading its data"),
    ("BUSY", Cause::NotNow, "the server is busy with a slow script"),
    ("READONLY", Cause::Demoted, "the server is a replica; locks need the master"),
    ("MASTERDOWN", Cause::Demoted, "the server is a replica without its master"),
    ("CLUSTERDOWN", Cause::NotNow, "the cluster is down"),
    ("TRYAGAIN", Cause::NotNow, "the cluster is moving the key"),
    ("OOM", Cause::Refused, "the server is full (maxmemory)"),
    ("MISCONF", Cause::Refused, "the server cannot save its data and refuses all writes"),
    ("NOREPLICAS", Cause::Refused, "the server has too few replicas and refuses all writes"),
    ("NOAUTH", Cause::Refused, "the server wants a password"),
    ("WRONGPASS", Cause::Refused, "the user name or password is wrong"),
    ("NOPERM", Cause::Refused, NOPERM),
    ("WRONGTYPE", Cause::WrongType, "a key of ours has another type"),
    ("MOVED", Cause::Moved, "another node of the cluster has the key"),
    ("ASK", Cause::Moved, "another node of the cluster has the key"),
    ("CROSSSLOT", Cause::Unsupported, "the server belongs to a cluster"),
    ("UNKILLABLE", Cause::NotNow, "the server is busy with a slow script"),
];

macro_rules! rights {
    () => {
        "~PREFIX:* resetchannels &PREFIX:inbox:* +eval +evalsha +get +getrange +set +del +exists +pttl +pexpire \
         +time +zadd +zrem +zrange +zrevrange +zrank +zscore +zcard +zpopmin +zremrangebyscore +hget \
         +hset +hdel +publish +subscribe +pubsub|numsub +scan +select +wait +info +ping +client|id \
         +client|kill +client|tracking"
    };
}

/// The rights that are enough, as an ACL has them.
pub(crate) const RIGHTS: &str = rights!();
/// The server does not always name the right that is missing inside a script.
const NOPERM: &str = concat!("the user lacks a right; these are enough: `", rights!(), "`");

fn meaning(word: &str, rest: &str) -> (Cause, &'static str) {
    if let Some((_, cause, what)) = WORDS.iter().find(|(known, ..)| *known == word) {
        return (*cause, what);
    }
    match rest {
        "max number of clients reached" => (Cause::NotNow, "the server has too many clients"),
        // What is said of rights inside a script, up to version 7.0 and from 7.2 on; and of a database,
        // whose refusal the driver tells without its first word.
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

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Fault {
        let kind = match trouble.cause {
            Cause::Down | Cause::NotNow | Cause::Demoted | Cause::TooFew | Cause::Moved => {
                FaultKind::Unavailable
            }
            Cause::Silent | Cause::Cut => FaultKind::Unknown,
            Cause::NoScript | Cause::WrongType | Cause::Refused => FaultKind::Refused,
            Cause::Unsupported => FaultKind::Unsupported,
        };
        Fault::new(kind, trouble.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(word: &str, rest: &str) -> (FaultKind, String) {
        let fault = Fault::from(Trouble::of_reply(&"h:1", word, rest));
        (fault.kind(), fault.to_string())
    }

    /// Each first word means what the table of replies says.
    #[test]
    fn replies_by_their_first_word() {
        let unavailable = ["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"];
        for word in unavailable {
            assert_eq!(read(word, "").0, FaultKind::Unavailable, "{word}");
        }
        for word in ["OOM", "MISCONF", "NOREPLICAS", "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"] {
            assert_eq!(read(word, "").0, FaultKind::Refused, "{word}");
        }
        assert_eq!(read("ERR", "anything else").0, FaultKind::Refused);
    }

    /// A message names the server, what is wrong, and what the server said.
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

    /// t66: what we sent is not shown.
    #[test]
    fn t66_our_words_are_cut() {
        let said = read("ERR", "unknown command 'SET', with args beginning with: 'k' 'secret' ").1;
        assert!(said.ends_with(": ERR unknown command 'SET'"), "{said}");
    }

    /// A right that is missing inside a script is said in three ways.
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

    /// Before version 7 the word stands inside, whether the script raised the error or returned it.
    #[test]
    fn errors_inside_old_scripts() {
        for (word, start) in [
            ("ERR", "Error running script (call to f_1): @user_script:45: @user_script: 45:"),
            ("@user_script:", "45:"),
        ] {
            let of = |said: &str| Trouble::of_reply(&"h:1", word, &format!("{start} {said}"));
            let full = of("-OOM command not allowed when used memory > 'maxmemory'.");
            assert!(full.to_string().contains("is full (maxmemory): OOM command not"), "{full}");
            let replica = of("-READONLY You can't write against a read only replica.");
            assert_eq!((replica.cause(), replica.word()), (Cause::Demoted, "READONLY"));
            let broken = of("-MISCONF Redis is BUSY and LOADING");
            assert_eq!((broken.cause(), broken.word()), (Cause::Refused, "MISCONF"));
            let other = of("WRONGTYPE Operation against a key holding the wrong kind of value");
            assert_eq!(other.cause(), Cause::WrongType);
            let denied = of("The user executing the script can't run this command or subcommand");
            assert!(denied.to_string().contains(NOPERM), "{denied}");
        }
    }

    /// A key that goes under a script while its slot moves is no refusal: it is asked for again.
    #[test]
    fn a_key_that_is_not_local_any_more() {
        for rest in [
            "Script attempted to access a non local key in a cluster node script: aa, on @user_script:82.",
            "Error running script (call to f_1): @user_script:3: @user_script: 3: Lua script attempted to \
             access a non local key in a cluster node",
        ] {
            let trouble = Trouble::of_reply(&"h:1", "ERR", rest);
            assert!(trouble.is_moving() && !trouble.is_final(), "{trouble}");
        }
    }
}
