//! Errors of the engine as errors of verbs.

use tenure_kv::{Error, ErrorKind};

use crate::error::{Cause, EngineError, NOPERM};

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        let kind = match (error.cause(), error.code()) {
            (Cause::Unreachable | Cause::Busy | Cause::Demoted, _) => ErrorKind::Unavailable,
            (Cause::TimedOut | Cause::Disconnected, _) => ErrorKind::Unknown,
            (Cause::WrongType, _) => ErrorKind::WrongType,
            (_, "OOM") => ErrorKind::Full,
            (_, "NOAUTH" | "WRONGPASS" | "NOPERM") => ErrorKind::Denied,
            _ => ErrorKind::Refused,
        };
        // The ACL rights that locks need do not cover every verb, so that advice is left out here.
        Self::new(kind, error.to_string().replace(NOPERM, "the user lacks a right"))
    }
}
