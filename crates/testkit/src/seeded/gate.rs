//! A model of many tasks in few processes: one claim per process at the server, hand-off within.
//!
//! A pure simulation. Chance picks what happens next: a task asks, releases, gives up; a process
//! renews or pauses; an operator takes the lock away. Time is a number. The history goes to the
//! judge, like any other.

use std::collections::VecDeque;

use tenure_core::time::{Clock, Time};

use super::gate_server::{Delivery, Server};
use crate::dice::Dice;
use crate::history::{Noted, Recorder};
use crate::judge::{Judge, Reached, Verdict};
use crate::register::{Register, Seen};
use tenure_core::Fence;

/// What is wrong with the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateBug {
    /// Nothing.
    None,
    /// A release hands the lease on although it is lost.
    HandsOverLost,
    /// A cancelled head abandons its claim although the next local waiter took the claim over.
    AbandonHitsNext,
    /// A release hands a shared owner's lease to a task that is not that owner.
    HandsOverShared,
}

const KEY: &str = "hot";
/// How long a lease lasts, and how much of it is relied on.
pub(super) const TTL: u64 = 1_000;
const VALID: u64 = TTL - 12;
const PROCESSES: usize = 3;
const TASKS: usize = 4;

/// Runs `steps` steps of chance, then lets everything settle, and judges it.
pub fn run(bug: GateBug, seed: u64, steps: u32) -> Verdict {
    let mut world = World::new(bug, seed);
    for _ in 0..steps {
        world.step();
    }
    world.settle()
}

struct World {
    bug: GateBug,
    dice: Dice,
    clock: Clock,
    recorder: Recorder,
    register: Register,
    server: Server,
    gates: Vec<Gate>,
    /// Abandons on their way to the server.
    late: VecDeque<u64>,
}

/// One process.
#[derive(Default)]
struct Gate {
    tasks: Vec<Task>,
    /// Who waits here, first come first.
    queue: VecDeque<usize>,
    /// The claim that waits at the server.
    claim: Option<Claim>,
    lease: Option<Lease>,
}

#[derive(Clone, Copy)]
struct Claim {
    token: u64,
    shared: bool,
}

struct Lease {
    claim: Claim,
    fence: u64,
    valid_until: u64,
    lost: bool,
}

#[derive(Default)]
enum Task {
    #[default]
    Idle,
    Waiting(Noted),
    Holding(Noted, Seen),
}

