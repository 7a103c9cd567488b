//! A link: one connection to some member of the cluster, replaced whenever it is of no use any more.
//!
//! In: requests. Out: their answers, each within a bound, or a [`Trouble`].
//!
//! - A connection that let a request time out is never used again, and the next one leads to another
//!   member if there is one.
//! - Nothing is sent again by itself, unless it never left, or the server has said that it did nothing
//!   because the login was not valid any more. Whoever asked knows whether sending again is safe.
//! - While there is no connection, a call tries to make one, once. Those who come meanwhile, or
//!   shortly after a failure, share the outcome.
//!
//! In reading order: `cluster` knows the members, `open` makes a connection to one of them, `codec` writes
//! what is sent there, `visit` makes one that only looks.

mod cluster;
mod open;
mod codec;
mod visit;
#[cfg(feature = "bare")]
pub(crate) mod bare;

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Bounds, Time};
use tokio::runtime::Handle;
use tonic::Status;

use crate::jitter::jittered;
use crate::proto::{
    Call, LeaseKeepAliveRequest, LeaseKeepAliveResponse, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::trouble::{Cause, Trouble};
pub(crate) use cluster::{Cluster, Member};
use open::Then;
pub(crate) use open::{Live, Messages};
pub(crate) use visit::Visit;

/// The pause after a failure to connect: it doubles from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Link {
    cluster: Arc<Cluster>,
    bounds: Bounds,
    state: Mutex<State>,
    /// Held while connecting, so that it is done once.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Arc<Live>>,
    failed: Option<Failed>,
    /// Where connections are to live; else with whoever makes one.
    home: Option<Handle>,
}

/// The last failure to connect, until when it stands for others, and the pause it took.
#[derive(Clone, Debug)]
struct Failed {
    trouble: Trouble,
    at: Time,
    pause: Duration,
}

