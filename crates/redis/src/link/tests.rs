//! Behaviour of a link that cannot be seen from outside: how a name is resolved, how a socket is set up.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::io::tcp::socket2::SockRef;
use tenure_core::backend::BoxFuture;
use tenure_core::time::Clock;
use tenure_net::Timeouts;
use tenure_testkit::servers::{RedisServer, SentinelSet};
use tenure_testkit::wait::eventually;

use super::stream::Names;
use super::{Connector, Link, SendMode, Server, Target};
use crate::error::Cause;
use crate::sentinel::Sentinels;
use crate::url::{Address, Endpoint, Login};

fn target(url: &str) -> Target {
    let address = Endpoint::parse(url).unwrap().address().clone();
    Target::new(address, Connector::new(Login::default(), None, Timeouts::default()))
}

/// A resolver whose addresses a test sets; it counts the look-ups.
#[derive(Default)]
struct Book {
    addresses: Mutex<Vec<SocketAddr>>,
    asked: Mutex<usize>,
}

impl Names for Book {
    fn find<'a>(&'a self, host: &'a str, _: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        assert_eq!(host, "db.example");
        *self.asked.lock().unwrap() += 1;
        let found = self.addresses.lock().unwrap().clone();
        Box::pin(async { Ok(found) })
    }
}

impl Book {
    fn lead_to(&self, ports: &[u16]) {
        let addresses = ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port)));
        *self.addresses.lock().unwrap() = addresses.collect();
    }
}

/// A link to the host `db.example`, which `book` resolves.
fn link(book: &Arc<Book>) -> Link {
    let mut target = target("redis://db.example");
    target.connector.names = book.clone();
    Link::new(Arc::new(Server::new(target, Clock::system())))
}

/// t47: a name is resolved again for each connection, and all its addresses are tried.
#[tokio::test]
async fn t47_names_are_looked_up_anew() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let book = Arc::new(Book::default());
    let link = link(&book);
    let error = link.live().await.unwrap_err();
    assert_eq!(error.cause(), Cause::Unreachable, "a name without an address");
    book.lead_to(&[one.port()]);
    eventually("a connection", || async { link.live().await.is_ok() }).await;
    let first = link.live().await.unwrap();
    let asked = *book.asked.lock().unwrap();
    link.live().await.unwrap();
    assert_eq!(*book.asked.lock().unwrap(), asked, "a connection that stands is kept");

    one.kill();
    book.lead_to(&[one.port(), two.port()]);
    assert!(link.call(&first, redis::cmd("PING")).await.is_err());
    let second = link.live().await.unwrap();
    assert_ne!(first.run_id(), second.run_id());
    assert_eq!(*book.asked.lock().unwrap(), asked + 1);
}

/// t47: the name of a Sentinel is resolved again too. If it leads to other Sentinels now, their master is
/// used.
#[tokio::test]
async fn t47_names_of_sentinels_are_looked_up_anew() {
    let (one, two) = (SentinelSet::start_small(), SentinelSet::start_small());
    let book = Arc::new(Book::default());
    let mut connector = Connector::new(Login::default(), None, Timeouts::default());
    connector.names = book.clone();
    let named = [Address::Tcp("db.example".into(), 26_379)];
    let sentinels = Sentinels::new("locks", &named, connector, Clock::system());
    let target = Target::new(
        Arc::new(sentinels),
        Connector::new(Login::default(), None, Timeouts::default()),
    );
    let link = Link::new(Arc::new(Server::new(target, Clock::system())));
    let error = link.live().await.unwrap_err();
    assert_eq!(error.cause(), Cause::Unreachable, "a name without an address");
    let is_at = async |set: &SentinelSet| {
        let run_id = format!("run_id:{}", link.live().await.ok()?.run_id());
        let info = set.nodes()[0].client().text(&["INFO", "server"])?;
        info.contains(&run_id).then_some(())
    };
    book.lead_to(&[one.sentinels()[0].port()]);
    eventually("a connection", || async { is_at(&one).await.is_some() }).await;
    let first = link.live().await.unwrap();
    book.lead_to(&[two.sentinels()[0].port()]);
    one.nodes()[0].kill();
    assert!(link.call(&first, redis::cmd("PING")).await.is_err());
    eventually("the other master", || async { is_at(&two).await.is_some() }).await;
}

/// t47: a name that cannot be resolved is unavailable within the connect time-out, and the error has the
/// name.
#[tokio::test]
async fn t47_a_name_that_does_not_exist() {
    let error = target("redis://:hunter2@db.invalid").connect(None, None).await.unwrap_err();
    assert_eq!(error.cause(), Cause::Unreachable);
    let text = format!("{error:?}");
    assert!(text.contains("redis `db.invalid:6379`: ") && !text.contains("hunter2"), "{text}");
}

/// Small requests are sent at once, a dead peer is noticed, and an unacknowledged request is not kept longer
/// than its reply is awaited.
#[tokio::test]
async fn sockets_are_set_up() {
    let server = RedisServer::start();
    let stream = target(&server.url()).connector.tcp("127.0.0.1", server.port()).await.unwrap();
    let socket = SockRef::from(&stream);
    assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
    #[cfg(target_os = "linux")]
    {
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(15));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Timeouts::default().response));
    }
}

