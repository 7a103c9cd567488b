//! The builders behind `lock(..)` and `try_lock(..)`.
//!
//! In: a key and options. Out: a checked [`Request`] for `acquire.rs`.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::Span;

use crate::acquire;
use crate::engine::Engine;
use crate::error::Error;
use crate::guard::Guard;
use crate::key::Key;
use crate::mode::{Exclusive, HeldMode, Mode, PERMITS_MAX, Permits};
use crate::observe;
use crate::options::{Options, Reentry, Renew, Wait, WithinProcess};
use crate::owner::Owner;
use crate::request::{Cancel, Request};

/// The longest label and the longest reason, in characters; the rest is cut off. The server stores both with
/// the lock, and with every entry of its queue.
pub(crate) const WORDS_MAX: usize = 200;

pub(crate) fn cut(words: Arc<str>) -> Arc<str> {
    match words.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => words[..end].into(),
        None => words,
    }
}

/// A request while it is being built.
pub(crate) struct RequestBuilder {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Result<Key, Error>,
    pub(crate) options: Options,
    pub(crate) mode: Mode,
    pub(crate) numbered: bool,
    pub(crate) separate: bool,
    pub(crate) lone: bool,
    pub(crate) owner: Option<Owner>,
    pub(crate) alone: bool,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) cancel: Option<Cancel>,
}

impl RequestBuilder {
    pub(crate) fn new(engine: &Arc<Engine>, key: &str) -> Self {
        RequestBuilder::with(engine, Key::new(key), engine.defaults.plain)
    }

    /// For `try_lock`: no wait, whatever the locker's default is.
    pub(crate) fn once(engine: &Arc<Engine>, key: Result<Key, Error>) -> Self {
        let options = Options { wait: Wait::For(Duration::ZERO), ..engine.defaults.plain };
        RequestBuilder::with(engine, key, options)
    }

    /// A request with the defaults of `#[lock]`.
    pub(crate) fn of_attribute(engine: &Arc<Engine>, key: Result<Key, Error>) -> Self {
        RequestBuilder::with(engine, key, engine.defaults.attribute)
    }

    pub(crate) fn with(engine: &Arc<Engine>, key: Result<Key, Error>, options: Options) -> Self {
        RequestBuilder {
            engine: engine.clone(),
            key,
            options,
            mode: Mode::Exclusive,
            numbered: false,
            separate: false,
            lone: false,
            owner: Owner::current(),
            alone: false,
            label: None,
            reason: None,
            name: None,
            cancel: None,
        }
    }

    /// Sets how the key is asked for.
    pub(crate) fn mode(self, mode: Mode) -> Self {
        RequestBuilder { mode, ..self }
    }

    /// The same request for one of several keys. Its signal to cancel stays here.
    pub(crate) fn for_key(&self, key: &Key, mode: &Mode) -> Self {
        let (owner, alone) = (self.owner.clone(), self.alone);
        let (label, reason, name) = (self.label.clone(), self.reason.clone(), self.name.clone());
        let request = RequestBuilder::with(&self.engine, Ok(key.clone()), self.options);
        RequestBuilder { mode: mode.clone(), owner, alone, label, reason, name, ..request }
    }

    /// Validates the key and all options, before anything is sent.
    pub(crate) fn check(self) -> Result<(Arc<Engine>, Arc<Request>), Error> {
        let RequestBuilder { engine, key, options, mode, numbered, .. } = self;
        let RequestBuilder { separate, lone, owner, alone, label, reason, name, .. } = self;
        options.validate(&engine.can)?;
        validate_mode(&mode, numbered)?;
        let key = key?;
        let mode = match owner.as_ref().and_then(Owner::shared_id) {
            Some(id) if mode == Mode::Exclusive && !lone => Mode::SharedOwner(id.clone()),
            _ => mode,
        };
        let (series, asker) = Default::default();
        let request = Request {
            key,
            options,
            mode,
            numbered,
            separate,
            lone,
            owner,
            alone,
            label,
            reason,
            name,
            series,
            asker,
        };
        Ok((engine, Arc::new(request)))
    }

    /// The owner of this request: the one set, the one in scope, or a new one.
    pub(crate) fn some_owner(&mut self) -> Owner {
        self.owner = self.owner.take().or_else(Owner::current);
        self.alone = self.owner.is_none();
        self.owner.get_or_insert_with(Owner::new).clone()
    }