impl World {
    fn new(bug: GateBug, seed: u64) -> Self {
        let clock = Clock::manual();
        let gate = || Gate { tasks: (0..TASKS).map(|_| Task::Idle).collect(), ..Gate::default() };
        World {
            bug,
            dice: Dice::new(seed),
            recorder: Recorder::with_clock(clock.clone()),
            clock,
            register: Register::new(),
            server: Server::default(),
            gates: (0..PROCESSES).map(|_| gate()).collect(),
            late: VecDeque::new(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    fn step(&mut self) {
        let (gate, task) = (self.any(PROCESSES), self.any(TASKS));
        match self.dice.below(100) {
            0..40 => self.ask(gate, task),
            40..75 => self.release(gate, task),
            75..85 => self.cancel(gate, task),
            85..92 => self.renew(gate),
            92..97 => self.deliver_late(),
            97 => self.force(),
            98 => self.pass(TTL + TTL / 2),
            _ => {}
        }
        let tick = 1 + self.dice.below(20);
        self.pass(tick);
    }

    fn any(&mut self, below: usize) -> usize {
        usize::try_from(self.dice.below(below as u64)).expect("small")
    }

    /// Time passes: holders notice first (their view is the shorter one), then the server.
    fn pass(&mut self, ticks: u64) {
        self.clock.advance(std::time::Duration::from_nanos(ticks));
        for gate in 0..PROCESSES {
            let now = self.now();
            if self.gates[gate].lease.as_ref().is_some_and(|lease| lease.valid_until <= now) {
                self.lose(gate, "expired");
            }
        }
        self.server.expire(self.clock.now().as_nanos());
        self.deliver();
    }

    /// The last task of each process asks as an owner that all processes share.
    fn is_shared(task: usize) -> bool {
        task == TASKS - 1
    }

    fn ask(&mut self, gate: usize, task: usize) {
        if !matches!(self.gates[gate].tasks[task], Task::Idle) {
            return;
        }
        let owner =
            if Self::is_shared(task) { "shared".into() } else { format!("p{gate}/t{task}") };
        // Claims of one name need different numbers, so each asks through a claimant of its own.
        let noted = self.recorder.claimant(owner).numbered(self.dice.roll()).asks(KEY);
        self.gates[gate].tasks[task] = Task::Waiting(noted);
        self.gates[gate].queue.push_back(task);
        self.claim_if_needed(gate);
    }

    /// The head of the queue asks the server, unless the process has a claim or a lease already.
    fn claim_if_needed(&mut self, gate: usize) {
        let this = &mut self.gates[gate];
        let Some(head) = this.queue.front() else { return };
        if this.claim.is_some() || this.lease.is_some() {
            return;
        }
        let claim = Claim { token: self.dice.roll(), shared: Self::is_shared(*head) };
        this.claim = Some(claim);
        let until = self.clock.now().as_nanos() + TTL;
        self.server.ask(gate, claim.token, claim.shared, until);
        self.deliver();
    }

    /// Brings the server's grants to their gates. One nobody waits for is given back.
    fn deliver(&mut self) {
        while let Some(Delivery { gate, token, fence }) = self.server.next_delivery() {
            let this = &mut self.gates[gate];
            match this.claim.take_if(|claim| claim.token == token) {
                Some(claim) if !this.queue.is_empty() => {
                    let valid_until = self.server.renew(token, self.clock.now().as_nanos() + TTL);
                    let valid_until = valid_until.map_or(0, |until| until - (TTL - VALID));
                    this.lease = Some(Lease { claim, fence, valid_until, lost: false });
                    self.give_to_head(gate);
                }
                _ => self.server.release(token, self.clock.now().as_nanos() + TTL),
            }
        }
    }

    fn give_to_head(&mut self, gate: usize) {
        let this = &mut self.gates[gate];
        let (Some(task), Some(lease)) = (this.queue.pop_front(), &this.lease) else { return };
        let fence = Fence::from_raw(lease.fence);
        if let Task::Waiting(noted) = std::mem::take(&mut this.tasks[task]) {
            noted.granted(fence, Time::from_nanos(lease.valid_until));
            this.tasks[task] = Task::Holding(noted, self.register.read(KEY, fence));
        }
    }

    fn release(&mut self, gate: usize, task: usize) {
        let this = &mut self.gates[gate];
        if !matches!(this.tasks[task], Task::Holding(..)) {
            return;
        }
        let Task::Holding(noted, seen) = std::mem::take(&mut this.tasks[task]) else { return };
        let valid_until = this.lease.as_ref().map_or(0, |lease| lease.valid_until);
        self.register.write(KEY, seen);
        noted.release_called(Time::from_nanos(valid_until));
        if !self.hand_over(gate) {
            self.end_lease(gate);
        }
    }

    /// Gives the lease to the next local waiter, if it may.
    fn hand_over(&mut self, gate: usize) -> bool {
        let bug = self.bug;
        let this = &mut self.gates[gate];
        let (Some(lease), Some(next)) = (&mut this.lease, this.queue.front()) else { return false };
        let lost = lease.lost && bug != GateBug::HandsOverLost;
        let from_shared = lease.claim.shared && bug != GateBug::HandsOverShared;
        if lost || from_shared || Self::is_shared(*next) {
            return false;
        }
        lease.fence += 1;
        self.give_to_head(gate);
        true
    }

    fn end_lease(&mut self, gate: usize) {
        if let Some(lease) = self.gates[gate].lease.take() {
            self.server.release(lease.claim.token, self.clock.now().as_nanos() + TTL);
            self.deliver();
        }
        self.claim_if_needed(gate);
    }

    fn cancel(&mut self, gate: usize, task: usize) {
        let this = &mut self.gates[gate];
        if !matches!(this.tasks[task], Task::Waiting(_)) {
            return;
        }
        if let Task::Waiting(noted) = std::mem::take(&mut this.tasks[task]) {
            noted.gave_up("cancelled");
        }
        let was_head = this.queue.front() == Some(&task);
        this.queue.retain(|waiting| *waiting != task);
        if was_head {
            self.succeed(gate);
        }
    }

    /// The head is gone: the next local waiter takes its claim over if the claim fits it.
    fn succeed(&mut self, gate: usize) {
        let this = &mut self.gates[gate];
        let Some(claim) = this.claim else { return };
        let fits = this.queue.front().is_some_and(|next| !claim.shared && !Self::is_shared(*next));
        if fits && self.bug != GateBug::AbandonHitsNext {
            return;
        }
        if fits {
            self.late.push_back(claim.token);
            return;
        }
        this.claim = None;
        self.server.release(claim.token, self.clock.now().as_nanos() + TTL);
        self.deliver();
        self.claim_if_needed(gate);
    }

    fn deliver_late(&mut self) {
        if let Some(token) = self.late.pop_front() {
            self.server.release(token, self.clock.now().as_nanos() + TTL);
            self.deliver();
        }
    }

    fn renew(&mut self, gate: usize) {
        let until = self.now() + TTL;
        let Some(lease) = self.gates[gate].lease.as_mut().filter(|lease| !lease.lost) else {
            return;
        };
        match self.server.renew(lease.claim.token, until) {
            Some(until) => lease.valid_until = until - (TTL - VALID),
            None => self.lose(gate, "gone"),
        }
    }

    /// An operator takes the lock away, and its holders are told at once.
    fn force(&mut self) {
        for token in self.server.force(self.clock.now().as_nanos() + TTL) {
            let held = |gate: &Gate| gate.lease.as_ref().is_some_and(|l| l.claim.token == token);
            if let Some(gate) = self.gates.iter().position(held) {
                self.lose(gate, "forced");
            }
        }
        self.deliver();
    }

    fn lose(&mut self, gate: usize, loss: &str) {
        let this = &mut self.gates[gate];
        let Some(lease) = this.lease.as_mut().filter(|lease| !lease.lost) else { return };
        lease.lost = true;
        for task in &this.tasks {
            if let Task::Holding(noted, _) = task {
                noted.lost(loss);
            }
        }
    }

    /// Everybody lets go; then the key must be free once a ttl has passed.
    fn settle(mut self) -> Verdict {
        for (gate, task) in (0..PROCESSES).flat_map(|g| (0..TASKS).map(move |t| (g, t))) {
            self.cancel(gate, task);
        }
        for (gate, task) in (0..PROCESSES).flat_map(|g| (0..TASKS).map(move |t| (g, t))) {
            self.release(gate, task);
        }
        self.pass(TTL + 1);
        let within = std::time::Duration::from_nanos(TTL);
        let after = self.server.is_free().then_some(within);
        Judge::new(self.recorder.history())
            .register(self.register.tally())
            .reached([Reached { key: KEY.into(), after, within }])
            .verdict()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 200;
    const STEPS: u32 = 1_000;

    /// Seeds on which the judge found something.
    fn caught(bug: GateBug) -> u64 {
        (0..SEEDS).filter(|seed| !run(bug, *seed, STEPS).is_clean()).count() as u64
    }

    /// The gate without a bug keeps every promise, whatever chance does.
    #[test]
    fn the_right_gate_is_clean() {
        for seed in 0..SEEDS {
            run(GateBug::None, seed, STEPS).assert_clean();
        }
    }

    /// A lost lease that is handed over is found.
    #[test]
    fn handing_over_a_lost_lease_is_caught() {
        let found = caught(GateBug::HandsOverLost);
        assert!(found > SEEDS / 4, "only {found} of {SEEDS}");
    }

    /// An abandon that hits the next local holder is found.
    #[test]
    fn an_abandon_that_hits_the_next_holder_is_caught() {
        let found = caught(GateBug::AbandonHitsNext);
        assert!(found > SEEDS / 4, "only {found} of {SEEDS}");
    }

    /// A shared owner's lease that is handed to somebody else is found.
    #[test]
    fn handing_over_a_shared_lease_is_caught() {
        let found = caught(GateBug::HandsOverShared);
        assert!(found > SEEDS / 4, "only {found} of {SEEDS}");
    }
}
