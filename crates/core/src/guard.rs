//! What the caller holds: a guard, and what can be made of it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::{FaultKind, Loss, Release};
use crate::claim::Token;
use crate::engine::Engine;
use crate::error::Error;
use crate::fence::Fence;
use crate::gate::{Departure, Hold, Parting};
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::request::Ask;
use crate::time::Time;

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock is free, or the next one's. Where the next one is a task of the same process, nobody was
    /// asked: a loss that this process had not heard of is not found.
    Freed,
    /// The owner holds it so many times more.
    StillHeld(u32),
}

/// A held lock. Dropping it releases the lock in the background;
/// [`release`](Self::release) does so now and says whether it was still yours.
///
/// The guard proves that the lock *was* granted, not that it *is* held: a paused process can
/// outlive its lease. Give [`fence`](Self::fence) to the resource, and watch [`lost`](Self::lost).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory, Released};
///
/// let locker = Locker::new(Memory::space("guards"));
/// let guard = locker.lock("order:42").await?;
/// assert!(guard.is_held());
/// println!("write with fence {}", guard.fence());
/// assert_eq!(guard.release().await?, Released::Freed);
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Traps
///
/// `let _ = locker.lock(k).await?;` releases the lock at once, and `if locker.try_lock(k).await?.is_some()`
/// releases it before its block runs. Give the guard a name: `let _guard = …`, `if let Some(_guard) = …`.
///
/// A dropped guard is released by a background thread. At the end of `main` the process may end before that,
/// and the lock then stays for its ttl. Release the guard, or shut the locker down:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # use std::time::Duration;
/// # use tenure::{Locker, Memory};
/// # let locker = Locker::new(Memory::space("main"));
/// # let guard = locker.lock("order:42").await?;
/// drop(guard);
/// locker.shutdown(Duration::from_secs(5)).await; // the last line of `main`
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "if unused, the lock is released at once"]
pub struct Guard {
    hold: Hold,
}

impl Guard {
    pub(crate) fn new(hold: Hold, ask: &Ask) -> Self {
        hold.lease.keep_at_least(ask.options.at_least);
        Guard { hold }
    }

    /// What is locked.
    pub fn key(&self) -> &Key {
        self.hold.lease.claim().key()
    }

    /// The number of this grant, higher than that of every grant of this key before.
    pub fn fence(&self) -> Fence {
        self.hold.fence
    }

    /// How many times the owner held the lock when it got this guard, this one included.
    pub fn depth(&self) -> u32 {
        self.hold.depth
    }

    /// Whether the lock may be relied on. Asks the clock, not the server. False in a forked child.
    pub fn is_held(&self) -> bool {
        self.hold.is_valid()
    }

    /// How much of the lease is left; decades where it has no end of its own.
    pub fn remaining(&self) -> Duration {
        self.hold.lease.remaining()
    }

    /// Until when the lock may be relied on, if it is not renewed.
    pub fn valid_until(&self) -> Time {
        self.hold.lease.valid_until()
    }

    /// Waits until the lock is lost, and says why. Needs nobody else to be awake: it has its own
    /// timer, and the clock it looks at counts suspend.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does nothing.
    pub async fn lost(&self) -> Loss {
        self.held().ended().await.unwrap_or(Loss::Gone)
    }

    /// Waits until less than `before` of the lease is left: a warning *before* the loss.
    pub async fn endangered(&self, before: Duration) {
        self.hold.lease.wait_endangered(before).await;
    }

    /// Renews the lease now.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if it is not ours any more, or what kept the engine from answering;
    /// then the lock is held as long as the clock says.
    pub async fn renew(&self) -> Result<(), Error> {
        self.hold.must_be_ours()?;
        if !self.is_held() {
            return Err(self.hold.lost_error());
        }
        self.hold.engine.renew_now(&self.hold.lease).await
    }

    /// The same view without the right to release, for whoever works under the lock.
    pub fn held(&self) -> Held {
        self.hold.view()
    }

    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if it had been lost: somebody else may have held it meanwhile.
    /// [`is_unknown`](Error::is_unknown) or [`is_unavailable`](Error::is_unavailable) if the engine did
    /// not answer; it is asked again in the background until the ttl has passed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    pub async fn release(self) -> Result<Released, Error> {
        release(self.hold).await
    }

    /// Lets go of the guard without ending the hold: the `Locker` goes on renewing it until
    /// [`Locker::release`](crate::Locker::release) is called with its key.
    pub fn detach(self) -> Detached {
        if self.hold.must_be_ours().is_ok() {
            self.hold.engine.gates.detach(&self.hold);
        }
        Detached { hold: self.hold.disarmed() }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Guard");
        shown.field("key", self.key()).field("fence", &self.fence().get());
        shown.field("is_held", &self.is_held()).finish()
    }
}

/// Ends a hold and tells the server if it was the last.
pub(crate) async fn release(mut hold: Hold) -> Result<Released, Error> {
    hold.must_be_ours()?;
    // Before it is the next one's.
    let owner = hold.lease.owner();
    let parting = hold.part();
    let Hold { engine, lease, .. } = &hold;
    let departure = match parting {
        Parting::StillHeld(count) => return Ok(Released::StillHeld(count)),
        Parting::HandedOver => {
            engine.observe.handed_over(lease, owner);
            return Ok(Released::Freed);
        }
        Parting::Lost(lease, loss) => {
            engine.deal_with_loss(&lease);
            return Err(Error::lost(lease.claim().key(), loss));
        }
        Parting::Depart(departure) => departure,
    };
    // Boxed, so that a release that only hands over in memory is small.
    Box::pin(depart(engine, lease, departure)).await
}

