//! Each deed, seen from a client of a real server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Cut, Deed, Proxy, Rule, Way};
use crate::servers::RedisServer;
use crate::wait::eventually_blocking;

/// A client that does not wait long: silence is what some of these tests are about.
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

    /// What comes until nothing more does, or the connection ends.
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

    /// The reply to `request` as one text, from a connection that stays open.
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

/// Without rules everything is passed on, also several requests at once.
#[test]
fn it_passes_on() {
    let (_server, proxy, mut client) = scene();
    assert_eq!(client.ask(&INCR.repeat(3)), ":1\r\n:2\r\n:3\r\n");
    assert_eq!((proxy.accepted(), proxy.struck(), proxy.connections()), (1, 0, vec![0]));
}

/// A swallowed reply was carried out; a swallowed request was not.
#[test]
fn swallowing() {
    let (_server, proxy, mut client) = scene();
    proxy.rule(Rule::on(Way::Replies, Deed::Swallow).once());
    assert_eq!(client.ask(INCR), "");
    proxy.rule(Rule::on(Way::Requests, Deed::Swallow).once());
    assert_eq!(client.ask(INCR), "");
    assert_eq!(client.ask(INCR), ":2\r\n");
    assert_eq!(proxy.struck(), 2);
}

/// A doubled request is carried out twice, and a reply too many shifts the others.
#[test]
fn doubling_and_shifting() {
    let (_server, proxy, mut client) = scene();
    proxy.rule(Rule::on(Way::Requests, Deed::Twice).once());
    assert_eq!(client.ask(INCR), ":1\r\n:2\r\n");
    proxy.rule(Rule::on(Way::Replies, Deed::Precede(b":0\r\n".into())).once());
    assert_eq!(client.ask(&INCR.repeat(2)), ":0\r\n:3\r\n:4\r\n");
}

/// A truncated reply ends with its connection, and only with that one.
#[test]
fn truncating() {
    let (_server, proxy, mut client) = scene();
    let mut other = Client::of(&proxy);
    assert_eq!(other.ask(PING), "+PONG\r\n");
    proxy.rule(Rule::on(Way::Replies, Deed::Truncate).of(0));
    assert_eq!(client.send(PING).hear(), ("+PO".into(), None));
    assert_eq!(other.ask(PING), "+PONG\r\n");
    eventually_blocking("one to be left", || proxy.connections() == [1]);
}

/// A message is told by what is in it, and rewritten in its length.
#[test]
fn rewriting() {
    let (_server, proxy, mut client) = scene();
    let rule = Rule::on(Way::Replies, Deed::Rewrite(b"PONG".into(), b"GONE".into()));
    proxy.rule(rule.containing("PONG"));
    assert_eq!(client.ask(PING), "+GONE\r\n");
    assert_eq!(client.ask(INCR), ":1\r\n");
    proxy.heal();
    assert_eq!(client.ask(PING), "+PONG\r\n");
}

/// A delay is at least that long, and keeps the order.
#[test]
fn delaying() {
    let (_server, proxy, mut client) = scene();
    let (delay, start) = (Duration::from_millis(60), Instant::now());
    proxy.rule(Rule::on(Way::Requests, Deed::Delay(delay)));
    assert_eq!(client.ask(&INCR.repeat(2)), ":1\r\n:2\r\n");
    assert!(start.elapsed() >= delay);
}

/// In a black hole nobody hears anything, not even that the other side has gone.
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

/// Connections end in order or by a reset, one or all, and new ones can be refused.
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

/// It can lead elsewhere, and ends with its handle.
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
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// Any protocol can be cut and swallowed.
#[test]
fn raw_bytes() {
    let server = RedisServer::start();
    let proxy = Proxy::raw(server.port());
    let mut client = Client::of(&proxy);
    assert_eq!(client.ask("PING\r\n"), "+PONG\r\n");
    proxy.rule(Rule::on(Way::Replies, Deed::Swallow).once());
    assert_eq!(client.ask("PING\r\n"), "");
}
