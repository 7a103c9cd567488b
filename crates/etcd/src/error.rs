//! Errors of a server, read from its reply or from the lack of one.
//!
//! In: the driver's status. Out: an [`EngineError`], which becomes the contract's [`Fault`] and also knows
//! whether a retry helps. No message contains a password or a token.

use std::error::Error as _;
use std::{fmt, io};

use tenure_core::Key;
use tenure_core::backend::{Fault, FaultKind};
use tonic::{Code, Status};

/// An error, and its meaning for a caller that waits.
#[derive(Clone, Debug)]
pub(crate) struct EngineError {
    kind: ErrorKind,
    message: String,
}

/// Why there is no usable reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// No connection could be made, or it was closed before the request left: nothing was sent.
    Unreachable,
    /// The member has no leader: nothing was done, and another member may have one.
    NoLeader,
    /// The server is temporarily unable to serve the request.
    Busy,
    /// No reply in time, or a reply that the outcome is unknown.
    TimedOut,
    /// The connection broke after the request was sent.
    Disconnected,
    /// The server does not know this login, or not any more. Nothing was done.
    BadToken,
    /// The lease does not exist, or not any more. Nothing was done.
    NoLease,
    /// The session of a waiting claim has ended, and its position in the queue with it.
    SessionExpired,
    /// The server refused the request permanently.
    Refused,
    /// We cannot use this server.
    Unsupported,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl EngineError {
    pub(crate) fn new(
        kind: ErrorKind,
        address: &dyn fmt::Display,
        what: impl fmt::Display,
    ) -> Self {
        EngineError { kind, message: format!("etcd `{address}`: {what}") }
    }

    /// An error that is not about a server.
    pub(crate) fn without_address(kind: ErrorKind, message: impl Into<String>) -> Self {
        EngineError { kind, message: message.into() }
    }

    /// t30: a claim whose session has expired is never reported as acquired.
    pub(crate) fn session_expired(key: &Key) -> Self {
        let what = "the place in the queue is lost";
        let what = format!("the session ended while waiting for `{key}`: {what}");
        Self::without_address(ErrorKind::SessionExpired, what)
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether no server can be reached.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.kind == ErrorKind::Unreachable
    }

    /// Whether a retry is useless.
    pub(crate) fn is_permanent(&self) -> bool {
        match self.kind {
            ErrorKind::Unreachable
            | ErrorKind::NoLeader
            | ErrorKind::Busy
            | ErrorKind::TimedOut
            | ErrorKind::Disconnected => false,
            ErrorKind::BadToken
            | ErrorKind::NoLease
            | ErrorKind::SessionExpired
            | ErrorKind::Refused
            | ErrorKind::Unsupported => true,
        }
    }

    /// Whether the request may have been executed nevertheless, or may still be.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.kind, ErrorKind::TimedOut | ErrorKind::Disconnected)
    }

    /// Whether another member should be asked.
    pub(crate) fn concerns_member(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unreachable
                | ErrorKind::NoLeader
                | ErrorKind::TimedOut
                | ErrorKind::Disconnected
        )
    }

    /// Converts the status that came instead of a reply.
    pub(crate) fn of_status(address: &dyn fmt::Display, status: &Status) -> Self {
        match unsent(status) {
            Some(true) => {
                return Self::new(ErrorKind::Unreachable, address, "the connection was closed");
            }
            Some(false) => {
                let what = format_args!("the connection broke: {}", status.message());
                return Self::new(ErrorKind::Disconnected, address, what);
            }
            None => {}
        }
        let message = status.message();
        match KNOWN_ERRORS.iter().find(|(known, ..)| message.contains(known)) {
            Some((_, kind, what)) => Self::new(*kind, address, format_args!("{what}: {message}")),
            None => Self::of_code(address, status),
        }
    }

    fn of_code(address: &dyn fmt::Display, status: &Status) -> Self {
        let (kind, what) = match status.code() {
            Code::PermissionDenied => (ErrorKind::Refused, "the user lacks a right"),
            Code::Unauthenticated => (ErrorKind::BadToken, "the server does not know this login"),
            Code::Unimplemented => (ErrorKind::Unsupported, "the server lacks a call that we need"),
            Code::InvalidArgument | Code::FailedPrecondition | Code::DataLoss => {
                (ErrorKind::Refused, "the server refused")
            }
            // The request may have been executed before this error.
            _ => (ErrorKind::Disconnected, "no reliable answer"),
        };
        Self::new(kind, address, format_args!("{what}: {}", status.message()))
    }

    /// Converts an error of opening a connection. A retry changes nothing if one side does not trust the other.
    pub(crate) fn of_open(address: &dyn fmt::Display, error: &io::Error) -> Self {
        match tenure_net::explain_tls(error) {
            Some(why) => Self::new(ErrorKind::Refused, address, why),
            None => {
                Self::new(ErrorKind::Unreachable, address, format_args!("cannot connect: {error}"))
            }
        }
    }

    /// Converts an error of the first requests on a connection: they change nothing, so `Disconnected` becomes
    /// `Unreachable`.
    pub(crate) fn of_first(address: &dyn fmt::Display, status: &Status) -> Self {
        match Self::of_status(address, status) {
            EngineError { kind: ErrorKind::Disconnected, message } => {
                EngineError { kind: ErrorKind::Unreachable, message }
            }
            error => error,
        }
    }
}

