//! Several keys at once: all of them, or none.
//!
//! In: keys and options. Out: a [`GuardAll`]. `multi/rounds.rs` acquires the keys, each as a lock of its own, so this
//! works on every engine.

mod rounds;

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::builder::{RequestBuilder, setters, trying_setters, waiting_setters};
use crate::engine::Engine;
use crate::error::Error;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::gate::Hold;
use crate::guard::{self, Held};
use crate::join::{self, Joined};
use crate::key::Key;
use crate::mode::Mode;
use crate::options::{Reentry, Renew, Wait, WithinProcess};
use crate::owner::Owner;
use crate::request::{Cancel, Request};
use crate::run::RunError;
use crate::time::Time;

/// The most keys of one request. Each is a lock of its own that must be renewed.
pub const KEYS_MAX: usize = 100;

/// The keys of a request, each once and in the order of their bytes, and how each is asked for.
#[derive(Default)]
pub(crate) struct KeySet {
    modes: BTreeMap<Key, Mode>,
    /// The error of the first key that is not valid.
    flaw: Option<Error>,
}

impl KeySet {
    pub(crate) fn exclusive(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut keys = KeySet::default();
        names.into_iter().for_each(|name| keys.add(Key::new(name.as_ref()), Mode::Exclusive));
        keys
    }

    /// Adds keys to read.
    pub(crate) fn read(&mut self, names: impl IntoIterator<Item = impl AsRef<str>>) {
        names.into_iter().for_each(|name| self.add(Key::new(name.as_ref()), Mode::Read));
    }

    /// Adds a key. One that is asked for in both ways is exclusive.
    pub(crate) fn add(&mut self, key: Result<Key, Error>, mode: Mode) {
        match key {
            Ok(key) if mode == Mode::Read => _ = self.modes.entry(key).or_insert(mode),
            Ok(key) => _ = self.modes.insert(key, mode),
            Err(flaw) => _ = self.flaw.get_or_insert(flaw),
        }
    }

    /// The first key, or the reason why the keys are refused.
    pub(crate) fn first(&self) -> Result<Key, Error> {
        let count = self.modes.len();
        match (&self.flaw, self.modes.keys().next()) {
            (Some(flaw), _) => Err(flaw.clone()),
            (None, None) => Err(Error::invalid("no key was given; ask for at least 1")),
            (None, Some(_)) if count > KEYS_MAX => Err(Error::invalid(format!(
                "{count} keys were asked for at once; ask for at most {KEYS_MAX}"
            ))),
            (None, Some(key)) => Ok(key.clone()),
        }
    }

    /// Checks all keys and options, before anything is sent.
    fn check(&self, request: &RequestBuilder) -> Result<(Arc<Engine>, Vec<Arc<Request>>), Error> {
        self.first()?;
        let asks = self.modes.iter().map(|(key, mode)| {
            let (_, ask) = request.for_key(key, mode).check()?;
            Ok(ask)
        });
        Ok((request.engine.clone(), asks.collect::<Result<_, Error>>()?))
    }

    /// Acquires all keys.
    pub(crate) fn lock(
        &self,
        mut request: RequestBuilder,
    ) -> impl Future<Output = Result<GuardAll, Error>> + Send + use<> {
        let (cancel, checked): (Option<Cancel>, _) = (request.cancel.take(), self.check(&request));
        async move {
            let (engine, asks) = checked?;
            Ok(GuardAll::new(rounds::lock(&engine, &asks, cancel).await?))
        }
    }

    /// Acquires all keys; `None` if one is busy.
    pub(crate) fn try_lock(
        &self,
        request: RequestBuilder,
    ) -> impl Future<Output = Result<Option<GuardAll>, Error>> + Send + use<> {
        let locked = self.lock(request);
        async move {
            match locked.await {
                Err(error) if error.is_busy() => Ok(None),
                other => other.map(Some),
            }
        }
    }
}

