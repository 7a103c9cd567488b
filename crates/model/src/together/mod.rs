//! Claims with a mode: writers, readers, permits and one shared owner on one key.
//!
//! In: bounds ([`Together`]) and a seeded bug ([`TogetherBug`]). Out: stateright's `Model`; each step is a
//! [`TogetherStep`]. What is modelled and what is not: `docs/design/0004-model.md`.
//!
//! One rule: a key is held alone, or together by claims of one kind. A claim is granted when it fits those who hold
//! the key, and no waiter that can be notified waits before it.
//!
//! Reading order: this file (the kinds, the bounds, the possible steps), `state.rs`, `server.rs` (the scripts),
//! `asker.rs` (the processes), `judge.rs` (the rules, with a `fits` of their own), `runs.rs`, `replay.rs` (step by
//! step, for a test).

mod state;
mod server;
mod asker;
mod judge;
mod runs;
mod replay;

use stateright::{Model, Property};

use crate::setup::Fault;
pub use judge::{
    BACKED, BATCH, COMPATIBLE, ENDED, FENCES, FITS, ONCE, ORPHAN, PHASE, PLACE, REASON, SERVED,
    SLOTS, TURN,
};
pub use replay::{TogetherEvent, TogetherReplay};
pub use runs::{LARGE, SUITE, trap};
pub use state::TogetherWorld;
use state::{Asker, AskerPhase};

/// What a claim asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The key alone.
    Writer,
    /// The key together with all readers.
    Reader,
    /// The key together with all claims of the one shared owner.
    Owner,
    /// Some permits of the asker's own capacity.
    Permit {
        /// How many permits.
        weight: u8,
        /// How many permits may be out when these are, by the asker's configuration.
        capacity: u8,
    },
}

impl Kind {
    /// How many members of the key a claim is.
    fn weight(self) -> u8 {
        if let Kind::Permit { weight, .. } = self { weight } else { 1 }
    }

    fn capacity(self) -> Option<u8> {
        if let Kind::Permit { capacity, .. } = self { Some(capacity) } else { None }
    }

