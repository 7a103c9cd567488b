//! The value of a claim's key: who holds the lock or waits for it, in words that a person can read.
//!
//! ```text
//! t1:held:<token>:<since>:<host>:<pid>:<user>:<program>:<label>:<reason>:<base>
//! ```
//!
//! `t1` is the version of the format; `token` says whose claim it is, since the claims of a process have
//! the same key one after the other; `since` is the wall clock of whoever asked, in milliseconds, when it
//! asked; `base` is what its fence counts from (`epoch.rs`). The rest is for people: percent-encoded, and empty where
//! there is nothing to say. `closed` instead of `held` says that the lock was released and is kept closed for a while.
//! A value with a later version is a *newer* tenure's, one of any other form is *foreign*; the key of either counts as
//! a claim like any other.

use std::time::Duration;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Client, Holder, Token};

/// What would end a field, or could not be told from an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b':').add(b'%');
const HELD: &str = "t1:held:";
const CLOSED: &str = "t1:closed:";
/// Which field after the token is the base.
const BASE: usize = 7;

/// The part of a value that is the same for all claims of this process, written once.
#[derive(Clone, Debug)]
pub(crate) struct Author(String);

impl Author {
    /// This process.
    pub(crate) fn new() -> Self {
        let Client { host, pid, user, program } = Client::this_process();
        let pid = pid.to_string();
        Author([host, &pid, user, program].map(|field| escape(field)).join(":"))
    }

    /// What the key of `claim` is to hold.
    pub(crate) fn write(&self, claim: &Claim, since: UnixMillis, base: i64) -> Bytes {
        let mut text = String::with_capacity(self.0.len() + 64);
        text.push_str(HELD);
        text.push_str(&claim.token().digits());
        text.push(':');
        text.push_str(&since.0.to_string());
        text.push(':');
        text.push_str(&self.0);
        for note in [claim.label(), claim.reason()] {
            text.push(':');
            text.extend(note.map(escape));
        }
        text.push(':');
        text.push_str(&base.to_string());
        text.into()
    }
}

fn escape(field: &str) -> String {
    utf8_percent_encode(field, ESCAPED).to_string()
}

/// The same with another base.
pub(crate) fn rebased(value: &[u8], base: i64) -> Bytes {
    let rest = value.iter().rposition(|byte| *byte == b':').map_or(value, |at| &value[..=at]);
    [rest, base.to_string().as_bytes()].concat().into()
}

/// What its fence counts from.
pub(crate) fn base(value: &[u8]) -> Option<i64> {
    let (_, rest) = body(std::str::from_utf8(value).ok()?)?;
    rest.split(':').nth(BASE)?.parse().ok()
}

/// What a key says once its lock is released and kept closed.
pub(crate) fn closed(held: &[u8]) -> Bytes {
    let rest = held.strip_prefix(HELD.as_bytes()).unwrap_or_default();
    [CLOSED.as_bytes(), rest].concat().into()
}

/// Whether it says that.
pub(crate) fn is_closed(value: &[u8]) -> bool {
    value.starts_with(CLOSED.as_bytes())
}

/// Who it is, with what is left of the lease.
pub(crate) fn holder(value: &[u8], left: Option<Duration>) -> Holder {
    let said = std::str::from_utf8(value).ok().and_then(parse);
    let other = || if is_newer(value) { Holder::newer() } else { Holder::unknown() };
    let mut holder = said.unwrap_or_else(other);
    holder.lease_left = left;
    holder
}

/// Whether a value starts with a version after `t1`.
fn is_newer(value: &[u8]) -> bool {
    let [b't', rest @ ..] = value else { return false };
    let digits = rest.split(|byte| *byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok());
    number.is_some_and(|number| number > 1)
}

/// Whose claim it is.
pub(crate) fn token(value: &[u8]) -> Option<Token> {
    let (token, _) = body(std::str::from_utf8(value).ok()?)?;
    token
}

