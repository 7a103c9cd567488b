//! The contract, kept by a Redis server.
//!
//! In: claims and leases from the engine. Out: what the scripts answered, as the contract says it.
//! Waiting is in `wait.rs`, renewing in `renew.rs`, releasing again in `again.rs`, looking in `look.rs`, watching in `watch.rs`.
//!
//! Commands about a key travel on one connection, so that the undoing of a claim cannot overtake its
//! asking; they belong to the client, which may be shared. Renewals have another for each locker, which lives on the engine's thread, so that neither a blocked application
//! nor a long queue of commands keeps a lock from being renewed.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, FaultKind, Grant, Hints,
    LockInfo, Loss, Notice, Notices, Query, Release, Term, Then,
};
use tenure_core::doctor::Finding;
use tenure_core::time::{Clock, Time};
use tenure_core::{Claim, Error, Key, Lease, Mode, Token};
use tokio::runtime::Handle;

use crate::again::Releases;
use crate::builder::Builder;
use crate::calm::Calm;
use crate::client::Client;
use crate::inbox::{Inbox, Slot};
use crate::keys::Keys;
use crate::link::{Link, Links, Server};
use crate::pace::Pace;
use crate::scripts::{Answer, Freed, Given, Renewed, Run};
use crate::trouble::{Cause, Trouble};
use crate::value::Author;
use crate::witness::Witness;

/// How often the connection for renewals is asked for a sign of life. One that is silently dead
/// costs a renewal its response time-out, and is found out here before that.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(1);
/// What an operator says is cut here, in characters: it is kept on the server for a while.
pub(crate) const BY_MAX: usize = 200;
/// Why a forked child cannot use what its parent opened.
const FORKED: &str = "the client was made by the process that forked this one";

/// Locks on a Redis or Valkey server.
///
/// Safe on one server: atomic, by token, with a fence that never goes back. What no single server
/// can promise is that it remembers: a lock is lost when the server loses its data, and its holder
/// finds out at the next renewal. Whoever waits is told when it is its turn, first come, first served.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use std::time::Duration;
/// use tenure_core::Locker;
/// use tenure_redis::Redis;
///
/// let redis = Redis::builder("redis://:secret@localhost:6379/0")
///     .prefix("billing")
///     .response_timeout(Duration::from_millis(500));
/// let locker = Locker::new(redis.connect().await?);
/// let guard = locker.lock("order:42").await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Redis {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Keys,
    pub(crate) author: Author,
    pub(crate) clock: Clock,
    pub(crate) commands: Arc<Links>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) renewals: Link,
    pub(crate) pace: Pace,
    pub(crate) server: Arc<Server>,
    /// Who sees to it that replicas have a grant, if anybody is to.
    pub(crate) witness: Option<Arc<Witness>>,
    /// What may have to be released again, where another server can take over.
    pub(crate) releases: Option<Releases>,
    /// The process that made the client.
    pid: u32,
    /// Whether the client was made for this and nobody else, and so is closed with it.
    alone: bool,
}

impl Redis {
    /// Connects to the server at `url`, and checks that it can keep locks.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Starts from `url`, to say more than a URL can.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// Keeps locks through a client that the caller made, under its prefix. The client's connections
    /// are shared and stay open when the locker is shut down; only the one for renewals is this
    /// locker's own, since it lives on its thread.
    pub fn with(client: &Client) -> Self {
        Self::of(client, false)
    }

    /// With a client of its own.
    pub(crate) fn alone_on(client: Client) -> Self {
        Self::of(&client, true)
    }

    fn of(client: &Client, alone: bool) -> Self {
        let (server, commands) = (client.server().clone(), client.commands().clone());
        let inbox = client.inbox().clone();
        let (keys, author) = (client.keys().clone(), client.author().clone());
        let (clock, renewals) = (server.clock().clone(), Link::new(server.clone()));
        let releases = server.target().sentinels().map(|_| Releases::default());
        Redis {
            shared: Arc::new(Shared {
                keys,
                author,
                clock,
                commands,
                inbox,
                renewals,
                pace: Pace::default(),
                server,
                witness: client.witness().cloned(),
                releases,
                pid: client.pid(),
                alone,
            }),
        }
    }
}

