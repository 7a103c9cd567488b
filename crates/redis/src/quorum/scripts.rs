//! The scripts of a quorum's nodes, each behind one typed function.
//!
//! In: a claim and a round of it. Out: what the node made of it. Renewals are those of a single server.
//!
//! The lock on a node has one field more than on a single server: the round in which its vote was
//! asked for. So a request that comes late can neither take back nor make up for the vote of another
//! round.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Key, Token};

use crate::keys::Keys;
use crate::scripts::{ALWAYS, Answer, Form, How, Run, STRICT, begin, millis};
use crate::value::Author;

// The usual, cheaply; the rest is left to the one after it.
static TAKE: LazyLock<Form> = LazyLock::new(|| Form::new(STRICT, "3", include_str!("take.lua")));
static VOTE: LazyLock<Form> = LazyLock::new(|| Form::new(STRICT, "4", include_str!("vote.lua")));
static RAISE: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, "2", include_str!("raise.lua")));
static FREE: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, "4", include_str!("free.lua")));

/// What the lock holds on every node whose vote of this round is ours, without its flag.
pub(super) fn body(author: &Author, claim: &Claim, round: u64) -> String {
    let mut text = Vec::new();
    // Into memory, which cannot fail.
    let _ = author.write(&mut text, claim, UnixMillis::now());
    // After the words for people, of which those at the end may be missing.
    let gap = match (claim.label(), claim.reason()) {
        (_, Some(_)) => "",
        (Some(_), None) => ":",
        (None, None) => "::",
    };
    format!("{}{gap}:{round}", String::from_utf8_lossy(&text))
}

/// Take the vote with the number that is named, if that is plain. The same words for all nodes.
pub(super) fn take(keys: &Keys, claim: &Claim, body: &str, want: u64) -> Run {
    let mut words = begin(&TAKE);
    keys.add_lock(claim.key(), &mut words);
    keys.add_fence(claim.key(), &mut words);
    keys.add_queue(claim.key(), &mut words);
    words.add(&claim.token().digits());
    words.add_parts(&["-", body]);
    words.add_number(millis(claim.ttl()));
    words.add_number(want);
    Run::of(&TAKE, claim.token(), words)
}

/// Ask for a vote, with a number that would suit.
pub(super) fn vote(keys: &Keys, claim: &Claim, body: &str, want: Option<u64>, how: How) -> Run {
    let mut words = begin(&VOTE);
    keys.add_lock(claim.key(), &mut words);
    keys.add_fence(claim.key(), &mut words);
    keys.add_queue(claim.key(), &mut words);
    keys.add_beats(claim.key(), &mut words);
    words.add(&claim.token().digits());
    words.add(body);
    words.add_number(millis(claim.ttl()));
    words.add(&want.map_or_else(String::new, |number| number.to_string()));
    words.add(how.word());
    words.add_number(millis(how.good()));
    keys.add_inboxes(claim.key(), &mut words);
    Run::of(&VOTE, claim.token(), words)
}

/// Write the fence back.
pub(super) fn raise(keys: &Keys, claim: &Claim, body: &str, fence: u64) -> Run {
    let mut words = begin(&RAISE);
    keys.add_lock(claim.key(), &mut words);
    keys.add_fence(claim.key(), &mut words);
    words.add(&claim.token().digits());
    words.add(body);
    words.add_number(fence);
    Run::of(&RAISE, claim.token(), words)
}

/// What is given up.
#[derive(Clone, Debug)]
pub(super) enum Given {
    /// The vote of a round.
    Round(String),
    /// The claim; nobody may have the lock for a while, if that is said.
    Claim(Option<Duration>),
    /// The same, by force; who, and why.
    Forced(String),
}

/// Take the vote back.
pub(super) fn free(keys: &Keys, key: &Key, token: Token, given: &Given) -> Run {
    let (body, closed, by) = match given {
        Given::Round(body) => (body.as_str(), None, ""),
        Given::Claim(closed) => ("", *closed, ""),
        Given::Forced(by) => ("", None, by.as_str()),
    };
    let mut words = begin(&FREE);
    keys.add_lock(key, &mut words);
    keys.add_queue(key, &mut words);
    keys.add_beats(key, &mut words);
    keys.add_forced(key, token, &mut words);
    words.add(&token.digits());
    words.add(body);
    // Closed for less than a node can count is still closed, not free.
    words.add_number(closed.map_or(0, |rest| millis(rest).max(1)));
    words.add(by);
    keys.add_inboxes(key, &mut words);
    Run::of(&FREE, token, words)
}

/// What became of a write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raised {
    Yes,
    /// The vote is not ours any more.
    Gone,
}

impl Answer for Raised {
    fn of(word: &str, _: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match word {
            "raised" => Some(Raised::Yes),
            "gone" => Some(Raised::Gone),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::Terms;

    use super::*;
    use crate::value::Said;

    /// The round stands behind the words for people, and does not disturb them.
    #[test]
    fn a_body_has_its_round_last() {
        let words = [(None, None), (Some("a:b"), None), (None, Some("r")), (Some("l"), Some("r"))];
        for (label, reason) in words {
            let terms = Terms::new(Duration::from_secs(1));
            let terms = terms.label(label.map(Arc::from)).reason(reason.map(Arc::from));
            let claim = Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms);
            let text = body(&Author::new(Token::random().unwrap()), &claim, 17);
            assert_eq!(text.split(':').count(), 11, "{text}");
            assert!(text.ends_with(":17"));
            let said = Said::parse(format!("-{text}").as_bytes());
            assert_eq!(said.token(), Some(claim.token()));
            let holder = said.holder(None);
            assert_eq!((holder.label.as_deref(), holder.reason.as_deref()), (label, reason));
        }
    }

    /// Every script says its keys, arguments, answers, retry and slots.
    #[test]
    fn headers_are_complete() {
        for form in [&TAKE, &VOTE, &RAISE, &FREE] {
            for word in ["-- KEYS[1] lock ", "-- ARGV[1] ", "-- Returns", "-- Retry", "-- Slots"] {
                assert!(form.text_plain().contains(word), "`{word}` is missing");
            }
            assert!(!form.text_plain().contains("--@"), "a part is missing");
        }
    }
}