/// A request for several keys, all or none: set options, then `.await` it for a [`GuardAll`], or [`run`](Self::run)
/// code under all of them. The options apply to each key; a limit on waiting applies to the whole.
///
/// Each key counts once, and the order in which the keys are given has no effect: tenure sorts them by their bytes.
/// First all keys are tried at once. If some are busy, the request waits for the first of them in its queue. Meanwhile
/// it holds the smaller keys, and has released the larger ones. So requests for several keys never dead-lock with each
/// other, whatever their keys are. Until all keys are held nothing is reported, and a lease that is lost before that is
/// asked for again.
///
/// What this order cannot see: a task that holds another lock, and then asks for several keys. If it holds a key that
/// is larger than one that it asks for, two such tasks can wait for each other; when it waits, the log warns. Ask for
/// all keys in one request. While it waits for a busy key, the request keeps others from the smaller keys. With
/// [`attempts`](Self::attempts) it never waits while it holds a key, and has no place in a queue.
///
/// [`max_hold`](Self::max_hold) counts from the moment when all keys are held. Without [renewal](Self::renew) a key
/// can expire while the request waits for a larger one, and is then asked for again.
///
/// # Cancel safety
///
/// The future can be dropped at any await point: no lock and no queue entry is left behind.
///
/// # Errors
///
/// Those of [`LockRequest`](crate::LockRequest), about the key that was in the way:
/// [`Error::key`] and [`Error::holder`] name it. [`is_invalid`](Error::is_invalid) without a key, and for more than
/// [`KEYS_MAX`] keys. [`is_unsupported`](Error::is_unsupported) for [`read`](Self::read) on an engine without readers.
/// After an error all keys are released, if need be in the background.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use std::time::Duration;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("transfers"));
/// let both = locker.lock_all(["account:7", "account:3"]).wait(Duration::from_secs(5)).await?;
/// assert!(both.is_held());
/// assert!(both.keys().map(|key| key.as_str()).eq(["account:3", "account:7"]));
/// assert!(both.fence("account:7").is_some());
/// both.release().await?;
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request does nothing until it is awaited"]
pub struct LockAll(pub(crate) RequestBuilder, pub(crate) KeySet);

setters!(LockAll);
waiting_setters!(LockAll);

impl LockAll {
    /// Adds keys to hold together with other readers, as [`Locker::read`](crate::Locker::read) does. A key that is
    /// asked for in both ways is held exclusively.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("orders"));
    /// let one = locker.lock_all(["order:1"]).read(["prices"]).await?;
    /// let two = locker.lock_all(["order:2"]).read(["prices"]).await?;
    /// assert!(one.is_held() && two.is_held());
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(mut self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.1.read(keys);
        self
    }