impl Shared {
    /// Gives the lock back, and keeps in mind that it was.
    async fn release_noted(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
        let turn = self.server.turn();
        let released = self.release(lease, then).await;
        if matches!(released, Ok(Release::Freed)) && then == Then::Free {
            self.note(lease.claim(), turn);
        }
        released
    }

    fn note(&self, claim: &Arc<Claim>, turn: u64) {
        if let Some(releases) = &self.releases {
            releases.add(claim, self.clock.now(), turn);
        }
    }

    async fn release(&self, lease: &Lease, then: Then) -> Result<Release, Fault> {
        let slot = self.inbox.desk().forget(lease.claim().token());
        self.release_after(slot.as_deref(), lease, then).await
    }

    /// Gives the lock back, for which it has perhaps waited at `slot`: by a short form where that is plain, else
    /// by the full one.
    pub(crate) async fn release_after(
        &self,
        slot: Option<&Slot>,
        lease: &Lease,
        then: Then,
    ) -> Result<Release, Fault> {
        let (claim, now) = (lease.claim(), self.clock.now());
        let first = First { was_ours: now < lease.valid_until(), turn: self.server.turn() };
        let short = self.short_form(slot, lease, now);
        let cut = match self.give(claim, short.filter(|_| then == Then::Free), now).await {
            Ok(true) => return Ok(Release::Freed),
            Ok(false) => None,
            Err(trouble) if trouble.cause() == Cause::Cut => Some(trouble),
            Err(trouble) => return Err(trouble.into()),
        };
        // Boxed, as is all that is rare here: what is made for every lock is to be small.
        Box::pin(self.release_in_full(claim, then, first, cut)).await
    }

    /// The short form that is likely to do: that for a lock which nobody else wants, or, after a wait for it in
    /// its queue, the one for a lock that others want.
    fn short_form(&self, slot: Option<&Slot>, lease: &Lease, now: Time) -> Option<Short> {
        let claim = lease.claim();
        if claim.shared_owner().is_some() || slot.is_some_and(|slot| !slot.only_stood()) {
            return None;
        }
        match !lease.is_contended() && self.calm().is_calm(claim.key(), now) {
            true => Some(Run::give),
            false => slot.map(|_| Run::pass as Short),
        }
    }

    /// Which keys to ask for by the short forms.
    pub(crate) fn calm(&self) -> &Calm {
        self.inbox.desk().calm()
    }

    /// Whether it could be given back by that.
    async fn give(&self, claim: &Claim, short: Option<Short>, now: Time) -> Result<bool, Trouble> {
        let Some(short) = short else { return Ok(false) };
        let run = || short(&self.keys, &self.author, claim);
        match Run::once(run, self.commands.of(claim.key())).await? {
            Given::Yes => Ok(true),
            Given::More => {
                self.calm().disturb(claim.key(), now);
                Ok(false)
            }
        }
    }

    /// A reply that was lost with its connection is asked for again; `cut` says that one was.
    async fn release_in_full(
        &self,
        claim: &Claim,
        then: Then,
        first: First,
        cut: Option<Trouble>,
    ) -> Result<Release, Fault> {
        let closed = match then {
            Then::Free => None,
            Then::Closed(rest) => Some(rest),
        };
        let run = Run::release(&self.keys, &self.author, claim, closed).others_first();
        let alone = claim.shared_owner().is_none();
        let cut = match cut {
            Some(cut) => cut,
            None => match run.on(self.commands.of(claim.key())).await {
                Err(trouble) if trouble.cause() == Cause::Cut => trouble,
                answer => return Ok(released(answer?)),
            },
        };
        match self.release_again(claim, &run, cut).await? {
            Again::Answered(answer) => Ok(answer),
            // The same server held it for us when it was first asked, and nobody used force: the
            // first request did it. Of a share nobody can say what that left to the others.
            Again::Gone(_) if first.was_ours && alone && self.server.is_at(first.turn) => {
                Ok(Release::Freed)
            }
            Again::Gone(first) => Err(first.into()),
        }
    }

