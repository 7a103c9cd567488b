//! A17: an owner that two OS processes share, on Redis.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure_core::{Guard, Locker, Owner, Released};
use tenure_redis::Redis;
use tenure_testkit::process::Program;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, within};

/// The ttl of the other process's share.
const TTL: Duration = Duration::from_millis(600);

/// Another process that holds its share of `k` until it is ended.
fn other(server: &RedisServer) -> Program {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_holder"));
    holder.args(["hold", "--url", &server.url(), "--key=k", "--owner=p", "--share=run"]);
    holder.args(["--hold-least=1h", "--hold-most=1h", "--ttl=600ms"]);
    holder.arg("--history").arg(server.dir().join("p.jsonl"));
    holder.arg("--registers").arg(server.dir());
    let mut program = Program::spawn(&mut holder);
    program.wait_for("held");
    program
}

async fn locker(server: &RedisServer) -> Locker {
    Locker::new(Redis::connect(&server.url()).await.expect("the server can be used"))
}

async fn share(locker: &Locker) -> Guard {
    let request = locker.lock("k").ttl(Duration::from_secs(300)).owner(Owner::shared("run"));
    within("our share", request.into_future()).await.expect("the owner holds it")
}

/// A17: two processes of one owner hold the lock together and keep others out. A released share leaves the
/// lock to the other process, the share of a dead process ends with its ttl, and the last release frees the lock.
#[tokio::test]
async fn a_shared_owner_in_two_processes() {
    let server = RedisServer::start();
    let (mut program, ours, rival) = (other(&server), locker(&server).await, locker(&server).await);
    let guard = share(&ours).await;
    assert!(rival.try_lock("k").await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Released::StillHeld(1));
    assert!(rival.try_lock("k").await.unwrap().is_none(), "the other process holds it");

    let guard = share(&ours).await;
    let waiting = tokio::spawn(rival.lock("k").into_future());
    program.kill();
    let killed = Instant::now();
    eventually("its share to end", || async { killed.elapsed() > TTL * 2 }).await;
    assert!(guard.is_held() && !waiting.is_finished(), "ours goes on");
    assert_eq!(guard.release().await.unwrap(), Released::Freed, "nobody else has a share");
    let next = within("the rival's turn", waiting).await.unwrap().unwrap();
    assert!(next.is_held());
}
