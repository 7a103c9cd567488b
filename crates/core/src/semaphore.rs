//! Semaphores: at most so many holders of a key at a time, over all processes.

use crate::builder::{LockRequest, RequestBuilder, TryLockRequest};
use crate::error::Error;
use crate::key::Key;
use crate::locker::Locker;
use crate::mode::{Mode, Permits};

/// A key with permits. At most `capacity` permits are held at a time, over all processes.
///
/// The capacity belongs to the request, not to the key: a permit is granted if at most `capacity` permits are taken
/// with it. So a fleet can change the number one process after the other; the largest number in use is never
/// exceeded. [`Locker::lock`] of the same key waits until all permits are released, and keeps new ones out.
///
/// Permits are granted in the order of the requests. A request for many permits at the front holds back those
/// behind it, also smaller ones. A limit on the number of holders is no limit on the rate of calls.
///
/// Each request takes permits of its own, also if its [`Owner`](crate::Owner) holds some already, as with
/// `tokio::sync::Semaphore`.
///
/// Keys of locks, readers and permits are one name space: give semaphores names of their own, such as
/// `limit:reports`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let reports = Locker::new(Memory::space("permits")).semaphore("limit:reports", 2);
/// let (one, two) = (reports.acquire().numbered().await?, reports.acquire().numbered().await?);
/// assert_eq!((one.slot(), two.slot()), (Some(0), Some(1)));
/// assert!(reports.try_acquire().await?.is_none());
/// one.release().await?;
/// assert_eq!(reports.available_permits().await?, 1);
/// # drop(two);
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    locker: Locker,
    key: Box<str>,
    capacity: u32,
}

impl Semaphore {
    pub(crate) fn new(locker: Locker, key: &str, capacity: u32) -> Self {
        Semaphore { locker, key: key.into(), capacity }
    }

    /// The same key with another capacity. Permits that are held stay held, also if they are more than the new one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("capacities"));
    /// let two = locker.semaphore("limit:reports", 2);
    /// let both = two.acquire_many(2).await?;
    /// assert!(two.try_acquire().await?.is_none());
    /// assert!(two.with_capacity(3).try_acquire().await?.is_some());
    /// both.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_capacity(&self, capacity: u32) -> Self {
        Semaphore { capacity, ..self.clone() }
    }

    /// Returns a request for one permit: `.await` it for a [`Permit`](crate::Permit).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point: no permit and no queue entry is left behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("one-permit"));
    /// let permit = locker.semaphore("limit:reports", 2).acquire().await?;
    /// permit.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire(&self) -> LockRequest<Permits> {
        self.acquire_many(1)
    }

    /// Returns a request for `permits` permits at once, at most [`PERMITS_MAX`](crate::PERMITS_MAX). They are
    /// granted and released together.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point: no permit and no queue entry is left behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("many-permits"));
    /// let reports = locker.semaphore("limit:reports", 3);
    /// let heavy = reports.acquire_many(2).await?;
    /// assert_eq!(reports.available_permits().await?, 1);
    /// heavy.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_many(&self, permits: u32) -> LockRequest<Permits> {
        LockRequest::new(self.asks(RequestBuilder::new(self.locker.engine(), &self.key), permits))
    }

    /// As [`acquire`](Self::acquire), for a request that does not fail if no permit is free: `None` if there is none,
    /// or if another request waits.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point: no permit and no queue entry is left behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("try-permit"));
    /// let reports = locker.semaphore("limit:reports", 1);
    /// let permit = reports.try_acquire().await?.expect("it is free");
    /// assert!(reports.try_acquire().await?.is_none());
    /// permit.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_acquire(&self) -> TryLockRequest<Permits> {
        self.try_acquire_many(1)
    }

    /// As [`acquire_many`](Self::acquire_many), for a request that does not fail if too few permits are free: `None`,
    /// also if another request waits.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point: no permit and no queue entry is left behind.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("try-permits"));
    /// let reports = locker.semaphore("limit:reports", 3);
    /// let heavy = reports.try_acquire_many(2).await?.expect("three are free");
    /// assert!(reports.try_acquire_many(2).await?.is_none());
    /// heavy.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_acquire_many(&self, permits: u32) -> TryLockRequest<Permits> {
        let request = RequestBuilder::once(self.locker.engine(), Key::new(&self.key));
        TryLockRequest::new(self.asks(request, permits))
    }

    fn asks(&self, request: RequestBuilder, permits: u32) -> RequestBuilder {
        let mode = Mode::Permits { permits, capacity: self.capacity };
        RequestBuilder { separate: true, ..request.mode(mode) }
    }

    /// How many permits are free, as the engine sees it: for people. By the time that a program reads the number,
    /// it may have changed.
    ///
    /// # Errors
    ///
    /// Those of [`Locker::inspect`].
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let found = self.locker.inspect(&self.key).await?;
        let used = found.iter().flat_map(|lock| &lock.holders).map(|holding| match holding.mode {
            Mode::Permits { permits, .. } => permits,
            // The key is held otherwise: no permit is free.
            _ => self.capacity,
        });
        Ok(self.capacity.saturating_sub(used.fold(0, u32::saturating_add)))
    }
}
