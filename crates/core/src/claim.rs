//! A claim: the request to hold a key, as the server gets to see it.
//!
//! In: what `request.rs` gathered. Out: what a backend needs to ask, and what it saw while asking.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::backend::{Fault, FaultKind, Loss};
use crate::key::Key;
use crate::time::{Time, UnixMillis};

/// The random identity of one claim: 128 bits. Whoever knows it can release the lock, so it is
/// never logged; `Debug` hides it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(u128);

impl Token {
    /// A new one from the system's source of randomness.
    ///
    /// # Errors
    ///
    /// What the system says when it has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Token(u128::from_be_bytes(bytes)))
    }

    /// A random byte, the same each time, to keep things apart that were made together.
    pub(crate) fn spread(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// The token as 32 hexadecimal digits. A secret: keep it out of logs.
    pub fn expose(self) -> String {
        self.digits().to_string()
    }

    /// The same, without a piece of memory of its own.
    pub fn digits(self) -> TokenDigits {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        TokenDigits(digits)
    }

    /// Reads what [`expose`](Self::expose) wrote; `None` if it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
        let add =
            |sum: u128, digit: &u8| Some(sum << 4 | u128::from(char::from(*digit).to_digit(16)?));
        digits.iter().try_fold(0, add).map(Token)
    }
}

/// The digits of a [`Token`], as text. As secret as the token.
#[derive(Clone, Copy)]
pub struct TokenDigits([u8; 32]);

impl std::ops::Deref for TokenDigits {
    type Target = str;

    fn deref(&self) -> &str {
        // Digits are text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for TokenDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigits(…)")
    }
}

/// Tokens in stock: the system is asked for many at once, since asking costs more than one is worth.
/// Not for a forked child, who would have the same.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    stock: Mutex<Vec<Token>>,
}

/// How many are asked for at once: what the system gives without being interrupted.
const STOCK: usize = 16;

impl Tokens {
    /// One that was never given before.
    pub(crate) fn next(&self) -> Result<Token, getrandom::Error> {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        if stock.is_empty() {
            let mut bytes = [[0; 16]; STOCK];
            getrandom::fill(bytes.as_flattened_mut())?;
            stock.extend(bytes.map(|bytes| Token(u128::from_be_bytes(bytes))));
        }
        stock.pop().map_or_else(Token::random, Ok)
    }
}

impl From<Token> for String {
    fn from(token: Token) -> String {
        token.expose()
    }
}

impl TryFrom<String> for Token {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Token::parse(&text).ok_or("a token is 32 hexadecimal digits")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How much of a key is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All of it, alone.
    Exclusive,
    /// `permits` of `capacity`: a semaphore's place, a reader's share, a writer's whole.
    Permits {
        /// How many this claim takes.
        permits: u32,
        /// How many there are.
        capacity: u32,
    },
}

/// Who is asking: the process, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Client {
    /// The machine's name.
    pub host: String,
    /// The process id there.
    pub pid: u32,
    /// The user's name, or `uid 1000` if it has none.
    pub user: String,
    /// The program's name.
    pub program: String,
}

impl Client {
    /// This process.
    pub fn this_process() -> &'static Client {
        static THIS: OnceLock<Client> = OnceLock::new();
        THIS.get_or_init(|| Client {
            host: host_name(),
            pid: std::process::id(),
            user: user_name(),
            program: program_name(),
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.user, self.host, self.pid)
    }
}

#[cfg(unix)]
fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".into())
}

/// By the user's number, since `USER` may be another's or missing, as under cron; by name where the
/// system's own list has one.
#[cfg(unix)]
fn user_name() -> String {
    let number = rustix::process::geteuid().as_raw().to_string();
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = list.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [name, _, uid, ..] if uid == number => Some(name.to_owned()),
        _ => None,
    });
    let named = named.or_else(|| std::env::var("USER").ok()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("uid {number}"))
}

#[cfg(not(unix))]
fn user_name() -> String {
    std::env::var("USERNAME").unwrap_or_else(|_| "unknown".into())
}

fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_stem().map_or_else(|| "unknown".into(), |name| name.to_string_lossy().into_owned())
}

/// A lock's holder as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// The process; `None` if a program that is not ours holds it, or its record cannot be read.
    pub client: Option<Client>,
    /// Since when, by the holder's wall clock.
    pub since: Option<UnixMillis>,
    /// What the caller named this claim, if it did: a trace or request id.
    pub label: Option<String>,
    /// Why it is held, if the caller said.
    pub reason: Option<String>,
    /// How much of the lease is left; `None` where a lease has no end.
    pub lease_left: Option<Duration>,
    /// Released already, and kept closed for the rest of its minimum time.
    pub closing: bool,
    /// A newer version of tenure has it, whose record this one cannot read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newer: bool,
}

