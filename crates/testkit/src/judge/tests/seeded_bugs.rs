//! The judge is judged: bugs of a server or of its client, on the real `memory:` backend, each in the shortest run that
//! shows it. Bugs of the gate are not here: `crates/core/src/gate/tests.rs` runs the gate itself.
//!
//! The clock only moves when the run advances it, so a run is the same every time. The same run without the
//! bug must be clean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::backend::{
    AfterRelease, Answers, Attempt, Backend, BoxFuture, Fault, FaultKind, Grant, Release, Renewal,
    Validity,
};
use tenure_core::time::{self, Clock, Time};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Memory, Token};

use crate::history::{Claimant, Event, Noted, Recorder};
use crate::intercept::{Intercepted, Interceptor, renewals};
use crate::judge::{Judge, Reached, Verdict};
use crate::register::{Reading, Register};

/// The bug of the backend or of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Release deletes the lock without comparing the token.
    ReleaseWithoutCompare,
    /// A renewal that arrives after the release restores the lock.
    RenewAfterRelease,
    /// A renewal of a lease that has expired is answered with "renewed".
    RenewAfterEnd,
    /// The holder relies on its lease until it is notified of the loss, not until `valid_until`.
    IgnoreValidUntil,
    /// A reply was lost, and the client sends the claim again under another token.
    RetryWithNewToken,
    /// The fence is a plain counter, and the server loses its data.
    BareCounterFence,
    /// Every grant has the same fence.
    SameFence,
}

impl Bug {
    /// All bugs.
    const ALL: [Bug; 7] = [
        Bug::ReleaseWithoutCompare,
        Bug::RenewAfterRelease,
        Bug::RenewAfterEnd,
        Bug::IgnoreValidUntil,
        Bug::RetryWithNewToken,
        Bug::BareCounterFence,
        Bug::SameFence,
    ];
}

const KEY: &str = "k";
const TTL: Duration = Duration::from_secs(10);

/// Runs the scenario of `bug`, with or without the bug.
async fn run(bug: Bug, broken: bool) -> Verdict {
    let stage = Stage::new(broken.then_some(bug));
    match bug {
        Bug::ReleaseWithoutCompare => stage.late_release().await,
        Bug::RenewAfterRelease => stage.late_renewal().await,
        Bug::RenewAfterEnd | Bug::IgnoreValidUntil => stage.paused_holder().await,
        Bug::RetryWithNewToken => stage.lost_reply().await,
        Bug::BareCounterFence => stage.data_loss().await,
        Bug::SameFence => stage.stale_write().await,
    }
    stage.verdict().await
}

/// The server, its clock, the recorder and the register.
struct Stage {
    bug: Option<Bug>,
    clock: Clock,
    memory: Memory,
    saboteur: Arc<Saboteur>,
    recorder: Recorder,
    register: Register,
}

/// A client that behaves as the engine should, except for its bug.
struct Client<'a> {
    stage: &'a Stage,
    claimant: Claimant,
}

struct Held {
    lease: Arc<Lease>,
    noted: Noted,
    seen: Reading,
    valid_until: Time,
}

impl Stage {
    fn new(bug: Option<Bug>) -> Self {
        let clock = Clock::manual();
        let memory = Memory::with_clock(clock.clone());
        Stage {
            bug,
            saboteur: Arc::new(Saboteur::new(bug, memory.clone())),
            recorder: Recorder::with_clock(clock.clone()),
            memory,
            clock,
            register: Register::new(),
        }
    }

