//! The possible steps.
//!
//! In: a [`Setup`]. Out: stateright's `Model`; each step is an [`Action`].

use stateright::{Model, Property};

use crate::rules;
use crate::setup::{Bug, Fault, Protocol};
use crate::state::{Phase, Process, Reply, Request, Side, Token, World};

/// One step. A number is a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A tick passes.
    Tick,
    /// A process makes a new claim.
    Start(u8),
    /// A waiter sends a heartbeat, or a request to confirm a push.
    Ask(u8),
    /// The waiting task is cancelled.
    Cancel(u8),
    /// The holder releases the lock, or gives up a lost one.
    Release(u8),
    /// The holder hands its lease to the next task of its process.
    HandOff(u8),
    /// The holder relinquishes its lease, and the second process adopts it.
    Relinquish(u8, u8),
    /// An adopted lease is released.
    ReleaseAdopted(u8),
    /// A renewal is sent.
    Renew(u8),
    /// The end of a claim is requested again.
    EndAgain(u8),
    /// The server executes the oldest request of a connection.
    Execute(u8),
    /// The same, of a connection that was given up.
    ExecuteLate(u8),
    /// The same, of the renewal connection.
    ExecuteSide(u8),
    /// The same, but the script stops in the middle.
    ExecuteHalf(u8),
    /// A reply is read.
    Read(u8),
    /// The reply to a renewal is read.
    ReadSide(u8),
    /// The message on the renewal connection is lost.
    LoseSide(u8),
    /// A push is read.
    ReceivePush(u8),
    /// The command connection is given up for a new one.
    GiveUp(u8),
    /// The server loses the subscription of the inbox.
    LoseInbox(u8),
    /// The process notices that its inbox is not subscribed.
    NoticeInbox(u8),
    /// The inbox is subscribed again.
    Subscribe(u8),
    /// A push is lost.
    LosePush(u8),
    /// The process dies, and the server notices.
    Crash(u8),
    /// The process dies, and the server still counts its inbox as subscribed.
    CrashUnseen(u8),
    /// The server restarts without data.
    Restart,
}

/// The most unread pushes in one inbox: one stale and one valid.
const INBOX_MAX: usize = 2;

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // States after a broken rule prove nothing.
        if world.broken.is_some() {
            return;
        }
        for (number, process) in (0..).zip(&world.processes) {
            self.doings(process, number, actions);
            self.deliveries(world, process, number, actions);
            if world.faults > 0 {
                self.failings(process, number, actions);
            }
            if world.adoptions > 0 && self.may_relinquish(process, number) {
                actions.extend(adopters(world, number).map(|to| Action::Relinquish(number, to)));
            }
            if world.cancels > 0 && process.phase == Phase::Asking {
                actions.push(Action::Cancel(number));
            }
        }
        if world.faults > 0 && self.0.kinds.contains(&Fault::Restart) {
            actions.push(Action::Restart);
        }
        if !self.0.prompt || world.processes.iter().all(quiet) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.step(&mut world, action);
        if !self.0.has(Bug::BareCounter) {
            world.simplify();
        }
        Some(world)
    }

    /// A bound, not a proof: states with more unread messages are not visited.
    fn within_boundary(&self, world: &World) -> bool {
        world.processes.iter().all(|process| process.inbox.len() <= INBOX_MAX)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules::all()
    }
}

impl Protocol {
    /// The steps of a process by itself.
    fn doings(&self, process: &Process, number: u8, actions: &mut Vec<Action>) {
        match process.phase {
            Phase::Idle if process.claim < self.0.claims => actions.push(Action::Start(number)),
            Phase::Asking if self.may_ask(process, number) => actions.push(Action::Ask(number)),
            Phase::Holding(left) => {
                actions.push(Action::Release(number));
                if left > 0 && process.locals > 0 {
                    actions.push(Action::HandOff(number));
                }
                if left == 1 && process.side.is_none() {
                    actions.push(Action::Renew(number));
                }
            }
            _ => {}
        }
        if process.adopted.is_some() {
            actions.push(Action::ReleaseAdopted(number));
        }
        if process.ending.is_some_and(|ending| !ends(process, ending)) {
            actions.push(Action::EndAgain(number));
        }
    }

    /// One request at a time. Without `prompt`, a second heartbeat in the tick of an answered one would add
    /// nothing.
    fn may_ask(&self, process: &Process, number: u8) -> bool {
        let fresh = process.last_reply.is_some_and(|last_reply| last_reply.age == 0);
        !process.asks(token(process, number)) && (self.0.prompt || !fresh)
    }

