//! What the caller wants: the builders behind `lock(..)` and `try_lock(..)`.
//!
//! In: a key and options. Out: an [`Ask`] for `acquire.rs`, checked.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::acquire;
use crate::backend::BoxFuture;
use crate::claim::Terms;
use crate::engine::Engine;
use crate::error::Error;
use crate::guard::Guard;
use crate::key::Key;
use crate::options::{Options, Reentry, Renew, Wait, WithinProcess};
use crate::owner::Owner;

/// The longest label and the longest reason, in characters: the rest is cut off. Both are kept on the
/// server with the lock and with every place in its queue.
const WORDS_MAX: usize = 200;

pub(crate) fn cut(words: Arc<str>) -> Arc<str> {
    match words.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => words[..end].into(),
        None => words,
    }
}

/// What is asked for, on its way down.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    pub(crate) options: Options,
    pub(crate) owner: Option<Owner>,
    /// The owner was made for this request: nobody else asks as it before it holds the lock.
    pub(crate) alone: bool,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) name: Option<Arc<str>>,
}

impl Ask {
    /// What the server gets to see of it.
    pub(crate) fn terms(&self) -> Terms {
        Terms::new(self.options.ttl)
            .renewed(self.is_renewed())
            .fenced(self.options.fencing)
            .shared_owner(self.shared_owner().cloned())
            .label(self.label.clone())
            .reason(self.reason.clone())
            .retry_interval(self.options.retry_interval)
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.options.renew != Renew::Off
    }

    pub(crate) fn shared_owner(&self) -> Option<&Arc<str>> {
        self.owner.as_ref().and_then(Owner::shared_id)
    }
}

/// The fields of a request while it is being built.
pub(crate) struct Request {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Result<Key, Error>,
    pub(crate) options: Options,
    pub(crate) owner: Option<Owner>,
    pub(crate) alone: bool,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) cancel: Option<Cancel>,
}

/// What ends a wait from outside.
pub(crate) type Cancel = BoxFuture<'static, ()>;

impl Request {
    pub(crate) fn new(engine: &Arc<Engine>, key: &str) -> Self {
        Request::with(engine, Key::new(key), engine.defaults.plain)
    }

    /// The same with the defaults of `#[lock]`.
    pub(crate) fn of_attribute(engine: &Arc<Engine>, key: Result<Key, Error>) -> Self {
        Request::with(engine, key, engine.defaults.attribute)
    }

    fn with(engine: &Arc<Engine>, key: Result<Key, Error>, options: Options) -> Self {
        Request {
            engine: engine.clone(),
            key,
            options,
            owner: Owner::current(),
            alone: false,
            label: None,
            reason: None,
            name: None,
            cancel: None,
        }
    }

    /// Checks everything before anything is sent.
    fn check(self) -> Result<(Arc<Engine>, Arc<Ask>), Error> {
        let Request { engine, key, options, owner, alone, label, reason, name, .. } = self;
        options.validate(&engine.can)?;
        Ok((engine, Arc::new(Ask { key: key?, options, owner, alone, label, reason, name })))
    }

    /// The owner that asks: the one given, the one in scope, or a new one.
    pub(crate) fn some_owner(&mut self) -> Owner {
        self.owner = self.owner.take().or_else(Owner::current);
        self.alone = self.owner.is_none();
        self.owner.get_or_insert_with(Owner::new).clone()
    }

    /// The engine's own runtime.
    pub(crate) fn background(&self) -> Result<Handle, Error> {
        self.engine.handle(self.key.as_ref().map_err(Clone::clone)?)
    }

    pub(crate) fn lock(mut self) -> impl Future<Output = Result<Guard, Error>> + Send {
        // Here and not in the future, which would have room for all that goes in.
        let (cancel, checked) = (self.cancel.take(), self.check());
        async move {
            let (engine, ask) = checked?;
            let hold = acquire::lock(&engine, &ask, cancel).await?;
            Ok(Guard::new(hold, &ask))
        }
    }

    pub(crate) fn try_lock(self) -> impl Future<Output = Result<Option<Guard>, Error>> + Send {
        let checked = self.check();
        async move {
            let (engine, ask) = checked?;
            let hold = acquire::try_lock(&engine, &ask).await?;
            Ok(hold.map(|hold| Guard::new(hold, &ask)))
        }
    }
}

