//! The value of a lock's key: who holds it, in words that a person and a script can read.
//!
//! ```text
//! -t1:<client>:<token>:<since>:<host>:<pid>:<user>:<program>:<label>:<reason>
//! ```
//!
//! `-` says that nobody waits, `*` that somebody does; `t1` is the version of the format; `client` is
//! the process's random id, `token` the claim's (or `=` and the owner that several processes share),
//! `since` the wall clock in milliseconds, the holder's or, where the lock was handed over, the
//! server's. The rest is for people: percent-encoded, and missing from the end on where
//! there is nothing to say. A lock that was released and is kept closed has the client `closed` and no
//! token. A value with a later version is a *newer* tenure's, which this one cannot read. A value of any
//! other form is *foreign*: a `SET NX` client's. Neither is ever touched.

use std::io::{self, Write};
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Client, Holder, Token};

use crate::scripts::millis;

/// What would end a field, or could not be told from an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b':').add(b'%');
/// What stands for the client in a closed lock.
const CLOSED: &str = "closed";

/// The part of a value that is the same for all claims of this process, written once.
#[derive(Clone, Debug)]
pub(crate) struct Author {
    client: String,
    about: String,
    /// For how many milliseconds one that comes to wait is believed to be alive.
    believed: String,
}

impl Author {
    /// This process under a random id.
    pub(crate) fn new(id: Token) -> Self {
        let Client { host, pid, user, program } = Client::this_process();
        let pid = pid.to_string();
        let about = [host, &pid, user, program].map(|field| escape(field)).join(":");
        // Half of it tells processes apart as well as all of it.
        Author { client: id.expose()[..16].into(), about, believed: "0".into() }
    }

    /// The same where those who come to wait are believed to be alive for so long.
    pub(crate) fn believed(self, believed: Duration) -> Self {
        Author { believed: millis(believed).to_string(), ..self }
    }

    /// The process's id on the server.
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// What the lock's value starts with while the claim with this token has it, in parts. `give.lua`
    /// and `pass.lua` know how long it is; the one wants it with its flag, the other without.
    pub(crate) fn mark<'a>(&'a self, flag: &'a str, token: &'a str) -> [&'a str; 5] {
        [flag, "t1:", &self.client, ":", token]
    }

    /// Writes what the lock's key is to hold from now on, while nobody waits.
    pub(crate) fn write_alone(&self, to: &mut dyn Write, claim: &Claim) -> io::Result<()> {
        to.write_all(b"-")?;
        self.write(to, claim, UnixMillis::now())
    }

    /// Writes what the lock's key is to hold while `claim` has it, without the flag. By hand: there is
    /// one for each lock, and the machinery of `format!` costs as much as all the rest.
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

    /// Writes what stands in the queue for `claim`, always the same: see `scripts/queue.lua`.
    pub(crate) fn write_place(&self, to: &mut dyn Write, claim: &Claim) -> io::Result<()> {
        let (token, ttl) = (claim.token().digits(), millis(claim.ttl()).to_string());
        let parts = [&*token, " ", &self.client, " ", &ttl, " ", &self.believed, " "];
        parts.iter().try_for_each(|part| to.write_all(part.as_bytes()))?;
        if let Some(owner) = claim.shared_owner() {
            to.write_all(shared(owner).as_bytes())?;
        }
        self.write_words(to, claim)
    }

    /// The words for people, each with a colon before it.
    fn write_words(&self, to: &mut dyn Write, claim: &Claim) -> io::Result<()> {
        let mut put =
            |parts: &[&str]| parts.iter().try_for_each(|part| to.write_all(part.as_bytes()));
        put(&[":", &self.about])?;
        if claim.label().is_some() || claim.reason().is_some() {
            put(&[":", &escape(claim.label().unwrap_or_default())])?;
        }
        claim.reason().map_or(Ok(()), |reason| put(&[":", &escape(reason)]))
    }
}

/// What stands in the place of the token where an owner that several processes share holds the lock.
pub(crate) fn shared(owner: &str) -> String {
    format!("={}", escape(owner))
}