async fn depart(
    engine: &Arc<Engine>,
    lease: &Arc<Lease>,
    departure: Departure,
) -> Result<Released, Error> {
    let key = lease.claim().key();
    match engine.release(lease, departure.then()).await {
        Ok(answer) => {
            departure.done();
            if answer == Release::NotHeld {
                engine.observe.lost(lease, &Loss::Gone);
            }
            told(key, answer)
        }
        Err(fault) => {
            // Dropped undone, it is asked again in the background. What the server refuses for
            // good, it will refuse again.
            if fault.kind() == FaultKind::Refused {
                departure.done();
            }
            Err(Error::backend(Some(key), fault))
        }
    }
}

fn told(key: &Key, answer: Release) -> Result<Released, Error> {
    match answer {
        Release::Freed => Ok(Released::Freed),
        Release::StillHeld(count) => Ok(Released::StillHeld(count)),
        Release::NotHeld => Err(Error::lost(key, Loss::Gone)),
    }
}

impl Hold {
    fn view(&self) -> Held {
        Held { lease: self.lease.clone(), serial: self.serial, fence: self.fence }
    }
}

/// A view of a held lock, for whoever works under it. Cheap to clone; cannot release.
#[derive(Clone, Debug)]
pub struct Held {
    lease: Arc<Lease>,
    serial: u64,
    fence: Fence,
}

impl Held {
    /// What is locked.
    pub fn key(&self) -> &Key {
        self.lease.claim().key()
    }

    /// The number of this grant.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether the lock may be relied on. False after a release, too.
    pub fn is_held(&self) -> bool {
        self.is_ours() && self.lease.is_valid()
    }

    /// How much of the lease is left.
    pub fn remaining(&self) -> Duration {
        if self.is_ours() { self.lease.remaining() } else { Duration::ZERO }
    }

    /// Waits until the lock is not held any more: `Some` loss, or `None` if it was released.
    pub async fn ended(&self) -> Option<Loss> {
        // The lease wakes us when it ends, and when it goes to another task of this process.
        loop {
            let changed = self.lease.changed();
            if !self.is_ours() {
                return None;
            }
            match self.lease.ended() {
                Some(Ended::Lost(loss)) => return Some(loss),
                Some(Ended::Released) => return None,
                None => changed.await,
            }
        }
    }

    fn is_ours(&self) -> bool {
        !self.lease.is_forked() && self.lease.holder() == self.serial
    }
}

/// A lock that outlives its guard: renewed by its `Locker`, released by key.
#[derive(Debug)]
pub struct Detached {
    /// Only to know it by: it has been left to the `Locker`.
    hold: Hold,
}

impl Detached {
    /// What is locked.
    pub fn key(&self) -> &Key {
        self.hold.lease.claim().key()
    }

    /// The number of this grant.
    pub fn fence(&self) -> Fence {
        self.hold.fence
    }

    /// Writes the lease down for [`Locker::adopt`](crate::Locker::adopt) in another process. This process
    /// stops renewing it, so it must be adopted before its ttl has passed, and once: whoever adopts
    /// the same paper holds the same lease.
    ///
    /// # Errors
    ///
    /// [`is_unsupported`](Error::is_unsupported) where a lock ends with its process,
    /// [`is_lost`](Error::is_lost) if it is lost already, [`is_invalid`](Error::is_invalid) if the owner
    /// holds it more than once. In each case it stays as it is.
    pub async fn write_down(self) -> Result<WrittenLease, Error> {
        let Hold { engine, lease, fence, .. } = &self.hold;
        self.hold.must_be_ours()?;
        engine.must_be_adoptable(self.key())?;
        engine.gates.may_carry_away(&self.hold)?;
        let let_go = engine.bounded(engine.backend.let_go(lease)).await;
        let_go.map_err(|fault| Error::backend(Some(self.key()), fault))?;
        drop(engine.gates.carry_away(&self.hold)?);
        engine.schedule.remove(lease);
        let (key, token) = (self.key().to_string(), lease.claim().token());
        Ok(WrittenLease { key, token, fence: *fence, ttl: lease.ttl() })
    }
}

/// A lease on paper: what another process needs to carry it on. Holds the token, so keep it secret.
///
/// Its text is one line of JSON.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory, WrittenLease};
///
/// let (here, there) = (Locker::new(Memory::space("w")), Locker::new(Memory::space("w")));
/// let paper = here.lock("order:42").await?.detach().write_down().await?.to_string();
///
/// let written: WrittenLease = paper.parse()?;
/// let guard = there.adopt(&written).await?;
/// assert!(guard.is_held());
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenLease {
    pub(crate) key: String,
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
}

impl WrittenLease {
    /// A lease of which only the key and the token were kept: enough to adopt and release it, without
    /// its fence. It lasts at least `ttl` from its adoption on. Tasks that wait behind it, and want a
    /// fence, get a grant of their own; to re-enter it, say `fencing(false)`.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use std::time::Duration;
    /// use tenure::{Key, Locker, Memory, WrittenLease};
    ///
    /// let (here, there) = (Locker::new(Memory::space("t")), Locker::new(Memory::space("t")));
    /// let token = here.lock("order:42").await?.detach().write_down().await?.token();
    ///
    /// let known = WrittenLease::from_token(&Key::new("order:42")?, token, Duration::from_secs(5));
    /// there.adopt(&known).await?.release().await?;
    /// assert!(here.try_lock("order:42").await?.is_some());
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_token(key: &Key, token: Token, ttl: Duration) -> Self {
        WrittenLease { key: key.to_string(), token, fence: Fence::NONE, ttl }
    }

    /// The token it is held under. A secret: keep it out of logs.
    pub fn token(&self) -> Token {
        self.token
    }
}

impl fmt::Display for WrittenLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for WrittenLease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("not a written lease: {error}")))
    }
}