    /// The span of `run`, `#[lock]` and the layers.
    pub(crate) fn span(&self) -> Span {
        let key = self.key.as_ref().map_or("", |key| key.as_str());
        observe::run_span(self.name.as_deref(), key)
    }

    /// The runtime of the engine's background thread.
    pub(crate) fn background(&self) -> Result<Handle, Error> {
        self.engine.handle(self.key.as_ref().map_err(Clone::clone)?)
    }

    pub(crate) fn lock<M: HeldMode>(
        mut self,
    ) -> impl Future<Output = Result<Guard<M>, Error>> + Send {
        // Checked here and not inside the future, which would then also store the whole builder.
        let (cancel, checked) = (self.cancel.take(), self.check());
        async move {
            let (engine, ask) = checked?;
            let hold = acquire::lock(&engine, &ask, cancel).await;
            Ok(Guard::new(hold.map_err(|error| error.for_mode(&ask.mode))?, &ask))
        }
    }

    pub(crate) fn try_lock<M: HeldMode>(
        self,
    ) -> impl Future<Output = Result<Option<Guard<M>>, Error>> + Send {
        let checked = self.check();
        async move {
            let (engine, ask) = checked?;
            let hold = acquire::try_lock(&engine, &ask).await?;
            Ok(hold.map(|hold| Guard::new(hold, &ask)))
        }
    }
}

fn validate_mode(mode: &Mode, numbered: bool) -> Result<(), Error> {
    let Mode::Permits { permits, capacity } = *mode else { return Ok(()) };
    let refused = match (permits, capacity) {
        (_, 0) => "the capacity of a semaphore must not be 0".into(),
        (0, _) => "0 permits were asked for; ask for at least 1".into(),
        _ if permits > PERMITS_MAX => {
            format!(
                "{permits} permits were asked for at once; ask for at most {PERMITS_MAX}, in larger units"
            )
        }
        _ if permits > capacity => {
            format!("{permits} permits were asked for, and the semaphore has {capacity}")
        }
        _ if numbered && permits > 1 => {
            format!("{permits} permits were asked for with one number; ask for them one by one")
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(refused))
}

/// The setters of every builder: how the lease is kept. The builder is a tuple struct around a [`RequestBuilder`], and
/// may have a parameter for its mode: `lease_setters!(LockRequest<M>, M)`.
macro_rules! lease_setters {
    ($builder:ty $(, $mode:ident)?) => {
        impl$(<$mode: HeldMode>)? $builder {
            /// How long a dead holder keeps others out. Default 30 s; whole milliseconds, from 10 ms to a
            /// year. Some engines accept only whole seconds.
            ///
            /// The lease is [renewed](Self::renew) while the holder lives. So choose the ttl by how long
            /// others may wait after a crash, not by how long the work takes.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.0.options.ttl = ttl;
                self
            }

            /// The pause between two attempts, on engines that cannot notify a waiter. Default 100 ms, at
            /// least 10 ms.
            pub fn retry_interval(mut self, interval: Duration) -> Self {
                self.0.options.retry_interval = interval;
                self
            }

            /// How long the wait continues while the engine does not answer. Then it ends with an error that
            /// [is unavailable](Error::is_unavailable) or [is unknown](Error::is_unknown). Zero ends the wait
            /// at the first failure. Default: as long as the wait, if it has a limit; else see `wait`.
            ///
            /// The time counts from the first request of this wait that the engine does not answer, also if
            /// another task of this process sent it. A request that is under way does not delay the end. A
            /// single attempt ends then too: a wait of zero, and each of several attempts.
            pub fn unavailable_after(mut self, longest: Duration) -> Self {
                self.0.options.unavailable_after = Some(longest);
                self
            }

            /// When the lease is renewed while the lock is held. Default: at a third of the ttl.
            pub fn renew(mut self, renew: Renew) -> Self {
                self.0.options.renew = renew;
                self
            }

            /// The longest time to hold the lock. Then it is lost with
            /// [`Loss::MaxHold`](crate::backend::Loss::MaxHold) and released in the background. Default: no
            /// limit; at least 10 ms.
            pub fn max_hold(mut self, longest: Duration) -> Self {
                self.0.options.max_hold = Some(longest);
                self
            }

            /// The shortest time to keep others out. After an earlier release or shutdown the lock stays
            /// closed for the rest of that time. Use it for cron jobs on machines whose clocks differ.
            pub fn min_hold(mut self, shortest: Duration) -> Self {
                self.0.options.min_hold = shortest;
                self
            }

            /// Why the lock is held; shown to waiters and operators. Cut after 200 characters.
            pub fn reason(mut self, reason: impl Into<Arc<str>>) -> Self {
                self.0.reason = Some($crate::builder::cut(reason.into()));
                self
            }

            /// The name of this lock in metrics and spans: a template such as `order:{order_id}`, never the
            /// key itself, because there may be millions of keys.
            pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
                self.0.name = Some(name.into());
                self
            }
        }
    };
}
pub(crate) use lease_setters;