    /// Whether claims of both kinds can hold the key at the same time, if there are permits enough.
    fn mixes(self, other: Kind) -> bool {
        self != Kind::Writer && std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// A bug in one part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TogetherBug {
    /// Used permits are a counter: a release subtracts its weight, whether its claim holds or not.
    Counter,
    /// The kind is read from the first member, and an extra member of a weighted claim looks like a reader.
    KindOfExtra,
    /// Ended members count in `fits`.
    NotPurged,
    /// A renewal extends a member that has ended.
    RenewRevives,
    /// The renewal of a weighted claim extends only its first member.
    RenewsFirst,
    /// A renewal extends every member of the key.
    RenewsAll,
    /// A heavy permit that does not fit is passed by the lighter ones behind it.
    HeavyPassed,
    /// A reader that finds readers is granted without a look at the queue.
    ReaderJoins,
    /// A try that fits is granted without a look at the queue.
    TryPasses,
    /// The abandon of a waiter does not serve those behind it.
    AbandonServesNobody,
    /// A waiter that cannot be notified holds back those behind it.
    UnheardBlocks,
    /// The same for the caller alone: it does not fit, cannot be notified, and holds back those behind it.
    UnheardCallerBlocks,
    /// A waiter that cannot be notified is removed from the queue.
    UnheardDropped,
    /// A waiter that does not fit is passed over.
    UnfitPassed,
    /// Only one reader is granted by a script.
    OneReaderOnly,
    /// The batch of readers goes on behind a writer.
    BatchPastWriter,
    /// A claim that could not be notified remains a holder.
    UnseatForgotten,
    /// A release serves by its own capacity instead of the waiter's.
    ReleasersCapacity,
    /// The slot of a permit is the number of permits in use.
    SlotByCount,
    /// The slot of a permit is above the highest in use.
    SlotAboveHighest,
    /// A writer that is granted the key by a hand-over does not get the flag that others wait.
    FlagForgotten,
    /// A claim of the shared owner is queued behind a waiter while its owner holds the key.
    SameOwnerQueued,
    /// A waiter that holds already is granted by the queue again, with other slots.
    GrantedTwice,
    /// A repeated request of a holder adds members.
    CountedTwice,
    /// A free key is refused while anybody is in the queue, also one that cannot be notified.
    DeadHoldBack,
    /// After the last grant of a full batch, the next waiter is not asked to ask.
    NextNotAsked,
    /// A short grant shortens the expiry of the key.
    ExpiryShortened,
    /// A polling claim that is granted by its own request is granted only for its heartbeat.
    PolledCallerShort,
    /// A release that finds the claim a holder does not leave the queue.
    ReleaseStays,
    /// A grant to a waiter has the fence of the grant before it.
    FenceKept,
}

impl TogetherBug {
    /// All bugs.
    pub const ALL: [TogetherBug; 30] = [
        TogetherBug::Counter,
        TogetherBug::KindOfExtra,
        TogetherBug::NotPurged,
        TogetherBug::RenewRevives,
        TogetherBug::RenewsFirst,
        TogetherBug::RenewsAll,
        TogetherBug::HeavyPassed,
        TogetherBug::ReaderJoins,
        TogetherBug::TryPasses,
        TogetherBug::AbandonServesNobody,
        TogetherBug::UnheardBlocks,
        TogetherBug::UnheardCallerBlocks,
        TogetherBug::UnheardDropped,
        TogetherBug::UnfitPassed,
        TogetherBug::OneReaderOnly,
        TogetherBug::BatchPastWriter,
        TogetherBug::UnseatForgotten,
        TogetherBug::ReleasersCapacity,
        TogetherBug::SlotByCount,
        TogetherBug::SlotAboveHighest,
        TogetherBug::FlagForgotten,
        TogetherBug::SameOwnerQueued,
        TogetherBug::GrantedTwice,
        TogetherBug::CountedTwice,
        TogetherBug::DeadHoldBack,
        TogetherBug::NextNotAsked,
        TogetherBug::ExpiryShortened,
        TogetherBug::PolledCallerShort,
        TogetherBug::ReleaseStays,
        TogetherBug::FenceKept,
    ];
}

/// The bounds and switches of one run.
#[derive(Clone, Debug)]
pub struct Together {
    /// The name of the run.
    pub name: &'static str,
    /// The claims; each is made once, by a process of its own.
    pub claims: &'static [Kind],
    /// Whether the last claim only tries: it asks once and does not queue.
    pub tries: bool,
    /// The duration of a grant in ticks.
    pub ttl: u8,
    /// How many ticks a heartbeat keeps a waiter alive; at most the ttl.
    pub beat: u8,
    /// How many waits may be cancelled, in total.
    pub cancels: u8,
    /// How many faults may happen, in total.
    pub faults: u8,
    /// The kinds of faults; a restart without data is not among them.
    pub kinds: &'static [Fault],
    /// Whether `CLIENT KILL` is allowed: then no request of a given-up connection executes later.
    pub kill: bool,
    /// For how many of the claims, the first ones, any message and any timer may be delayed without limit. For the
    /// others, except for faults, every message arrives and every timer fires within its tick.
    pub slow: usize,
    /// Whether the server counts the subscribers of an inbox before it publishes (`NUMSUB`).
    pub counted: bool,
    /// How many waiters that cannot be notified a script passes over.
    pub looks: usize,
    /// How many waiters a script grants; then it asks the next one to ask.
    pub batch: u8,
    /// The seeded bug.
    pub bug: Option<TogetherBug>,
}

/// One step. A number is a claim, and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TogetherStep {
    /// A tick passes.
    Tick,
    /// The first request is sent, or a heartbeat.
    Ask(u8),
    /// The waiting task is cancelled.
    Cancel(u8),
    /// The guard is released, or a lost one is given up.
    Release(u8),
    /// A renewal is sent.
    Renew(u8),
    /// The end of a claim (release or abandon) is sent.
    End(u8),
    /// The server executes a request.
    Execute(u8),
    /// The same, but the script stops after the first member that it adds for a waiter.
    ExecuteHalf(u8),
    /// The server executes a request of a given-up connection.
    ExecuteLate(u8),
    /// A reply is read.
    Read(u8),
    /// A push is read.
    ReceivePush(u8),
    /// The connection is given up for a new one.
    GiveUp(u8),
    /// The server loses the subscription of the inbox.
    LoseInbox(u8),
    /// The process notices that its inbox is not subscribed.
    NoticeInbox(u8),
    /// The inbox is subscribed again.
    Subscribe(u8),
    /// A push is lost.
    LosePush(u8),
    /// The process dies; the server notices, or still counts its inbox as subscribed.
    Crash(u8, bool),
}

/// The most unread pushes in one inbox.
const INBOX_MAX: usize = 2;

impl Model for Together {
    type State = TogetherWorld;
    type Action = TogetherStep;