/// Whether the connection failed before the request left; `None` if the connection did not fail.
fn unsent(status: &Status) -> Option<bool> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            return Some(error.is_canceled() || error.is_closed());
        }
        source = error.source();
    }
    None
}

/// The server's error messages and their meaning, by a part that is the same in all versions.
const KNOWN_ERRORS: [(&str, ErrorKind, &str); 20] = [
    ("requested lease not found", ErrorKind::NoLease, "the session has ended"),
    ("invalid auth token", ErrorKind::BadToken, "the server does not know this login any more"),
    ("revision of auth store is old", ErrorKind::BadToken, "the users have been changed"),
    ("revision in header is old", ErrorKind::BadToken, "the users have been changed"),
    ("user name is empty", ErrorKind::Refused, "the server wants a user and a password"),
    ("user name not found", ErrorKind::Refused, "the user name or password is wrong"),
    ("invalid user ID or password", ErrorKind::Refused, "the user name or password is wrong"),
    ("permission denied", ErrorKind::Refused, RIGHTS),
    ("database space exceeded", ErrorKind::Refused, "the server is full (quota-backend-bytes)"),
    ("too many requests", ErrorKind::Busy, "the server is overloaded"),
    ("raft proposal dropped", ErrorKind::Busy, "the cluster has no leader at the moment"),
    ("no leader", ErrorKind::NoLeader, "the cluster has no leader at the moment"),
    ("not capable", ErrorKind::Busy, "the cluster is starting"),
    ("leader changed", ErrorKind::TimedOut, "the cluster has a new leader"),
    ("request timed out", ErrorKind::TimedOut, "the cluster did not agree in time"),
    ("server stopped", ErrorKind::Disconnected, "the member is stopping"),
    ("learner", ErrorKind::NoLeader, "the member is a learner"),
    ("cluster ID mismatch", ErrorKind::Refused, "the member belongs to another cluster"),
    ("corrupt cluster", ErrorKind::Refused, "the cluster's data is corrupt"),
    ("context deadline exceeded", ErrorKind::TimedOut, "the cluster did not agree in time"),
];

const RIGHTS: &str = "the user lacks a right; reading and writing all keys that start with the \
                      prefix and `/` is enough";

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Fault {
        let kind = match error.kind {
            ErrorKind::Unreachable
            | ErrorKind::NoLeader
            | ErrorKind::Busy
            | ErrorKind::NoLease
            | ErrorKind::SessionExpired => FaultKind::Unavailable,
            ErrorKind::TimedOut | ErrorKind::Disconnected => FaultKind::Unknown,
            ErrorKind::BadToken | ErrorKind::Refused => FaultKind::Refused,
            ErrorKind::Unsupported => FaultKind::Unsupported,
        };
        Fault::new(kind, error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: Code, message: &str) -> (FaultKind, String) {
        let fault = Fault::from(EngineError::of_status(&"h:1", &Status::new(code, message)));
        (fault.kind(), fault.to_string())
    }

    /// Each message of the server has the right outcome for the caller: done, not done, or unknown.
    #[test]
    fn known_errors() {
        let unavailable =
            ["etcdserver: no leader", "etcdserver: too many requests", "raft proposal dropped"];
        for message in unavailable {
            assert_eq!(read(Code::Unavailable, message).0, FaultKind::Unavailable, "{message}");
        }
        let unknown = [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "anything else",
        ];
        for message in unknown {
            assert_eq!(read(Code::Unavailable, message).0, FaultKind::Unknown, "{message}");
        }
        let refused = [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
        ];
        for (code, message) in refused {
            assert_eq!(read(code, message).0, FaultKind::Refused, "{message}");
        }
        assert_eq!(read(Code::Unimplemented, "unknown service").0, FaultKind::Unsupported);
    }

    /// A message names the server, the problem, and the server's own message.
    #[test]
    fn messages() {
        assert_eq!(
            read(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded").1,
            "etcd `h:1`: the server is full (quota-backend-bytes): etcdserver: mvcc: database \
             space exceeded"
        );
    }
}
