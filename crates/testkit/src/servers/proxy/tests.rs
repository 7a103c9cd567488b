//! Each action, as a client of a real server sees it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Action, Cut, Proxy, Rule, Way};
use crate::servers::RedisServer;
use crate::wait::eventually_blocking;

/// A client with a short time-out, because some tests expect no reply.
struct Client(TcpStream);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Client(stream)
    }

    fn send(&mut self, request: &str) -> &mut Self {
        self.0.write_all(request.as_bytes()).unwrap();
        self
    }

    /// Reads until no more data comes, or the connection ends.
    fn hear(&mut self) -> (String, Option<std::io::ErrorKind>) {
        let (mut heard, mut buffer) = (String::new(), [0; 4096]);
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return (heard, None),
                Ok(count) => heard += &String::from_utf8_lossy(&buffer[..count]),
                Err(error) => return (heard, Some(error.kind())),
            }
        }
    }

    /// The reply to `request` as one text, on a connection that must stay open.
    fn ask(&mut self, request: &str) -> String {
        let (heard, end) = self.send(request).hear();
        assert_eq!(end, Some(std::io::ErrorKind::WouldBlock), "it stays open");
        heard
    }
}

const INCR: &str = "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n";
const PING: &str = "*1\r\n$4\r\nPING\r\n";

fn scene() -> (RedisServer, Proxy, Client) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = Client::of(&proxy);
    (server, proxy, client)
}

/// Without rules everything is forwarded, also several requests at once.
#[test]
fn it_passes_on() {
    let (_server, proxy, mut client) = scene();
    assert_eq!(client.ask(&INCR.repeat(3)), ":1\r\n:2\r\n:3\r\n");
    assert_eq!((proxy.accepted(), proxy.struck(), proxy.connections()), (1, 0, vec![0]));
}

/// If a reply is swallowed, the request was still executed; a swallowed request was not.
#[test]
fn swallowing() {
    let (_server, proxy, mut client) = scene();
    proxy.rule(Rule::on(Way::Replies, Action::Swallow).once());
    assert_eq!(client.ask(INCR), "");
    proxy.rule(Rule::on(Way::Requests, Action::Swallow).once());
    assert_eq!(client.ask(INCR), "");
    assert_eq!(client.ask(INCR), ":2\r\n");
    assert_eq!(proxy.struck(), 2);
}

/// A duplicated request is executed twice, and an extra reply shifts the others.
#[test]
fn doubling_and_shifting() {
    let (_server, proxy, mut client) = scene();
    proxy.rule(Rule::on(Way::Requests, Action::Twice).once());
    assert_eq!(client.ask(INCR), ":1\r\n:2\r\n");
    proxy.rule(Rule::on(Way::Replies, Action::Precede(b":0\r\n".into())).once());
    assert_eq!(client.ask(&INCR.repeat(2)), ":0\r\n:3\r\n:4\r\n");
}

/// A truncated reply ends its connection, and only that one.
#[test]
fn truncating() {
    let (_server, proxy, mut client) = scene();
    let mut other = Client::of(&proxy);
    assert_eq!(other.ask(PING), "+PONG\r\n");
    proxy.rule(Rule::on(Way::Replies, Action::Truncate).of(0));
    assert_eq!(client.send(PING).hear(), ("+PO".into(), None));
    assert_eq!(other.ask(PING), "+PONG\r\n");
    eventually_blocking("one to be left", || proxy.connections() == [1]);
}

/// A message is selected by its content, and rewritten without changing its length.
#[test]
fn rewriting() {
    let (_server, proxy, mut client) = scene();
    let rule = Rule::on(Way::Replies, Action::Rewrite(b"PONG".into(), b"GONE".into()));
    proxy.rule(rule.containing("PONG"));
    assert_eq!(client.ask(PING), "+GONE\r\n");
    assert_eq!(client.ask(INCR), ":1\r\n");
    proxy.heal();
    assert_eq!(client.ask(PING), "+PONG\r\n");
}

