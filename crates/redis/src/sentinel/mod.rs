//! Which server is the master, by the word of Sentinels.
//!
//! In: the addresses of Sentinels and the name of a service. Out: the address of its master now, and
//! how often that has changed.
//!
//! Sentinels may disagree: one that is cut off from the others still names the former master. Each of
//! their configurations has an epoch, which rises with every failover; the highest is right, and one
//! that is lower than we have seen before is never followed. So a former master that comes back, or
//! that an isolated Sentinel still names, is not trusted, whatever role it claims for itself. (What a
//! server says of itself is checked as well, see `link/connect.rs`.)
//!
//! In reading order: `url` is where this is asked for, `ask` asks one Sentinel, this file compares
//! their words, `listen` listens.

pub(crate) mod url;
mod ask;
mod listen;
#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Clock, Time};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::link::Dial;
use crate::trouble::{Cause, Trouble};
use crate::url::Address;
pub(crate) use ask::Word;

/// How long the rest are waited for when more than half have answered.
const LAGGARDS: Duration = Duration::from_millis(50);
/// For how long more than half of the Sentinels have to name the same master in an epoch that is lower
/// than we have seen, until they are believed: they were set up anew, and count from the start. After
/// a failover those who have not heard of it yet do so within two seconds.
const ANEW_AFTER: Duration = Duration::from_secs(10);

/// The Sentinels of one service.
pub(crate) struct Sentinels {
    service: String,
    addresses: Vec<Address>,
    dial: Dial,
    clock: Clock,
    known: Mutex<Known>,
    /// Counts how often the master has changed; read at every reply.
    moves: AtomicU64,
    /// The same, for those who wait for it.
    news: watch::Sender<u64>,
}

/// What was learnt so far.
#[derive(Default)]
struct Known {
    master: Option<Word>,
    /// What most of them say now though its epoch is lower, and since when.
    doubt: Option<(Word, Time)>,
}

/// Where the master is, and how often it had changed before.
pub(crate) struct Found {
    pub(crate) address: Address,
    pub(crate) moves: u64,
}

/// Without the dial: it knows the password.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Sentinels {
    pub(crate) fn new(service: &str, addresses: &[Address], dial: Dial, clock: Clock) -> Self {
        let (service, addresses) = (service.into(), addresses.into());
        let (known, moves, news) = (Mutex::default(), AtomicU64::new(0), watch::Sender::new(0));
        Sentinels { service, addresses, dial, clock, known, moves, news }
    }

    /// What they call the master.
    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    /// Where they are, as they were named.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Who we are to them.
    pub(crate) fn dial(&self) -> &Dial {
        &self.dial
    }

    /// The service, and where its master was last known to be.
    pub(crate) fn shown(&self) -> String {
        match &self.known().master {
            Some(word) => format!("{} at {}", self.service, word.address),
            None => self.service.clone(),
        }
    }

    /// How often the master has changed, as far as is known.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Tells when it changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Waits until it has changed more often than `before`.
    pub(crate) async fn moved(&self, before: u64) {
        // We have the sender: it cannot end.
        let _ = self.changes().wait_for(|moves| *moves > before).await;
    }

    /// What to say to whoever connects to a server that is not the master any more.
    pub(crate) fn left(&self, address: &Address) -> Trouble {
        let what = format_args!("`{address}` is not the master any more");
        Trouble::new(Cause::Down, &self.service, what)
    }

    /// Asks all Sentinels where the master is.
    pub(crate) async fn find(self: &Arc<Self>) -> Result<Found, Trouble> {
        let (words, troubles) = self.ask_all().await;
        if words.is_empty() {
            return Err(self.nobody_knows(&troubles));
        }
        self.learn(&words);
        let known = self.known();
        let moves = self.moves();
        let master = known.master.as_ref().ok_or_else(|| self.nobody_knows(&troubles))?;
        Ok(Found { address: master.address.clone(), moves })
    }

    /// What each says, or why it says nothing. Those who take long are not waited for, once more than
    /// half have said something.
    async fn ask_all(self: &Arc<Self>) -> (Vec<Word>, Vec<Trouble>) {
        let mut asked = JoinSet::new();
        for address in &self.addresses {
            let (sentinels, address) = (self.clone(), address.clone());
            asked.spawn(async move { sentinels.ask(&address).await });
        }
        let (mut words, mut troubles) = (Vec::new(), Vec::new());
        let mut late = pin!(tokio::time::sleep(self.dial.connect_timeout() / 2));
        loop {
            let heard = tokio::select! {
                heard = asked.join_next() => heard,
                () = &mut late => None,
            };
            match heard {
                None => return (words, troubles),
                Some(Ok(Ok(word))) => words.push(word),
                Some(Ok(Err(trouble))) => troubles.push(trouble),
                Some(Err(_)) => {}
            }
            if self.is_majority(words.len()) {
                late.set(tokio::time::sleep(LAGGARDS));
            }
        }
    }

    fn is_majority(&self, count: usize) -> bool {
        count > self.addresses.len() / 2
    }

    /// Takes in what some of them say, and counts a move if another server is the master by that.
    fn learn(&self, words: &[Word]) {
        let mut known = self.known();
        let Some(word) = self.best(&mut known, words) else { return };
        let before = known.master.replace(word.clone());
        let Some(before) = before.filter(|before| before.address != word.address) else { return };
        tracing::info!(service = self.service, from = %before.address, to = %word.address,
            epoch = word.epoch, "another server is the master");
        // With the mutex held: whoever reads the new address reads the new count.
        let moves = self.moves.fetch_add(1, Ordering::AcqRel) + 1;
        self.news.send_replace(moves);
    }

    /// The word to go by, if it is not what is known already.
    fn best(&self, known: &mut Known, words: &[Word]) -> Option<Word> {
        let epoch = words.iter().map(|word| word.epoch).max()?;
        if known.master.as_ref().is_some_and(|master| epoch < master.epoch) {
            return self.anew(known, words);
        }
        known.doubt = None;
        let mut newest = words.iter().filter(|word| word.epoch == epoch);
        match &known.master {
            // In one epoch there is one master. Who says otherwise is of a moment ago, or set up wrongly.
            Some(master) if epoch == master.epoch => {
                newest.find(|word| *word != master && self.say_most(words, word))
            }
            _ => newest.next(),
        }
        .cloned()
    }

    /// The same where all of them are behind what is known: what most have said for long.
    fn anew(&self, known: &mut Known, words: &[Word]) -> Option<Word> {
        let most = words.iter().find(|word| self.say_most(words, word))?;
        let now = self.clock.now();
        let since = match &known.doubt {
            Some((doubt, since)) if doubt == most => *since,
            _ => now,
        };
        known.doubt = Some((most.clone(), since));
        (now >= since.after(ANEW_AFTER)).then(|| most.clone())
    }

    fn say_most(&self, words: &[Word], word: &Word) -> bool {
        self.is_majority(words.iter().filter(|other| *other == word).count())
    }

    /// Why there is no master to connect to. Where they refuse us, or know no such service, asking again
    /// is of no use.
    fn nobody_knows(&self, troubles: &[Trouble]) -> Trouble {
        let refused = !troubles.is_empty() && troubles.iter().all(Trouble::is_final);
        let cause = if refused { Cause::Refused } else { Cause::Down };
        let said: Vec<String> = troubles.iter().map(ToString::to_string).collect();
        let said = if said.is_empty() { "none answered in time".into() } else { said.join("; ") };
        Trouble::new(cause, &self.service, format_args!("no Sentinel names its master: {said}"))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
