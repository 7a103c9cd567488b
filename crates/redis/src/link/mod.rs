//! A link: one connection to the server, replaced whenever it cannot be trusted any more.
//!
//! In: commands. Out: their replies, each within the response time-out, or a [`Trouble`].
//!
//! - A connection that let a request time out is never used again, so a late reply cannot be taken
//!   for another's. Its successor first has the server close it (`CLIENT KILL`): from then on nothing
//!   that was sent on it can still be carried out.
//! - Nothing is sent again by itself; whoever asked knows whether that is safe.
//! - While there is no connection, a call tries to make one, once. Those who come meanwhile, or
//!   shortly after a failure, share the outcome.
//!
//! - All links of a client lead to the same server (`server.rs`). A connection that leads to the one
//!   before is dropped, and what it still answers is unknown.
//!
//! In reading order: `links` chooses a link, `server` knows where all of them lead, `connect` makes a
//! connection out of what `dial` reached by the stream that `open` opened, `calls` sends together what is asked for at a time.
//!
//! Absent on purpose: what is heard on the connection of the inbox, see `inbox.rs`.

mod links;
mod server;
mod connect;
mod dial;
mod open;
mod calls;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisResult, Value};
use tenure_core::time::{Bounds, Time};
use tokio::runtime::Handle;

use crate::cluster::Elsewhere;
use crate::jitter::jittered;
use crate::trouble::{Cause, Redirect, Trouble};
pub(crate) use calls::Way;
pub(crate) use connect::{Facts, Live, Pushes, Route, Target, VERSION_MIN};
pub(crate) use dial::{Dial, Login};
pub(crate) use links::Links;
pub(crate) use server::{FAILOVER, Server};

/// The pause after a failure to connect: it doubles from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Link {
    server: Arc<Server>,
    bounds: Bounds,
    /// Takes what the server says unasked.
    pushes: Option<Pushes>,
    state: Mutex<State>,
    /// Held while connecting, so that it is done once.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    live: Option<Arc<Live>>,
    /// The connection before: to be closed at the server by the next.
    old: Option<Arc<Live>>,
    /// When a connection was left behind that the server would not close for us.
    stray: Option<Time>,
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
    /// The turn in which it failed: of another server it says nothing.
    turn: u64,
}