    /// Cancels the wait when `signal` completes, as
    /// [`LockRequest::cancel_on`](crate::LockRequest::cancel_on) does.
    pub fn cancel_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.0.cancel = Some(Box::pin(signal));
        self
    }

    /// Runs `body` under all keys, and releases them on every way out, as
    /// [`LockRequest::run`](crate::LockRequest::run) does for one. If one key is lost, the body is dropped at its next
    /// await point, and then the others are released; the error names the key that was lost.
    ///
    /// The body runs in the scope of the request's [`Owner`], or of a new one: a lock of one of the keys inside it
    /// re-enters.
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] with the errors of [`LockAll`], and [`RunError::Lost`]. If only a release fails, the
    /// result of the body is returned; the release is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and releases all keys in the background.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("run-all"));
    /// let moved = locker.lock_all(["account:7", "account:3"]).run(async |held| {
    ///     println!("take with fence {:?}", held.fence("account:7"));
    ///     Ok::<_, std::io::Error>(100)
    /// });
    /// assert_eq!(moved.await??, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run<F, B, T, E>(self, body: F) -> Result<Result<T, E>, RunError<T>>
    where
        F: FnOnce(HeldAll) -> B,
        B: Future<Output = Result<T, E>>,
    {
        self.run_judged(body, Result::is_ok).await.map_err(RunError::of_success)
    }

    /// As [`run`](Self::run), for a body with any result; `succeeded` tells whether it succeeded.
    pub(crate) async fn run_judged<F, B, R>(
        mut self,
        body: F,
        succeeded: impl FnOnce(&R) -> bool,
    ) -> Result<R, RunError<R>>
    where
        F: FnOnce(HeldAll) -> B,
        B: Future<Output = R>,
    {
        self.0.key = self.1.first();
        let span = self.0.span();
        self.run_in_span(body, succeeded).instrument(span).await
    }

    async fn run_in_span<F, B, R>(
        mut self,
        body: F,
        succeeded: impl FnOnce(&R) -> bool,
    ) -> Result<R, RunError<R>>
    where
        F: FnOnce(HeldAll) -> B,
        B: Future<Output = R>,
    {
        let owner = self.0.some_owner();
        let guard = self.await.map_err(RunError::NotAcquired)?;
        let held = guard.held();
        let done = tokio::select! {
            // The loss is polled first, as in the `run` of one key. The body is dropped before the guard is.
            biased;
            (key, loss) = guard.lost() => {
                return Err(RunError::Lost { value: None, error: Error::lost(&key, loss) });
            }
            done = owner.scope(async move { body(held).await }) => done,
        };
        RunError::unless_lost(done, guard.release().await, succeeded)
    }
}

impl IntoFuture for LockAll {
    type Output = Result<GuardAll, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.1.lock(self.0))
    }
}

/// A request for several keys that does not fail if one is busy: `.await` it for `Some` [`GuardAll`], or `None`.
/// It tries once, unless [`wait`](Self::wait) is set.
///
/// Of two such requests that ask for the same keys at the same moment, both may get `None`: each holds what the other
/// needs. Use [`Locker::lock_all`](crate::Locker::lock_all) or [`wait`](Self::wait) where one of them must succeed.
///
/// # Cancel safety
///
/// The future can be dropped at any await point: no lock and no queue entry is left behind.
///
/// # Errors
///
/// Those of [`LockAll`], without [`is_busy`](Error::is_busy).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("try-all"));
/// let _one = locker.lock("account:3").await?;
/// assert!(locker.try_lock_all(["account:7", "account:3"]).await?.is_none());
/// assert!(locker.try_lock("account:7").await?.is_some(), "nothing is left behind");
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request does nothing until it is awaited"]
pub struct TryLockAll(pub(crate) RequestBuilder, pub(crate) KeySet);

setters!(TryLockAll);
trying_setters!(TryLockAll);

impl TryLockAll {
    /// Adds keys to hold together with other readers, as [`LockAll::read`] does.
    pub fn read(mut self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.1.read(keys);
        self
    }
}

impl IntoFuture for TryLockAll {
    type Output = Result<Option<GuardAll>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.1.try_lock(self.0))
    }
}

/// Several held keys. Dropping the guard releases all of them in the background; [`release`](Self::release) releases
/// them now and reports whether all were still held.
///
/// As with [`Guard`](crate::Guard), each key *was* granted: pass its [`fence`](Self::fence) to the resource that it
/// protects, and watch [`lost`](Self::lost).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("guard-all"));
/// let guard = locker.lock_all(["a", "b"]).await?;
/// tokio::select! {
///     (key, loss) = guard.lost() => println!("{key} was lost: {loss}"),
///     () = async { /* the work */ } => {}
/// }
/// guard.release().await?;
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "if unused, the locks are released at once"]
pub struct GuardAll {
    view: HeldAll,
    holds: Vec<Hold>,
}

impl GuardAll {
    fn new(holds: Vec<Hold>) -> Self {
        let view = HeldAll { held: holds.iter().map(Hold::view).collect() };
        GuardAll { view, holds }
    }