impl Link {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        let (bounds, state) = (Bounds::new(cluster.clock().clone()), Mutex::default());
        Link { cluster, bounds, state, connecting: tokio::sync::Mutex::default() }
    }

    /// Makes connections live on this runtime from now on.
    pub(crate) fn settle_on(&self, home: Handle) {
        self.state().home = Some(home);
    }

    /// The cluster that it leads to.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.cluster.response_timeout
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.cluster.connect_timeout
    }

    /// What bounds its calls, for waits of others.
    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Whether a member has been met whose bugs are known.
    pub(crate) fn has_suspects(&self) -> bool {
        self.cluster.has_suspects()
    }

    /// Leaves the member that it leads to for another.
    pub(crate) fn leave(&self) {
        if let Some(live) = self.current() {
            self.discard(&live);
        }
    }

    /// Sends a request, and waits for its answer.
    pub(crate) async fn call<Q: Call>(&self, ask: Q) -> Result<Q::Answer, Trouble> {
        self.call_within(self.response_timeout(), ask).await
    }

    /// The same for who cannot wait that long.
    pub(crate) async fn call_within<Q: Call>(
        &self,
        within: Duration,
        ask: Q,
    ) -> Result<Q::Answer, Trouble> {
        let (live, ask) = (self.live().await?, Arc::new(ask));
        match self.hear(&live, within, live.unary(ask.clone())).await {
            Err(trouble) if trouble.cause() == Cause::BadToken && live.is_logged_in() => {
                self.log_in_again(&live).await?;
                self.hear(&live, within, live.unary(ask)).await
            }
            // It has not left: the connection was closed while nobody used it.
            Err(trouble) if trouble.cause() == Cause::Down => {
                let live = self.live().await?;
                self.hear(&live, within, live.unary(ask)).await
            }
            answer => answer,
        }
    }

    /// Asks for a lease to be kept alive, within so long. A stream of its own for each, so that no
    /// answer can be taken for another's.
    pub(crate) async fn keep_alive(
        &self,
        lease: i64,
        within: Duration,
    ) -> Result<LeaseKeepAliveResponse, Trouble> {
        let live = self.live().await?;
        let first = self.hear(&live, within, keep_alive_once(&live, lease)).await;
        match first {
            Err(trouble) if trouble.cause() == Cause::BadToken && live.is_logged_in() => {
                self.log_in_again(&live).await?;
                self.hear(&live, within, keep_alive_once(&live, lease)).await
            }
            answer => answer,
        }
    }

    /// Has the server tell of changes from now on.
    pub(crate) async fn watch(&self, create: WatchCreateRequest) -> Result<Watching, Trouble> {
        let live = self.live().await?;
        let within = self.response_timeout();
        let ask = || live.stream(WatchRequest { create: Some(create.clone()) }, Then::Listen);
        let stream = match self.hear(&live, within, ask()).await {
            Err(trouble) if trouble.cause() == Cause::BadToken && live.is_logged_in() => {
                self.log_in_again(&live).await?;
                self.hear(&live, within, ask()).await?
            }
            opened => opened?,
        };
        Ok(Watching { live, stream })
    }

    /// What came back within the bound. The connection is given up where that says it is of no use.
    async fn hear<T>(
        &self,
        live: &Arc<Live>,
        within: Duration,
        asked: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Trouble> {
        let trouble = match self.bounds.within(within, pin!(asked)).await {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(status)) => Trouble::of_status(live.address(), &status),
            None => {
                let what = format_args!("no answer within {within:?}");
                Trouble::new(Cause::Silent, live.address(), what)
            }
        };
        if trouble.is_of_the_member() {
            self.discard(live);
        }
        Err(trouble)
    }

    async fn log_in_again(&self, live: &Arc<Live>) -> Result<(), Trouble> {
        let again = pin!(live.log_in(&self.cluster));
        let done = self.bounds.within(self.response_timeout(), again).await;
        let late = || Err(Trouble::new(Cause::Down, live.address(), "no answer to the login"));
        done.unwrap_or_else(late).inspect_err(|_| self.discard(live))
    }

    /// Gives a connection up. The next one leads elsewhere, if there is anywhere else.
    fn discard(&self, live: &Arc<Live>) {
        live.gone.cancel();
        self.cluster.avoid(live.member);
        self.state().live.take_if(|current| Arc::ptr_eq(current, live));
    }

    /// The connection, made if need be.
    pub(crate) async fn live(&self) -> Result<Arc<Live>, Trouble> {
        match self.current() {
            Some(live) => Ok(live),
            // Boxed, as is all that is rare here: what is made for every lock is to be small.
            None => Box::pin(self.live_anew()).await,
        }
    }

    fn current(&self) -> Option<Arc<Live>> {
        let mut state = self.state();
        state.live.take_if(|live| live.is_closed());
        state.live.clone()
    }

    async fn live_anew(&self) -> Result<Arc<Live>, Trouble> {
        let asked_at = self.now();
        if let Some(known) = self.known(asked_at) {
            return known;
        }
        // Whoever connects may be on a runtime that stands still: it is waited for as long as
        // connecting may take, and no longer.
        let longest = self.cluster.connect_timeout;
        let _one = tokio::time::timeout(longest, self.connecting.lock()).await;
        match self.known(asked_at) {
            Some(known) => known,
            None => self.connect().await,
        }
    }

    /// What is known without trying: the connection, or a failure that is recent enough.
    fn known(&self, asked_at: Time) -> Option<Result<Arc<Live>, Trouble>> {
        if let Some(live) = self.current() {
            return Some(Ok(live));
        }
        let state = self.state();
        let failed = state.failed.as_ref()?;
        let recent = failed.at >= asked_at || self.now() < failed.at.after(failed.pause);
        recent.then(|| Err(failed.trouble.clone()))
    }

    async fn connect(&self) -> Result<Arc<Live>, Trouble> {
        let made = self.connect_at_home().await.map(Arc::new);
        let mut state = self.state();
        match made {
            Ok(live) => {
                (state.live, state.failed) = (Some(live.clone()), None);
                Ok(live)
            }
            Err(trouble) => {
                let last = state.failed.as_ref().map_or(PAUSE_MIN / 2, |failed| failed.pause);
                let pause = jittered((last * 2).clamp(PAUSE_MIN, PAUSE_MAX));
                state.failed = Some(Failed { trouble: trouble.clone(), at: self.now(), pause });
                Err(trouble)
            }
        }
    }

    /// On the runtime where connections are to live, or here if that one has ended.
    async fn connect_at_home(&self) -> Result<Live, Trouble> {
        let home = self.state().home.clone();
        if let Some(home) = home
            && let Ok(made) = home.spawn(open::connect(self.cluster.clone())).await
        {
            return made;
        }
        open::connect(self.cluster.clone()).await
    }

    /// Lets go of the connection, until somebody asks for something again.
    pub(crate) fn close(&self) {
        self.state().live = None;
    }

    fn now(&self) -> Time {
        self.cluster.clock().now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep_alive_once(live: &Live, lease: i64) -> Result<LeaseKeepAliveResponse, Status> {
    let mut stream = live.stream(LeaseKeepAliveRequest { id: lease }, Then::Nothing).await?;
    let answer = stream.message().await?;
    answer.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
}

/// Changes, as the server tells them.
pub(crate) struct Watching {
    live: Arc<Live>,
    stream: Messages<WatchResponse>,
}

impl std::fmt::Debug for Watching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watching").field("live", &self.live).finish_non_exhaustive()
    }
}

impl Watching {
    /// Whether its connection is still of use, as far as is known.
    pub(crate) fn goes_on(&self) -> bool {
        !self.live.is_closed()
    }

    /// The next message. An error ends the watch: look again, then watch again.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, Trouble> {
        let address = self.live.address();
        let message = tokio::select! {
            message = self.stream.message() => message,
            // Whoever found the connection to be dead has found it for us too.
            () = self.live.gone.cancelled() => {
                return Err(Trouble::new(Cause::Cut, address, "the connection was given up"));
            }
        };
        match message {
            Ok(Some(told)) if !told.canceled => Ok(told),
            Ok(Some(told)) => {
                let (why, compacted) = (&told.cancel_reason, told.compact_revision);
                let what = format_args!("the watch was ended: {why} (compacted at {compacted})");
                Err(Trouble::new(Cause::NotNow, address, what))
            }
            Ok(None) => Err(Trouble::new(Cause::Cut, address, "the watch ended")),
            Err(status) => Err(Trouble::of_status(address, &status)),
        }
    }
}
