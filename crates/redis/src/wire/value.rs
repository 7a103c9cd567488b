//! The value of a lock's key: its holder, in a form that people and scripts can read.
//!
//! ```text
//! -t1:<client>:<token>:<since>:<host>:<pid>:<user>:<program>:<label>:<reason>:<round>:<fence>
//! ```
//!
//! - The first character is `*` while another claim waits, and `-` otherwise. `t1` is the version of the format.
//! - `client` is the random id of the process.
//! - `token` is the claim's, or `=` and the shared owner.
//! - `since` is a wall clock in milliseconds: the holder's, or the server's if a script made the value.
//! - The fields from `host` to `reason` are for people. They are percent-encoded, and may be empty.
//! - `round` is used by a quorum only, see `quorum/scripts.rs`.
//! - `fence` is the fence of the grant. It is the last field, so that a script can write it. It is empty or 0 for a
//!   lock without a fence, and for a lock that was acquired while its slot moved. It is not shown for a shared owner,
//!   whose claims have a fence each.
//!
//! A lock that was released and is still closed has the client `closed`, and `!` before the token of its last
//! holder. A value with a later version is from a *newer* tenure, and this one cannot read it. A value of any
//! other form is *foreign*, from a `SET NX` client. Neither is ever changed.

use std::io::{self, Write};
use std::time::Duration;

use tenure_core::fence::SERVER_FENCE_MAX;
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Fence, Holder, Mode, Token};
use tenure_net::{escape, is_newer, parse_holder, process_fields};

use super::keys::Keys;
use super::timing::millis;

/// The text between the fields for people and the fence if there is no round.
const NO_ROUND: &str = "::";
/// The client of a closed lock.
const CLOSED: &str = "closed";
/// The character before the token in a closed lock.
const CLOSED_MARK: char = '!';

/// The part of a value that is the same for all claims of this process, built once.
#[derive(Clone, Debug)]
pub(crate) struct ValueWriter {
    client: String,
    about: String,
    /// How many milliseconds after its ticket a waiter counts as alive.
    lifetime: String,
}

impl ValueWriter {
    /// This process under a random id.
    pub(crate) fn new(id: Token) -> Self {
        // Half of the digits identify a process as well as all of them.
        let client = id.expose()[..16].into();
        ValueWriter { client, about: process_fields(), lifetime: "0".into() }
    }

    /// Sets how long after its ticket a waiter counts as alive.
    pub(crate) fn waiter_lifetime(self, lifetime: Duration) -> Self {
        ValueWriter { lifetime: millis(lifetime).to_string(), ..self }
    }

    /// The process's id on the server.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// The start of the lock's value while the claim with this token holds it, in parts. `release_fast.lua`
    /// and `handover_fast.lua` rely on its length; the first needs it with its flag, the second without.
    pub(crate) fn mark<'a>(&'a self, flag: &'a str, token: &'a str) -> [&'a str; 5] {
        [flag, "t1:", &self.client, ":", token]
    }

    /// Writes the value of a new lock without waiters, up to the fence.
    pub(crate) fn write_alone(&self, to: &mut dyn Write, claim: &Claim) -> io::Result<()> {
        to.write_all(b"-")?;
        self.write(to, claim, UnixMillis::now())?;
        to.write_all(NO_ROUND.as_bytes())
    }

    /// Writes the lock's value while `claim` holds it, without the flag and up to the round. Written by hand:
    /// there is one for each lock, and `format!` costs as much as all the rest.
    pub(crate) fn write(
        &self,
        to: &mut dyn Write,
        claim: &Claim,
        since: UnixMillis,
    ) -> io::Result<()> {
        let mut put =
            |parts: &[&str]| parts.iter().try_for_each(|part| to.write_all(part.as_bytes()));
        put(&["t1:", &self.client, ":"])?;
        match claim.shared_owner() {
            None => put(&[&claim.token().digits()])?,
            Some(owner) => put(&[&shared(owner)])?,
        }
        put(&[":", &since.0.to_string()])?;
        self.write_words(to, claim)
    }

    /// Writes the queue entry of `claim`, which never changes: see `scripts/queue.lua`.
    pub(crate) fn write_entry(&self, to: &mut dyn Write, claim: &Claim) -> io::Result<()> {
        self.write_member(to, claim, None)
    }

    /// Writes the member of a claim that shares the lock: its entry, with the slot of a numbered permit.
    pub(crate) fn write_member(
        &self,
        to: &mut dyn Write,
        claim: &Claim,
        slot: Option<u32>,
    ) -> io::Result<()> {
        let (token, ttl) = (claim.token().digits(), millis(claim.ttl()).to_string());
        let parts = [&*token, " ", &self.client, " ", &ttl, " ", &self.lifetime, " "];
        parts.iter().try_for_each(|part| to.write_all(part.as_bytes()))?;
        if let Some(mode) = mode_word(claim) {
            to.write_all(mode.as_bytes())?;
        }
        if let Some(slot) = slot {
            write!(to, "{slot}")?;
        }
        self.write_words(to, claim)
    }

    /// The fields for people, each with a colon before it.
    fn write_words(&self, to: &mut dyn Write, claim: &Claim) -> io::Result<()> {
        let mut put =
            |parts: &[&str]| parts.iter().try_for_each(|part| to.write_all(part.as_bytes()));
        put(&[":", &self.about])?;
        for word in [claim.label(), claim.reason()] {
            match word {
                None => put(&[":"])?,
                Some(word) => put(&[":", &escape(word)])?,
            }
        }
        Ok(())
    }
}

