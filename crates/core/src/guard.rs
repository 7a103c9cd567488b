//! A held lock in the caller's hands: `Guard`, and the views and exports made from it.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::error::Error;
use crate::fault::{FaultKind, Loss};
use crate::fence::Fence;
use crate::gate::{Hold, LocalRelease, Member, PendingRelease};
use crate::grant::Release;
use crate::key::Key;
use crate::lease::{Ended, Lease};
use crate::mode::{Exclusive, HeldMode, Permits, Shared};
use crate::request::Request;
use crate::time::Time;
use crate::token::Token;

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lock is free, or the next waiter has it. If that waiter is a task of the same process, the lock
    /// was handed over in memory without a request: a loss that this process does not know of yet is not
    /// detected.
    Freed,
    /// The owner still holds the lock this many times.
    StillHeld(u32),
}

/// A held lock. Dropping the guard releases the lock in the background; [`release`](Self::release) releases
/// it now and reports whether it was still held.
///
/// The guard proves that the lock *was* granted, not that it *is* held: a paused process can outlive its
/// lease. Pass [`fence`](Self::fence) to the resource, and watch [`lost`](Self::lost).
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
/// The lock of a dropped guard is released by a background thread. The drop of the last
/// [`Locker`](crate::Locker) waits for that thread, for half a second at most and [not in every
/// case](crate::Locker#the-end-of-the-program); otherwise the lock stays for its ttl. To be sure, release the
/// guard, or shut down the locker:
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
pub struct Guard<M: HeldMode = Exclusive> {
    hold: Hold,
    mode: PhantomData<M>,
}

/// A key that is held together with other readers; see [`Locker::read`](crate::Locker::read).
///
/// It cannot be detached or exported, because a key with several holders would not say which one is meant. It can be
/// moved to another task or stored.
///
/// ```compile_fail
/// # async fn detaches(reader: tenure::ReadGuard) {
/// reader.detach();
/// # }
/// ```
pub type ReadGuard = Guard<Shared>;

/// One or more permits of a semaphore; see [`Locker::semaphore`](crate::Locker::semaphore). Like a
/// [`ReadGuard`], it cannot be detached or exported.
pub type Permit = Guard<Permits>;

impl<M: HeldMode> Guard<M> {
    pub(crate) fn new(hold: Hold, ask: &Request) -> Self {
        hold.lease.keep_min_hold(ask.options.min_hold);
        Guard { hold, mode: PhantomData }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.hold.engine
    }

    /// The key that is locked.
    pub fn key(&self) -> &Key {
        self.hold.lease.claim().key()
    }

    /// The fence of this grant: higher than that of every earlier grant of the key. [`Fence::NONE`] without
    /// fencing.
    pub fn fence(&self) -> Fence {
        self.hold.fence
    }

    /// How many times the owner held the lock when this guard was acquired, this guard included.
    pub fn depth(&self) -> u32 {
        self.hold.depth
    }

    /// Whether the lock can be relied on. Reads the clock and sends no request. `false` in a forked child.
    pub fn is_held(&self) -> bool {
        self.hold.is_valid()
    }

    /// How much of the lease remains; decades on an engine whose leases do not expire.
    pub fn remaining(&self) -> Duration {
        self.hold.lease.remaining()
    }

    /// Until when the lock can be relied on, if it is not renewed.
    pub fn valid_until(&self) -> Time {
        self.hold.lease.valid_until()
    }

    /// Waits until the lock is lost, and returns why. It has its own timer and depends on no other task; the
    /// clock includes the time that the machine is suspended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn lost(&self) -> Loss {
        self.held().ended().await.unwrap_or(Loss::Gone)
    }

    /// Waits until less than `before` of the lease remains, or the lease has ended: a warning *before* the
    /// loss. Dropping the future has no effect.
    pub async fn expiring(&self, before: Duration) {
        self.hold.lease.wait_expiring(before).await;
    }

    /// Waits until another process is known to wait for the key: a long reader can give way to a writer. For a
    /// reader and a permit, another task of this process counts too. Dropping the future has no effect.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let (one, other) = (Locker::new(Memory::space("c")), Locker::new(Memory::space("c")));
    /// let reader = one.read("report").await?;
    /// let writer = other.write("report").into_future();
    /// let gives_way = async {
    ///     reader.contended().await;
    ///     reader.release().await
    /// };
    /// let (written, read) = tokio::join!(writer, gives_way);
    /// # written?; read?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn contended(&self) {
        self.hold.engine.gates.watch_contention(&self.hold);
        self.hold.lease.claim().contended().await;
    }

    /// Renews the lease now.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if the lock is no longer held. On another error of the engine the lock is
    /// still held until [`valid_until`](Self::valid_until), and is renewed in the background as before.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may or may not have been renewed.
    pub async fn renew(&self) -> Result<(), Error> {
        self.hold.renew().await
    }

    /// A view of this lock without the right to release it, for the code that works under the lock.
    pub fn held(&self) -> Held {
        self.hold.view()
    }

    /// Releases the lock, and waits for the reply of the engine.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if the lock had been lost: another holder may have had it meanwhile.
    /// [`is_unknown`](Error::is_unknown) or [`is_unavailable`](Error::is_unavailable) if the engine did not
    /// answer; the release is then retried in the background until the ttl has passed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release continues in the background.
    pub async fn release(self) -> Result<Released, Error> {
        release(self.hold).await
    }
}

