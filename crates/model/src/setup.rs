//! The configuration of a run.
//!
//! In: nothing. Out: [`Setup`], the bounds and switches of one run, and [`Bug`], the bugs that can be seeded.

use std::fmt;

/// A fault of the network, the server or a process. Each uses up one of [`Setup::faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A command connection is given up: its replies are lost, its requests may still execute.
    GiveUp,
    /// The server loses a subscription; messages under way to the inbox are lost.
    Inbox,
    /// One push is lost although the server counted it as delivered.
    Push,
    /// A process dies. The server may or may not notice.
    Crash,
    /// The server restarts without its data.
    Restart,
    /// A release script stops in the middle.
    Half,
}

/// A bug in one part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A push is accepted regardless of its fence.
    PushWithoutStamp,
    /// A stale push is confirmed by a renewal, whose reply has no fence.
    ConfirmByRenew,
    /// A push that needs confirming is dropped; the waiter relies on its next heartbeat.
    StalePushDropped,
    /// The lease of a push counts from the last heartbeat sent, answered or not.
    StampAtSend,
    /// A lease counts from the arrival of the reply.
    ValidFromReply,
    /// An abandon is sent on another connection than the requests of its claim.
    AbandonOvertakes,
    /// An abandon is sent although the lease was handed to the next task.
    AbandonHitsNext,
    /// A claim is missing from the registry while no task drives it.
    RegistryDropped,
    /// A waiter whose inbox has no subscriber is removed from the queue.
    UnheardDropped,
    /// A newcomer that acquires a free lock does not set the flag that others wait.
    FlagLost,
    /// A newcomer that finds the lock free acquires it without checking the queue.
    QueueJumped,
    /// A release that finds the lock held by another claim does not leave the queue.
    ReleaseStays,
    /// A renewal recreates a lock that is gone.
    RenewRecreates,
    /// After a reconnect, only an abandon kills the connection that was given up; a release does not.
    ReleaseLeavesLate,
    /// A lease is relinquished and its token is forgotten.
    RelinquishForgotten,
    /// A lease is relinquished while a request of its claim is unanswered.
    RelinquishUnanswered,
    /// The push is sent before the lock is written.
    PublishFirst,
    /// The fence is a plain counter that does not follow the clock.
    BareCounter,
}

impl Bug {
    /// All bugs.
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
        Bug::RelinquishForgotten,
        Bug::RelinquishUnanswered,
        Bug::PublishFirst,
        Bug::BareCounter,
    ];
}

/// The bounds and switches of one run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The name of the run.
    pub name: &'static str,
    /// The duration of a grant in ticks.
    pub ttl: u8,
    /// How many ticks a heartbeat keeps a waiter alive; at most the ttl, as in the real engine.
    pub beat: u8,
    /// The number of processes.
    pub processes: u8,
    /// How many claims each process makes, one after the other.
    pub claims: u8,
    /// How often, in each process, a claim may pass from one task to the next.
    pub locals: u8,
    /// How many leases may be relinquished by one process and adopted by another, in total.
    pub adoptions: u8,
    /// How many waits may be cancelled, in total.
    pub cancels: u8,
    /// How many faults may happen, in total.
    pub faults: u8,
    /// The kinds of faults.
    pub kinds: &'static [Fault],
    /// Whether `CLIENT KILL` is allowed. If so, it is the first command of a new connection.
    pub kill: bool,
    /// Whether every message arrives and every timer fires within its tick, except for faults. If not, any
    /// message and any timer may be delayed without limit.
    pub prompt: bool,
    /// Whether claims have fences.
    pub fenced: bool,
    /// Whether the last process only tries: it asks once and does not queue.
    pub tries: bool,
    /// Whether a waiter that polls is granted the lock only for the rest of its heartbeat; its next request
    /// extends it to the whole ttl.
    pub short_polled: bool,
    /// How many queue entries a hand-over checks.
    pub walk: usize,
    /// The seeded bug.
    pub bug: Option<Bug>,
}

/// The protocol within the bounds of a setup. `model.rs` says what it does.
#[derive(Clone, Debug)]
pub(crate) struct Protocol(pub(crate) Setup);

impl Setup {
    /// Whether this bug is seeded.
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