/// The label that `renew.lua` writes into the value, with a colon before it. Empty if the label was not changed.
pub(crate) fn new_label(claim: &Claim) -> String {
    claim.new_label().map_or_else(String::new, |label| format!(":{}", escape(&label)))
}

/// The mode of a claim that is not exclusive, as it stands in its entry: see `scripts/entry.lua`.
pub(crate) fn mode_word(claim: &Claim) -> Option<String> {
    match claim.mode() {
        Mode::Exclusive => None,
        Mode::SharedOwner(owner) => Some(shared(owner)),
        Mode::Read => Some("~".into()),
        Mode::Permits { permits, capacity } => {
            let numbered = if claim.numbered() { "n" } else { "" };
            Some(format!("#{permits}/{capacity}{numbered}"))
        }
    }
}

/// Whether the scripts for a lock that nobody waits for handle such a claim. Several permits have several members, and
/// the slot of a numbered one depends on all members until it is granted. In a cluster, members end by another clock:
/// see value.lua.
pub(crate) fn is_simple(claim: &Claim, slot: Option<u32>, keys: &Keys) -> bool {
    match claim.mode() {
        Mode::Exclusive => true,
        Mode::Read => !keys.has_slots(),
        Mode::Permits { permits, .. } => {
            !keys.has_slots() && *permits == 1 && (!claim.numbered() || slot.is_some())
        }
        Mode::SharedOwner(_) => false,
    }
}

/// The mode, and the slot of a numbered permit, of an entry.
pub(crate) fn parse_mode(entry: &str) -> (Mode, Option<u32>) {
    let word = entry.split(':').next().and_then(|start| start.split(' ').nth(4)).unwrap_or("");
    let permits = |word: &str| {
        let (permits, rest) = word.split_once('/')?;
        let (capacity, slot) = rest.split_once('n').unwrap_or((rest, ""));
        let mode =
            Mode::Permits { permits: permits.parse().ok()?, capacity: capacity.parse().ok()? };
        Some((mode, slot.parse().ok()))
    };
    match word.split_at_checked(1) {
        Some(("~", _)) => (Mode::Read, None),
        Some(("#", word)) => permits(word).unwrap_or_default(),
        _ => (Mode::Exclusive, None),
    }
}

/// A member of a lock that several claims hold together: its holder, token, mode and slot. `None` for the further
/// members of a claim that has several permits.
pub(crate) fn member(member: &[u8]) -> Option<(Holder, Token, Mode, Option<u32>)> {
    let text = std::str::from_utf8(member).ok()?;
    let entry = text.strip_prefix(CLOSED_MARK).unwrap_or(text);
    let (token, _) = entry.split_once(' ')?;
    let (_, about) = entry.split_once(':')?;
    let mut holder = parse_holder(&about.split(':').collect::<Vec<_>>());
    holder.cooling_down = entry.len() < text.len();
    let (mode, slot) = parse_mode(entry);
    Some((holder, Token::parse(token)?, mode, slot))
}

/// The field that replaces the token if a shared owner holds the lock.
pub(crate) fn shared(owner: &str) -> String {
    format!("={}", escape(owner))
}

/// The content of a lock's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockValue {
    /// A claim of tenure holds it, with the fence in its value; the token is `None` for a shared owner.
    Held { holder: Box<Holder>, token: Option<Token>, fence: Option<Fence> },
    /// The lock is not held, and cannot be acquired for a while. The token is the last holder's: `None` if an
    /// older version closed the lock.
    Closing { holder: Box<Holder>, token: Option<Token> },
    /// The format of a newer version.
    Newer,
    /// Not our format.
    Foreign,
}