impl Holder {
    /// A holder of whom nothing is known.
    pub fn unknown() -> Self {
        Holder {
            client: None,
            since: None,
            label: None,
            reason: None,
            lease_left: None,
            closing: false,
            newer: false,
        }
    }

    /// A holder of a newer version of tenure, of whom nothing else can be read.
    pub fn newer() -> Self {
        Holder { newer: true, ..Holder::unknown() }
    }

    /// The holder that `claim` makes.
    pub fn of(claim: &Claim, since: UnixMillis) -> Self {
        Holder {
            client: Some(Client::this_process().clone()),
            since: Some(since),
            label: claim.label().map(Into::into),
            reason: claim.reason().map(Into::into),
            ..Holder::unknown()
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.client {
            Some(client) => client.fmt(f),
            None if self.newer => f.write_str("a newer version of tenure"),
            None => f.write_str("an unknown holder"),
        }
    }
}

/// What a waiting claim last saw: who is in the way, and how far from the front it is.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Sight {
    /// Who holds the lock.
    pub holder: Option<Holder>,
    /// Our place in the engine's queue, one for the next; `None` where the engine has none.
    pub place: Option<u64>,
    /// What keeps the engine from asking, for now.
    pub trouble: Option<Fault>,
}

impl Sight {
    /// A holder seen in the way, from this place in the queue.
    pub fn of(holder: Holder, place: Option<u64>) -> Self {
        Sight { holder: Some(holder), place, trouble: None }
    }

    /// Trouble with the server that may pass.
    pub fn trouble(fault: Fault) -> Self {
        Sight { trouble: Some(fault), ..Sight::default() }
    }

    /// The wait ended before the server had said anything.
    pub(crate) fn nothing_heard() -> Self {
        Sight::trouble(Fault::new(FaultKind::Unknown, "none came within the wait"))
    }
}

/// A request to hold a key: made once, sent as often as needed, always under the same token.
#[derive(Debug)]
pub struct Claim {
    key: Key,
    token: Token,
    terms: Terms,
    process: u32,
    seen: Mutex<Seen>,
    /// Told when the wait is to end because the locker is shut down, and of the first sight if
    /// somebody waits for that.
    told: Notify,
    /// When another process became known to wait; zero if none is. On the claim, as is its loss,
    /// since either may be told before the grant arrives.
    contended: AtomicU64,
    lost: OnceLock<Loss>,
    sent: AtomicBool,
}

/// What a backend has seen for a claim.
#[derive(Debug, Default)]
struct Seen {
    /// Boxed: it is large, and most claims see nobody.
    sight: Option<Box<Sight>>,
    /// Tasks of this process wait for the first sight.
    awaited: bool,
    closed: bool,
}

/// What a claim asks for. Made with [`Terms::new`] and its setters.
#[derive(Clone, Debug)]
pub struct Terms {
    mode: Mode,
    ttl: Duration,
    renewed: bool,
    fenced: bool,
    shared_owner: Option<Arc<str>>,
    label: Option<Arc<str>>,
    reason: Option<Arc<str>>,
    retry_interval: Duration,
}

impl Terms {
    /// An exclusive claim of `ttl` that will be renewed.
    pub fn new(ttl: Duration) -> Self {
        Terms {
            mode: Mode::Exclusive,
            ttl,
            renewed: true,
            fenced: true,
            shared_owner: None,
            label: None,
            reason: None,
            retry_interval: crate::options::RETRY_INTERVAL_DEFAULT,
        }
    }

    /// How much of the key is claimed.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether the holder will renew it. One that will not must not share a session with others that are.
    pub fn renewed(mut self, renewed: bool) -> Self {
        self.renewed = renewed;
        self
    }

    /// Whether the grant is to carry a fence. If not, an engine may save the work of counting.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.fenced = fenced;
        self
    }

    /// An owner that several processes declare to be the same; its claims count up instead of excluding each other.
    pub fn shared_owner(mut self, owner: Option<Arc<str>>) -> Self {
        self.shared_owner = owner;
        self
    }

    /// What to show for it.
    pub fn label(mut self, label: Option<Arc<str>>) -> Self {
        self.label = label;
        self
    }

    /// Why, for whoever waits.
    pub fn reason(mut self, reason: Option<Arc<str>>) -> Self {
        self.reason = reason;
        self
    }

    /// How long to pause between attempts where only polling can tell.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.retry_interval = interval;
        self
    }
}

impl Claim {
    /// A claim on `key` under a token of its own.
    pub fn new(key: Key, token: Token, terms: Terms) -> Self {
        Self::made_by(std::process::id(), key, token, terms)
    }