/// Two servers that answer alternately do not move the client to and fro: the second move has to wait.
#[tokio::test]
async fn moves_are_apart() {
    let clock = Clock::manual();
    let server = Server::new(target("redis://h"), clock.clone());
    let epoch = |run_id| server.epoch_of(run_id).map_err(|error| error.cause());
    assert_eq!(epoch("a"), Ok((1, false)));
    assert_eq!((epoch("a"), epoch("b")), (Ok((1, false)), Ok((2, true))));
    assert_eq!(epoch("a"), Err(Cause::Unreachable));
    assert_eq!(epoch("b"), Ok((2, false)), "who is there already stays");
    clock.advance(Duration::from_millis(100));
    assert_eq!(epoch("a"), Ok((3, true)));
    assert!(server.is_at(3) && !server.is_at(2));
}

/// A dropped connection is closed even if a request is still being written.
#[tokio::test]
async fn a_dropped_connection_is_closed() {
    let server = RedisServer::start();
    let mut target = target(&server.url());
    // Long, so that the kernel does not close it meanwhile.
    target.connector.timeouts.response = Duration::from_secs(600);
    let live = target.connect(None, None).await.unwrap();
    let (mut connection, driver) = (live.connection(), live.driver.clone());
    server.pause();
    let asking = tokio::spawn(async move {
        let mut more_than_fits = redis::cmd("SET");
        more_than_fits.arg("k").arg(vec![0_u8; 32 << 20]);
        more_than_fits.query_async::<redis::Value>(&mut connection).await
    });
    // There is one thread: by now the request is queued, and the driver has begun to write.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    asking.abort();
    assert!(asking.await.is_err() && !driver.is_finished());
    drop(live);
    eventually("it to be closed", || async { driver.is_finished() }).await;
}

/// Concurrent calls are sent together, in their order, and each gets its own reply; also after a refused
/// call, and after calls whose replies are not awaited.
#[tokio::test]
async fn calls_at_a_time_keep_their_order() {
    let server = RedisServer::start();
    let link = Link::new(Arc::new(Server::new(target(&server.url()), Clock::system())));
    let live = link.live().await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (calls_of, mut command) = (live.calls().clone(), redis::cmd("RPUSH"));
        command.arg(if number % 20 == 7 { "not:a:list" } else { "list" }).arg(number);
        calls.spawn(async move {
            let reply = calls_of.call(command, SendMode::Plain);
            if number % 10 == 3 { None } else { Some((number, reply.await.unwrap())) }
        });
        if number == 0 {
            link.call(&live, redis::cmd("SET").arg("not:a:list").arg("").clone()).await.unwrap();
        }
    }
    for (number, reply) in calls.join_all().await.into_iter().flatten() {
        let before = (0..=number).filter(|earlier| earlier % 20 != 7).count();
        match reply {
            redis::Value::Int(length) => assert_eq!(length, i64::try_from(before).unwrap()),
            refused => assert!(number % 20 == 7, "{number}: {refused:?}"),
        }
    }
}

/// A lone call whose reply is not awaited is sent before all later calls.
#[tokio::test]
async fn a_lone_call_that_nobody_waits_for() {
    let server = RedisServer::start();
    let live = target(&server.url()).connect(None, None).await.unwrap();
    for number in 1..=50 {
        let push = || redis::cmd("RPUSH").arg("list").arg(number).clone();
        let dropped = [SendMode::Plain, SendMode::NotifyFirst][number % 2];
        drop(live.calls().call(push(), dropped));
        let length = live.calls().call(push(), SendMode::Plain).await.unwrap();
        assert_eq!(length, redis::Value::Int(i64::try_from(number * 2).unwrap()));
    }
}

/// A call with `NotifyFirst` gets its own reply, also if the server refuses `PING`.
#[tokio::test]
async fn others_first_is_answered() {
    let server = RedisServer::start();
    let live = target(&server.url()).connect(None, None).await.unwrap();
    for rights in ["+ping", "-ping"] {
        server.client().command(&["ACL", "SETUSER", "default", rights]);
        let echo = redis::cmd("ECHO").arg("word").clone();
        let said = live.calls().call(echo, SendMode::NotifyFirst).await.unwrap();
        assert_eq!(said, redis::Value::BulkString(b"word".to_vec()), "{rights}");
    }
}

/// A call on a dropped connection ends like one on a broken connection.
#[tokio::test]
async fn a_call_without_a_connection() {
    let server = RedisServer::start();
    let live = target(&server.url()).connect(None, None).await.unwrap();
    let calls = live.calls().clone();
    let (asked, _) = (calls.call(redis::cmd("PING"), SendMode::Plain), drop(live));
    assert!(asked.await.unwrap_err().is_io_error());
    assert!(calls.call(redis::cmd("PING"), SendMode::Plain).await.unwrap_err().is_io_error());
}
