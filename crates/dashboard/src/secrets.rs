//! What must not be shown: labels and reasons that look like secrets, and passwords in messages.
//!
//! In: texts that programs of others wrote. Out: the same texts, or a note that they were left out.
//!
//! A guess by design: a label is meant for people, and one that looks like a secret is a mistake of its program.

use std::borrow::Cow;

use tenure_core::watch::{Event, EventKind};
use tenure_core::{Holder, LockInfo};

/// What is shown in place of a text that looks like a secret.
pub(crate) const HIDDEN: &str = "(hidden: it looks like a secret)";

/// Words that name a secret, in lower case. `token` counts with its value only: `token-refresh` is a fine reason.
const WORDS: [&str; 13] = [
    "password",
    "passwd",
    "pwd=",
    "secret",
    "token=",
    "token:",
    "api_key",
    "api-key",
    "apikey",
    "authorization",
    "bearer ",
    "private key",
    "credential",
];
/// How keys of well-known services begin.
const STARTS: [&str; 9] =
    ["ghp_", "gho_", "github_pat_", "glpat-", "sk-", "sk_live_", "xoxb-", "akia", "eyj"];
/// A shorter word is too short for a key of a service.
const KEY_LEAST: usize = 16;

/// Whether a text looks as if it contained a secret.
pub(crate) fn looks_secret(text: &str) -> bool {
    let lower = text.to_lowercase();
    let is_key =
        |word: &str| word.len() >= KEY_LEAST && STARTS.iter().any(|start| word.starts_with(start));
    WORDS.iter().any(|word| lower.contains(word))
        || lower.split(|c: char| c.is_whitespace() || "\"'=:,;".contains(c)).any(is_key)
        || scrub(text) != text
}

/// A text without the passwords of its URLs: `redis://:hunter2@h` becomes `redis://***@h`.
pub(crate) fn scrub(text: &str) -> Cow<'_, str> {
    let Some(start) = text.find("://").map(|at| at + 3) else { return Cow::Borrowed(text) };
    let (before, rest) = text.split_at(start);
    let end = rest.find(|c: char| c.is_whitespace() || "`'\",".contains(c)).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    let shown = match authority.rfind('@') {
        Some(at) => Cow::Owned(format!("***{}", &authority[at..])),
        None => Cow::Borrowed(authority),
    };
    match (&shown, scrub(after)) {
        (Cow::Borrowed(_), Cow::Borrowed(_)) => Cow::Borrowed(text),
        (shown, after) => Cow::Owned(format!("{before}{shown}{after}")),
    }
}

/// Leaves out what looks secret in a lock, before anything else sees it.
pub(crate) fn of_lock(mut info: LockInfo) -> LockInfo {
    info.holders.iter_mut().for_each(|holding| of_holder(&mut holding.holder));
    for waiting in info.waiters.iter_mut().flatten() {
        hide(&mut waiting.label);
        hide(&mut waiting.reason);
    }
    info
}

/// The same for an event.
pub(crate) fn of_event(mut event: Event) -> Event {
    event.holder.iter_mut().chain(&mut event.from).for_each(of_holder);
    if let EventKind::Forced(by) = &mut event.what
        && looks_secret(by)
    {
        *by = HIDDEN.into();
    }
    event
}

fn of_holder(holder: &mut Holder) {
    hide(&mut holder.label);
    hide(&mut holder.reason);
}

fn hide(text: &mut Option<String>) {
    if text.as_deref().is_some_and(looks_secret) {
        *text = Some(HIDDEN.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// t70: what looks like a secret is hidden; trace ids and ordinary reasons are not.
    #[test]
    fn t70_labels_that_look_like_secrets() {
        let secrets = [
            "password=hunter2",
            "Authorization: Bearer abc",
            "db_PASSWD",
            "api_key 42",
            "redis://:hunter2@host",
            "AKIAIOSFODNN7EXAMPLE",
            "key eyJhbGciOiJIUzI1NiJ9.e30.x",
            "token=1f3a",
            "ghp_0123456789abcdefghij",
        ];
        for text in secrets {
            assert!(looks_secret(text), "{text}");
        }
        let fine = [
            "release 41",
            "4bf92f3577b34da6a3ce929d0e0e4736",
            "token-refresh",
            "sk-lint",
            "https://ci.example.com/jobs/7",
            "ann@example.com",
            "🔒 订单",
        ];
        for text in fine {
            assert!(!looks_secret(text), "{text}");
        }
    }

    /// Passwords are cut out of URLs, wherever the URLs are.
    #[test]
    fn urls_without_passwords() {
        assert_eq!(scrub("at `redis://:p@ss@h:1` now"), "at `redis://***@h:1` now");
        assert_eq!(scrub("etcd://u:p@a,etcd://u:p@b"), "etcd://***@a,etcd://***@b");
        assert_eq!(scrub("redis://h:1 and ann@h"), "redis://h:1 and ann@h");
    }
}
