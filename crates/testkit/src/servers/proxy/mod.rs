//! A TCP proxy in front of a server, to be told what to do to the traffic.
//!
//! In: the port of a server, and [`Rule`]s from the test. Out: a port to connect to instead.
//!
//! Without rules it passes everything on. A rule says what becomes of a message: it is swallowed,
//! held up, doubled, cut short, preceded by something, rewritten, or the connection ends instead.
//! A message is one request or reply of the Redis protocol ([`Proxy::to`]), or whatever one `read`
//! gave ([`Proxy::raw`]), for other protocols.
//!
//! Two threads per connection. All of it ends with the [`Proxy`].

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
pub use self::rule::{Cut, Deed, Rule, Way};

/// How long a peer may refuse to take what is written to it: then the connection ends, so that no
/// thread of ours hangs on a stopped process.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of what a client says first is remembered, to tell who it is.
const REMEMBERED: usize = 8 * 1024;

/// A running proxy. Ends, and with it every connection through it, when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Where the server listens.
    server: AtomicU16,
    framing: Framing,
    rules: Mutex<Vec<Rule>>,
    open: Mutex<BTreeMap<usize, Arc<Connection>>>,
    accepted: AtomicUsize,
    struck: AtomicUsize,
    refusing: AtomicBool,
    ending: AtomicBool,
}

/// The two ends of one connection. Closed when both of its threads have let go of it.
#[derive(Debug)]
struct Connection {
    number: usize,
    client: TcpStream,
    server: TcpStream,
    said: Mutex<Vec<u8>>,
    ended: AtomicBool,
}

impl Proxy {
    /// A proxy in front of the server on `port` of this host, which reads the Redis protocol.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn to(port: u16) -> Self {
        Self::start(port, Framing::Resp)
    }

    /// The same for any protocol: a message is what one `read` gave.
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

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads connections to come to the server on `port`; those that are open stay where they are.
    pub fn lead_to(&self, port: u16) {
        self.shared.server.store(port, Ordering::Relaxed);
    }

    /// Adds a rule. The first that fits a message decides.
    pub fn rule(&self, rule: Rule) {
        self.shared.rules().push(rule);
    }

    /// Lets everything vanish that travels in these ways, as a network does that drops packets:
    /// nobody is told, not even of a connection's end.
    pub fn black_hole(&self, ways: &[Way]) {
        ways.iter().for_each(|way| self.rule(Rule::on(*way, Deed::Swallow)));
    }

    /// Closes connections to come as soon as they are made, until [`heal`](Self::heal).
    pub fn refuse(&self) {
        self.shared.refusing.store(true, Ordering::Relaxed);
    }

    /// Takes all rules back. What was swallowed does not come back.
    pub fn heal(&self) {
        self.shared.rules().clear();
        self.shared.refusing.store(false, Ordering::Relaxed);
    }

    /// Ends every connection; how many there were.
    pub fn cut(&self, how: Cut) -> usize {
        let open: Vec<_> = self.shared.open().values().cloned().collect();
        open.iter().for_each(|connection| connection.end(how));
        open.len()
    }

    /// Ends one connection; whether it was open.
    pub fn cut_one(&self, number: usize, how: Cut) -> bool {
        let found = self.shared.open().get(&number).cloned();
        found.inspect(|connection| connection.end(how)).is_some()
    }

    /// The numbers of the connections that are open, in the order in which they were made.
    pub fn connections(&self) -> Vec<usize> {
        self.shared.open().keys().copied().collect()
    }

    /// How many connections there ever were. They are numbered from zero.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many messages a rule has done something to.
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.heal();
        // Wakes the thread that accepts.
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
            // One that is gone already, or a server that is not there: the client sees its end.
            let _ = client.and_then(|client| self.join(client));
        }
    }

    fn join(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        if self.refusing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let server = TcpStream::connect(("127.0.0.1", self.server.load(Ordering::Relaxed)))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        }
        let (said, ended) = (Mutex::default(), AtomicBool::new(false));
        let connection = Arc::new(Connection { number, client, server, said, ended });
        self.open().insert(number, connection.clone());
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

    /// What becomes of `message`: decided by the first rule that fits.
    fn decide(&self, connection: &Connection, way: Way, message: &[u8]) -> Deed {
        let mut rules = self.rules();
        let Some(index) = rules.iter().position(|rule| rule.fits(connection, way, message)) else {
            return Deed::Pass;
        };
        let deed = rules[index].deed.clone();
        if rules[index].is_spent() {
            rules.remove(index);
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        deed
    }

    /// Whether everything that comes this way vanishes: then so does the end of a connection.
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

    /// Remembers what the client says first.
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

    /// Ends both sides. Reading ends at once; the sockets close when both threads have seen that.
    fn end(&self, how: Cut) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        for stream in [&self.client, &self.server] {
            if how == Cut::Reset {
                // Closing then drops what is unsent, and sends a reset.
                let now = Some(Duration::ZERO);
                let _ = rustix::net::sockopt::set_socket_linger(stream, now);
            }
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}