    /// Only if no request of the claim can execute after the adopter has released it.
    fn may_relinquish(&self, process: &Process, number: u8) -> bool {
        let token = token(process, number);
        let answered = !process.asks(token) && process.late.is_empty();
        let held = process.beliefs(number).any(|held| held == token);
        held && (answered || self.0.has(Bug::RelinquishUnanswered))
    }

    /// The steps of the network and the server.
    fn deliveries(&self, world: &World, process: &Process, number: u8, actions: &mut Vec<Action>) {
        if let Some(request) = process.requests.first() {
            actions.push(Action::Execute(number));
            if world.faults > 0 && self.0.kinds.contains(&Fault::Half) && half(self, world, request)
            {
                actions.push(Action::ExecuteHalf(number));
            }
        }
        if !process.late.is_empty() {
            actions.push(Action::ExecuteLate(number));
        }
        if !process.replies.is_empty() {
            actions.push(Action::Read(number));
        }
        match &process.side {
            Some(Side::Renewed { .. } | Side::Gone(_)) => actions.push(Action::ReadSide(number)),
            Some(_) => actions.push(Action::ExecuteSide(number)),
            None => {}
        }
        if process.side.is_some() && !self.0.prompt {
            actions.push(Action::LoseSide(number));
        }
        // An unwanted grant is released on the renewal connection, which must be free for it.
        if !process.inbox.is_empty() && process.side.is_none() {
            actions.push(Action::ReceivePush(number));
        }
        match (process.phase, process.heard, process.confirmed) {
            (Phase::Dead, _, _) | (_, true, _) => {}
            (_, false, true) => actions.push(Action::NoticeInbox(number)),
            (_, false, false) => actions.push(Action::Subscribe(number)),
        }
    }

