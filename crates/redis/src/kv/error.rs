//! What can go wrong with a verb, in words for people and predicates for code.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tenure_core::Fence;

use super::command::Command;
use crate::trouble::{Cause, Trouble};

/// How much of a key or value a message shows, in characters.
const SHOWN: usize = 60;

/// Why a verb did not do what was asked. Cheap to clone.
///
/// Opaque: ask it with the predicates. [`is_unavailable`](Self::is_unavailable) means that nothing
/// was done, [`is_unknown`](Self::is_unknown) that it may have been.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    asked: Option<Asked>,
    why: Why,
}

/// What was asked for: its place in a pipeline, counted from one, the verb and the key.
#[derive(Clone, Debug)]
struct Asked {
    place: Option<usize>,
    verb: &'static str,
    key: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Why {
    Server { kind: ErrorKind, message: String },
    Undecodable { wanted: &'static str, flaw: String, found: String },
    Stale { fence: Fence, seen: Fence },
    Loader(Arc<dyn StdError + Send + Sync>),
    Lock(tenure_core::Error),
}

/// What a [`Kv`](super::Kv) can say of a command that it did not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server could not be asked. Nothing was done; it may work later.
    Unavailable,
    /// The server was asked and did not answer in time: it may have been done.
    Unknown,
    /// The key holds another type than the verb is for.
    WrongType,
    /// The server is full.
    Full,
    /// The user, the password or a right is wrong.
    Denied,
    /// The server said no for another reason.
    Refused,
    /// What was given makes no sense; nothing was asked.
    Invalid,
}

impl Error {
    /// An error of this kind, for implementations of [`Kv`](super::Kv). Verb and key are added by
    /// whoever asked.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Why::Server { kind, message: message.into() }.into()
    }

