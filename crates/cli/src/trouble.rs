//! What went wrong before or beside the command, and which outcome that makes.

use tenure::{Error, Key};

use crate::status::Outcome;
use crate::text;

/// A reason to stop: what to say, and how to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) outcome: Outcome,
    pub(crate) chain: String,
    pub(crate) hint: Option<String>,
}

impl Trouble {
    pub(crate) fn new(outcome: Outcome, chain: impl Into<String>) -> Self {
        Trouble { outcome, chain: chain.into(), hint: None }
    }

    /// A value on the command line or in the environment makes no sense.
    pub(crate) fn usage(chain: impl Into<String>) -> Self {
        Self::new(Outcome::Usage, chain)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What the engine said. Only "held by another" is not trouble, and is not told here.
    pub(crate) fn engine(error: &Error) -> Self {
        let meaningless = error.is_invalid() || error.is_unsupported();
        let outcome = if meaningless { Outcome::Usage } else { Outcome::Unreachable };
        Self::new(outcome, text::chain(error))
    }
}

/// The key that was given, if it can be one.
pub(crate) fn key(given: &std::ffi::OsStr) -> Result<Key, Trouble> {
    let Some(name) = given.to_str() else {
        let shown = given.to_string_lossy();
        return Err(Trouble::usage(format!("invalid key `{shown}`: it is not valid UTF-8")));
    };
    Key::new(name).map_err(|error| Trouble::engine(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    /// A key that no terminal can show is refused in words, whatever is wrong with it.
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