    async fn release_again(
        &self,
        claim: &Claim,
        run: &Run,
        first: Trouble,
    ) -> Result<Again, Trouble> {
        // Whatever keeps us from asking again, the first request may have done it.
        let Ok(answer) = run.on(self.commands.of(claim.key())).await else { return Err(first) };
        if answer != Freed::NotHeld {
            return Ok(Again::Answered(released(answer)));
        }
        let look = Run::renew(&self.keys, claim, claim.ttl());
        match look.on(self.commands.of(claim.key())).await? {
            Renewed::Forced(_) => Ok(Again::Answered(Release::NotHeld)),
            Renewed::Gone | Renewed::Yes { .. } => Ok(Again::Gone(first)),
        }
    }

    pub(crate) async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.inbox.desk().forget(claim.token());
        if !claim.was_sent() {
            return Ok(());
        }
        let (link, turn) = (self.commands.of(claim.key()), self.server.turn());
        Run::release(&self.keys, &self.author, claim, None).on::<Freed>(link).await?;
        self.note(claim, turn);
        if !link.may_have_strays(claim.ttl()) {
            return Ok(());
        }
        let what = "an earlier connection could not be closed and may still act";
        Err(link.trouble(Cause::Cut, what).into())
    }

    /// Makes sure that nothing is under way for `key`: a heartbeat must not come after the release of
    /// its next holder.
    pub(crate) async fn let_go(&self, key: &Key) -> Result<(), Fault> {
        let link = self.commands.of(key);
        let live = link.live().await?;
        link.call(&live, redis::cmd("PING")).await?;
        Ok(())
    }

    /// Whoever comes to wait for it says so in our inbox; who waited when it was last granted or renewed
    /// is known.
    pub(crate) fn heed(self: &Arc<Self>, lease: &Lease) {
        if !self.keys.has_slots() {
            return self.inbox.heed(lease.valid_until().before(lease.ttl()));
        }
        self.inbox.listen(self.keys.slot(lease.claim().key()));
        if let Ok(here) = Handle::try_current() {
            here.spawn(self.clone().look_who_waits(lease.claim().clone()));
        }
    }

    /// Looks whether somebody came to wait before we heard of such. With a channel for each slot that is
    /// often, so it is this lock alone that is looked at.
    async fn look_who_waits(self: Arc<Self>, claim: Arc<Claim>) {
        let slot = self.keys.slot(claim.key());
        // If that fails, the next renewal tells.
        if tokio::time::timeout(PING_EVERY, self.inbox.heard(slot)).await.is_err() {
            return;
        }
        let mut get = redis::cmd("GET");
        get.arg(self.keys.lock(claim.key()));
        let link = self.commands.of(claim.key());
        let Ok(live) = link.live().await else { return };
        let value = link.call(&live, get).await.ok();
        let value: Option<String> = value.and_then(|value| redis::from_redis_value(value).ok());
        let token = claim.token().expose();
        if value.is_some_and(|value| value.starts_with('*') && value.contains(&token)) {
            claim.set_contended(self.clock.now());
        }
    }

    pub(crate) async fn adopt(&self, claim: &Claim) -> Result<Option<Term>, Fault> {
        self.refuse_forked()?;
        // By the process that it is adopted from.
        claim.set_sent();
        let run = Run::renew(&self.keys, claim, claim.ttl());
        // Read the clock before sending: the server's ttl starts after this, so our view of it can
        // only be too short.
        let from = self.clock.now();
        match self.twice(claim.key(), &run).await? {
            Renewed::Yes { .. } => Ok(Some(Term::Lease { from, ttl: claim.ttl() })),
            Renewed::Gone | Renewed::Forced(_) => Ok(None),
        }
    }

    pub(crate) async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.refuse_forked()?;
        let by: String = by.chars().take(BY_MAX).collect();
        let run = Run::force(&self.keys, key, seen, &by);
        let answer = released(run.on(self.commands.of(key)).await?);
        if answer != Release::NotHeld {
            // For a holder in this process; others are told in their inbox, or find the word left
            // for them.
            let loss = Loss::Forced(by);
            self.server.tell(Notice::Lost { key: key.clone(), token: seen, loss });
        }
        Ok(answer)
    }

    /// Refuses what this engine cannot do before anything is sent.
    pub(crate) fn refuse_unsupported(&self, claim: &Claim) -> Result<(), Fault> {
        self.refuse_other(claim.process())?;
        match claim.mode() {
            Mode::Exclusive => Ok(()),
            Mode::Permits { .. } => {
                Err(Fault::new(FaultKind::Unsupported, "`redis:` grants exclusive claims only"))
            }
        }
    }

    pub(crate) fn refuse_forked(&self) -> Result<(), Fault> {
        self.refuse_other(std::process::id())
    }

    /// A forked child has its parent's sockets, and would be told its parent's turns.
    fn refuse_other(&self, process: u32) -> Result<(), Fault> {
        match process == self.pid {
            true => Ok(()),
            false => Err(Fault::new(FaultKind::Invalid, FORKED)),
        }
    }

    /// Runs what can be repeated; a second time if the connection broke, as idle ones do.
    pub(crate) async fn twice<A: Answer>(&self, key: &Key, run: &Run) -> Result<A, Trouble> {
        let link = self.commands.of(key);
        match run.on(link).await {
            Err(trouble) if trouble.cause() == Cause::Cut => run.on(link).await,
            answer => answer,
        }
    }
}

