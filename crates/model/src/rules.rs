//! The rules that must always hold.
//!
//! In: a state. Out: whether it is correct. Rules about one step (fence order, a waiter passed over, a
//! process that releases its own lock) are recorded by that step as `Broken`.

use stateright::Property;

use crate::setup::Protocol;
use crate::state::{Broken, Phase, Process, Token, World};

/// Two processes never believe to hold the lock at the same time.
pub const EXCLUSION: &str = "exclusion";
/// A process that believes to hold the lock holds it at the server.
pub const BACKED: &str = "backed by the server";
/// Reported fences rise.
pub const FENCES: &str = "fences rise";
/// A waiter that the server can reach is never passed over.
pub const TURN: &str = "nobody passed over";
/// A waiter that got the reply "queued" is in the queue, or holds the lock, until its heartbeat expires.
pub const PLACE: &str = "place kept";
/// While a process waits, the lock is unused for no longer than the ttl of a dead holder; without faults it
/// is never unused.
pub const SERVED: &str = "waiters are served";
/// A claim leaves nothing behind after its end has executed.
pub const ORPHAN: &str = "no orphan, no ghost";
/// No release or abandon executes while a process still believes to hold the lock under that token.
pub const OWN: &str = "own lock never undone";

/// All rules.
pub(crate) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(EXCLUSION, |_, world| exclusion(world)),
        Property::always(BACKED, |_, world| backed(world)),
        Property::always(FENCES, |_, world: &World| world.broken != Some(Broken::Fence)),
        Property::always(TURN, |_, world: &World| world.broken != Some(Broken::PassedOver)),
        Property::always(PLACE, place),
        Property::always(SERVED, |protocol: &Protocol, world: &World| {
            world.idle <= patience(protocol)
        }),
        Property::always(ORPHAN, orphan),
        Property::always(OWN, |_, world: &World| world.broken != Some(Broken::OwnLock)),
    ]
}

fn exclusion(world: &World) -> bool {
    world.restarted || world.beliefs().count() <= 1
}

fn backed(world: &World) -> bool {
    world.restarted || world.beliefs().all(|token| world.server.holds(token))
}

fn place(protocol: &Protocol, world: &World) -> bool {
    let kept = |(number, process): (u8, &Process)| {
        let token = Token { process: number, claim: process.claim };
        let last_reply =
            process.last_reply.is_some_and(|last_reply| last_reply.age < protocol.0.beat);
        let waits = process.phase == Phase::Asking && last_reply;
        !waits || world.server.queues(token) || world.server.holds(token)
    };
    world.restarted || (0..).zip(&world.processes).all(kept)
}

/// The lock of a dead holder stays for its ttl; a fault restarts the count.
fn patience(protocol: &Protocol) -> u8 {
    if protocol.0.faults == 0 { 0 } else { protocol.0.ttl }
}

/// If a given-up connection cannot be killed, its remaining requests may restore a claim for a ttl.
fn orphan(protocol: &Protocol, world: &World) -> bool {
    let excused = if protocol.0.kill { 0 } else { world.server.revived };
    let gone = world.server.ended & !excused;
    let lock = world.server.lock.iter().map(|lock| lock.token);
    let mut tokens = lock.chain(world.server.queue.iter().map(|entry| entry.token));
    tokens.all(|token| token.bit() & gone == 0)
}
