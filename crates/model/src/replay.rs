//! The model step by step, for a test that does the same on a real server.
//!
//! In: the steps of users. Out: who holds the lock and who waits, at the server and in the processes. After each step
//! all messages are delivered, in the order in which they were sent. Time stands still, and there are no faults.

use stateright::Model;

use crate::model::Action;
use crate::setup::{Protocol, Setup};
use crate::state::{Phase, Token, World};

/// A few processes; the last one only tries.
const SETUP: Setup = Setup {
    name: "replay",
    ttl: 3,
    beat: 3,
    processes: 4,
    claims: 3,
    locals: 0,
    adoptions: 0,
    cancels: u8::MAX,
    faults: 0,
    kinds: &[],
    kill: true,
    prompt: true,
    fenced: true,
    tries: true,
    short_polled: true,
    walk: usize::MAX,
    bug: None,
};

/// What a user of a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserStep {
    /// Makes a claim, and asks for the lock with it.
    Lock(u8),
    /// Stops to wait.
    Cancel(u8),
    /// Releases the lock.
    Release(u8),
    /// Renews its lease.
    Renew(u8),
}

/// A claim: the number of its process, and its number there.
pub type Claim = (u8, u8);

/// The model at one moment.
#[derive(Debug)]
pub struct Replay(World);

impl Replay {
    /// The number of processes.
    pub const PROCESSES: u8 = SETUP.processes;

    /// Nobody holds the lock or waits.
    #[allow(clippy::new_without_default, reason = "a start, not a default")]
    pub fn new() -> Self {
        Replay(World::new(&SETUP))
    }

    /// Whether this process asks once and does not wait.
    pub fn only_tries(process: u8) -> bool {
        SETUP.tries && process + 1 == SETUP.processes
    }

    /// The possible steps.
    pub fn steps(&self) -> Vec<UserStep> {
        let phases = (0..).zip(self.0.processes.iter().map(|process| process.phase));
        let renewals = phases.filter(|(_, phase)| matches!(phase, Phase::Holding(_)));
        let users = self.actions().into_iter().filter_map(|action| match action {
            Action::Start(process) => Some(UserStep::Lock(process)),
            Action::Cancel(process) => Some(UserStep::Cancel(process)),
            Action::Release(process) => Some(UserStep::Release(process)),
            _ => None,
        });
        users.chain(renewals.map(|(process, _)| UserStep::Renew(process))).collect()
    }

    /// Takes a step, and delivers all messages that follow from it. Returns the process's claim.
    pub fn step(&mut self, step: UserStep) -> Claim {
        let (process, action) = match step {
            UserStep::Lock(process) => (process, Action::Start(process)),
            UserStep::Cancel(process) => (process, Action::Cancel(process)),
            UserStep::Release(process) => (process, Action::Release(process)),
            UserStep::Renew(process) => (process, Action::Renew(process)),
        };
        self.act(action);
        let claim = claim(self.0.token(process));
        while let Some(delivery) = self.actions().into_iter().find(is_delivery) {
            self.act(delivery);
        }
        claim
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        Protocol(SETUP).actions(&self.0, &mut actions);
        actions
    }

    fn act(&mut self, action: Action) {
        Protocol(SETUP).step(&mut self.0, action);
    }

    /// The holder at the server.
    pub fn holder(&self) -> Option<Claim> {
        self.0.server.lock.as_ref().map(|lock| claim(lock.token))
    }

    /// The waiters at the server, in order.
    pub fn queue(&self) -> Vec<Claim> {
        self.0.server.queue.iter().map(|entry| claim(entry.token)).collect()
    }

    /// Whether the process relies on the lock.
    pub fn holds(&self, process: u8) -> bool {
        matches!(self.0.processes[usize::from(process)].phase, Phase::Holding(_))
    }

    /// How many fences were granted.
    pub fn fences(&self) -> u8 {
        self.0.server.fence
    }

    /// Whether a rule of the protocol is broken.
    pub fn is_broken(&self) -> bool {
        self.0.broken.is_some()
    }
}

fn claim(token: Token) -> Claim {
    (token.process, token.claim)
}

fn is_delivery(action: &Action) -> bool {
    matches!(
        action,
        Action::Execute(_)
            | Action::Read(_)
            | Action::ExecuteSide(_)
            | Action::ReadSide(_)
            | Action::ReceivePush(_)
    )
}
