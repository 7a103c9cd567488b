//! Errors before and beside the command, and the outcome of each.

use tenure::{Error, Key};

use crate::status::Outcome;
use crate::text;

/// A reason to stop: the message, and the outcome of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CliError {
    pub(crate) outcome: Outcome,
    pub(crate) chain: String,
    pub(crate) hint: Option<String>,
}

impl CliError {
    pub(crate) fn new(outcome: Outcome, chain: impl Into<String>) -> Self {
        CliError { outcome, chain: chain.into(), hint: None }
    }

    /// A value on the command line or in the environment is not valid.
    pub(crate) fn usage(chain: impl Into<String>) -> Self {
        Self::new(Outcome::Usage, chain)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error of the engine. "Held by another" is not an error here; callers handle it before.
    pub(crate) fn engine(error: &Error) -> Self {
        let meaningless = error.is_invalid() || error.is_unsupported();
        let outcome = if meaningless { Outcome::Usage } else { Outcome::Unreachable };
        Self::new(outcome, text::chain(error))
    }
}

/// The key from the command line, if it is valid.
pub(crate) fn key(given: &std::ffi::OsStr) -> Result<Key, CliError> {
    let Some(name) = given.to_str() else {
        let shown = given.to_string_lossy();
        return Err(CliError::usage(format!("invalid key `{shown}`: it is not valid UTF-8")));
    };
    Key::new(name).map_err(|error| CliError::engine(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    /// An invalid key is a usage error with a readable message, also if the key cannot be printed.
    #[test]
    fn t58_bad_keys_are_usage_errors() {
        let refused = key(OsStr::from_bytes(b"a\xffb")).unwrap_err();
        assert_eq!(refused.outcome, Outcome::Usage);
        assert_eq!(refused.chain, "invalid key `a\u{fffd}b`: it is not valid UTF-8");
        let refused = key(OsStr::new("")).unwrap_err();
        assert_eq!(refused.outcome, Outcome::Usage);
        assert_eq!(refused.chain, "invalid key ``: it is empty");
    }
}
