//! Elections: one process leads, the others wait, and everybody can see who leads.
//!
//! In: a key, and the value that a candidate proclaims. Out: a [`Leader`], which is the guard of a lock; and for
//! everybody [`Leadership`], which is what the engine shows of that lock.
//!
//! A campaign is an exclusive lock whose label is the value. Its lease is never handed to another task in memory
//! (`lone`): the engine must show the value of the task that leads. The rest is done by `acquire.rs`, `run.rs` and
//! `watch/`.

use std::future::{Future, IntoFuture, pending};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::acquire::jittered;
use crate::builder::{LockRequest, RequestBuilder, WORDS_MAX, lease_setters, waiting_setters};
use crate::engine::Engine;
use crate::error::Error;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::guard::{Guard, Held, Released};
use crate::holder::{Holder, Process};
use crate::key::Key;
use crate::lease::Ended;
use crate::locker::Locker;
use crate::mode::{Exclusive, Mode};
use crate::options::{Options, Reentry, Renew, Wait, WithinProcess};
use crate::report::Query;
use crate::request::Cancel;
use crate::run::RunError;
use crate::time::UnixMillis;
use crate::watch::Watch;

/// The longest value of a leader, in characters. The engine stores it with the lock, and with every entry of its queue.
pub const VALUE_MAX: usize = WORDS_MAX;

/// A key for which one process at a time leads: see [`Locker::election`].
///
/// A candidate [campaigns](Self::campaign) with a value, such as its address. Everybody can ask who
/// [leads](Self::leader) and [observe](Self::observe) changes. Each leader has a [term](Leader::term), higher than
/// that of every earlier leader: pass it on with each command, so that a resource rejects a leader that was replaced.
///
/// Elections, locks, readers and permits share one name space: give elections names of their own, such as
/// `leader:scheduler`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use tenure::{Locker, Memory};
///
/// let election = Locker::new(Memory::space("elections")).election("leader:scheduler");
/// let mut observe = election.observe().await?;
/// assert!(observe.next().await?.is_none(), "nobody leads");
///
/// let leader = election.campaign("10.0.0.7:8080").await?;
/// let seen = observe.next().await?.expect("somebody leads");
/// assert_eq!((seen.value.as_str(), seen.term), ("10.0.0.7:8080", Some(leader.term())));
///
/// leader.resign().await?;
/// assert!(observe.next().await?.is_none());
/// # Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    locker: Locker,
    key: Box<str>,
}

impl Election {
    pub(crate) fn new(locker: Locker, key: &str) -> Self {
        Election { locker, key: key.into() }
    }

    /// Returns a request to lead with `value`: set its options, then `.await` it for a [`Leader`],
    /// [`run`](Campaign::run) code while leading, or [`lead`](Campaign::lead) again and again. A value has at most
    /// [`VALUE_MAX`] characters.
    pub fn campaign(&self, value: impl Into<Arc<str>>) -> Campaign {
        let (engine, value) = (self.locker.engine(), value.into());
        let key = Key::new(&self.key).and_then(|key| fits(&key, &value).map(|()| key));
        // A candidate waits for a leader of its process too, and a leader has a term. A second campaign of its owner
        // would have the term of the first one, and another value.
        let options = Options {
            fencing: true,
            reentry: Reentry::Refuse,
            within_process: WithinProcess::Queue,
            ..engine.defaults.plain
        };
        let request = RequestBuilder::with(engine, key, options);
        Campaign(RequestBuilder { label: Some(value), lone: true, ..request })
    }

    /// Returns who leads now, as the engine sees it; `None` if nobody does. One request.
    ///
    /// # Errors
    ///
    /// Those of [`Locker::inspect`]. Dropping the future has no effect.
    pub async fn leader(&self) -> Result<Option<Leadership>, Error> {
        let found = self.locker.inspect(&self.key).await?;
        let mut holders = found.into_iter().flat_map(|lock| lock.holders);
        let sole = holders.find(|it| it.mode == Mode::Exclusive && !it.holder.cooling_down);
        Ok(sole.map(|holding| Leadership::of(&holding.holder, holding.fence)))
    }

