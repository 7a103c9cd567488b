//! The errors of verbs: messages for people and predicates for code.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tenure_core::Fence;

use super::command::Command;

/// How much of a key or value a message shows, in characters.
const SHOWN: usize = 60;

/// Why a verb failed. Cheap to clone.
///
/// Opaque: use the predicates. [`is_unavailable`](Self::is_unavailable) means that nothing was done,
/// [`is_unknown`](Self::is_unknown) that the command may have been carried out.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    asked: Option<Asked>,
    why: Why,
}

/// The failed command: its position in a pipeline, counted from one, the verb and the key.
#[derive(Clone, Debug)]
struct Asked {
    position: Option<usize>,
    verb: Cow<'static, str>,
    key: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Why {
    Server { kind: ErrorKind, message: String },
    Undecodable { wanted: &'static str, flaw: String, found: String },
    Stale { fence: Fence, seen: Fence },
    Loader(Arc<dyn StdError + Send + Sync>),
    Lock(tenure_core::Error),
}

/// Why a [`Kv`](super::Kv) did not carry out a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server could not be reached. Nothing was done; a retry may succeed later.
    Unavailable,
    /// The request was sent and no answer came in time: the command may have been carried out.
    Unknown,
    /// The key holds another type than the verb is for.
    WrongType,
    /// The server is out of memory.
    Full,
    /// User or password are wrong, or the user lacks a right.
    Denied,
    /// The server refused the command for another reason.
    Refused,
    /// An argument is invalid; nothing was sent.
    Invalid,
}

impl Error {
    /// An error of this kind, for implementations of [`Kv`](super::Kv). The caller adds verb and key.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Why::Server { kind, message: message.into() }.into()
    }

    /// The error for a write with a `fence` older than one that was `seen`, for implementations of
    /// [`Kv`](super::Kv).
    pub fn stale_fence(fence: Fence, seen: Fence) -> Self {
        Why::Stale { fence, seen }.into()
    }

    /// An error about an argument: nothing was sent.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// An error about an answer that does not have the form of its verb.
    pub fn unexpected() -> Self {
        Self::new(ErrorKind::Refused, "the reply does not have the form that the verb expects")
    }

    pub(crate) fn undecodable<T>(flaw: &impl fmt::Display, found: &[u8]) -> Self {
        let (wanted, flaw) = (std::any::type_name::<T>(), flaw.to_string());
        Why::Undecodable { wanted, flaw, found: shown(found) }.into()
    }

    pub(crate) fn loader(error: Box<dyn StdError + Send + Sync>) -> Self {
        Why::Loader(error.into()).into()
    }

    /// Adds verb and key, unless the error has them already.
    pub(crate) fn of(self, command: &Command<'_>) -> Self {
        self.about(None, command)
    }

    /// Adds verb and key, and the command's position in a pipeline, counted from one.
    pub fn at(self, position: usize, command: &Command<'_>) -> Self {
        self.about(Some(position), command)
    }

    fn about(mut self, position: Option<usize>, command: &Command<'_>) -> Self {
        if self.0.asked.is_none() {
            let key = (!command.verb.is_keyless()).then(|| command.key.to_vec());
            let verb = command.verb.shown();
            Arc::make_mut(&mut self.0).asked = Some(Asked { position, verb, key });
        }
        self
    }

    /// Sets verb and key, for a verb that consists of several commands.
    pub(crate) fn in_verb(mut self, verb: &'static str, key: &[u8]) -> Self {
        let asked = Asked { position: None, verb: verb.into(), key: Some(key.to_vec()) };
        Arc::make_mut(&mut self.0).asked = Some(asked);
        self
    }

    /// Sets the verb, for a verb with many keys: the failed key stays.
    pub(crate) fn in_batch(mut self, verb: &'static str) -> Self {
        let key = self.key().map(Into::into);
        let asked = Asked { position: None, verb: verb.into(), key };
        Arc::make_mut(&mut self.0).asked = Some(asked);
        self
    }

    /// The kind; `None` for an undecodable value, a stale fence, and an error of a loader or its lock.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self.0.why {
            Why::Server { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// The server could not be reached. Nothing was done; a retry may succeed later.
    pub fn is_unavailable(&self) -> bool {
        self.kind() == Some(ErrorKind::Unavailable)
    }

    /// The request was sent and no answer came in time: the command may have been carried out.
    pub fn is_unknown(&self) -> bool {
        self.kind() == Some(ErrorKind::Unknown)
    }

    /// The key holds another type than the verb is for.
    pub fn is_wrong_type(&self) -> bool {
        self.kind() == Some(ErrorKind::WrongType)
    }

    /// The server is out of memory.
    pub fn is_full(&self) -> bool {
        self.kind() == Some(ErrorKind::Full)
    }

    /// User or password are wrong, or the user lacks a right.
    pub fn is_denied(&self) -> bool {
        self.kind() == Some(ErrorKind::Denied)
    }

    /// The server refused the command. Includes [`is_full`](Self::is_full), [`is_denied`](Self::is_denied)
    /// and [`is_wrong_type`](Self::is_wrong_type).
    pub fn is_refused(&self) -> bool {
        use ErrorKind::{Denied, Full, Refused, WrongType};
        matches!(self.kind(), Some(Refused | Full | Denied | WrongType))
    }

    /// An argument is invalid; nothing was sent.
    pub fn is_invalid(&self) -> bool {
        self.kind() == Some(ErrorKind::Invalid)
    }

    /// There is a value, but it cannot be decoded as the requested type.
    pub fn is_undecodable(&self) -> bool {
        matches!(self.0.why, Why::Undecodable { .. })
    }

    /// A newer fence has written before: this holder has lost its lock.
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

    /// Why the lock of a `remember` across processes was not acquired.
    pub fn lock_error(&self) -> Option<&tenure_core::Error> {
        match &self.0.why {
            Why::Lock(error) => Some(error),
            _ => None,
        }
    }

    /// The key of the failed command.
    pub fn key(&self) -> Option<&[u8]> {
        self.0.asked.as_ref()?.key.as_deref()
    }

    /// The position of the failed command in a pipeline, counted from one.
    pub fn position(&self) -> Option<usize> {
        self.0.asked.as_ref()?.position
    }
}

/// The start of `bytes` as readable text, on one line.
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

/// An error of the lock of a `remember`.
impl From<tenure_core::Error> for Error {
    fn from(error: tenure_core::Error) -> Self {
        Why::Lock(error).into()
    }
}
/// Shows the message: `unwrap` prints this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Error").field(&format_args!("{self}")).finish()
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
        if let Some(position) = self.position {
            write!(f, "pipeline command {position}, ")?;
        }
        match &self.key {
            Some(key) => write!(f, "{} `{}`", self.verb, shown(key)),
            None => f.write_str(&self.verb),
        }
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
                write!(f, "the value is not of type `{wanted}`: {flaw}; found `{found}`")
            }
            Why::Stale { fence, seen } => write!(f, "stale fence {fence}: {seen} has been seen"),
            Why::Loader(error) => write!(f, "the loader failed: {error}"),
            Why::Lock(error) => error.fmt(f),
        }
    }
}

impl ErrorKind {
    /// The start of the message, where the server's text would not make the kind clear.
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
            // Their messages are part of our message.
            Why::Loader(error) => error.source(),
            Why::Lock(error) => error.source(),
            _ => None,
        }
    }
}