    /// A write with a `fence` that is older than one that was `seen`, for implementations of
    /// [`Kv`](super::Kv).
    pub fn stale_fence(fence: Fence, seen: Fence) -> Self {
        Why::Stale { fence, seen }.into()
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn unexpected() -> Self {
        Self::new(ErrorKind::Refused, "the answer is not of the form that the verb has")
    }

    pub(crate) fn undecodable<T>(flaw: &impl fmt::Display, found: &[u8]) -> Self {
        let (wanted, flaw) = (std::any::type_name::<T>(), flaw.to_string());
        Why::Undecodable { wanted, flaw, found: shown(found) }.into()
    }

    pub(crate) fn loader(error: Box<dyn StdError + Send + Sync>) -> Self {
        Why::Loader(error.into()).into()
    }

    /// Adds what was asked, unless that is known already.
    pub(crate) fn of(self, command: &Command<'_>) -> Self {
        self.about(None, command)
    }

    /// The same for the command at this place of a pipeline, counted from one.
    pub(crate) fn at(self, place: usize, command: &Command<'_>) -> Self {
        self.about(Some(place), command)
    }

    fn about(mut self, place: Option<usize>, command: &Command<'_>) -> Self {
        if self.0.asked.is_none() {
            let (verb, key) = (command.verb.name(), command.key.to_vec());
            Arc::make_mut(&mut self.0).asked = Some(Asked { place, verb, key });
        }
        self
    }

    /// The same for a verb that is more than one command.
    pub(crate) fn in_verb(mut self, verb: &'static str, key: &[u8]) -> Self {
        let asked = Asked { place: None, verb, key: key.to_vec() };
        Arc::make_mut(&mut self.0).asked = Some(asked);
        self
    }

    /// What kind of answer the server gave, if it was the server.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self.0.why {
            Why::Server { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// The server could not be asked. Nothing was done; it may work later.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == Some(ErrorKind::Unavailable)
    }

    /// The server was asked and did not answer in time: it may have been done.
    pub fn is_unknown(&self) -> bool {
        self.kind() == Some(ErrorKind::Unknown)
    }

    /// The key holds another type than the verb is for.
    pub fn is_wrong_type(&self) -> bool {
        self.kind() == Some(ErrorKind::WrongType)
    }

    /// The server is full.
    pub fn is_full(&self) -> bool {
        self.kind() == Some(ErrorKind::Full)
    }

    /// The user, the password or a right is wrong.
    pub fn is_denied(&self) -> bool {
        self.kind() == Some(ErrorKind::Denied)
    }

    /// The server said no: also [`is_full`](Self::is_full), [`is_denied`](Self::is_denied) and
    /// [`is_wrong_type`](Self::is_wrong_type).
    pub fn is_refused(&self) -> bool {
        use ErrorKind::{Denied, Full, Refused, WrongType};
        matches!(self.kind(), Some(Refused | Full | Denied | WrongType))
    }

    /// What was given makes no sense; nothing was asked.
    pub fn is_invalid(&self) -> bool {
        self.kind() == Some(ErrorKind::Invalid)
    }

    /// There is a value, and it is none of the type that was asked for.
    pub fn is_undecodable(&self) -> bool {
        matches!(self.0.why, Why::Undecodable { .. })
    }

    /// A newer fence has written before: this holder's lock was lost.
    pub fn is_stale_fence(&self) -> bool {
        matches!(self.0.why, Why::Stale { .. })
    }

    /// The loader of a `remember` failed; [`loader_error`](Self::loader_error) has its error.
    pub fn is_loader(&self) -> bool {
        matches!(self.0.why, Why::Loader(_))
    }

    /// The loader's error, if it failed with an `E`.
    pub fn loader_error<E: StdError + 'static>(&self) -> Option<&E> {
        match &self.0.why {
            Why::Loader(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// What kept the lock of a `remember` across processes from being had.
    pub fn lock_error(&self) -> Option<&tenure_core::Error> {
        match &self.0.why {
            Why::Lock(error) => Some(error),
            _ => None,
        }
    }

    /// The key it is about.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.asked.as_ref().map(|asked| asked.key.as_slice())
    }

    /// Which command of a pipeline it is about, counted from one.
    pub fn place(&self) -> Option<usize> {
        self.0.asked.as_ref()?.place
    }
}

/// Enough of it to recognise it, on one line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(SHOWN * 4)];
    let mut text = String::new();
    let mut chars = String::from_utf8_lossy(start).into_owned();
    if let Some((end, _)) = chars.char_indices().nth(SHOWN) {
        chars.truncate(end);
    }
    text.extend(chars.escape_debug());
    let cut = chars.len() < bytes.len();
    if cut { text + "…" } else { text }
}

impl From<Why> for Error {
    fn from(why: Why) -> Self {
        Error(Arc::new(Inner { asked: None, why }))
    }
}

/// What the lock of a `remember` has to say.
impl From<tenure_core::Error> for Error {
    fn from(error: tenure_core::Error) -> Self {
        Why::Lock(error).into()
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        let kind = match (trouble.cause(), trouble.word()) {
            (Cause::Down | Cause::NotNow | Cause::Demoted, _) => ErrorKind::Unavailable,
            (Cause::Silent | Cause::Cut, _) => ErrorKind::Unknown,
            (Cause::WrongType, _) => ErrorKind::WrongType,
            (_, "OOM") => ErrorKind::Full,
            (_, "NOAUTH" | "WRONGPASS" | "NOPERM") => ErrorKind::Denied,
            _ => ErrorKind::Refused,
        };
        Self::new(kind, trouble.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(asked) = &self.0.asked {
            write!(f, "{asked}: ")?;
        }
        self.0.why.fmt(f)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.place {
            write!(f, "pipeline command {place}, ")?;
        }
        write!(f, "{} `{}`", self.verb, shown(&self.key))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Server { kind, message } => match kind.prefix() {
                "" => f.write_str(message),
                prefix => write!(f, "{prefix}: {message}"),
            },
            Why::Undecodable { wanted, flaw, found } => {
                write!(f, "the value is no `{wanted}`: {flaw}; found `{found}`")
            }
            Why::Stale { fence, seen } => write!(f, "stale fence {fence}: {seen} has been seen"),
            Why::Loader(error) => write!(f, "the loader failed: {error}"),
            Why::Lock(error) => error.fmt(f),
        }
    }
}

impl ErrorKind {
    /// What to say before what the server said, where that would not say it.
    fn prefix(self) -> &'static str {
        match self {
            ErrorKind::Unavailable => "server unavailable",
            ErrorKind::Unknown => "no answer, it may have been done",
            ErrorKind::Denied | ErrorKind::Full | ErrorKind::Refused => "refused",
            ErrorKind::WrongType | ErrorKind::Invalid => "",
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.0.why {
            // Their own words are in our message.
            Why::Loader(error) => error.source(),
            Why::Lock(error) => error.source(),
            _ => None,
        }
    }
}