impl LockValue {
    pub(crate) fn parse(raw: &[u8]) -> Self {
        let value = std::str::from_utf8(raw).ok().and_then(parse);
        let newer = matches!(raw, [b'-' | b'*', rest @ ..] if is_newer(rest));
        value.unwrap_or(if newer { LockValue::Newer } else { LockValue::Foreign })
    }

    /// The holder as others see it, with the rest of the lease.
    pub(crate) fn holder(self, left: Option<Duration>) -> Holder {
        let mut holder = match self {
            LockValue::Held { holder, .. } | LockValue::Closing { holder, .. } => *holder,
            LockValue::Newer => Holder::newer(),
            LockValue::Foreign => Holder::unknown(),
        };
        holder.lease_left = left;
        holder
    }

    /// Whether a shared owner holds it.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, LockValue::Held { token: None, .. })
    }

    /// The fence of the holder's grant, if it is known.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self {
            LockValue::Held { token: Some(_), fence, .. } => *fence,
            _ => None,
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            LockValue::Held { token, .. } | LockValue::Closing { token, .. } => *token,
            LockValue::Newer | LockValue::Foreign => None,
        }
    }
}

fn parse(text: &str) -> Option<LockValue> {
    let body = text.strip_prefix("-t1:").or_else(|| text.strip_prefix("*t1:"))?;
    let mut fields = body.split(':');
    let (client, token) = (fields.next()?, fields.next()?);
    let since = fields.next()?.parse().ok().map(UnixMillis);
    let rest: Vec<&str> = fields.collect();
    let mut holder = parse_holder(&rest);
    holder.since = since;
    if client == CLOSED {
        holder.cooling_down = true;
        let token = token.strip_prefix(CLOSED_MARK).and_then(Token::parse);
        return Some(LockValue::Closing { holder: Box::new(holder), token });
    }
    let (holder, found, fence) = (Box::new(holder), Token::parse(token), fence(&rest));
    (found.is_some() || token.starts_with('=')).then_some(LockValue::Held {
        holder,
        token: found,
        fence,
    })
}

/// The fence after the fields for people and the round.
fn fence(rest: &[&str]) -> Option<Fence> {
    let number: u64 = rest.get(7)?.parse().ok()?;
    (1..=SERVER_FENCE_MAX).contains(&number).then(|| Fence::from_server(number))
}