    /// Starts to observe who leads, from now on.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a bad key, and those of [`Locker::watch`].
    pub async fn observe(&self) -> Result<Observer, Error> {
        let key = Key::new(&self.key)?;
        let watch = self.locker.watch_query(Query::Key(key.clone())).await?;
        Ok(Observer { watch, key, returned: None, newest: None, unknown: false })
    }
}

fn fits(key: &Key, value: &str) -> Result<(), Error> {
    match value.chars().count() {
        ..=VALUE_MAX => Ok(()),
        count => Err(Error::invalid(format!(
            "the value of the leader of `{key}` has {count} characters, and may have at most {VALUE_MAX}"
        ))),
    }
}

/// A request to lead: set options, then `.await` it for a [`Leader`].
///
/// Candidates are served in the order of their requests, where the engine has a queue. A leader of this process is
/// waited for like any other. An [`Owner`](crate::Owner) cannot campaign while it leads: the error [is already
/// held](Error::is_already_held).
///
/// # Cancel safety
///
/// The future can be dropped at any await point: the candidate does not lead and does not wait.
///
/// # Errors
///
/// Those of [`LockRequest`], and [`is_invalid`](Error::is_invalid) for a value that is too long. After an error the
/// candidate does not wait any more.
#[must_use = "a campaign does nothing until it is awaited"]
pub struct Campaign(pub(crate) RequestBuilder);

lease_setters!(Campaign);
waiting_setters!(Campaign);

impl Campaign {
    /// Cancels the wait when `signal` completes, with an error that [is cancelled](Error::is_cancelled). It does not
    /// end a leadership.
    pub fn cancel_on(mut self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.0.cancel = Some(Box::pin(signal));
        self
    }