/// The token, and what comes after it.
fn body(text: &str) -> Option<(Option<Token>, &str)> {
    let body = text.strip_prefix(HELD).or_else(|| text.strip_prefix(CLOSED))?;
    let (token, rest) = body.split_once(':').unwrap_or((body, ""));
    Some((Token::parse(token), rest))
}

fn parse(text: &str) -> Option<Holder> {
    let closing = text.starts_with(CLOSED);
    let (_, rest) = body(text)?;
    let fields: Vec<&str> = rest.split(':').collect();
    // A note that is cut short or unreadable costs the words, not the lock.
    let field = |index: usize| fields.get(index).and_then(|field| unescape(field));
    let mut holder = Holder::unknown();
    holder.since = field(0).and_then(|since| since.parse().ok()).map(UnixMillis);
    holder.client = client(&field);
    holder.label = field(5).filter(|label| !label.is_empty());
    holder.reason = field(6).filter(|reason| !reason.is_empty());
    holder.closing = closing;
    Some(holder)
}

fn client(field: &impl Fn(usize) -> Option<String>) -> Option<Client> {
    let pid = field(2)?.parse().ok()?;
    Some(Client { host: field(1)?, pid, user: field(3)?, program: field(4)? })
}

fn unescape(field: &str) -> Option<String> {
    percent_decode_str(field).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{Key, Terms, Token};

    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn written(label: Option<&str>, reason: Option<&str>) -> Bytes {
        let terms = Terms::new(Duration::from_secs(30));
        let terms = terms.label(label.map(Arc::from)).reason(reason.map(Arc::from));
        let claim = Claim::new(Key::new("k").unwrap(), Token::parse(TOKEN).unwrap(), terms);
        Author::new().write(&claim, UnixMillis(1_800_000_000_000), 42)
    }

    /// What is written is read back, also with the characters that mean something to the format.
    #[test]
    fn values_round_trip() {
        let words =
            [(None, None), (Some("a:b%3A\n"), None), (None, Some("ü:")), (Some("l"), Some("r"))];
        for (label, reason) in words {
            let value = written(label, reason);
            for (value, closing) in [(value.clone(), false), (closed(&value), true)] {
                assert_eq!((token(&value), base(&value)), (Token::parse(TOKEN), Some(42)));
                assert_eq!(base(&rebased(&value, 7)), Some(7));
                assert_eq!(rebased(&rebased(&value, 7), 42), value);
                let holder = holder(&value, Some(Duration::from_secs(3)));
                assert_eq!(holder.client.as_ref(), Some(Client::this_process()));
                assert_eq!((holder.label.as_deref(), holder.reason.as_deref()), (label, reason));
                assert_eq!(holder.since, Some(UnixMillis(1_800_000_000_000)));
                assert_eq!(holder.lease_left, Some(Duration::from_secs(3)));
                assert_eq!((holder.closing, is_closed(&value)), (closing, closing));
            }
        }
    }

    /// A29: a version to come is called so.
    #[test]
    fn a29_a_newer_version() {
        for raw in ["t2:held:1:h:1:u:p", "t10:", "t2"] {
            assert_eq!(holder(raw.as_bytes(), None), Holder::newer(), "{raw}");
            assert_eq!(token(raw.as_bytes()), None, "{raw}");
        }
    }

    /// t60: anything else is foreign.
    #[test]
    fn t60_other_values_are_foreign() {
        for raw in ["", "x", "t1", "t0:held", "tx:held"] {
            assert_eq!(holder(raw.as_bytes(), None), Holder::unknown(), "{raw}");
            assert_eq!((token(raw.as_bytes()), base(raw.as_bytes())), (None, None), "{raw}");
        }
        assert_eq!(holder(b"t1:held:\xff", None), Holder::unknown());
        assert_eq!(holder(b"t1:held:x:1", None).since, Some(UnixMillis(1)));
        assert_eq!(token(b"t1:held:x:1"), None);
    }
}
