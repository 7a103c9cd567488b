//! A TCP proxy in front of a server, which changes the traffic as a test asks.
//!
//! In: the port of a server, and [`Rule`]s from the test. Out: a port to connect to instead.
//!
//! Without rules it forwards everything. A rule decides what happens to a message: it is swallowed, delayed,
//! duplicated, truncated, preceded by other bytes, rewritten or replaced, or the connection ends instead. A
//! message is one request or reply of the Redis protocol ([`Proxy::to`]), or, for other protocols, the result
//! of one `read` ([`Proxy::raw`]).
//!
//! Each connection has two threads. All of them end with the [`Proxy`].

mod pump;
mod resp;
mod rule;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::resp::Framing;
pub use self::rule::{Action, Cut, Rule, Way};

/// How long a write to a peer may block. Then the connection ends, so that no thread hangs on a stopped
/// process.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many of a client's first bytes are stored, to identify the client.
const REMEMBERED: usize = 8 * 1024;

/// A running proxy. When it is dropped, it ends together with every connection through it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The port of the server.
    server: AtomicU16,
    framing: Framing,
    rules: Mutex<Vec<Rule>>,
    open: Mutex<BTreeMap<usize, Arc<Connection>>>,
    accepted: AtomicUsize,
    struck: AtomicUsize,
    refusing: AtomicBool,
    ending: AtomicBool,
}

/// The two ends of one connection. The sockets close when both threads have dropped it.
#[derive(Debug)]
struct Connection {
    number: usize,
    client: TcpStream,
    server: TcpStream,
    said: Mutex<Vec<u8>>,
    ended: AtomicBool,
}

impl Proxy {
    /// A proxy for the Redis protocol in front of the server on `port` of this host.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn to(port: u16) -> Self {
        Self::start(port, Framing::Resp)
    }

    /// A proxy for any protocol: a message is the result of one `read`.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn raw(port: u16) -> Self {
        Self::start(port, Framing::Chunks)
    }

    fn start(server: u16, framing: Framing) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            framing,
            rules: Mutex::default(),
            open: Mutex::default(),
            accepted: AtomicUsize::new(0),
            struck: AtomicUsize::new(0),
            refusing: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        let accepting = std::thread::spawn(move || accepting.accept(&listener));
        Proxy { port, shared, accepting: Some(accepting) }
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Connects new connections to the server on `port`; open connections do not change.
    pub fn lead_to(&self, port: u16) {
        self.shared.server.store(port, Ordering::Relaxed);
    }

    /// Adds a rule. The first rule that matches a message decides.
    pub fn rule(&self, rule: Rule) {
        self.shared.rules().push(rule);
    }

    /// Drops everything in these directions, like a network that drops packets: not even the end of a
    /// connection is forwarded.
    pub fn black_hole(&self, ways: &[Way]) {
        ways.iter().for_each(|way| self.rule(Rule::on(*way, Action::Swallow)));
    }

    /// Closes new connections at once, until [`heal`](Self::heal).
    pub fn refuse(&self) {
        // While nobody joins: a connection is either refused or open, so that a `cut` after this ends it.
        let _open = self.shared.open();
        self.shared.refusing.store(true, Ordering::Relaxed);
    }

    /// Removes all rules. Swallowed messages stay lost.
    pub fn heal(&self) {
        self.shared.rules().clear();
        self.shared.refusing.store(false, Ordering::Relaxed);
    }

    /// Ends every connection. Returns how many there were.
    pub fn cut(&self, how: Cut) -> usize {
        let open: Vec<_> = self.shared.open().values().cloned().collect();
        open.iter().for_each(|connection| connection.end(how));
        open.len()
    }

    /// Ends one connection. Returns whether it was open.
    pub fn cut_one(&self, number: usize, how: Cut) -> bool {
        let found = self.shared.open().get(&number).cloned();
        found.inspect(|connection| connection.end(how)).is_some()
    }

    /// The numbers of the open connections, in the order in which they were accepted.
    pub fn connections(&self) -> Vec<usize> {
        self.shared.open().keys().copied().collect()
    }

    /// The number of connections accepted so far. They are numbered from zero.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// The number of messages to which a rule was applied.
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.heal();
        // This wakes the accepting thread.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.cut(Cut::Close);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ending.load(Ordering::Relaxed) {
                return;
            }
            // If the client has gone or the server is not reachable, the client sees the connection end.
            let _ = client.and_then(|client| self.join(client));
        }
    }

    fn join(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        let server = TcpStream::connect(("127.0.0.1", self.server.load(Ordering::Relaxed)))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        }
        let (said, ended) = (Mutex::default(), AtomicBool::new(false));
        let connection = Arc::new(Connection { number, client, server, said, ended });
        let mut open = self.open();
        if self.refusing.load(Ordering::Relaxed) {
            return Ok(());
        }
        open.insert(number, connection.clone());
        drop(open);
        for way in [Way::Requests, Way::Replies] {
            let (shared, connection) = (self.clone(), connection.clone());
            std::thread::spawn(move || pump::pump(&shared, &connection, way));
        }
        Ok(())
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides what happens to `message`: the first matching rule applies.
    fn decide(&self, connection: &Connection, way: Way, message: &[u8]) -> Action {
        let mut rules = self.rules();
        let Some(index) = rules.iter().position(|rule| rule.fits(connection, way, message)) else {
            return Action::Pass;
        };
        let deed = rules[index].deed.clone();
        if rules[index].is_spent() {
            rules.remove(index);
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        deed
    }

    /// Whether everything in this direction is dropped: then the end of a connection is not forwarded either.
    fn is_black_hole(&self, connection: &Connection, way: Way) -> bool {
        self.rules().iter().any(|rule| rule.swallows_all(connection, way))
    }
}

impl Connection {
    fn from(&self, way: Way) -> &TcpStream {
        match way {
            Way::Requests => &self.client,
            Way::Replies => &self.server,
        }
    }

    fn to(&self, way: Way) -> &TcpStream {
        match way {
            Way::Requests => &self.server,
            Way::Replies => &self.client,
        }
    }

    /// Stores the first bytes from the client.
    fn hear(&self, message: &[u8]) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let left = REMEMBERED.saturating_sub(said.len()).min(message.len());
        said.extend_from_slice(&message[..left]);
    }

    fn has_said(&self, text: &[u8]) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        rule::find(&said, text).is_some()
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends both sides. Reading ends at once; the sockets close when both threads have noticed.
    fn end(&self, how: Cut) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        for stream in [&self.client, &self.server] {
            if how == Cut::Reset {
                // With this, a close discards unsent data and sends a reset.
                let now = Some(Duration::ZERO);
                let _ = rustix::net::sockopt::set_socket_linger(stream, now);
            }
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}