impl Link {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        let (pushes, state, connecting) = Default::default();
        let bounds = Bounds::new(server.clock().clone());
        Link { server, bounds, pushes, state, connecting }
    }

    /// One whose connection listens as well.
    pub(crate) fn with_pushes(server: Arc<Server>, pushes: Pushes) -> Self {
        Link { pushes: Some(pushes), ..Self::new(server) }
    }

    /// Makes connections live on this runtime from now on.
    pub(crate) fn settle_on(&self, home: Handle) {
        self.state().home = Some(home);
    }

    /// The server's address, for messages.
    pub(crate) fn trouble(&self, cause: Cause, what: impl std::fmt::Display) -> Trouble {
        self.server.trouble(cause, what)
    }

    /// What looks after waits on this connection, without a timer of the runtime's.
    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Sends one command.
    pub(crate) async fn call(&self, live: &Arc<Live>, command: Cmd) -> Result<Value, Trouble> {
        self.call_by(live, command, Way::Plain).await
    }

    /// Sends one command, in this way.
    pub(crate) async fn call_by(
        &self,
        live: &Arc<Live>,
        command: Cmd,
        way: Way,
    ) -> Result<Value, Trouble> {
        let asked = live.calls().call(command, way);
        let heard = self.bounds.within(self.response_timeout(), asked).await;
        let reply = self.hear(live, heard)?;
        self.read(live, reply)
    }

    /// Sends many commands at once, for at most `within`; each has its own reply or refusal.
    pub(crate) async fn call_all(
        &self,
        live: &Arc<Live>,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
        let mut connection = live.connection();
        let asked = connection.send_packed_commands(commands, 0, commands.len());
        let heard = tokio::time::timeout(within, asked).await;
        let replies = self.hear(live, heard.ok())?;
        Ok(replies.into_iter().map(|reply| self.read(live, reply)).collect())
    }

    /// What came back, if it can be relied on.
    fn hear<T>(&self, live: &Arc<Live>, heard: Option<RedisResult<T>>) -> Result<T, Trouble> {
        let trouble = match heard {
            // The other connections have left that server: what it says counts for nothing now.
            Some(_) if !self.server.is_at(live.turn()) => self.moved(),
            Some(Ok(reply)) => return Ok(reply),
            Some(Err(error)) => Trouble::of_request(&self.server.shown(), &error),
            None => self.silent(),
        };
        Err(self.judge(live, trouble))
    }

    fn read(&self, live: &Arc<Live>, reply: Value) -> Result<Value, Trouble> {
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let rest = error.details().unwrap_or_default();
        Err(self.judge(live, Trouble::of_reply(&self.server.shown(), error.code(), rest)))
    }

    /// How long a reply may take.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.server.target().response_timeout()
    }

    /// How long connecting may take.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.server.target().connect_timeout()
    }

    fn silent(&self) -> Trouble {
        let within = self.response_timeout();
        self.trouble(Cause::Silent, format_args!("no answer within {within:?}"))
    }

    fn moved(&self) -> Trouble {
        self.trouble(Cause::Cut, "the answer came from a server that was left for another")
    }

    /// Drops the connection where the trouble says that it is of no use any more.
    fn judge(&self, live: &Arc<Live>, trouble: Trouble) -> Trouble {
        // One that turned into a replica is left for its master, wherever the address now leads.
        if matches!(trouble.cause(), Cause::Silent | Cause::Cut | Cause::Demoted) {
            self.discard(live);
        }
        self.server.target().note(&trouble);
        trouble
    }

    /// The links to the node of a cluster that we were sent to, if this leads to another of it.
    pub(crate) fn elsewhere(&self, redirect: &Redirect) -> Option<Elsewhere> {
        self.server.target().elsewhere(redirect)
    }

    /// A reply that belongs to somebody else: nothing on this connection can be trusted any more.
    pub(crate) fn out_of_turn(&self, live: &Arc<Live>) -> Trouble {
        let what = "a reply came out of turn; the connection was dropped";
        self.judge(live, self.trouble(Cause::Cut, what))
    }

    /// Gives the connection up, for a reason that the link cannot see.
    pub(crate) fn give_up(&self, live: &Arc<Live>, why: &str) -> Trouble {
        self.judge(live, self.trouble(Cause::Cut, why))
    }

    fn discard(&self, live: &Arc<Live>) {
        let mut state = self.state();
        if state.live.take_if(|current| Arc::ptr_eq(current, live)).is_some() {
            state.old = Some(live.clone());
        }
    }

    /// The connection, made if need be.
    pub(crate) async fn live(&self) -> Result<Arc<Live>, Trouble> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        match self.known(self.now()) {
            Some(known) => known,
            // Boxed, as is all that is rare here: what is made for every lock is to be small.
            None => Box::pin(self.live_anew()).await,
        }
    }

    async fn live_anew(&self) -> Result<Arc<Live>, Trouble> {
        let asked_at = self.now();
        if let Some(known) = self.known(asked_at) {
            return known;
        }
        // Whoever connects may be on a runtime that stands still: it is waited for as long as
        // connecting may take, and no longer.
        let _one = tokio::time::timeout(self.connect_timeout(), self.connecting.lock()).await;
        match self.known(asked_at) {
            Some(known) => known,
            None => self.connect().await,
        }
    }

    /// Whether there is a connection now, for those who would not make one.
    pub(crate) fn current(&self) -> Option<Arc<Live>> {
        self.state().at(&self.server)
    }

    /// What is known without trying: the connection, or a failure that is recent enough.
    fn known(&self, asked_at: Time) -> Option<Result<Arc<Live>, Trouble>> {
        let mut state = self.state();
        if let Some(live) = state.at(&self.server) {
            return Some(Ok(live));
        }
        let failed = state.failed.as_ref().filter(|failed| self.server.is_at(failed.turn))?;
        let recent = failed.at >= asked_at || self.now() < failed.at.after(failed.pause);
        recent.then(|| Err(failed.trouble.clone()))
    }

    async fn connect(&self) -> Result<Arc<Live>, Trouble> {
        self.server.keep_watch();
        let old = self.state().old.clone();
        let made = self.connect_at_home(old.clone()).await;
        made.and_then(|live| self.take(live, old.as_deref())).map_err(|trouble| self.fail(trouble))
    }

    /// On the runtime where connections are to live, or here if that one has ended.
    async fn connect_at_home(&self, old: Option<Arc<Live>>) -> Result<Live, Trouble> {
        let home = self.state().home.clone();
        if let Some(home) = home {
            let (server, old, pushes) = (self.server.clone(), old.clone(), self.pushes.clone());
            let made = home
                .spawn(async move { server.target().connect(old.as_deref(), pushes).await })
                .await;
            if let Ok(made) = made {
                return made;
            }
        }
        self.server.target().connect(old.as_deref(), self.pushes.clone()).await
    }

    /// Makes it the connection of this link, if it leads where the others may follow.
    fn take(&self, live: Live, old: Option<&Live>) -> Result<Arc<Live>, Trouble> {
        let live = Arc::new(self.server.meet(live, old)?);
        let mut state = self.state();
        if live.left_a_stray() {
            state.stray = Some(self.now());
        }
        // Two that connected at a time: on one each, commands would overtake each other.
        if let Some(first) = state.at(&self.server) {
            return Ok(first);
        }
        (state.live, state.old, state.failed) = (Some(live.clone()), None, None);
        Ok(live)
    }

    fn fail(&self, trouble: Trouble) -> Trouble {
        self.server.target().note(&trouble);
        let (mut state, turn) = (self.state(), self.server.turn());
        let last = state.failed.as_ref().filter(|failed| failed.turn == turn);
        let last = last.map_or(PAUSE_MIN / 2, |failed| failed.pause);
        let pause = jittered((last * 2).clamp(PAUSE_MIN, PAUSE_MAX));
        state.failed = Some(Failed { trouble: trouble.clone(), at: self.now(), pause, turn });
        trouble
    }

    /// Whether a request that was sent up to `within` ago may still be carried out, by a connection
    /// that we have given up and the server has not.
    pub(crate) fn may_have_strays(&self, within: Duration) -> bool {
        let stray = self.state().stray;
        stray.is_some_and(|at| self.now() < at.after(within))
    }

    /// Keeps the connection from being silently dead: asks it for a sign of life.
    pub(crate) async fn ping(&self) {
        if let Some(live) = self.current() {
            // What is wrong is dealt with on the way; the next call makes a new connection.
            if self.call(&live, redis::cmd("PING")).await.is_err() {
                let _ = self.live().await;
            }
        } else if self.state().old.is_some() {
            let _ = self.live().await;
        }
    }

    /// Lets go of the connection, until somebody asks for something again.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        (state.live, state.old) = (None, None);
    }

    fn now(&self) -> Time {
        self.server.clock().now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The connection, if it leads to where the others do.
    fn at(&mut self, server: &Server) -> Option<Arc<Live>> {
        if let Some(left) = self.live.take_if(|live| !server.is_at(live.turn())) {
            // It may be silent: whoever still waits for an answer need not.
            left.end();
            self.old = Some(left);
        }
        self.live.clone()
    }
}