    fn client(&self, owner: &str) -> Client<'_> {
        Client { stage: self, claimant: self.recorder.claimant(owner) }
    }

    fn backend(&self) -> Intercepted<Saboteur> {
        Intercepted::new(Arc::new(self.memory.clone()), self.saboteur.clone())
    }

    /// Advances the clock by `time` and a nanosecond, so that no two events have the same time.
    fn pass(&self, time: Duration) {
        self.clock.advance(time + Duration::from_nanos(1));
    }

    /// Two rows of the fault table: a release that comes after a rival acquired the lock.
    async fn late_release(&self) {
        let late = self.client("late").lock().await.expect("free");
        self.pass(TTL);
        let rival = self.client("rival").lock().await.expect("expired");
        late.release(self).await;
        if let Some(third) = self.client("third").lock().await {
            third.release(self).await;
        }
        self.pass(Duration::from_secs(1));
        rival.release(self).await;
    }

    /// A renewal that was under way when the release was called, and arrives after it.
    async fn late_renewal(&self) {
        let held = self.client("holder").lock().await.expect("free");
        let lease = held.lease.clone();
        held.release(self).await;
        renewals(&self.backend(), &[lease]).await;
    }

    /// A holder that was paused for longer than its ttl continues and renews.
    async fn paused_holder(&self) {
        let mut paused = self.client("paused").lock().await.expect("free");
        self.pass(TTL);
        let rival = self.client("rival").lock().await.expect("expired");
        self.pass(Duration::from_secs(1));
        paused.renew(self).await;
        paused.release(self).await;
        self.pass(Duration::from_secs(1));
        rival.release(self).await;
    }

    /// The server grants the lock, and the reply is lost.
    async fn lost_reply(&self) {
        self.saboteur.lose_next_reply.store(true, Ordering::Relaxed);
        if let Some(held) = self.client("holder").lock().await {
            held.release(self).await;
        }
        if let Some(held) = self.client("next").lock().await {
            held.release(self).await;
        }
    }

    /// Grants, then a server that restarts without data, then another grant.
    async fn data_loss(&self) {
        for owner in ["one", "two"] {
            self.client(owner).lock().await.expect("free").release(self).await;
            self.pass(Duration::from_millis(1));
        }
        self.saboteur.count.store(0, Ordering::Relaxed);
        self.client("three").lock().await.expect("free").release(self).await;
    }

    /// The old holder writes after the new one has read.
    async fn stale_write(&self) {
        let old = self.client("old").lock().await.expect("free");
        self.pass(TTL);
        let new = self.client("new").lock().await.expect("expired");
        old.release(self).await;
        self.pass(Duration::from_millis(1));
        new.release(self).await;
    }

    /// At the end no client holds the lock, so it must be available at once.
    async fn verdict(self) -> Verdict {
        self.pass(Duration::from_millis(1));
        let after = self.client("last").lock().await.map(|_| Duration::ZERO);
        let reached = Reached { key: KEY.into(), after, within: Duration::from_secs(1) };
        Judge::new(self.recorder.history())
            .register(self.register.tally())
            .reached([reached])
            .verdict()
    }
}

impl Client<'_> {
    async fn lock(&self) -> Option<Held> {
        let noted = self.claimant.asks(KEY);
        let backend = self.stage.backend();
        let mut claim = new_claim();
        let mut attempt = backend.try_acquire(&claim).await;
        if attempt.is_err() {
            // An unknown result is resolved by sending the same claim again.
            if self.stage.bug == Some(Bug::RetryWithNewToken) {
                claim = new_claim();
            }
            attempt = backend.try_acquire(&claim).await;
        }
        match attempt {
            Ok(Attempt::Granted(grant)) => Some(self.hold(claim, grant, noted)),
            other => {
                noted.gave_up(format!("{other:?}"));
                None
            }
        }
    }

    fn hold(&self, claim: Arc<Claim>, grant: Grant, noted: Noted) -> Held {
        let lease = Arc::new(Lease::new(claim, grant, self.stage.clock.clone()));
        let valid_until = match self.stage.bug {
            Some(Bug::IgnoreValidUntil) => Time::NEVER,
            _ => lease.valid_until(),
        };
        self.stage.pass(Duration::from_millis(1));
        noted.granted(lease.fence(), valid_until);
        self.stage.pass(Duration::from_millis(1));
        let seen = self.stage.register.read(KEY, lease.fence());
        Held { lease, noted, seen, valid_until }
    }
}

