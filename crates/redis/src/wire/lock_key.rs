//! The name of a lock's key on the server.
//!
//! In: a template such as `distributed_lock:{key}`, from the builder or the URL. Out: the parts before and
//! after the name of the lock, or an error that quotes the template.
//!
//! The template is for locks that other programs acquire with `SET NX PX`. Without one, the key of a lock is
//! `<prefix>:lock:<name>`. All other keys of tenure start with `<prefix>:`, so no template may.

use tenure_core::Error;

/// The longest prefix, in bytes.
pub const PREFIX_MAX: usize = 64;
/// Stands for the name of the lock in a template.
const NAME: &str = "{key}";

/// The parts before and after the name of a lock in its key on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKey {
    pub(crate) before: String,
    pub(crate) after: String,
}

impl LockKey {
    /// Checks the template; `None` if it is the same as the default.
    pub(crate) fn parse(template: &str, prefix: &str) -> Result<Option<Self>, Error> {
        let invalid = |flaw: String| {
            let shown = template.escape_debug();
            Err(Error::invalid(format!("invalid lock_key `{shown}`: {flaw}")))
        };
        let Some((before, after)) =
            template.split_once(NAME).filter(|(_, rest)| !rest.contains(NAME))
        else {
            return invalid(format!("expected `{NAME}` once, as in `distributed_lock:{NAME}`"));
        };
        if before.len() + after.len() > PREFIX_MAX || template.chars().any(char::is_control) {
            return invalid(format!(
                "at most {PREFIX_MAX} bytes besides `{NAME}`, and no control characters"
            ));
        }
        let default = format!("{prefix}:lock:");
        match (before.strip_prefix(prefix), after) {
            _ if before == default && after.is_empty() => Ok(None),
            (Some(rest), _) if rest.starts_with(':') => {
                invalid(format!("`{prefix}:` starts tenure's own keys; choose another `prefix`"))
            }
            _ => Ok(Some(LockKey { before: before.into(), after: after.into() })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The template is split at `{key}`, also inside braces; the default is not a template.
    #[test]
    fn the_parts() {
        let parts = |template| {
            let found = LockKey::parse(template, "tenure").unwrap();
            found.map(|LockKey { before, after }| (before, after))
        };
        for (template, before, after) in [
            ("distributed_lock:{key}", "distributed_lock:", ""),
            ("{key}", "", ""),
            ("{key}:lock", "", ":lock"),
            ("l:{{key}}", "l:{", "}"),
            ("tenure{key}", "tenure", ""),
            ("tenures:{key}", "tenures:", ""),
        ] {
            assert_eq!(parts(template), Some((before.into(), after.into())), "{template}");
        }
        assert_eq!(parts("tenure:lock:{key}"), None);
    }

    /// A refused template is quoted, with the reason.
    #[test]
    fn refusals() {
        let refused = |template: &str| LockKey::parse(template, "tenure").unwrap_err().to_string();
        for template in ["", "order", "{key", "{Key}", "{key}{key}", "a:{key}:b:{key}"] {
            assert_eq!(
                refused(template),
                format!(
                    "invalid lock_key `{template}`: expected `{{key}}` once, as in `distributed_lock:{{key}}`"
                )
            );
        }
        for template in [&format!("{}{{key}}", "x".repeat(65)), "a\n{key}"] {
            let expected = "at most 64 bytes besides `{key}`, and no control characters";
            assert_eq!(
                refused(template),
                format!("invalid lock_key `{}`: {expected}", template.escape_debug())
            );
        }
        for template in
            ["tenure:fence{key}", "tenure:{key}", "tenure:lock:{key}:1", "tenure:lock:a:{key}"]
        {
            let expected = "`tenure:` starts tenure's own keys; choose another `prefix`";
            assert_eq!(refused(template), format!("invalid lock_key `{template}`: {expected}"));
        }
    }
}