    fn init_states(&self) -> Vec<TogetherWorld> {
        vec![TogetherWorld::new(self)]
    }

    fn actions(&self, world: &TogetherWorld, steps: &mut Vec<TogetherStep>) {
        // States after a broken rule prove nothing.
        if world.broken.is_some() {
            return;
        }
        for (number, asker) in (0..).zip(&world.askers) {
            self.doings(asker, number, steps);
            deliveries(asker, number, steps);
            if world.faults > 0 {
                self.failings(asker, number, steps);
            }
            if world.cancels > 0 && asker.phase == AskerPhase::Asking {
                steps.push(TogetherStep::Cancel(number));
            }
        }
        if world.askers.iter().skip(self.slow).all(Asker::is_quiet) {
            steps.push(TogetherStep::Tick);
        }
    }

    fn next_state(&self, before: &TogetherWorld, step: TogetherStep) -> Option<TogetherWorld> {
        let mut world = before.clone();
        world.step(self, step).then(|| {
            world.simplify(self);
            world
        })
    }

    /// A bound, not a proof: states with more unread messages are not visited.
    fn within_boundary(&self, world: &TogetherWorld) -> bool {
        world.askers.iter().all(|asker| asker.inbox.len() <= INBOX_MAX)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        judge::all()
    }
}

impl Together {
    fn has(&self, bug: TogetherBug) -> bool {
        self.bug == Some(bug)
    }

    fn kind(&self, claim: u8) -> Kind {
        self.claims[usize::from(claim)]
    }

    fn is_slow(&self, claim: u8) -> bool {
        usize::from(claim) < self.slow
    }

    /// The steps of a process by itself. It has one request at a time.
    fn doings(&self, asker: &Asker, number: u8, steps: &mut Vec<TogetherStep>) {
        if let AskerPhase::Holding(_) = asker.phase {
            steps.push(TogetherStep::Release(number));
        }
        if asker.wire.is_some() {
            return;
        }
        // A second heartbeat in a tick adds nothing, unless a push makes the waiter ask.
        let fresh = asker.last_reply.is_some_and(|last_reply| last_reply.age == 0);
        let due = if self.is_slow(number) { !fresh } else { !asker.beaten };
        match asker.phase {
            AskerPhase::Idle => steps.push(TogetherStep::Ask(number)),
            AskerPhase::Asking if due => steps.push(TogetherStep::Ask(number)),
            AskerPhase::Holding(1) => steps.push(TogetherStep::Renew(number)),
            AskerPhase::Ending => steps.push(TogetherStep::End(number)),
            _ => {}
        }
    }

    /// The possible faults.
    fn failings(&self, asker: &Asker, number: u8, steps: &mut Vec<TogetherStep>) {
        if matches!(asker.phase, AskerPhase::Idle | AskerPhase::Dead) {
            return;
        }
        let asking = asker.phase == AskerPhase::Asking;
        for fault in self.kinds {
            match fault {
                Fault::GiveUp if asker.wire.is_some() => steps.push(TogetherStep::GiveUp(number)),
                Fault::Inbox if asking && asker.heard => {
                    steps.push(TogetherStep::LoseInbox(number));
                }
                Fault::Push if !asker.inbox.is_empty() => {
                    steps.push(TogetherStep::LosePush(number));
                }
                Fault::Crash if asker.phase != AskerPhase::Done => {
                    steps.push(TogetherStep::Crash(number, false));
                    steps.extend(
                        (asking && asker.heard).then_some(TogetherStep::Crash(number, true)),
                    );
                }
                Fault::Half if asker.wire.is_some_and(|message| message.serves()) => {
                    steps.push(TogetherStep::ExecuteHalf(number));
                }
                _ => {}
            }
        }
    }
}

/// The steps of the network and the server.
fn deliveries(asker: &Asker, number: u8, steps: &mut Vec<TogetherStep>) {
    if let Some(message) = asker.wire {
        steps.push(match message.is_request() {
            true => TogetherStep::Execute(number),
            false => TogetherStep::Read(number),
        });
    }
    if asker.late.is_some() {
        steps.push(TogetherStep::ExecuteLate(number));
    }
    if !asker.inbox.is_empty() {
        steps.push(TogetherStep::ReceivePush(number));
    }
    match (asker.phase, asker.heard, asker.confirmed) {
        (AskerPhase::Dead, _, _) | (_, true, _) => {}
        (_, false, true) => steps.push(TogetherStep::NoticeInbox(number)),
        (_, false, false) => steps.push(TogetherStep::Subscribe(number)),
    }
}
