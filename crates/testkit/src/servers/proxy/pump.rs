//! One direction of one connection: read, decide, forward.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::rule::find;
use super::{Action, Connection, Cut, Shared, Way};
use crate::wait::pass;

/// How often a waiting thread checks whether its connection has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Forwards messages until one side, or a rule, ends the connection.
pub(super) fn pump(shared: &Shared, connection: &Connection, way: Way) {
    let _ = carry(shared, connection, way);
    while shared.is_black_hole(connection, way) && !connection.is_ended() {
        pass(POLL_INTERVAL);
    }
    connection.end(Cut::Close);
    shared.open().remove(&connection.number);
}

fn carry(shared: &Shared, connection: &Connection, way: Way) -> io::Result<()> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let count = connection.from(way).read(&mut buffer)?;
        let arrived = Instant::now();
        // A connection that was cut carries nothing more, although the kernel still delivers what arrived.
        if count == 0 || connection.is_ended() {
            return Ok(());
        }
        bytes.extend_from_slice(&buffer[..count]);
        while let Some(message) = shared.framing.take(&mut bytes) {
            if way == Way::Requests {
                connection.hear(&message);
            }
            let deed = shared.decide(connection, way, &message);
            act(connection, way, deed, message, arrived)?;
        }
    }
}

fn act(
    connection: &Connection,
    way: Way,
    deed: Action,
    message: Vec<u8>,
    arrived: Instant,
) -> io::Result<()> {
    let mut to = connection.to(way);
    match deed {
        Action::Pass => to.write_all(&message),
        Action::Swallow => Ok(()),
        Action::Delay(time) => {
            wait_until(connection, arrived + time);
            // A delayed message does not arrive after the connection was cut.
            if connection.is_ended() { Ok(()) } else { to.write_all(&message) }
        }
        Action::Twice => to.write_all(&[message.clone(), message].concat()),
        Action::Truncate => {
            to.write_all(&message[..message.len() / 2])?;
            connection.end(Cut::Close);
            Ok(())
        }
        Action::End(how) => {
            connection.end(how);
            Ok(())
        }
        Action::Precede(first) => to.write_all(&[first, message].concat()),
        Action::Rewrite(from, with) => to.write_all(&rewritten(message, &from, &with)),
        Action::Replace(other) => to.write_all(&other),
    }
}

/// Waits until `moment`, or until the connection ends.
fn wait_until(connection: &Connection, moment: Instant) {
    while Instant::now() < moment && !connection.is_ended() {
        pass(POLL_INTERVAL.min(moment.saturating_duration_since(Instant::now())));
    }
}

fn rewritten(mut message: Vec<u8>, from: &[u8], with: &[u8]) -> Vec<u8> {
    if let Some(at) = find(&message, from) {
        message[at..at + with.len()].copy_from_slice(with);
    }
    message
}