/// The waiter of a queue entry.
pub(crate) fn waiter(entry: &[u8], since: UnixMillis) -> Option<Holder> {
    let (_, text) = std::str::from_utf8(entry).ok()?.split_once(':')?;
    let mut holder = parse_holder(&text.split(':').collect::<Vec<_>>());
    holder.since = Some(since);
    Some(holder)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{ClaimOptions, Key, Process};

    use super::*;

    fn claim(label: Option<&str>, reason: Option<&str>) -> Claim {
        let terms = ClaimOptions::new(Duration::from_secs(30));
        let terms = terms.label(label.map(Arc::from)).reason(reason.map(Arc::from));
        Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms)
    }

    fn written(claim: &Claim) -> String {
        let mut text = b"-".to_vec();
        let writer = ValueWriter::new(Token::random().unwrap());
        writer.write(&mut text, claim, UnixMillis(1_800_000_000_000)).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// A written value is read back, also with the characters that have a meaning in the format.
    #[test]
    fn values_round_trip() {
        let words =
            [(None, None), (Some("a:b%3A\n"), None), (None, Some("ü:")), (Some("l"), Some("r"))];
        for (label, reason) in words {
            let claim = claim(label, reason);
            let value = LockValue::parse(written(&claim).as_bytes());
            assert_eq!(value.token(), Some(claim.token()));
            let holder = value.holder(Some(Duration::from_secs(3)));
            assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
            assert_eq!((holder.label.as_deref(), holder.reason.as_deref()), (label, reason));
            assert_eq!(holder.since, Some(UnixMillis(1_800_000_000_000)));
            assert_eq!(holder.lease_left, Some(Duration::from_secs(3)));
        }
    }

    /// Scripts rely on the start of a value: flag, version, client, token, since.
    #[test]
    fn the_form() {
        let claim = claim(None, None);
        let value = written(&claim);
        let fields: Vec<_> = value.split(':').collect();
        assert_eq!((fields[0], fields[1].len()), ("-t1", 16));
        assert_eq!((fields[2], fields[3]), (claim.token().expose().as_str(), "1800000000000"));
        assert_eq!(fields.len(), 10, "round and fence follow");
    }

    /// The fence is the last field; a number that no server draws is not a fence.
    #[test]
    fn the_fence_of_a_value() {
        let (claim, writer, mut value) =
            (claim(Some("l"), None), ValueWriter::new(Token::random().unwrap()), Vec::new());
        writer.write_alone(&mut value, &claim).unwrap();
        let fence = |number: &str| {
            let value = LockValue::parse(&[&value, number.as_bytes()].concat());
            assert_eq!(value.token(), Some(claim.token()), "{number}");
            value.fence().map(Fence::server)
        };
        assert_eq!(fence("15000000000000"), Some(15_000_000_000_000));
        for none in ["", "0", "-1", "x", "1125899906842624"] {
            assert_eq!(fence(none), None, "{none}");
        }
        let shared = format!("-t1:{}:=run-7:1:h:1:u:p::::7", writer.client());
        assert_eq!(LockValue::parse(shared.as_bytes()).fence(), None, "its claims have one each");
    }

    /// `release_fast.lua` compares this much of a value.
    #[test]
    fn a_mark_is_the_start_of_the_value() {
        let (claim, writer) = (claim(None, None), ValueWriter::new(Token::random().unwrap()));
        let mut value = b"-".to_vec();
        writer.write(&mut value, &claim, UnixMillis(1)).unwrap();
        let mark = writer.mark("-", &claim.token().digits()).concat();
        assert_eq!((mark.as_bytes(), mark.len()), (&value[..53], 53));
    }

    /// An entry identifies the waiter; scripts find the token, the client and the rest by their offsets.
    #[test]
    fn the_form_of_an_entry() {
        let writer = ValueWriter::new(Token::random().unwrap())
            .waiter_lifetime(Duration::from_millis(4_500));
        let (claim, mut entry) = (claim(Some("a: b"), None), Vec::new());
        writer.write_entry(&mut entry, &claim).unwrap();
        let text = std::str::from_utf8(&entry).unwrap();
        assert_eq!(
            (&text[..32], &text[33..49]),
            (claim.token().expose().as_str(), writer.client())
        );
        assert!(text[49..].starts_with(" 30000 4500 :"), "{text}");
        let holder = waiter(&entry, UnixMillis(17)).unwrap();
        assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
        assert_eq!((holder.label.as_deref(), holder.since), (Some("a: b"), Some(UnixMillis(17))));
    }

    /// A29: a later version is reported as newer.
    #[test]
    fn a29_a_newer_version() {
        for raw in ["-t2:c:t:1", "*t10:\u{fc}", "-t2"] {
            let value = LockValue::parse(raw.as_bytes());
            assert_eq!((value.clone(), value.token()), (LockValue::Newer, None), "{raw}");
            assert_eq!(value.holder(None).to_string(), "a newer version of tenure");
        }
    }

    /// t60: anything else is foreign.
    #[test]
    fn t60_other_values_are_foreign() {
        for raw in ["", "x", "-t1:", "-t1:c:t:1", "-t1:c", "-t0:c", "-tx:c", "closed", "1234"] {
            assert_eq!(LockValue::parse(raw.as_bytes()), LockValue::Foreign, "{raw}");
        }
        assert_eq!(LockValue::parse(b"-t1:\xff"), LockValue::Foreign);
    }

    /// A closed lock still has its last holder and its token, unless an older version closed it.
    #[test]
    fn a_closed_value() {
        let claim = claim(Some("l"), None);
        let value = written(&claim);
        let rest = value.splitn(4, ':').nth(3).unwrap();
        let marked = format!("!{}", claim.token().expose());
        for (written, token) in [(marked.as_str(), Some(claim.token())), ("", None)] {
            let value = LockValue::parse(format!("-t1:closed:{written}:{rest}").as_bytes());
            assert_eq!(value.token(), token);
            let holder = value.holder(None);
            assert!(holder.cooling_down);
            assert_eq!(holder.label.as_deref(), Some("l"));
        }
    }

    /// The debug output of a value shows no token.
    #[test]
    fn t66_debug_hides_the_token() {
        let claim = claim(None, None);
        let value = LockValue::parse(written(&claim).as_bytes());
        assert!(!format!("{value:?}").contains(&claim.token().expose()));
    }
}
