//! The value of a claim's key: which process holds the lock or waits for it, in readable text.
//!
//! ```text
//! t1:held:<token>:<since>:<host>:<pid>:<user>:<program>:<label>:<reason>:<base>[:<slot>]
//! ```
//!
//! `t1` is the version of the format. `token` identifies the claim, because the claims of a process use the
//! same key one after the other. `since` is the wall clock of the claiming process when it asked, in
//! milliseconds. `base` is the base of the claim's fence (`epoch.rs`). `slot` is the number of a numbered permit,
//! and `?` until it has one. The other fields are for people: percent-encoded, and empty if there is no value.
//! `closed` instead of `held` means that the lock was released and is kept closed for a while. A value with a
//! later version comes from a *newer* tenure; a value
//! of any other form is *foreign*. The key of either counts as a claim like any other.

use std::time::Duration;

use bytes::Bytes;
use tenure_core::backend::Loss;
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Holder, Token};
use tenure_net::{escape, is_newer, parse_holder, process_fields};

const HELD: &str = "t1:held:";
const CLOSED: &str = "t1:closed:";
/// The indexes of the base, the slot and the label among the fields after the token.
const BASE: usize = 7;
const SLOT: usize = 8;
const LABEL: usize = 5;
/// How many fields come before those, with the token.
const FIRST: usize = 3;
/// The slot of a permit that will have a number.
const UNNUMBERED: &str = "?";

/// The part of a value that is the same for all claims of this process, written once.
#[derive(Clone, Debug)]
pub(crate) struct ValueWriter(String);

impl ValueWriter {
    /// The part for this process.
    pub(crate) fn new() -> Self {
        ValueWriter(process_fields())
    }

    /// The value of the key of `claim`.
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
        if claim.numbered() {
            text.push(':');
            text.push_str(UNNUMBERED);
        }
        text.into()
    }
}

/// The same value with another base.
pub(crate) fn rebased(value: &[u8], base: i64) -> Bytes {
    with_field(value, BASE, &base.to_string())
}

/// The same value of a numbered permit, with its number.
pub(crate) fn numbered(value: &[u8], slot: u32) -> Bytes {
    with_field(value, SLOT, &slot.to_string())
}

fn with_field(value: &[u8], index: usize, text: &str) -> Bytes {
    let mut fields: Vec<&[u8]> = value.split(|byte| *byte == b':').collect();
    if let Some(field) = fields.get_mut(FIRST + index) {
        *field = text.as_bytes();
    }
    fields.join(&b':').into()
}

/// The same value with another label.
pub(crate) fn relabelled(value: &[u8], label: &str) -> Bytes {
    with_field(value, LABEL, &escape(label).to_string())
}

/// The base of the claim's fence.
pub(crate) fn base(value: &[u8]) -> Option<i64> {
    field(value, BASE)?.parse().ok()
}

/// The slot of a numbered permit; `None` inside if it has none yet.
pub(crate) fn slot(value: &[u8]) -> Option<Option<u32>> {
    Some(field(value, SLOT)?.parse().ok())
}

fn field(value: &[u8], index: usize) -> Option<&str> {
    let (_, rest) = body(std::str::from_utf8(value).ok()?)?;
    rest.split(':').nth(index)
}

/// The value of a key whose lock is released and kept closed.
pub(crate) fn closed(held: &[u8]) -> Bytes {
    let rest = held.strip_prefix(HELD.as_bytes()).unwrap_or_default();
    [CLOSED.as_bytes(), rest].concat().into()
}

/// Whether the lock of this value is kept closed.
pub(crate) fn is_closed(value: &[u8]) -> bool {
    value.starts_with(CLOSED.as_bytes())
}

/// The loss that an operator's note about a forced release describes.
pub(crate) fn forced(note: &[u8]) -> Loss {
    Loss::Forced(String::from_utf8_lossy(note).into_owned())
}

/// The holder or waiter that a value describes, with the rest of its lease.
pub(crate) fn holder(value: &[u8], left: Option<Duration>) -> Holder {
    let parsed = std::str::from_utf8(value).ok().and_then(parse);
    let other = || if is_newer(value) { Holder::newer() } else { Holder::unknown() };
    let mut holder = parsed.unwrap_or_else(other);
    holder.lease_left = left;
    holder
}

/// The token of the claim.
pub(crate) fn token(value: &[u8]) -> Option<Token> {
    let (token, _) = body(std::str::from_utf8(value).ok()?)?;
    token
}

/// The token, and the text after it.
fn body(text: &str) -> Option<(Option<Token>, &str)> {
    let body = text.strip_prefix(HELD).or_else(|| text.strip_prefix(CLOSED))?;
    let (token, rest) = body.split_once(':').unwrap_or((body, ""));
    Some((Token::parse(token), rest))
}

fn parse(text: &str) -> Option<Holder> {
    let closing = text.starts_with(CLOSED);
    let (_, rest) = body(text)?;
    let fields: Vec<&str> = rest.split(':').collect();
    let (since, words) = fields.split_first()?;
    let mut holder = parse_holder(words);
    holder.since = since.parse().ok().map(UnixMillis);
    holder.cooling_down = closing;
    Some(holder)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{ClaimOptions, Key, Process, Token};

    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn written(label: Option<&str>, reason: Option<&str>) -> Bytes {
        let options = ClaimOptions::new(Duration::from_secs(30));
        let options = options.label(label.map(Arc::from)).reason(reason.map(Arc::from));
        let claim = Claim::new(Key::new("k").unwrap(), Token::parse(TOKEN).unwrap(), options);
        ValueWriter::new().write(&claim, UnixMillis(1_800_000_000_000), 42)
    }

    /// A written value is parsed to the same fields, also with characters that are special in the format.
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
                let other = super::holder(&relabelled(&value, "new: %"), None);
                assert_eq!(other.label.as_deref(), Some("new: %"));
                assert_eq!(other.reason.as_deref(), reason);
                let holder = holder(&value, Some(Duration::from_secs(3)));
                assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
                assert_eq!((holder.label.as_deref(), holder.reason.as_deref()), (label, reason));
                assert_eq!(holder.since, Some(UnixMillis(1_800_000_000_000)));
                assert_eq!(holder.lease_left, Some(Duration::from_secs(3)));
                assert_eq!((holder.cooling_down, is_closed(&value)), (closing, closing));
            }
        }
    }

    /// A29: a value of a later version is reported as newer.
    #[test]
    fn a29_a_newer_version() {
        for raw in ["t2:held:1:h:1:u:p", "t10:", "t2"] {
            assert_eq!(holder(raw.as_bytes(), None), Holder::newer(), "{raw}");
            assert_eq!(token(raw.as_bytes()), None, "{raw}");
        }
    }

    /// t60: any other value is foreign.
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
