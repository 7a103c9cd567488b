//! What must always hold.
//!
//! In: a state. Out: whether it is a good one. Rules about one step (fence order, a waiter passed
//! over, a process that undoes its own lock) are noted by that step as `Broken`.

use stateright::Property;

use crate::model::Protocol;
use crate::state::{Broken, Phase, Process, Token, World};

/// Two processes never both believe to hold the lock.
pub const EXCLUSION: &str = "exclusion";
/// Who believes to hold the lock holds it at the server.
pub const BACKED: &str = "backed by the server";
/// Reported fences rise.
pub const FENCES: &str = "fences rise";
/// A waiter that the server can reach is never passed over.
pub const TURN: &str = "nobody passed over";
/// A waiter that was told "queued" is in the queue, or holds the lock, for as long as its beat is
/// good.
pub const PLACE: &str = "place kept";
/// With somebody waiting, the lock is unused for no longer than a dead holder's ttl; without
/// faults never.
pub const SERVED: &str = "waiters are served";
/// Nothing is left of a claim once its end has executed.
pub const ORPHAN: &str = "no orphan, no ghost";
/// A process never undoes the lock that it holds.
pub const OWN: &str = "own lock never undone";

/// Every rule.
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
        let told = process.told.is_some_and(|told| told.age < protocol.0.beat);
        let waits = process.phase == Phase::Asking && told;
        !waits || world.server.queues(token) || world.server.holds(token)
    };
    world.restarted || (0..).zip(&world.processes).all(kept)
}

/// A dead holder's lock lasts for its ttl; faults start the count anew.
fn patience(protocol: &Protocol) -> u8 {
    if protocol.0.faults == 0 { 0 } else { protocol.0.ttl }
}

/// Where a given-up connection cannot be killed, what it still carries may bring a claim back,
/// for a ttl.
fn orphan(protocol: &Protocol, world: &World) -> bool {
    let excused = if protocol.0.kill { 0 } else { world.server.revived };
    let gone = world.server.ended & !excused;
    let lock = world.server.lock.iter().map(|lock| lock.token);
    let mut tokens = lock.chain(world.server.queue.iter().map(|entry| entry.token));
    tokens.all(|token| token.bit() & gone == 0)
}