impl Guard {
    /// Gives up the guard without releasing the lock: the `Locker` renews it until
    /// [`Locker::release`](crate::Locker::release) is called with its key.
    pub fn detach(self) -> Detached {
        if self.hold.must_be_ours().is_ok() {
            self.hold.engine.gates.detach(&self.hold);
        }
        Detached { hold: self.hold.disarmed() }
    }
}

impl Guard<Permits> {
    /// How many permits these are.
    pub fn num_permits(&self) -> u32 {
        self.hold.lease.claim().mode().permits()
    }

    /// The number of a [numbered](crate::LockRequest::numbered) permit, below the capacity. No other holder has the
    /// same number at the same time, and the fences of a number rise: a resource can keep one fence per slot.
    pub fn slot(&self) -> Option<u32> {
        self.hold.lease.slot()
    }
}

impl<M: HeldMode> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Guard");
        shown.field("key", self.key()).field("fence", &self.fence().get());
        shown.field("is_held", &self.is_held()).finish()
    }
}

/// Ends a hold, and sends the release to the server if it was the last one.
pub(crate) async fn release(mut hold: Hold) -> Result<Released, Error> {
    hold.must_be_ours()?;
    // Read before the lease is handed to the next holder, who replaces its owner.
    let owner = hold.lease.owner();
    let parting = hold.release_local();
    let Hold { engine, lease, .. } = &hold;
    let departure = match parting {
        LocalRelease::StillHeld(count) => return Ok(Released::StillHeld(count)),
        LocalRelease::OthersRead => return Ok(Released::Freed),
        LocalRelease::HandedOver => {
            engine.observe.handed_over(lease, owner);
            return Ok(Released::Freed);
        }
        LocalRelease::Lost(lease, loss) => {
            engine.handle_loss(&lease);
            return Err(Error::lost(lease.claim().key(), loss));
        }
        LocalRelease::Depart(departure) => departure,
    };
    // Boxed, to keep the future small for a release that only hands over in memory.
    Box::pin(depart(engine, lease, departure)).await
}

async fn depart(
    engine: &Arc<Engine>,
    lease: &Arc<Lease>,
    departure: PendingRelease,
) -> Result<Released, Error> {
    let key = lease.claim().key();
    match engine.release(lease, departure.then()).await {
        Ok(answer) => {
            if answer == Release::NotHeld {
                engine.observe.lost(lease, &Loss::Gone);
                engine.observe.count_loss(departure.ask(), &Loss::Gone);
            }
            departure.done();
            released_or_lost(key, answer)
        }
        Err(fault) => {
            // If `departure` is dropped without `done`, the release is retried in the background. A refusal
            // is permanent, so there is nothing to retry.
            if fault.kind() == FaultKind::Refused {
                departure.done();
            }
            Err(Error::backend(Some(key), fault))
        }
    }
}

fn released_or_lost(key: &Key, answer: Release) -> Result<Released, Error> {
    match answer {
        Release::Freed => Ok(Released::Freed),
        Release::StillHeld(count) => Ok(Released::StillHeld(count)),
        Release::NotHeld => Err(Error::lost(key, Loss::Gone)),
    }
}

impl Hold {
    /// Renews the lease now, if the hold is still valid.
    pub(crate) async fn renew(&self) -> Result<(), Error> {
        self.must_be_ours()?;
        if !self.is_valid() {
            return Err(self.lost_error());
        }
        self.engine.renew_now(&self.lease).await
    }

    pub(crate) fn view(&self) -> Held {
        let (lease, member) = (self.lease.clone(), self.member.clone());
        Held { lease, serial: self.serial, fence: self.fence, member }
    }
}

/// A view of a held lock, for the code that works under it. Cheap to clone; cannot release the lock.
#[derive(Clone, Debug)]
pub struct Held {
    pub(crate) lease: Arc<Lease>,
    serial: u64,
    fence: Fence,
    member: Option<Arc<Member>>,
}

impl Held {
    /// The key that is locked.
    pub fn key(&self) -> &Key {
        self.lease.claim().key()
    }

    /// The fence of this grant.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The number of a [numbered](crate::LockRequest::numbered) permit, as [`Guard::slot`] returns it; `None` for
    /// every other lock.
    pub fn slot(&self) -> Option<u32> {
        self.lease.slot()
    }