/// A delay has at least the given length, and keeps the order.
#[test]
fn delaying() {
    let (_server, proxy, mut client) = scene();
    let (delay, start) = (Duration::from_millis(60), Instant::now());
    proxy.rule(Rule::on(Way::Requests, Action::Delay(delay)));
    assert_eq!(client.ask(&INCR.repeat(2)), ":1\r\n:2\r\n");
    assert!(start.elapsed() >= delay);
}

/// In a black hole neither side receives anything, not even the end of the connection.
#[test]
fn a_black_hole_hides_the_end() {
    let (server, proxy, mut client) = scene();
    assert_eq!(client.ask(PING), "+PONG\r\n");
    let clients = || server.client().text(&["CLIENT", "LIST"]).unwrap().lines().count() - 1;
    proxy.black_hole(&[Way::Requests, Way::Replies]);
    assert_eq!(client.ask(PING), "");
    drop(client);
    assert_eq!(Client::of(&proxy).ask(PING), "", "a new connection is accepted, and no more");
    assert_eq!(clients(), 2, "the server knows of no end");
    proxy.heal();
    eventually_blocking("the server to hear of the ends", || clients() == 0);
}

/// Connections end orderly or by a reset, one or all, and new ones can be refused.
#[test]
fn cutting_and_refusing() {
    let (_server, proxy, mut client) = scene();
    let mut other = Client::of(&proxy);
    assert_eq!((client.ask(PING), other.ask(PING)), ("+PONG\r\n".into(), "+PONG\r\n".into()));
    assert!(proxy.cut_one(0, Cut::Close));
    assert_eq!(client.hear(), (String::new(), None));
    assert_eq!(proxy.cut(Cut::Reset), 1);
    assert_eq!(other.hear().1, Some(std::io::ErrorKind::ConnectionReset));
    proxy.refuse();
    let end = Client::of(&proxy).hear();
    assert!(matches!(end.1, None | Some(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    proxy.heal();
    assert_eq!(Client::of(&proxy).ask(PING), "+PONG\r\n");
}

/// After `refuse` and `cut` every connection ends, also one that was being accepted meanwhile.
#[test]
fn refusing_while_clients_connect() {
    let server = RedisServer::start();
    for _ in 0..50 {
        let proxy = Proxy::to(server.port());
        let clients = std::thread::scope(|scope| {
            let clients = [(); 4].map(|()| scope.spawn(|| Client::of(&proxy)));
            eventually_blocking("the first client", || proxy.accepted() > 0);
            proxy.refuse();
            proxy.cut(Cut::Reset);
            clients.map(|client| client.join().unwrap())
        });
        for mut client in clients {
            assert_ne!(client.hear().1, Some(std::io::ErrorKind::WouldBlock), "it is still open");
        }
    }
}

/// The proxy can switch to another server, and ends with its handle.
#[test]
fn leading_elsewhere_and_ending() {
    let (_server, proxy, mut client) = scene();
    let second = RedisServer::start();
    second.client().command(&["SET", "n", "41"]);
    proxy.lead_to(second.port());
    assert_eq!(Client::of(&proxy).ask(INCR), ":42\r\n");
    assert_eq!(client.ask(INCR), ":1\r\n");
    let port = proxy.port();
    drop(proxy);
    assert_eq!(client.hear(), (String::new(), None));
    // Another test may use the port by now. It must not lead to our server.
    let stranger = TcpStream::connect(("127.0.0.1", port));
    let clients = second.client().text(&["CLIENT", "LIST"]).unwrap();
    assert!(stranger.is_err() || clients.lines().count() == 1, "{clients}");
}

/// Any protocol can be forwarded and swallowed.
#[test]
fn raw_bytes() {
    let server = RedisServer::start();
    let proxy = Proxy::raw(server.port());
    let mut client = Client::of(&proxy);
    assert_eq!(client.ask("PING\r\n"), "+PONG\r\n");
    proxy.rule(Rule::on(Way::Replies, Action::Swallow).once());
    assert_eq!(client.ask("PING\r\n"), "");
}
