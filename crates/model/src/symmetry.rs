//! Symmetry: processes are interchangeable.
//!
//! In: a state. Out: the representative of all states that differ from it only in the numbers of the
//! processes.

use crate::state::{Process, Push, Reply, Request, Side, Token, World};

/// Every permutation of two and of three processes except the identity.
const OF_TWO: &[&[u8]] = &[&[1, 0]];
const OF_THREE: &[&[u8]] = &[&[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]];

/// The smallest of the state and its permutations.
pub(crate) fn representative(world: &World) -> World {
    let orders = match world.processes.len() {
        2 => OF_TWO,
        3 => OF_THREE,
        _ => &[],
    };
    let least = orders.iter().map(|order| twin(world, order)).min();
    least.filter(|twin| twin < world).unwrap_or_else(|| world.clone())
}

/// The state with process `n` renamed to `order[n]`.
fn twin(world: &World, order: &[u8]) -> World {
    let mut twin = world.clone();
    for process in &mut twin.processes {
        tokens(process, |token| *token = renamed(*token, order));
    }
    let mut called: Vec<_> = order.iter().zip(twin.processes).collect();
    called.sort_by_key(|(number, _)| **number);
    twin.processes = called.into_iter().map(|(_, process)| process).collect();
    let server = &mut twin.server;
    server.lock.iter_mut().for_each(|lock| lock.token = renamed(lock.token, order));
    server.queue.iter_mut().for_each(|entry| entry.token = renamed(entry.token, order));
    server.ended = renamed_set(server.ended, order);
    server.revived = renamed_set(server.revived, order);
    twin
}

fn renamed(token: Token, order: &[u8]) -> Token {
    Token { process: order[usize::from(token.process)], claim: token.claim }
}

fn renamed_set(set: u16, order: &[u8]) -> u16 {
    let part = |number: usize| (set >> (4 * number)) & 0b1111;
    let moved = |number: usize| part(number) << (4 * order[number]);
    (0..order.len()).map(moved).fold(0, |all, part| all | part)
}

fn tokens(process: &mut Process, mut each: impl FnMut(&mut Token)) {
    process.ending.iter_mut().chain(&mut process.relinquished).for_each(&mut each);
    process.adopted.iter_mut().for_each(|(token, _)| each(token));
    process.inbox.iter_mut().for_each(|Push { token, .. }| each(token));
    for request in process.requests.iter_mut().chain(&mut process.late) {
        match request {
            Request::Ask { token, .. } | Request::Release(token) | Request::Abandon(token) => {
                each(token);
            }
            Request::Kill => {}
        }
    }
    for reply in &mut process.replies {
        match reply {
            Reply::Granted { token, .. } | Reply::Queued { token, .. } => each(token),
            Reply::Held(token) | Reply::Ended(token) | Reply::Failed(token) => each(token),
        }
    }
    match &mut process.side {
        Some(Side::Renew { token, .. } | Side::Renewed { token, .. }) => each(token),
        Some(Side::Release(token) | Side::Abandon(token) | Side::Gone(token)) => each(token),
        None => {}
    }
}
