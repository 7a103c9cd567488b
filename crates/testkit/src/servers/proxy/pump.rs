//! One way of one connection: read, decide, pass on.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::rule::find;
use super::{Connection, Cut, Deed, Shared, Way};
use crate::wait::pass;

/// How often a thread that waits looks whether its connection has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Carries messages until one side, or a rule, ends the connection.
pub(super) fn pump(shared: &Shared, connection: &Connection, way: Way) {
    let _ = carry(shared, connection, way);
    while shared.is_black_hole(connection, way) && !connection.is_ended() {
        pass(LOOK_EVERY);
    }
    connection.end(Cut::Close);
    shared.open().remove(&connection.number);
}

fn carry(shared: &Shared, connection: &Connection, way: Way) -> io::Result<()> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let count = connection.from(way).read(&mut buffer)?;
        let arrived = Instant::now();
        bytes.extend_from_slice(&buffer[..count]);
        while let Some(message) = shared.framing.take(&mut bytes) {
            if way == Way::Requests {
                connection.hear(&message);
            }
            let deed = shared.decide(connection, way, &message);
            act(connection, way, deed, message, arrived)?;
        }
        if count == 0 || connection.is_ended() {
            return Ok(());
        }
    }
}

fn act(
    connection: &Connection,
    way: Way,
    deed: Deed,
    message: Vec<u8>,
    arrived: Instant,
) -> io::Result<()> {
    let mut to = connection.to(way);
    match deed {
        Deed::Pass => to.write_all(&message),
        Deed::Swallow => Ok(()),
        Deed::Delay(time) => {
            wait_until(connection, arrived + time);
            // What was on its way when the connection was cut does not arrive.
            if connection.is_ended() { Ok(()) } else { to.write_all(&message) }
        }
        Deed::Twice => to.write_all(&[message.clone(), message].concat()),
        Deed::Truncate => {
            to.write_all(&message[..message.len() / 2])?;
            connection.end(Cut::Close);
            Ok(())
        }
        Deed::End(how) => {
            connection.end(how);
            Ok(())
        }
        Deed::Precede(first) => to.write_all(&[first, message].concat()),
        Deed::Rewrite(from, with) => to.write_all(&rewritten(message, &from, &with)),
        Deed::Replace(other) => to.write_all(&other),
    }
}

/// Waits, unless the connection ends first.
fn wait_until(connection: &Connection, moment: Instant) {
    while Instant::now() < moment && !connection.is_ended() {
        pass(LOOK_EVERY.min(moment.saturating_duration_since(Instant::now())));
    }
}

fn rewritten(mut message: Vec<u8>, from: &[u8], with: &[u8]) -> Vec<u8> {
    if let Some(at) = find(&message, from) {
        message[at..at + with.len()].copy_from_slice(with);
    }
    message
}
