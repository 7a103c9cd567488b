//! What a run explores.
//!
//! In: nothing. Out: [`Setup`], the bounds and switches of one run, and [`Bug`], what can be
//! broken on purpose.

use std::fmt;

/// A fault that the network, the server or a process may have. Each costs one of [`Setup::faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A command connection is given up: its replies are lost, its requests may still execute.
    GiveUp,
    /// The server forgets a subscription; what was under way to the inbox is lost.
    Inbox,
    /// One push is lost although the server counted it as heard.
    Push,
    /// A process dies. The server may or may not notice.
    Crash,
    /// The server starts again without its data.
    Restart,
    /// A release stops half-way at the server.
    Half,
}

/// The protocol, broken in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A push is believed whatever its fence.
    PushWithoutStamp,
    /// A stale push is confirmed by a renewal, which says nothing of the fence.
    ConfirmByRenew,
    /// A push that needs confirming is dropped; the next heartbeat will tell.
    StalePushDropped,
    /// A push counts from the last heartbeat sent, answered or not.
    StampAtSend,
    /// A lease counts from when the reply came.
    ValidFromReply,
    /// An abandon travels on another connection than the claim's requests.
    AbandonOvertakes,
    /// An abandon is sent though the lease was handed to the next task.
    AbandonHitsNext,
    /// A claim is unknown while no task speaks for it.
    RegistryDropped,
    /// A waiter whose inbox nobody heard leaves the queue.
    UnheardDropped,
    /// A newcomer that finds the lock free forgets to say that others wait.
    FlagLost,
    /// A newcomer that finds the lock free takes it before the queue is looked at.
    QueueJumped,
    /// A release that finds the lock another's does not leave the queue.
    ReleaseStays,
    /// A renewal brings back a lock that is gone.
    RenewRecreates,
    /// After a reconnect, only an abandon kills the connection that was given up, a release does
    /// not.
    ReleaseLeavesLate,
    /// A lease is let go and its token forgotten.
    LetGoForgotten,
    /// A lease is let go while a question of its claim is unanswered.
    LetGoUnanswered,
    /// The push goes out before the lock is written.
    PublishFirst,
    /// The fence is a bare counter.
    BareCounter,
}

impl Bug {
    /// Every one of them.
    pub const ALL: [Bug; 18] = [
        Bug::PushWithoutStamp,
        Bug::ConfirmByRenew,
        Bug::StalePushDropped,
        Bug::StampAtSend,
        Bug::ValidFromReply,
        Bug::AbandonOvertakes,
        Bug::AbandonHitsNext,
        Bug::RegistryDropped,
        Bug::UnheardDropped,
        Bug::FlagLost,
        Bug::QueueJumped,
        Bug::ReleaseStays,
        Bug::RenewRecreates,
        Bug::ReleaseLeavesLate,
        Bug::LetGoForgotten,
        Bug::LetGoUnanswered,
        Bug::PublishFirst,
        Bug::BareCounter,
    ];
}

/// The bounds and switches of one run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What to call it.
    pub name: &'static str,
    /// How many ticks a grant lasts.
    pub ttl: u8,
    /// How many ticks a heartbeat is good for; not more than the ttl, as in the real thing.
    pub beat: u8,
    /// How many processes there are.
    pub processes: u8,
    /// How many claims each makes, one after the other.
    pub claims: u8,
    /// How often, in each process, a claim may pass from one task to the next.
    pub locals: u8,
    /// How many leases may be let go by one process and carried on by the next, in all.
    pub adoptions: u8,
    /// How many waits may be cancelled, in all.
    pub cancels: u8,
    /// How many faults may happen, in all.
    pub faults: u8,
    /// Which faults.
    pub kinds: &'static [Fault],
    /// Whether `CLIENT KILL` is allowed. If so it is the first command of a new connection.
    pub kill: bool,
    /// Whether everything arrives and every timer fires within its tick, faults excepted. If not,
    /// any message and any timer may take for ever.
    pub prompt: bool,
    /// Whether claims have fences.
    pub fenced: bool,
    /// The last process asks once and does not queue.
    pub tries: bool,
    /// A polled waiter is given the lock for the rest of its beat only; its next question makes
    /// it the whole ttl.
    pub short_polled: bool,
    /// How many entries a hand-over looks at.
    pub walk: usize,
    /// What is broken.
    pub bug: Option<Bug>,
}

impl Setup {
    /// Whether this is broken here.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.bug.map_or(Ok(()), |bug| write!(f, " with {bug:?}"))
    }
}