fn escape(field: &str) -> String {
    utf8_percent_encode(field, ESCAPED).to_string()
}

/// What a lock's key says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A claim of ours holds it; `None` for the token where an owner shares it with others.
    Held { holder: Box<Holder>, token: Option<Token> },
    /// Nobody holds it, and nobody may for a while.
    Closing(Box<Holder>),
    /// The format of a newer version.
    Newer,
    /// Not our format.
    Foreign,
}

impl Said {
    pub(crate) fn parse(raw: &[u8]) -> Self {
        let said = std::str::from_utf8(raw).ok().and_then(parse);
        said.unwrap_or(if is_newer(raw) { Said::Newer } else { Said::Foreign })
    }

    /// The holder as others see it, with what is left of the lease.
    pub(crate) fn holder(self, left: Option<Duration>) -> Holder {
        let mut holder = match self {
            Said::Held { holder, .. } | Said::Closing(holder) => *holder,
            Said::Newer => Holder::newer(),
            Said::Foreign => Holder::unknown(),
        };
        holder.lease_left = left;
        holder
    }

    /// Whether an owner holds it that several processes share.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Said::Held { token: None, .. })
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Said::Held { token, .. } => *token,
            Said::Closing(_) | Said::Newer | Said::Foreign => None,
        }
    }
}

/// Whether a value starts with a flag and a version after `t1`.
fn is_newer(raw: &[u8]) -> bool {
    let [b'-' | b'*', b't', rest @ ..] = raw else { return false };
    let digits = rest.split(|byte| *byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok());
    number.is_some_and(|number| number > 1)
}

fn parse(text: &str) -> Option<Said> {
    let body = text.strip_prefix("-t1:").or_else(|| text.strip_prefix("*t1:"))?;
    let mut fields = body.split(':');
    let (client, token) = (fields.next()?, fields.next()?);
    let since = fields.next()?.parse().ok().map(UnixMillis);
    let mut holder = about(&fields.collect::<Vec<_>>());
    holder.since = since;
    if client == CLOSED && token.is_empty() {
        holder.closing = true;
        return Some(Said::Closing(Box::new(holder)));
    }
    let (holder, found) = (Box::new(holder), Token::parse(token));
    (found.is_some() || token.starts_with('=')).then_some(Said::Held { holder, token: found })
}

/// Who stands at a place in a queue.
pub(crate) fn waiter(place: &[u8], since: UnixMillis) -> Option<Holder> {
    let (_, words) = std::str::from_utf8(place).ok()?.split_once(':')?;
    let mut holder = about(&words.split(':').collect::<Vec<_>>());
    holder.since = Some(since);
    Some(holder)
}

/// What the note says. A note that is cut short or unreadable costs the words, not the lock.
fn about(fields: &[&str]) -> Holder {
    let field = |index: usize| fields.get(index).and_then(|field| unescape(field));
    let mut holder = Holder::unknown();
    holder.client = client(&field);
    holder.label = field(4).filter(|label| !label.is_empty());
    holder.reason = field(5).filter(|reason| !reason.is_empty());
    holder
}

fn client(field: &impl Fn(usize) -> Option<String>) -> Option<Client> {
    let pid = field(1)?.parse().ok()?;
    Some(Client { host: field(0)?, pid, user: field(2)?, program: field(3)? })
}

