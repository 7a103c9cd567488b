//! Processes are alike.
//!
//! In: a state. Out: the one that stands for all that differ from it only in the numbers of the
//! processes.

use crate::state::{Process, Push, Reply, Request, Side, Token, World};

/// The least of all renumbered twins.
pub(crate) fn representative(world: &World) -> World {
    let twins = orders(world.processes.len()).into_iter().map(|order| renumbered(world, &order));
    twins.min().unwrap_or_else(|| world.clone())
}

/// Every order of the first `count` numbers, at most three.
fn orders(count: usize) -> Vec<Vec<u8>> {
    match count {
        2 => vec![vec![0, 1], vec![1, 0]],
        3 => [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
            .map(Vec::from)
            .to_vec(),
        _ => Vec::new(),
    }
}

/// The same with process `n` called `order[n]`.
fn renumbered(world: &World, order: &[u8]) -> World {
    let mut twin = world.clone();
    for (number, process) in world.processes.iter().enumerate() {
        let mut process = process.clone();
        tokens(&mut process, |token| *token = renamed(*token, order));
        twin.processes[usize::from(order[number])] = process;
    }
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
    process.ending.iter_mut().chain(&mut process.let_go).for_each(&mut each);
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