impl Held {
    async fn renew(&mut self, stage: &Stage) {
        let answers = renewals(&stage.backend(), std::slice::from_ref(&self.lease)).await;
        match answers[..] {
            [Some(Renewal::Renewed { validity: Validity::Lease { from, ttl }, .. })] => {
                self.valid_until = self.valid_until.max(time::valid_until(from, ttl));
                self.noted.extended(self.valid_until);
            }
            _ => self.noted.lost("gone"),
        }
    }

    async fn release(self, stage: &Stage) {
        stage.register.write(KEY, self.seen);
        self.noted.release_called(self.valid_until);
        let released = stage.backend().release(&self.lease, AfterRelease::Free).await;
        if matches!(released, Ok(Release::Freed)) {
            self.noted.note(Event::Released);
        }
        stage.pass(Duration::from_millis(1));
    }
}

fn new_claim() -> Arc<Claim> {
    let token = Token::random().expect("the system has randomness");
    Arc::new(Claim::new(Key::new(KEY).expect("a good name"), token, ClaimOptions::new(TTL)))
}

/// Intercepts the calls to the memory backend and implements the bug.
struct Saboteur {
    bug: Option<Bug>,
    memory: Memory,
    lose_next_reply: AtomicBool,
    count: AtomicU64,
}

impl Saboteur {
    fn new(bug: Option<Bug>, memory: Memory) -> Self {
        let (lose_next_reply, count) = (AtomicBool::new(false), AtomicU64::new(0));
        Saboteur { bug, memory, lose_next_reply, count }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn number(&self, grant: Grant) -> Grant {
        match self.bug {
            Some(Bug::BareCounterFence) => {
                Grant::new(self.count.fetch_add(1, Ordering::Relaxed) + 1, grant.validity)
            }
            Some(Bug::SameFence) => Grant::new(1, grant.validity),
            _ => grant,
        }
    }
}

impl Interceptor for Saboteur {
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        Box::pin(async {
            let attempt = inner.try_acquire(claim).await?;
            if self.lose_next_reply.swap(false, Ordering::Relaxed) {
                return Err(Fault::new(FaultKind::Unknown, "the reply was lost"));
            }
            Ok(match attempt {
                Attempt::Granted(grant) => Attempt::Granted(self.number(grant)),
                held => held,
            })
        })
    }

    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.is(Bug::RenewAfterRelease) {
                for lease in leases {
                    let _ = inner.try_acquire(lease.claim()).await;
                }
            }
            if self.is(Bug::RenewAfterEnd) {
                let from = inner.clock().now();
                for (index, lease) in leases.iter().enumerate() {
                    let term = Validity::Lease { from, ttl: lease.ttl() };
                    answers(index, Renewal::Renewed { validity: term, contended: false });
                }
                return;
            }
            inner.renew(leases, answers).await;
        })
    }

    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        if self.is(Bug::ReleaseWithoutCompare) {
            let _ = self.memory.expire(KEY);
            return Box::pin(async { Ok(Release::Freed) });
        }
        inner.release(lease, then)
    }
}

/// The judge detects each bug at the server or its client.
#[tokio::test]
async fn bugs_of_the_backend_are_caught() {
    for bug in Bug::ALL {
        run(bug, false).await.assert_clean();
        let verdict = run(bug, true).await;
        assert!(!verdict.is_clean(), "{bug:?} was not caught:\n{verdict}");
    }
}

/// Each bug is detected by the check that exists for it.
#[tokio::test]
async fn each_bug_breaks_its_own_promise() {
    assert_eq!(run(Bug::ReleaseWithoutCompare, true).await.overlaps(), 1);
    assert_eq!(run(Bug::RenewAfterRelease, true).await.not_had(), 1);
    assert_eq!(run(Bug::RenewAfterEnd, true).await.overlaps(), 1);
    assert_eq!(run(Bug::IgnoreValidUntil, true).await.overlaps(), 1);
    assert_eq!(run(Bug::RetryWithNewToken, true).await.not_had(), 1);
    assert!(run(Bug::BareCounterFence, true).await.regressions() > 0);
    assert!(run(Bug::SameFence, true).await.tally.fenced_lost() > 0);
}