/// The setters of every builder of a lock.
macro_rules! setters {
    ($builder:ty $(, $mode:ident)?) => {
        $crate::builder::lease_setters!($builder $(, $mode)?);

        impl$(<$mode: HeldMode>)? $builder {
            /// Whether the grant has a fence. Default: yes. Without one,
            /// [`Guard::fence`](crate::Guard::fence) is [`Fence::NONE`](crate::Fence::NONE), and a resource
            /// cannot distinguish a stale holder from the current one; the server saves the work of counting.
            ///
            /// If an owner holds the lock without a fence and asks for it again with a fence, the error [is
            /// invalid](Error::is_invalid): its grant has no fence.
            pub fn fencing(mut self, fencing: bool) -> Self {
                self.0.options.fencing = fencing;
                self
            }

            /// A text that is shown with the lock, such as a trace id or a request id. It has no effect on
            /// who may hold the lock. Cut after 200 characters.
            pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
                self.0.label = Some($crate::builder::cut(label.into()));
                self
            }

            /// The owner of the lock, for re-entry. Default: the [`Owner`] in scope where the request is
            /// built, or none; in [`blocking`](crate::blocking) the thread.
            pub fn owner(mut self, owner: Owner) -> Self {
                self.0.owner = Some(owner);
                self
            }

            /// What happens if the owner holds the lock already. Default: it acquires it again, and both are
            /// counted.
            pub fn reentry(mut self, reentry: Reentry) -> Self {
                self.0.options.reentry = reentry;
                self
            }

            /// What happens if another owner in this process holds the lock. Default: wait in the queue.
            pub fn within_process(mut self, within: WithinProcess) -> Self {
                self.0.options.within_process = within;
                self
            }
        }
    };
}
pub(crate) use setters;

/// The setters of the builders that wait.
macro_rules! waiting_setters {
    ($builder:ty $(, $mode:ident)?) => {
        impl$(<$mode: HeldMode>)? $builder {
            /// The longest time to wait, for the holder or for a server that cannot be reached. Zero tries
            /// once.
            ///
            /// Default: no limit while another holds the lock. A server that cannot be reached ends the wait
            /// after its connect time-out and five retry intervals, 2.5 s in all, or after about a minute on
            /// engines with failover.
            pub fn wait(mut self, longest: Duration) -> Self {
                self.0.options.wait = Wait::For(longest);
                self
            }

            /// Waits without a limit, also for a server that cannot be reached.
            pub fn wait_forever(mut self) -> Self {
                self.0.options.wait = Wait::Forever;
                self
            }

            /// Does not queue: tries at most `most` times, with a pause of
            /// [`retry_interval`](Self::retry_interval). A limit set by [`wait`](Self::wait) applies too. An
            /// error of the engine ends it at once.
            pub fn attempts(mut self, most: u32) -> Self {
                self.0.options.attempts = Some(most);
                self
            }
        }
    };
}
pub(crate) use waiting_setters;

/// The setters of `try_lock`.
macro_rules! trying_setters {
    ($builder:ty $(, $mode:ident)?) => {
        impl$(<$mode: HeldMode>)? $builder {
            /// The longest time to wait before the result is `None`. Default: zero, whatever the locker's
            /// default is. If the engine has not answered at all by then, the result is an error, as with
            /// `lock`.
            pub fn wait(mut self, longest: Duration) -> Self {
                self.0.options.wait = Wait::For(longest);
                self
            }
        }
    };
}
pub(crate) use trying_setters;