/// The setters that all builders share. `$field` is where the [`Request`] is.
macro_rules! setters {
    ($builder:ty) => {
        impl $builder {
            /// How long a dead holder keeps others out. Default 30 s; whole milliseconds, 10 ms to a year.
            ///
            /// While the holder lives, the lease is [renewed](Self::renew); so choose the ttl by how long
            /// others may be kept waiting by a crash, not by how long the work takes.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.0.options.ttl = ttl;
                self
            }

            /// How long to pause between looks where nobody tells when the lock is free. Default 100 ms,
            /// at least 10 ms.
            pub fn retry_interval(mut self, interval: Duration) -> Self {
                self.0.options.retry_interval = interval;
                self
            }

            /// When the lease is renewed while it is held. Default: at a third of the ttl.
            pub fn renew(mut self, renew: Renew) -> Self {
                self.0.options.renew = renew;
                self
            }

            /// The longest time to hold the lock: it is then lost by
            /// [`Loss::MaxHold`](crate::backend::Loss::MaxHold), and given back. Default: none; at least 10 ms.
            pub fn max_hold(mut self, longest: Duration) -> Self {
                self.0.options.max_hold = Some(longest);
                self
            }

            /// The shortest time to keep others out: a release that comes earlier, or a shutdown, leaves
            /// the lock closed for the rest. Keeps cron jobs on machines with different clocks apart.
            pub fn at_least(mut self, shortest: Duration) -> Self {
                self.0.options.at_least = shortest;
                self
            }

            /// Whether the grant carries a fence. Default: yes. Without one a resource cannot tell a
            /// stale holder from the present one; what it saves is the server's work of counting.
            /// The fence is then [`Fence::NONE`](crate::Fence::NONE).
            ///
            /// An owner that holds the lock without a fence and asks again for one with a fence gets an
            /// error that [is invalid](Error::is_invalid): there is no fence to give.
            pub fn fencing(mut self, fencing: bool) -> Self {
                self.0.options.fencing = fencing;
                self
            }

            /// What to show with the lock: a trace id, a request id. Of no effect on who may hold it.
            /// Cut after 200 characters.
            pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
                self.0.label = Some($crate::request::cut(label.into()));
                self
            }

            /// Why the lock is taken, shown to whoever waits. Cut after 200 characters.
            pub fn reason(mut self, reason: impl Into<Arc<str>>) -> Self {
                self.0.reason = Some($crate::request::cut(reason.into()));
                self
            }

            /// Who asks. Default: the [`Owner`] in scope where the request was built, or nobody.
            pub fn owner(mut self, owner: Owner) -> Self {
                self.0.owner = Some(owner);
                self
            }

            /// What happens if the owner holds the lock already. Default: it gets it again, counted.
            pub fn reentry(mut self, reentry: Reentry) -> Self {
                self.0.options.reentry = reentry;
                self
            }

            /// What happens if another owner of this process holds the lock. Default: wait one's turn.
            pub fn within_process(mut self, within: WithinProcess) -> Self {
                self.0.options.within_process = within;
                self
            }

            /// The name under which metrics count this lock: a template such as `order:{order_id}`,
            /// never the key itself, of which there may be millions.
            pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
                self.0.name = Some(name.into());
                self
            }
        }
    };
}
pub(crate) use setters;

/// The setters of builders that wait.
macro_rules! waiting_setters {
    ($builder:ty) => {
        impl $builder {
            /// The longest time to wait. Default: for ever. Zero asks once.
            pub fn wait(mut self, longest: Duration) -> Self {
                self.0.options.wait = Wait::For(longest);
                self
            }

            /// To wait for ever, where the locker has another default.
            pub fn wait_forever(mut self) -> Self {
                self.0.options.wait = Wait::Forever;
                self
            }

            /// Do not queue: try this often, [`retry_interval`](Self::retry_interval) apart. A
            /// [`wait`](Self::wait) bounds it too; whichever comes first ends it.
            pub fn attempts(mut self, most: u32) -> Self {
                self.0.options.attempts = Some(most);
                self
            }
        }
    };
}
pub(crate) use waiting_setters;

/// A request for a lock: set options, then `.await` it for a [`Guard`], or [`run`](Self::run) something under it.
///
/// Keep the guard in a variable with a name: `let _ = locker.lock(k).await?` releases the lock at once. Do not wait,
/// while you hold it, for a task that wants the same key: it waits for you.
///
/// # Cancel safety
///
/// Dropping the future at any moment leaves nothing behind: no lock, no place in a queue.
///
/// # Errors
///
/// [`is_busy`](Error::is_busy) if the bound on waiting was reached while another held the lock,
/// [`is_unknown`](Error::is_unknown) or [`is_unavailable`](Error::is_unavailable) if it was reached
/// and the engine had not answered, [`is_invalid`](Error::is_invalid) for options that make no sense,
/// and whatever the engine says.
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
pub struct Lock(pub(crate) Request);

setters!(Lock);
waiting_setters!(Lock);

impl Lock {
    /// Ends the wait when `signal` does, with an error that [is cancelled](Error::is_cancelled).
    pub fn cancel_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.0.cancel = Some(Box::pin(signal));
        self
    }
}

impl IntoFuture for Lock {
    type Output = Result<Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.lock())
    }
}

/// A request for a lock that is had at once or not at all: `.await` it for `Some` [`Guard`], or `None` if
/// another holds it.
///
/// Keep the guard: `if locker.try_lock(k).await?.is_some()` releases the lock before its block runs. Write
/// `if let Some(_guard) = locker.try_lock(k).await?`.
///
/// If another task of this process is asking the engine for the same key at this moment, the answer to
/// that task is waited for and shared.
///
/// # Cancel safety
///
/// Dropping the future at any moment leaves nothing behind.
#[must_use = "a request does nothing until it is awaited"]
pub struct TryLock(pub(crate) Request);

setters!(TryLock);

impl IntoFuture for TryLock {
    type Output = Result<Option<Guard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.try_lock())
    }
}