    /// Leads while `body` runs, and resigns on every way out. If the leadership is lost, the body is dropped at its
    /// next await point, before anybody else can lead.
    ///
    /// The results are nested as in [`LockRequest::run`].
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] with the errors of [`Campaign`], and [`RunError::Lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and resigns in the background.
    pub async fn run<F, B, T, E>(self, body: F) -> Result<Result<T, E>, RunError<T>>
    where
        F: FnOnce(Leading) -> B,
        B: Future<Output = Result<T, E>>,
    {
        let engine = self.0.engine.clone();
        LockRequest::<Exclusive>::new(self.0).run(|held| body(Leading { engine, held })).await
    }

    /// Leads again and again: after each loss it campaigns anew, after a pause of
    /// [`retry_interval`](Self::retry_interval), until `body` ends by itself. Its result is returned, also if it is an
    /// error.
    ///
    /// A server that cannot be reached, or does not answer, does not end this, unless a limit for waiting is set, which
    /// then applies to each campaign.
    ///
    /// # Errors
    ///
    /// [`RunError::NotAcquired`] if a campaign ends otherwise than by leading: the locker is shut down, a limit is
    /// reached, the engine refuses. [`RunError::Lost`] only with the value of a body that succeeded before the loss was
    /// detected.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, and resigns in the background.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tenure::{Locker, Memory};
    ///
    /// let server = Memory::space("lead");
    /// let election = Locker::new(server.clone()).election("leader:scheduler");
    /// let mut terms = Vec::new();
    /// let led = election.campaign("me").lead(|leading| {
    ///     terms.push(leading.term());
    ///     let (first, server) = (terms.len() == 1, server.clone());
    ///     async move {
    ///         if first {
    ///             server.revoke("leader:scheduler").unwrap(); // as if the server had lost it
    ///             std::future::pending::<()>().await;
    ///         }
    ///         Ok::<_, std::io::Error>("done")
    ///     }
    /// });
    /// assert_eq!(led.await??, "done");
    /// assert!(terms[0] < terms[1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn lead<F, B, T, E>(mut self, mut body: F) -> Result<Result<T, E>, RunError<T>>
    where
        F: FnMut(Leading) -> B,
        B: Future<Output = Result<T, E>>,
    {
        let unlimited = self.0.options.wait == Wait::Unset && !self.0.options.rides_out();
        if unlimited {
            self.0.options.wait = Wait::Forever;
        }
        let (stop, signal) = (CancellationToken::new(), self.0.cancel.take());
        let (engine, stopped) = (self.0.engine.clone(), stop.clone());
        let campaigns = async move {
            loop {
                match self.again(&stopped).run(&mut body).await {
                    Err(RunError::Lost { value: None, .. }) => {}
                    Err(RunError::NotAcquired(error))
                        if unlimited && (error.is_unavailable() || error.is_unknown()) => {}
                    ended => return ended,
                }
                let pause = jittered(self.0.options.retry_interval);
                engine.clock.sleep(pause).await;
            }
        };
        tokio::select! {
            biased;
            () = cancelling(signal, &stop) => pending().await,
            ended = campaigns => ended,
        }
    }

    /// The same campaign once more. It is cancelled by `stop`.
    fn again(&self, stop: &CancellationToken) -> Campaign {
        let key = self.0.key.as_ref().map_err(Clone::clone);
        let request = match key {
            Ok(key) => self.0.for_key(key, &Mode::Exclusive),
            Err(error) => RequestBuilder::with(&self.0.engine, Err(error), self.0.options),
        };
        let cancel: Cancel = Box::pin(stop.clone().cancelled_owned());
        Campaign(RequestBuilder { lone: true, cancel: Some(cancel), ..request })
    }
}

/// Passes a signal on to the campaigns. Never ends.
async fn cancelling(signal: Option<Cancel>, stop: &CancellationToken) {
    if let Some(signal) = signal {
        signal.await;
        stop.cancel();
    }
    pending().await
}

impl IntoFuture for Campaign {
    type Output = Result<Leader, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.0.lock().await.map(Leader) })
    }
}

/// The leadership of this process. It is the [`Guard`] of a lock: watch [`lost`](Guard::lost), and pass the
/// [term](Self::term) to the resource. Dropping it resigns in the background.
///
/// Like a guard it proves that this process *was* elected. It stops counting as leader by its own clock, before anybody
/// else can be elected; but a paused process can still send a command, which the resource must reject by its term.
#[must_use = "if unused, the leader resigns at once"]
#[derive(Debug)]
pub struct Leader(Guard);

impl Leader {
    /// The number of this leadership, higher than that of every earlier leader: the fence of its grant.
    pub fn term(&self) -> Fence {
        self.0.fence()
    }

    /// Replaces the value that others see. The term stays the same. See [`Leading::proclaim`].
    ///
    /// # Errors
    ///
    /// Those of [`Leading::proclaim`].
    ///
    /// # Cancel safety
    ///
    /// As [`Leading::proclaim`].
    pub async fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<(), Error> {
        self.leading().proclaim(value).await
    }

    /// A view of the leadership, for the code that works while this process leads.
    pub fn leading(&self) -> Leading {
        Leading { engine: self.0.engine().clone(), held: self.0.held() }
    }

    /// Resigns, and waits for the reply of the engine. The first candidate leads next. An owner that holds the key by
    /// other guards still leads: the result is [`Released::StillHeld`].
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`]. If the engine did not answer, the error [is unknown](Error::is_unknown) or [is
    /// unavailable](Error::is_unavailable), and the leader continues to resign in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the leader resigns in the background.
    pub async fn resign(self) -> Result<Released, Error> {
        self.0.release().await
    }
}

impl Deref for Leader {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

/// A view of a leadership, for the code that works while this process leads. Cheap to clone; cannot resign.
#[derive(Clone, Debug)]
pub struct Leading {
    engine: Arc<Engine>,
    held: Held,
}

impl Leading {
    /// The number of this leadership, higher than that of every earlier leader.
    pub fn term(&self) -> Fence {
        self.held.fence()
    }

