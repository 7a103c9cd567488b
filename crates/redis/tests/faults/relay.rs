//! A relay in front of a server, whose connections can be held back one by one.
//!
//! In: a port to forward to, which can change. Out: a port to connect to. Unlike a paused server, it can
//! delay one connection while the others continue.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// The direction of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Requests,
    Replies,
}

pub(crate) struct Relay {
    port: u16,
    to: Arc<AtomicU16>,
    wires: Arc<Mutex<Vec<Arc<Wire>>>>,
}

/// One connection: its two ends, the directions that are held back, and how many directions have ended.
struct Wire {
    ends: [TcpStream; 2],
    held: Mutex<Vec<Way>>,
    changed: Condvar,
    over: AtomicUsize,
}

impl Relay {
    /// A relay to `port` of this machine.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay {
            port: listener.local_addr().unwrap().port(),
            to: Arc::new(AtomicU16::new(port)),
            wires: Arc::default(),
        };
        let (to, wires) = (relay.to.clone(), relay.wires.clone());
        // The thread ends with the test's process: it waits for a connection that never comes.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))) else {
                    continue;
                };
                wires.lock().unwrap().push(Wire::between(near, far));
            }
        });
        relay
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Forwards new connections to `port` from now on; existing connections stay where they are.
    pub(crate) fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::SeqCst);
    }

    /// How many connections there have been.
    pub(crate) fn count(&self) -> usize {
        self.wires.lock().unwrap().len()
    }

    /// Holds back the bytes of this direction on connection `nth`.
    pub(crate) fn hold(&self, nth: usize, way: Way) {
        self.wire(nth).held.lock().unwrap().push(way);
    }

    /// Forwards everything on connection `nth` again.
    pub(crate) fn forward(&self, nth: usize) {
        let wire = self.wire(nth);
        wire.held.lock().unwrap().clear();
        wire.changed.notify_all();
    }

    /// Ends connection `nth`.
    pub(crate) fn cut(&self, nth: usize) {
        self.wire(nth).ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }

    /// Whether connection `nth` has ended at both ends, and all bytes under way have arrived.
    pub(crate) fn is_over(&self, nth: usize) -> bool {
        self.wire(nth).over.load(Ordering::SeqCst) == 2
    }

    fn wire(&self, nth: usize) -> Arc<Wire> {
        self.wires.lock().unwrap()[nth].clone()
    }
}

impl Wire {
    fn between(near: TcpStream, far: TcpStream) -> Arc<Self> {
        let (held, changed, over) = Default::default();
        let wire = Arc::new(Wire { ends: [near, far], held, changed, over });
        for way in [Way::Requests, Way::Replies] {
            let wire = wire.clone();
            std::thread::spawn(move || {
                wire.pass_on(way);
                wire.over.fetch_add(1, Ordering::SeqCst);
            });
        }
        wire
    }

    fn pass_on(&self, way: Way) {
        let [near, far] = &self.ends;
        let (mut from, mut to) = if way == Way::Requests { (near, far) } else { (far, near) };
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let held = self.held.lock().unwrap();
            drop(self.changed.wait_while(held, |held| held.contains(&way)).unwrap());
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}