fn unescape(field: &str) -> Option<String> {
    percent_decode_str(field).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{Key, Terms};

    use super::*;

    fn claim(label: Option<&str>, reason: Option<&str>) -> Claim {
        let terms = Terms::new(Duration::from_secs(30));
        let terms = terms.label(label.map(Arc::from)).reason(reason.map(Arc::from));
        Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms)
    }

    fn written(claim: &Claim) -> String {
        let mut text = b"-".to_vec();
        let author = Author::new(Token::random().unwrap());
        author.write(&mut text, claim, UnixMillis(1_800_000_000_000)).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// What is written is read back, also with the characters that mean something to the format.
    #[test]
    fn values_round_trip() {
        let words =
            [(None, None), (Some("a:b%3A\n"), None), (None, Some("ü:")), (Some("l"), Some("r"))];
        for (label, reason) in words {
            let claim = claim(label, reason);
            let said = Said::parse(written(&claim).as_bytes());
            assert_eq!(said.token(), Some(claim.token()));
            let holder = said.holder(Some(Duration::from_secs(3)));
            assert_eq!(holder.client.as_ref(), Some(Client::this_process()));
            assert_eq!((holder.label.as_deref(), holder.reason.as_deref()), (label, reason));
            assert_eq!(holder.since, Some(UnixMillis(1_800_000_000_000)));
            assert_eq!(holder.lease_left, Some(Duration::from_secs(3)));
        }
    }

    /// The start of a value is what scripts look at: flag, version, client, token, since.
    #[test]
    fn the_form() {
        let claim = claim(None, None);
        let value = written(&claim);
        let fields: Vec<_> = value.split(':').collect();
        assert_eq!((fields[0], fields[1].len()), ("-t1", 16));
        assert_eq!((fields[2], fields[3]), (claim.token().expose().as_str(), "1800000000000"));
        assert_eq!(fields.len(), 8, "nothing is written where there is nothing to say");
    }

    /// `give.lua` compares this much of a value.
    #[test]
    fn a_mark_is_the_start_of_the_value() {
        let (claim, author) = (claim(None, None), Author::new(Token::random().unwrap()));
        let mut value = b"-".to_vec();
        author.write(&mut value, &claim, UnixMillis(1)).unwrap();
        let mark = author.mark("-", &claim.token().digits()).concat();
        assert_eq!((mark.as_bytes(), mark.len()), (&value[..53], 53));
    }

    /// A place says who waits; scripts find the token, the client and the rest by where they stand.
    #[test]
    fn the_form_of_a_place() {
        let author = Author::new(Token::random().unwrap()).believed(Duration::from_millis(4_500));
        let (claim, mut place) = (claim(Some("a: b"), None), Vec::new());
        author.write_place(&mut place, &claim).unwrap();
        let text = std::str::from_utf8(&place).unwrap();
        assert_eq!(
            (&text[..32], &text[33..49]),
            (claim.token().expose().as_str(), author.client())
        );
        assert!(text[49..].starts_with(" 30000 4500 :"), "{text}");
        let holder = waiter(&place, UnixMillis(17)).unwrap();
        assert_eq!(holder.client.as_ref(), Some(Client::this_process()));
        assert_eq!((holder.label.as_deref(), holder.since), (Some("a: b"), Some(UnixMillis(17))));
    }

    /// A29: a version to come is called so.
    #[test]
    fn a29_a_newer_version() {
        for raw in ["-t2:c:t:1", "*t10:\u{fc}", "-t2"] {
            let said = Said::parse(raw.as_bytes());
            assert_eq!((said.clone(), said.token()), (Said::Newer, None), "{raw}");
            assert_eq!(said.holder(None).to_string(), "a newer version of tenure");
        }
    }

    /// t60: anything else is foreign.
    #[test]
    fn t60_other_values_are_foreign() {
        for raw in ["", "x", "-t1:", "-t1:c:t:1", "-t1:c", "-t0:c", "-tx:c", "closed", "1234"] {
            assert_eq!(Said::parse(raw.as_bytes()), Said::Foreign, "{raw}");
        }
        assert_eq!(Said::parse(b"-t1:\xff"), Said::Foreign);
    }

    /// A closed lock has no token to be released by, and still says who closed it.
    #[test]
    fn a_closed_value() {
        let value = written(&claim(Some("l"), None));
        let rest = value.splitn(4, ':').nth(3).unwrap();
        let said = Said::parse(format!("-t1:closed::{rest}").as_bytes());
        assert_eq!(said.token(), None);
        let holder = said.holder(None);
        assert!(holder.closing);
        assert_eq!(holder.label.as_deref(), Some("l"));
    }

    /// A holder that is debugged shows no token.
    #[test]
    fn t66_debug_hides_the_token() {
        let claim = claim(None, None);
        let said = Said::parse(written(&claim).as_bytes());
        assert!(!format!("{said:?}").contains(&claim.token().expose()));
    }
}