    /// Whether the lock can be relied on. Also `false` after a release.
    pub fn is_held(&self) -> bool {
        self.is_ours() && self.lease.is_valid()
    }

    /// How much of the lease remains; zero after a release or a loss.
    pub fn remaining(&self) -> Duration {
        if self.is_ours() { self.lease.remaining() } else { Duration::ZERO }
    }

    /// Waits until the lock is no longer held: `Some` with the loss, or `None` if it was released. Dropping
    /// the future has no effect.
    pub async fn ended(&self) -> Option<Loss> {
        // The lease notifies us when it ends, and when it is handed to another task of this process.
        loop {
            let (changed, left) =
                (self.lease.changed(), self.member.as_ref().map(|it| it.changed()));
            if !self.is_ours() {
                return None;
            }
            match self.lease.ended() {
                Some(Ended::Lost(loss)) => return Some(loss),
                Some(Ended::Released) => return None,
                None => match left {
                    None => changed.await,
                    Some(left) => tokio::select! {
                        () = changed => {}
                        () = left => {}
                    },
                },
            }
        }
    }

    fn is_ours(&self) -> bool {
        !self.lease.is_forked()
            && self.lease.holder() == self.serial
            && self.member.as_ref().is_none_or(|member| !member.has_ended())
    }
}

/// A lock without a guard: its `Locker` renews it, and releases it by key. Dropping this value has no effect.
#[derive(Debug)]
pub struct Detached {
    /// Only identifies the hold; the `Locker` has the right to release it.
    hold: Hold,
}

impl Detached {
    /// The key that is locked.
    pub fn key(&self) -> &Key {
        self.hold.lease.claim().key()
    }

    /// The fence of this grant.
    pub fn fence(&self) -> Fence {
        self.hold.fence
    }

    /// Exports the lock for [`Locker::adopt`](crate::Locker::adopt) in another process. This process stops
    /// renewing it, so it must be adopted before its ttl has passed. Adopt it only once: two processes that
    /// adopt the same export hold the same lock.
    ///
    /// # Errors
    ///
    /// [`is_unsupported`](Error::is_unsupported) on an engine where a lock ends with its process,
    /// [`is_lost`](Error::is_lost) if it is lost already, [`is_invalid`](Error::is_invalid) if the owner
    /// holds it more than once, and errors of the engine. After an error the lock stays detached.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may stay detached; release it with
    /// [`Locker::release`](crate::Locker::release).
    pub async fn export(self) -> Result<ExportedLease, Error> {
        let Hold { engine, lease, fence, .. } = &self.hold;
        self.hold.must_be_ours()?;
        engine.must_be_adoptable(self.key())?;
        engine.gates.may_export(&self.hold)?;
        let relinquished = engine.bounded(engine.backend.relinquish(lease)).await;
        relinquished.map_err(|fault| Error::backend(Some(self.key()), fault))?;
        drop(engine.gates.export(&self.hold)?);
        engine.schedule.remove(lease);
        let (key, token) = (self.key().to_string(), lease.claim().token());
        Ok(ExportedLease { key, token, fence: *fence, ttl: lease.ttl() })
    }
}

/// An exported lock: all that another process needs to adopt it. Contains the token, so keep it secret.
///
/// Its text form is one line of JSON.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory, ExportedLease};
///
/// let (here, there) = (Locker::new(Memory::space("w")), Locker::new(Memory::space("w")));
/// let paper = here.lock("order:42").await?.detach().export().await?.to_string();
///
/// let written: ExportedLease = paper.parse()?;
/// let guard = there.adopt(&written).await?;
/// assert!(guard.is_held());
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedLease {
    pub(crate) key: String,
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
}

impl ExportedLease {
    /// An export from only a key and a token: enough to adopt and release the lock, but without its fence.
    /// After its adoption the lock is valid for at least `ttl`. Local waiters that need a fence get a new
    /// grant from the engine; re-entry needs `fencing(false)`.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use std::time::Duration;
    /// use tenure::{Key, Locker, Memory, ExportedLease};
    ///
    /// let (here, there) = (Locker::new(Memory::space("t")), Locker::new(Memory::space("t")));
    /// let token = here.lock("order:42").await?.detach().export().await?.token();
    ///
    /// let known = ExportedLease::from_token(&Key::new("order:42")?, token, Duration::from_secs(5));
    /// there.adopt(&known).await?.release().await?;
    /// assert!(here.try_lock("order:42").await?.is_some());
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_token(key: &Key, token: Token, ttl: Duration) -> Self {
        ExportedLease { key: key.to_string(), token, fence: Fence::NONE, ttl }
    }

    /// The token that the lock is held under. A secret: keep it out of logs.
    pub fn token(&self) -> Token {
        self.token
    }
}

impl fmt::Display for ExportedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for ExportedLease {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("not a written lease: {error}")))
    }
}
