//! What can go wrong with a server, read from what it said or did not say.
//!
//! In: the driver's status. Out: a [`Trouble`], which becomes the contract's [`Fault`] and knows
//! besides whether waiting helps. No message carries a password or a token.

use std::error::Error as _;
use std::{fmt, io};

use tenure_core::backend::{Fault, FaultKind};
use tokio_rustls::rustls;
use tokio_rustls::rustls::{AlertDescription as Alert, CertificateError as Flaw};
use tonic::{Code, Status};

/// What went wrong, and what that means for whoever waits.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    cause: Cause,
    message: String,
}

/// Why there is no good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No connection could be made, or it was gone before the request left: nothing was asked.
    Down,
    /// The member has no leader: nothing was done, and another member may have one.
    NoLeader,
    /// The server said "not now".
    NotNow,
    /// It was asked, and did not answer in time; or said itself that it does not know.
    Silent,
    /// The connection broke with the request under way.
    Cut,
    /// The server does not know this login (any more). Nothing was done.
    BadToken,
    /// There is no such lease (any more). Nothing was done.
    NoLease,
    /// It said no for good.
    Refused,
    /// It is of a kind that we cannot use.
    Unsupported,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Trouble {
    pub(crate) fn new(cause: Cause, address: &dyn fmt::Display, what: impl fmt::Display) -> Self {
        Trouble { cause, message: format!("etcd `{address}`: {what}") }
    }

    pub(crate) fn cause(&self) -> Cause {
        self.cause
    }

    /// Whether there is no server to ask.
    pub(crate) fn is_absence(&self) -> bool {
        self.cause == Cause::Down
    }

    /// Whether asking again is of no use.
    pub(crate) fn is_final(&self) -> bool {
        match self.cause {
            Cause::Down | Cause::NoLeader | Cause::NotNow | Cause::Silent | Cause::Cut => false,
            Cause::BadToken | Cause::NoLease | Cause::Refused | Cause::Unsupported => true,
        }
    }

    /// Whether it may have been done all the same, now or later.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.cause, Cause::Silent | Cause::Cut)
    }

    /// Whether another member had better be asked.
    pub(crate) fn is_of_the_member(&self) -> bool {
        matches!(self.cause, Cause::Down | Cause::NoLeader | Cause::Silent | Cause::Cut)
    }

    /// Reads what came instead of an answer.
    pub(crate) fn of_status(address: &dyn fmt::Display, status: &Status) -> Self {
        match unsent(status) {
            Some(true) => return Self::new(Cause::Down, address, "the connection was closed"),
            Some(false) => {
                let what = format_args!("the connection broke: {}", status.message());
                return Self::new(Cause::Cut, address, what);
            }
            None => {}
        }
        let said = status.message();
        match SAYINGS.iter().find(|(known, ..)| said.contains(known)) {
            Some((_, cause, what)) => Self::new(*cause, address, format_args!("{what}: {said}")),
            None => Self::of_code(address, status),
        }
    }

    fn of_code(address: &dyn fmt::Display, status: &Status) -> Self {
        let (cause, what) = match status.code() {
            Code::PermissionDenied => (Cause::Refused, "the user lacks a right"),
            Code::Unauthenticated => (Cause::BadToken, "the server does not know this login"),
            Code::Unimplemented => (Cause::Unsupported, "the server lacks a call that we need"),
            Code::InvalidArgument | Code::FailedPrecondition | Code::DataLoss => {
                (Cause::Refused, "the server refused")
            }
            // The request may have been carried out before whatever this is.
            _ => (Cause::Cut, "no answer that can be relied on"),
        };
        Self::new(cause, address, format_args!("{what}: {}", status.message()))
    }

    /// Reads an error that kept us from reaching the server at all.
    pub(crate) fn of_open(address: &dyn fmt::Display, error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
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

    /// Reads an error of the first requests on a connection: nothing that matters was asked.
    pub(crate) fn of_first(address: &dyn fmt::Display, status: &Status) -> Self {
        match Self::of_status(address, status) {
            Trouble { cause: Cause::Cut, message } => Trouble { cause: Cause::Down, message },
            trouble => trouble,
        }
    }
}

/// Whether the connection failed before the request left; `None` if it did not fail at all.
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

/// What the server's sayings mean, by a part that stays the same from version to version.
const SAYINGS: [(&str, Cause, &str); 20] = [
    ("requested lease not found", Cause::NoLease, "the session has ended"),
    ("invalid auth token", Cause::BadToken, "the server does not know this login any more"),
    ("revision of auth store is old", Cause::BadToken, "the users have been changed"),
    ("revision in header is old", Cause::BadToken, "the users have been changed"),
    ("user name is empty", Cause::Refused, "the server wants a user and a password"),
    ("user name not found", Cause::Refused, "the user name or password is wrong"),
    ("invalid user ID or password", Cause::Refused, "the user name or password is wrong"),
    ("permission denied", Cause::Refused, RIGHTS),
    ("database space exceeded", Cause::Refused, "the server is full (quota-backend-bytes)"),
    ("too many requests", Cause::NotNow, "the server has too much to do"),
    ("raft proposal dropped", Cause::NotNow, "the cluster has no leader at the moment"),
    ("no leader", Cause::NoLeader, "the cluster has no leader at the moment"),
    ("not capable", Cause::NotNow, "the cluster is starting"),
    ("leader changed", Cause::Silent, "the cluster has a new leader"),
    ("request timed out", Cause::Silent, "the cluster did not agree in time"),
    ("server stopped", Cause::Cut, "the member is stopping"),
    ("learner", Cause::NoLeader, "the member is a learner"),
    ("cluster ID mismatch", Cause::Refused, "the member belongs to another cluster"),
    ("corrupt cluster", Cause::Refused, "the cluster's data is corrupt"),
    ("context deadline exceeded", Cause::Silent, "the cluster did not agree in time"),
];

const RIGHTS: &str = "the user lacks a right; reading and writing all keys that start with the \
                      prefix and `/` is enough";

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

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Fault {
        let kind = match trouble.cause {
            Cause::Down | Cause::NoLeader | Cause::NotNow | Cause::NoLease => {
                FaultKind::Unavailable
            }
            Cause::Silent | Cause::Cut => FaultKind::Unknown,
            Cause::BadToken | Cause::Refused => FaultKind::Refused,
            Cause::Unsupported => FaultKind::Unsupported,
        };
        Fault::new(kind, trouble.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: Code, said: &str) -> (FaultKind, String) {
        let fault = Fault::from(Trouble::of_status(&"h:1", &Status::new(code, said)));
        (fault.kind(), fault.to_string())
    }

    /// Each saying means what it means for whoever asked: done, not done, or unknown.
    #[test]
    fn sayings() {
        let unavailable =
            ["etcdserver: no leader", "etcdserver: too many requests", "raft proposal dropped"];
        for said in unavailable {
            assert_eq!(read(Code::Unavailable, said).0, FaultKind::Unavailable, "{said}");
        }
        let unknown = [
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "anything else",
        ];
        for said in unknown {
            assert_eq!(read(Code::Unavailable, said).0, FaultKind::Unknown, "{said}");
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
        for (code, said) in refused {
            assert_eq!(read(code, said).0, FaultKind::Refused, "{said}");
        }
        assert_eq!(read(Code::Unimplemented, "unknown service").0, FaultKind::Unsupported);
    }

    /// A message names the server, what is wrong, and what the server said.
    #[test]
    fn messages() {
        assert_eq!(
            read(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded").1,
            "etcd `h:1`: the server is full (quota-backend-bytes): etcdserver: mvcc: database \
             space exceeded"
        );
    }
}