    /// Replaces the value that others see. The term stays the same. It also renews the lease. Of two calls at the same
    /// time, either value may stay.
    ///
    /// # Errors
    ///
    /// [`is_lost`](Error::is_lost) if this process does not lead any more: the value of the next leader is not changed.
    /// [`is_invalid`](Error::is_invalid) for a value that is too long, [`is_unsupported`](Error::is_unsupported) on an
    /// engine that cannot change it. After another error of the engine the value may be shown now, or with the next
    /// renewal.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, either value may be shown; the next renewal shows the new one.
    pub async fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<(), Error> {
        let (Leading { engine, held }, value) = (self, value.into());
        let (key, lease) = (held.key(), &held.lease);
        fits(key, &value)?;
        engine.must_not_be_forked(key)?;
        if !engine.can.relabels {
            return Err(Error::backend(Some(key), engine.can.not_relabelled()));
        }
        self.must_lead()?;
        lease.claim().set_label(value);
        engine.renew_now(lease).await?;
        self.must_lead()
    }

    fn must_lead(&self) -> Result<(), Error> {
        if self.held.is_held() {
            return Ok(());
        }
        let loss = match self.held.lease.ended() {
            Some(Ended::Lost(loss)) => loss,
            _ => Loss::Gone,
        };
        Err(Error::lost(self.held.key(), loss))
    }
}

impl Deref for Leading {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// Who leads, as the engine shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leadership {
    /// The value that the leader has proclaimed. Empty if the key is held by a lock without a label.
    pub value: String,
    /// The leader's term; `None` if the engine does not show it.
    pub term: Option<Fence>,
    /// The leader's process; `None` if it does not use tenure.
    pub process: Option<Process>,
    /// Since when it leads, by the leader's wall clock.
    pub since: Option<UnixMillis>,
}

impl Leadership {
    fn of(holder: &Holder, term: Option<Fence>) -> Self {
        let (process, since) = (holder.process.clone(), holder.since);
        Leadership { value: holder.label.clone().unwrap_or_default(), term, process, since }
    }
}

/// Observes who leads: see [`Election::observe`].
///
/// It first returns who leads, and then each change that the engine shows: another leader, another value, nobody. A
/// slow observer misses some changes, but never the last one. It never returns a leader with a lower term than one
/// before; where the engine shows such a leader after a failover, nobody leads. The same holds for a leader whose term
/// the engine cannot show any more, such as a quorum with too few nodes that agree on it.
///
/// If the engine reports changes (`memory:`, Redis except quorums, etcd), each change causes one inspection, and so
/// does each reconnection. Otherwise the key is inspected ten times a second. Nothing is inspected unless
/// [`next`](Self::next) is awaited. Dropping the value ends it.
#[derive(Debug)]
pub struct Observer {
    watch: Watch,
    key: Key,
    /// What was returned last.
    returned: Option<Option<Leadership>>,
    newest: Option<Fence>,
    /// The last inspection failed.
    unknown: bool,
}

impl Observer {
    /// Returns who leads now, when it is called first, and then waits for each change. `None`: nobody leads.
    ///
    /// # Errors
    ///
    /// Errors of the engine: until the next `Ok` it is not known who leads. The observer is still usable: the next call
    /// inspects again after a pause. [`is_closed`](Error::is_closed) after a shutdown of the locker; then it is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Leadership>, Error> {
        if self.unknown {
            self.watch.look_again().await?;
            (self.unknown, self.returned) = (false, None);
        }
        loop {
            let now = self.present();
            if self.returned.as_ref() != Some(&now) {
                self.returned = Some(now.clone());
                return Ok(now);
            }
            // After an error the next answer is returned, also if it is the one from before.
            self.watch.look_again().await.inspect_err(|_| self.unknown = true)?;
        }
    }

    /// Who led at the last inspection. A leadership without a term counts, unless the engine has shown terms: then it
    /// may be an older one.
    fn present(&mut self) -> Option<Leadership> {
        let (holder, term) = self.watch.sole_holder(&self.key)?;
        let mut now = Leadership::of(holder, term);
        if let (None, Some(Some(last))) = (term, &self.returned)
            && now.since.is_some()
            && (&last.process, last.since) == (&now.process, now.since)
        {
            now.term = last.term;
        }
        if now.term < self.newest {
            return None;
        }
        self.newest = self.newest.max(now.term);
        Some(now)
    }
}