/// A short form of a release.
type Short = fn(&Keys, &Author, &Claim) -> Run;

/// How things were before a release was first asked for.
struct First {
    was_ours: bool,
    turn: u64,
}

/// What a release that is asked for again comes to.
enum Again {
    Answered(Release),
    /// It is not ours now; the trouble of the first time.
    Gone(Trouble),
}

fn released(freed: Freed) -> Release {
    match freed {
        Freed::Yes => Release::Freed,
        Freed::Still(others) => Release::StillHeld(others),
        Freed::NotHeld => Release::NotHeld,
    }
}

impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::full("redis");
        // Clients of other makers poll.
        (can.unseen_waiters, can.permits) = (true, false);
        can
    }

    fn clock(&self) -> Clock {
        self.shared.clock.clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(self.shared.ask_once(claim))
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        Box::pin(self.shared.wait(claim))
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        // Nothing moves where there is one server.
        Box::pin(async { drop(self.shared.renew(leases, answers).await) })
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.release_noted(lease, then))
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.shared.abandon(claim))
    }

    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        Box::pin(self.shared.adopt(claim))
    }

    fn let_go<'a>(&'a self, lease: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        // A lease here is its token and nothing of this process. Its claim stays known to the inbox: a
        // push that comes late is not to be taken for nobody's.
        Box::pin(self.shared.let_go(lease.claim().key()))
    }

    fn heed(&self, lease: &Arc<Lease>) {
        self.shared.heed(lease);
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.shared.renewals.settle_on(Handle::current());
            // Here, so that a blocked application does not keep us from hearing of a failover.
            self.shared.server.keep_watch_here();
            loop {
                let server = &self.shared.server;
                tokio::select! {
                    () = self.shared.clock.sleep(PING_EVERY) => {}
                    () = server.left(server.turn()) => {}
                }
                // Another locker on the same client may have taken it along.
                server.keep_watch();
                self.shared.renewals.ping().await;
                self.shared.release_earlier().await;
            }
        })
    }

    fn notices(&self) -> Notices {
        self.shared.server.notices()
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        Box::pin(async move {
            self.shared.refuse_forked()?;
            Ok(self.shared.inspect(query).await?)
        })
    }

    fn hints(&self) -> BoxFuture<'_, Result<Option<Hints>, Fault>> {
        Box::pin(async { Ok(self.shared.hints().await?) })
    }

    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        Box::pin(async move { Ok(self.shared.fates(ended).await?) })
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        Box::pin(self.shared.force(key, seen, by))
    }

    fn examine(&self, ttl: Duration) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(self.look_for_flaws(ttl))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.shared.renewals.close();
            // Who made a client closes it.
            if self.shared.alone {
                self.shared.inbox.close();
                self.shared.commands.close();
                self.shared.witness.iter().for_each(|witness| witness.close());
                self.shared.server.end_watch();
            }
        })
    }
}