    /// The same for whoever has asked for the number of this process already, which is a call of the
    /// system each time.
    pub(crate) fn made_by(process: u32, key: Key, token: Token, terms: Terms) -> Self {
        let (seen, told, contended, lost, sent) = Default::default();
        Claim { key, token, terms, process, seen, told, contended, lost, sent }
    }

    /// What is claimed.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The claim's identity at the server.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The process that made it. One that was forked from that has none of its connections.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// How much of the key is claimed.
    pub fn mode(&self) -> Mode {
        self.terms.mode
    }

    /// How long the grant is to last, unless renewed.
    pub fn ttl(&self) -> Duration {
        self.terms.ttl
    }

    /// Whether it will be renewed.
    pub fn renewed(&self) -> bool {
        self.terms.renewed
    }

    /// Whether its grant carries a fence.
    pub fn fenced(&self) -> bool {
        self.terms.fenced
    }

    /// The owner that several processes share, if one was declared.
    pub fn shared_owner(&self) -> Option<&str> {
        self.terms.shared_owner.as_deref()
    }

    /// What to show for it.
    pub fn label(&self) -> Option<&str> {
        self.terms.label.as_deref()
    }

    /// Why it is held.
    pub fn reason(&self) -> Option<&str> {
        self.terms.reason.as_deref()
    }

    /// How long to pause between attempts where only polling can tell.
    pub fn retry_interval(&self) -> Duration {
        self.terms.retry_interval
    }

    /// Called by a backend before a request for this claim leaves: from now on something may have to be
    /// undone.
    pub fn set_sent(&self) {
        self.sent.store(true, Ordering::Release);
    }

    /// Whether a request for it may have left. Means something only to a backend that calls
    /// [`set_sent`](Self::set_sent): what it never sent, it need not undo.
    pub fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }

    /// Called by a backend while the claim waits: what is in the way.
    pub fn saw(&self, sight: Sight) {
        let mut seen = self.seen();
        seen.sight = Some(Box::new(sight));
        let awaited = std::mem::take(&mut seen.awaited);
        drop(seen);
        if awaited {
            self.told.notify_one();
        }
    }

    /// What the backend last saw in the way.
    pub fn sight(&self) -> Sight {
        self.seen().sight.as_deref().cloned().unwrap_or_default()
    }

    /// The same; if nothing was seen yet, the task in [`closed`](Self::closed) is told of the first sight.
    pub(crate) fn await_sight(&self) -> Option<Sight> {
        let mut seen = self.seen();
        seen.awaited |= seen.sight.is_none();
        seen.sight.as_deref().cloned()
    }

    /// Whether it last saw somebody in the way.
    pub(crate) fn sees_a_holder(&self) -> bool {
        self.seen().sight.as_deref().is_some_and(|sight| sight.holder.is_some())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait of whoever leads with this claim, now or when it comes to wait.
    pub(crate) fn close(&self) {
        self.seen().closed = true;
        self.told.notify_one();
    }

    /// Waits for that. Meanwhile calls `saw` when there is the first sight that somebody waits for.
    pub(crate) async fn closed(&self, saw: impl Fn()) {
        loop {
            self.told.notified().await;
            if self.seen().closed {
                return;
            }
            saw();
        }
    }

    /// Whether another process is known to wait.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended_since().is_some()
    }

    /// Since when.
    pub(crate) fn contended_since(&self) -> Option<Time> {
        let since = self.contended.load(Ordering::Acquire);
        (since != 0).then_some(Time::from_nanos(since))
    }

    /// Another process has been known to wait since `now`, or before. A backend that knows the claim may
    /// say so here, which wakes nobody, and otherwise by [`Notice::Contended`](crate::backend::Notice).
    pub fn set_contended(&self, now: Time) {
        let now = now.as_nanos().max(1);
        let _ = self.contended.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
    }

    /// What the server has said of its loss, if it has.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.lost.get()
    }

    pub(crate) fn set_lost(&self, loss: Loss) {
        let _ = self.lost.set(loss);
    }

    /// Whether a local waiter with `terms` can take this claim over as it stands at the server.
    /// Labels do not matter: to the server, the holder is the process.
    pub(crate) fn fits(&self, terms: &Terms) -> bool {
        self.terms.mode == terms.mode
            && self.terms.ttl == terms.ttl
            && self.terms.renewed == terms.renewed
            && self.terms.fenced == terms.fenced
            && self.terms.shared_owner.is_none()
            && terms.shared_owner.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token survives writing down, is 128 bits long, and shows itself to nobody who only debugs.
    #[test]
    fn tokens_round_trip_and_hide() {
        let token = Token::random().unwrap();
        assert_eq!(Token::parse(&token.expose()), Some(token));
        assert_eq!(token.expose().len(), 32);
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_ne!(token, Token::random().unwrap());
        assert_eq!(Token::parse("+0000000000000000000000000000001"), None);
    }
}