/// A request for a lock: set options, then `.await` it for a [`Guard`], or [`run`](Self::run) code under the
/// lock.
///
/// Keep the guard in a named variable: `let _ = locker.lock(k).await?` releases the lock at once. While you
/// hold the lock, do not wait for a task that wants the same key: it waits for you. A task that asks again
/// for a lock that it holds waits for itself, unless both requests have the same [`owner`](Self::owner);
/// after a second this is logged as a warning.
///
/// # Cancel safety
///
/// The future can be dropped at any await point: no lock and no queue entry is left behind.
///
/// # Errors
///
/// - [`is_busy`](Error::is_busy): the limit on waiting was reached while another held the lock. With
///   [`within_process`](Self::within_process) or [`reentry`](Self::reentry) set to fail:
///   [`is_already_held`](Error::is_already_held).
/// - [`is_unknown`](Error::is_unknown) or [`is_unavailable`](Error::is_unavailable): the limit was reached
///   and the engine had not answered.
/// - [`is_cancelled`](Error::is_cancelled): the future given to [`cancel_on`](Self::cancel_on) completed.
/// - [`is_closed`](Error::is_closed): the locker was shut down.
/// - [`is_lost`](Error::is_lost): the owner has lost this lock, and still has a guard of it.
/// - [`is_invalid`](Error::is_invalid): a bad key, or options that are out of range or do not fit together.
/// - Other errors of the engine, such as [`is_refused`](Error::is_refused).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use std::time::Duration;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("requests"));
/// let guard = locker
///     .lock("order:42")
///     .ttl(Duration::from_secs(15))
///     .wait(Duration::from_secs(5))
///     .label("trace-7f3a")
///     .await?;
/// # drop(guard);
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request does nothing until it is awaited"]
pub struct LockRequest<M: HeldMode = Exclusive>(pub(crate) RequestBuilder, PhantomData<M>);

setters!(LockRequest<M>, M);
waiting_setters!(LockRequest<M>, M);

impl<M: HeldMode> LockRequest<M> {
    pub(crate) fn new(request: RequestBuilder) -> Self {
        LockRequest(request, PhantomData)
    }

    /// Cancels the wait when `signal` completes, with an error that [is cancelled](Error::is_cancelled). A
    /// grant that arrives at the same time wins.
    pub fn cancel_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.0.cancel = Some(Box::pin(signal));
        self
    }
}

impl LockRequest<Permits> {
    /// Gives the permit a number, its [slot](crate::Guard::slot): the lowest one that no other holder has. Only a
    /// request for a single permit can have one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("numbered"));
    /// let permit = locker.semaphore("limit:reports", 2).acquire().numbered().await?;
    /// assert_eq!(permit.slot(), Some(0));
    /// permit.release().await?;
    /// # Ok::<(), tenure::Error>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn numbered(mut self) -> Self {
        self.0.numbered = true;
        self
    }
}

impl<M: HeldMode> IntoFuture for LockRequest<M> {
    type Output = Result<Guard<M>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.lock())
    }
}

/// A request for a lock that does not fail if the lock is busy: `.await` it for `Some` [`Guard`], or `None`
/// if another holds the lock. It tries once, unless [`wait`](Self::wait) is set.
///
/// Keep the guard: `if locker.try_lock(k).await?.is_some()` releases the lock before its block runs. Write
/// `if let Some(_guard) = locker.try_lock(k).await?`.
///
/// If another task of this process is asking the engine for the same key at this moment, this request waits
/// for the reply to that task and returns the same result.
///
/// # Cancel safety
///
/// The future can be dropped at any await point: no lock and no queue entry is left behind.
///
/// # Errors
///
/// Those of [`LockRequest`], without [`is_busy`](Error::is_busy).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use std::time::Duration;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("tries"));
/// let _guard = locker.lock("order:42").await?;
/// let late = locker.try_lock("order:42").wait(Duration::from_millis(20)).await?;
/// assert!(late.is_none());
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request does nothing until it is awaited"]
pub struct TryLockRequest<M: HeldMode = Exclusive>(pub(crate) RequestBuilder, PhantomData<M>);

setters!(TryLockRequest<M>, M);
trying_setters!(TryLockRequest<M>, M);

impl<M: HeldMode> TryLockRequest<M> {
    pub(crate) fn new(request: RequestBuilder) -> Self {
        TryLockRequest(request, PhantomData)
    }
}

impl TryLockRequest<Permits> {
    /// Gives the permit a number, as [`LockRequest::numbered`].
    pub fn numbered(mut self) -> Self {
        self.0.numbered = true;
        self
    }
}

impl<M: HeldMode> IntoFuture for TryLockRequest<M> {
    type Output = Result<Option<Guard<M>>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.try_lock())
    }
}