    /// The keys that are locked, in the order of their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.view.keys()
    }

    /// The fence of `key`; `None` if it is not one of the keys.
    pub fn fence(&self, key: &str) -> Option<Fence> {
        self.view.fence(key)
    }

    /// Whether every key can be relied on. Reads the clock and sends no request.
    pub fn is_held(&self) -> bool {
        self.view.is_held()
    }

    /// Waits until one of the keys is lost, and returns which one and why. The others are still held then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn lost(&self) -> (Key, Loss) {
        let (at, ended) = join::first(self.view.held.iter().map(Held::ended)).await;
        (self.view.held[at].key().clone(), ended.unwrap_or(Loss::Gone))
    }

    /// How much remains of the lease that ends first; zero if a key is lost.
    pub fn remaining(&self) -> Duration {
        self.view.held.iter().map(Held::remaining).min().unwrap_or_default()
    }

    /// Until when all keys can be relied on, if none is renewed.
    pub fn valid_until(&self) -> Time {
        let ends = self.holds.iter().map(|hold| hold.lease.valid_until());
        ends.min().unwrap_or(Time::NEVER)
    }

    /// Waits until less than `before` of one lease remains, or a lease has ended, as
    /// [`Guard::expiring`](crate::Guard::expiring) does. Dropping the future has no effect.
    pub async fn expiring(&self, before: Duration) {
        join::first(self.holds.iter().map(|hold| hold.lease.wait_expiring(before))).await;
    }

    /// Renews all leases now.
    ///
    /// # Errors
    ///
    /// The error about the first key that is lost, or else about the first whose renewal failed; see
    /// [`Guard::renew`](crate::Guard::renew).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each lease may or may not have been renewed.
    pub async fn renew(&self) -> Result<(), Error> {
        worst(Joined::new(self.holds.iter().map(Hold::renew)).await)
    }

    /// A view of the keys without the right to release them, for the code that works under them.
    pub fn held(&self) -> HeldAll {
        self.view.clone()
    }

    /// Releases all keys, and waits for the replies of the engine.
    ///
    /// # Errors
    ///
    /// The error about the first key that had been lost, or else about the first whose release failed; see
    /// [`Guard::release`](crate::Guard::release). The other keys are released all the same.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the releases continue in the background.
    pub async fn release(self) -> Result<(), Error> {
        worst(Joined::new(self.holds.into_iter().map(guard::release)).await)
    }
}

/// The first error of a loss, or else the first error.
fn worst<T>(done: Vec<Result<T, Error>>) -> Result<(), Error> {
    let mut failed: Vec<Error> = done.into_iter().filter_map(Result::err).collect();
    let first = failed.iter().position(Error::is_lost).unwrap_or(0);
    if failed.is_empty() { Ok(()) } else { Err(failed.swap_remove(first)) }
}

impl fmt::Debug for GuardAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&Key> = self.keys().collect();
        f.debug_struct("GuardAll").field("keys", &keys).field("is_held", &self.is_held()).finish()
    }
}

/// A view of several held keys, for the code that works under them. Cheap to clone; cannot release the locks.
#[derive(Clone, Debug)]
pub struct HeldAll {
    held: Arc<[Held]>,
}

impl HeldAll {
    /// The keys that are locked, in the order of their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.held.iter().map(Held::key)
    }

    /// The view of one key; `None` if it is not one of the keys.
    pub fn get(&self, key: &str) -> Option<&Held> {
        self.held.iter().find(|held| held.key().as_str() == key)
    }

    /// The fence of `key`; `None` if it is not one of the keys.
    pub fn fence(&self, key: &str) -> Option<Fence> {
        self.get(key).map(Held::fence)
    }

    /// Whether every key can be relied on. Also `false` after a release.
    pub fn is_held(&self) -> bool {
        self.held.iter().all(Held::is_held)
    }
}