    /// The possible faults.
    fn failings(&self, process: &Process, number: u8, actions: &mut Vec<Action>) {
        if process.phase == Phase::Dead {
            return;
        }
        for fault in self.0.kinds {
            match fault {
                Fault::GiveUp => actions.push(Action::GiveUp(number)),
                Fault::Inbox if process.heard => actions.push(Action::LoseInbox(number)),
                Fault::Push if !process.inbox.is_empty() => actions.push(Action::LosePush(number)),
                Fault::Crash if process.claim > 0 => {
                    actions.extend([Action::Crash(number), Action::CrashUnseen(number)]);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn step(&self, world: &mut World, action: Action) {
        let setup = &self.0;
        match action {
            Action::Tick => world.tick(setup),
            Action::Start(number) => world.start(setup, number),
            Action::Ask(number) => world.ask_again(setup, number),
            Action::Cancel(number) => {
                world.cancels -= 1;
                world.cancel(setup, number);
            }
            Action::Release(number) => world.release(number),
            Action::HandOff(number) => world.hand_off(setup, number),
            Action::Relinquish(number, adopter) => {
                world.adoptions -= 1;
                world.relinquish(setup, number, adopter);
            }
            Action::ReleaseAdopted(number) => world.release_adopted(number),
            Action::Renew(number) => world.renew_lease(number),
            Action::EndAgain(number) => world.end_again(number),
            Action::Execute(_)
            | Action::ExecuteLate(_)
            | Action::ExecuteSide(_)
            | Action::ExecuteHalf(_) => self.serve(world, action),
            Action::Read(number) => {
                let reply = world.at(number).replies.remove(0);
                world.read(setup, number, reply);
            }
            Action::ReadSide(number) => {
                let side = world.at(number).side.take();
                side.into_iter().for_each(|side| world.read_side(setup, number, side));
            }
            Action::LoseSide(number) => world.at(number).side = None,
            Action::ReceivePush(number) => {
                let push = world.at(number).inbox.remove(0);
                world.receive_push(setup, number, push);
            }
            Action::NoticeInbox(number) => world.at(number).confirmed = false,
            Action::Subscribe(number) => {
                let process = world.at(number);
                (process.heard, process.confirmed) = (true, true);
            }
            fault => {
                world.faults -= 1;
                world.idle = 0;
                self.fail(world, fault);
            }
        }
    }

    fn serve(&self, world: &mut World, action: Action) {
        let setup = &self.0;
        match action {
            Action::Execute(number) => {
                let request = world.at(number).requests.remove(0);
                let reply = world.execute(setup, request, number);
                world.at(number).replies.extend(reply);
            }
            Action::ExecuteLate(number) => {
                world.idle = 0;
                let request = world.at(number).late.remove(0);
                if let Request::Ask { token, .. } = request {
                    world.server.revived |= world.server.ended & token.bit();
                }
                world.execute(setup, request, number);
            }
            Action::ExecuteSide(number) => {
                let side = world.at(number).side.take();
                let answer = side.and_then(|side| world.execute_side(setup, side));
                world.at(number).side = answer;
            }
            Action::ExecuteHalf(number) => {
                world.faults -= 1;
                world.idle = 0;
                let request = world.at(number).requests.remove(0);
                if let Request::Release(token) | Request::Abandon(token) = request
                    && let Some(next) = world.half_way(setup, token)
                {
                    world.stop_half_way(setup, next);
                    world.at(number).replies.push(Reply::Failed(token));
                }
            }
            _ => {}
        }
    }

    fn fail(&self, world: &mut World, fault: Action) {
        match fault {
            Action::GiveUp(number) => self.give_up(world.at(number)),
            Action::LoseInbox(number) => {
                let process = world.at(number);
                process.heard = false;
                process.inbox.clear();
            }
            Action::LosePush(number) => _ = world.at(number).inbox.remove(0),
            Action::Crash(number) | Action::CrashUnseen(number) => {
                let process = world.at(number);
                let heard = process.heard && fault == Action::CrashUnseen(number);
                let late =
                    [std::mem::take(&mut process.late), std::mem::take(&mut process.requests)];
                let (phase, claim) = (Phase::Dead, process.claim);
                *process =
                    Process { phase, claim, heard, late: late.concat(), ..Process::default() };
            }
            Action::Restart => restart(world, self.0.has(Bug::BareCounter)),
            _ => {}
        }
    }

    /// The replies of the connection are lost. Its requests may still execute, unless the new connection
    /// kills it first.
    fn give_up(&self, process: &mut Process) {
        process.replies.clear();
        process.late.append(&mut process.requests);
        if self.0.kill && !self.0.has(Bug::ReleaseLeavesLate) {
            process.requests.push(Request::Kill);
        }
    }
}

/// The data and all connections are lost; messages that had reached a process can still be read. The fence
/// continues, because it follows the clock.
fn restart(world: &mut World, bare: bool) {
    world.restarted = true;
    world.server.lock = None;
    world.server.queue.clear();
    if bare {
        world.server.fence = 0;
    }
    for process in &mut world.processes {
        process.requests.clear();
        process.late.clear();
        process.heard = false;
        process.side.take_if(|side| !matches!(side, Side::Renewed { .. } | Side::Gone(_)));
    }
}

fn token(process: &Process, number: u8) -> Token {
    Token { process: number, claim: process.claim }
}

/// Whether the end of a claim is under way on the connection in use.
fn ends(process: &Process, token: Token) -> bool {
    let asked = process.requests.iter().any(
        |request| matches!(request, Request::Release(of) | Request::Abandon(of) if *of == token),
    );
    asked || process.replies.contains(&Reply::Ended(token))
}

/// The processes that may adopt a lease: all that are idle.
fn adopters(world: &World, from: u8) -> impl Iterator<Item = u8> {
    let idle = move |(number, process): &(u8, &Process)| {
        *number != from && process.phase == Phase::Idle && process.adopted.is_none()
    };
    (0..).zip(&world.processes).filter(idle).map(|(number, _)| number)
}

fn half(protocol: &Protocol, world: &World, request: &Request) -> bool {
    match request {
        Request::Release(token) | Request::Abandon(token) => {
            world.half_way(&protocol.0, *token).is_some()
        }
        Request::Ask { .. } | Request::Kill => false,
    }
}

/// Whether a process has done everything that is due in this tick, and all its messages have arrived.
fn quiet(process: &Process) -> bool {
    let done = match process.phase {
        Phase::Asking => process.beaten,
        Phase::Holding(left) => left > 0,
        Phase::Idle => true,
        Phase::Dead => return true,
    };
    done && process.adopted.is_none_or(|(_, left)| left > 0)
        && process.ending.is_none()
        && process.requests.is_empty()
        && process.replies.is_empty()
        && process.side.is_none()
        && process.inbox.is_empty()
        && process.heard
}
