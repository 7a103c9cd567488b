//! The scripts of a quorum's nodes, each behind one typed function.
//!
//! In: a claim and its round. Out: the node's reply. Renewals use the script of a single server.
//!
//! The lock value on a node has one field more than on a single server: the round in which its vote was
//! requested. So a late request can neither take back nor restore the vote of another round.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Key, Mode, Token};

use crate::scripts::{ALWAYS, Answer, LuaScript, STRICT, ScriptCall, WaitMode, begin, millis};
use crate::wire::keys::Keys;
use crate::wire::value::ValueWriter;

static VOTE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(STRICT, "4", include_str!("vote.lua")));
static RAISE_FENCE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(ALWAYS, "2", include_str!("raise_fence.lua")));
static UNVOTE: LazyLock<LuaScript> =
    LazyLock::new(|| LuaScript::new(ALWAYS, "4", include_str!("unvote.lua")));

/// The value of the lock on every node whose vote of this round is ours, without its flag and up to the
/// number of that node's vote. Of a reader: its entry among those of all readers.
pub(super) fn body(writer: &ValueWriter, claim: &Claim, round: u64) -> String {
    let mut text = Vec::new();
    // Writing into memory cannot fail.
    let (_, end) = match claim.mode() {
        Mode::Read => (writer.write_entry(&mut text, claim), ""),
        _ => (writer.write(&mut text, claim, UnixMillis::now()), ":"),
    };
    format!("{}:{round}{end}", String::from_utf8_lossy(&text))
}

/// Requests a vote, with a proposed number.
pub(super) fn vote(
    keys: &Keys,
    claim: &Claim,
    body: &str,
    want: Option<u64>,
    how: WaitMode,
) -> ScriptCall {
    let mut words = begin(&VOTE);
    keys.add_usual(claim.key(), &mut words);
    keys.add_beats(claim.key(), &mut words);
    words.add(&claim.token().digits());
    words.add(body);
    words.add_number(millis(claim.ttl()));
    match want {
        Some(number) => words.add_number(number),
        None => words.add(""),
    }
    words.add(how.as_str());
    words.add_number(millis(how.alive_for()));
    keys.add_inboxes(claim.key(), &mut words);
    ScriptCall::of(&VOTE, claim.token(), words)
}

/// Writes the fence back.
pub(super) fn raise(keys: &Keys, claim: &Claim, body: &str, fence: u64) -> ScriptCall {
    let mut words = begin(&RAISE_FENCE);
    keys.add_lock(claim.key(), &mut words);
    keys.add_fence(claim.key(), &mut words);
    words.add(&claim.token().digits());
    words.add(body);
    words.add_number(fence);
    ScriptCall::of(&RAISE_FENCE, claim.token(), words)
}

/// What to take back.
#[derive(Clone, Debug)]
pub(super) enum Unvote {
    /// The vote of a round.
    Round(String),
    /// The claim; with a duration, the lock then stays closed for that long.
    Claim(Option<Duration>),
    /// The claim, by force; who does it, and why.
    Forced(String),
}

/// Takes the vote back.
pub(super) fn unvote(keys: &Keys, key: &Key, token: Token, given: &Unvote) -> ScriptCall {
    let (body, closed, by) = match given {
        Unvote::Round(body) => (body.as_str(), None, ""),
        Unvote::Claim(closed) => ("", *closed, ""),
        Unvote::Forced(by) => ("", None, by.as_str()),
    };
    let mut words = begin(&UNVOTE);
    keys.add_lock(key, &mut words);
    keys.add_queue(key, &mut words);
    keys.add_beats(key, &mut words);
    keys.add_forced(key, token, &mut words);
    words.add(&token.digits());
    words.add(body);
    // A duration below one millisecond still closes the lock instead of freeing it.
    words.add_number(closed.map_or(0, |rest| millis(rest).max(1)));
    words.add(by);
    keys.add_inboxes(key, &mut words);
    ScriptCall::of(&UNVOTE, token, words)
}

/// The reply to a write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RaiseReply {
    Yes,
    /// The vote is not ours any more.
    Gone,
}

impl Answer for RaiseReply {
    fn of(word: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "raised" => Some(RaiseReply::Yes),
            "gone" => Some(RaiseReply::Gone),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::ClaimOptions;

    use super::*;
    use crate::wire::value::LockValue;

    /// Round and fence follow label and reason, and do not disturb them.
    #[test]
    fn a_body_has_its_round_last() {
        let words = [(None, None), (Some("a:b"), None), (None, Some("r")), (Some("l"), Some("r"))];
        for (label, reason) in words {
            let terms = ClaimOptions::new(Duration::from_secs(1));
            let terms = terms.label(label.map(Arc::from)).reason(reason.map(Arc::from));
            let claim = Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms);
            let text = body(&ValueWriter::new(Token::random().unwrap()), &claim, 17);
            assert_eq!(text.split(':').count(), 12, "{text}");
            assert!(text.ends_with(":17:"));
            let value = LockValue::parse(format!("-{text}99").as_bytes());
            assert_eq!(value.fence().map(tenure_core::Fence::server), Some(99));
            assert_eq!(value.token(), Some(claim.token()));
            let holder = value.holder(None);
            assert_eq!((holder.label.as_deref(), holder.reason.as_deref()), (label, reason));
        }
    }

    /// Every script documents its keys, arguments, replies, retry and slots.
    #[test]
    fn headers_are_complete() {
        for form in [&VOTE, &RAISE_FENCE, &UNVOTE] {
            for word in ["-- KEYS[1] lock ", "-- ARGV[1] ", "-- Returns", "-- Retry", "-- Slots"] {
                assert!(form.text_plain().contains(word), "`{word}` is missing");
            }
            assert!(!form.text_plain().contains("--@"), "a part is missing");
        }
    }
}
