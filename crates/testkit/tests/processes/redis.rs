//! Processes on Redis that are stopped, killed, forked, or exit.

use std::process::Command;
use std::time::{Duration, Instant};

use tenure_core::{Error, Guard, HeldMode, Locker};
use tenure_redis::Redis;
use tenure_testkit::clock::WallClock;
use tenure_testkit::conformance::start;
use tenure_testkit::process::Program;
use tenure_testkit::register::FileRegister;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::in_time;

/// The ttl of [`holds`].
const TTL: Duration = Duration::from_millis(600);

fn holder(command: &str, server: &RedisServer) -> Command {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_holder"));
    holder.args([command, "--url", &server.url(), "--key=k"]);
    holder
}

/// A program that holds `k` until it is ended.
fn holds(server: &RedisServer) -> Program {
    holds_as("alone", server)
}

fn holds_as(mode: &str, server: &RedisServer) -> Program {
    let mut command = holder("hold", server);
    command.args(["--mode", mode]);
    command.args(["--owner=p", "--hold-least=1h", "--hold-most=1h", "--ttl=600ms"]);
    command.arg("--history").arg(server.dir().join("p.jsonl"));
    command.arg("--registers").arg(server.dir());
    let mut program = Program::spawn(&mut command);
    program.wait_for("held");
    program
}

async fn locker(server: &RedisServer) -> Locker {
    Locker::new(Redis::connect(&server.url()).await.expect("the server can be used"))
}

/// Waits for the rival's grant, which must come within a second after `left`, the rest of the holder's lease.
async fn turn_after<M: HeldMode>(
    left: Duration,
    turn: impl Future<Output = Result<Guard<M>, Error>>,
) -> Guard<M> {
    in_time(left + Duration::from_secs(1), "the rival's turn", turn).await.expect("the lock")
}

/// t01: the lock of a process that is stopped for longer than its ttl goes to a rival. When the process
/// resumes, the rival keeps the lock, the fence refuses the process's write, and its release fails.
#[tokio::test]
async fn t01_a_stopped_process_loses_its_lock() {
    let server = RedisServer::start();
    let (mut program, rival) = (holds(&server), locker(&server).await);
    let shown = rival.inspect("k").await.unwrap().unwrap();
    assert_eq!(shown.holders[0].holder.process.as_ref().unwrap().pid, program.pid());
    program.stop();
    let guard = turn_after(TTL, rival.lock("k").into_future()).await;
    let register = FileRegister::open(&server.dir().join("k")).unwrap();
    let seen = register.read(guard.fence()).unwrap();
    assert!(register.write(seen).unwrap());
    resumes_lost(&mut program);
    releases_nothing(&mut program);
    let tally = register.tally().unwrap();
    assert_eq!((tally.fenced_writes, tally.refused, tally.fenced_lost()), (1, 1, 0));
    assert!(guard.is_held());
    let shown = rival.inspect("k").await.unwrap().unwrap();
    assert_eq!(shown.holders[0].holder.process.as_ref().unwrap().pid, std::process::id());
    guard.release().await.unwrap();
}

/// Lets the program go on, which finds that it has lost `k`, and that it cannot release it.
fn resumes_lost(program: &mut Program) {
    program.forget_lines();
    program.go_on();
    program.wait_for("lost");
}

fn releases_nothing(program: &mut Program) {
    let said = program.wait_for("not released:");
    assert!(said.contains("lock `k` was lost"), "{said}");
}

/// t71: a reader that is stopped for longer than its ttl has lost the lock when a writer gets it. Its next read is
/// refused, its release fails, and the writer keeps the lock.
#[tokio::test]
async fn t71_a_stopped_reader() {
    let server = RedisServer::start();
    let (mut program, rival) = (holds_as("read", &server), locker(&server).await);
    assert_eq!(program.wait_for("read"), "true");
    program.stop();
    let writer = turn_after(TTL, rival.write("k").into_future()).await;
    let register = FileRegister::open(&server.dir().join("k")).unwrap();
    let seen = register.read(writer.fence()).unwrap();
    assert!(register.write(seen).unwrap());
    resumes_lost(&mut program);
    assert_eq!(program.wait_for("read"), "false");
    releases_nothing(&mut program);
    writer.renew().await.unwrap();
    writer.release().await.unwrap();
}

/// t72: a writer that is stopped for longer than its ttl is refused by the fence of a later reader, although nobody
/// else has written. Its release fails, and the reader keeps the lock.
#[tokio::test]
async fn t72_a_stopped_writer() {
    let server = RedisServer::start();
    let (mut program, rival) = (holds(&server), locker(&server).await);
    program.stop();
    let reader = turn_after(TTL, rival.read("k").into_future()).await;
    let register = FileRegister::open(&server.dir().join("k")).unwrap();
    assert!(register.read_shared(reader.fence()).unwrap().was_accepted());
    resumes_lost(&mut program);
    releases_nothing(&mut program);
    let tally = register.tally().unwrap();
    assert_eq!((tally.fenced_writes, tally.refused), (0, 1));
    reader.renew().await.unwrap();
    reader.release().await.unwrap();
}

/// t73: the slot of a permit whose process is stopped for longer than its ttl is granted to another. The fences of that
/// slot refuse the write of the process; the holder of another slot with a lower fence still writes.
#[tokio::test]
async fn t73_a_stopped_permit() {
    let server = RedisServer::start();
    let rival = locker(&server).await;
    let slots = rival.semaphore("k", 2);
    let zero = slots.acquire().numbered().await.unwrap();
    let mut program = holds_as("permit", &server);
    program.stop();
    let one = turn_after(TTL, slots.acquire().numbered().into_future()).await;
    assert_eq!((zero.slot(), one.slot()), (Some(0), Some(1)));
    let register =
        |slot| FileRegister::open(&server.dir().join(format!("k_{slot}"))).expect("a register");
    let seen = register(1).read(one.fence()).unwrap();
    assert!(register(1).write(seen).unwrap());
    resumes_lost(&mut program);
    releases_nothing(&mut program);
    let tally = register(1).tally().unwrap();
    assert_eq!((tally.fenced_writes, tally.refused, tally.fenced_lost()), (1, 1, 0));
    assert!(zero.fence() < one.fence());
    let seen = register(0).read(zero.fence()).unwrap();
    assert!(register(0).write(seen).unwrap());
    one.renew().await.unwrap();
    zero.renew().await.unwrap();
}

/// t32: a killed process's lock goes to the waiter when its ttl has passed.
#[tokio::test]
async fn t32_a_killed_process_frees_its_lock() {
    let server = RedisServer::start();
    let (mut program, rival) = (holds(&server), locker(&server).await);
    let wait = tokio::spawn(start(rival.lock("k")).await);
    program.kill();
    let guard = turn_after(TTL, async { wait.await.unwrap() }).await;
    guard.release().await.unwrap();
    assert!(rival.inspect("k").await.unwrap().is_none(), "nothing is left");
}

/// t53: a forked child can neither release nor acquire; the parent keeps its lock.
#[test]
fn t53_a_forked_child_cannot_use_the_lock() {
    let server = RedisServer::start();
    let mut program = Program::spawn(&mut holder("fork", &server));
    program.wait_for("held");
    let said = program.wait_for("child");
    let forked = "belongs to the process that forked this one";
    assert_eq!(said.matches(forked).count(), 2, "{said}");
    assert_eq!(program.wait_for("parent holds"), "true");
    assert!(program.wait().success());
}
/// t54: the lock of a process that exits without a release is freed by its ttl, and not before.
#[tokio::test]
async fn t54_a_process_that_exits() {
    let server = RedisServer::start();
    let rival = locker(&server).await;
    let mut program = Program::spawn(holder("exit", &server).arg("--ttl=2s"));
    program.wait_for("held");
    assert!(program.wait().success());
    let asked = Instant::now();
    let shown = rival.inspect("k").await.unwrap().expect("nobody has released it");
    let left = shown.holders[0].holder.lease_left.unwrap();
    let guard = turn_after(left, rival.lock("k").into_future()).await;
    // Servers count in whole milliseconds.
    assert!(asked.elapsed() + Duration::from_millis(2) > left, "nobody has released it");
    assert!(guard.is_held());
}

/// t13: a holder whose wall clock jumps an hour ahead and back keeps its lock, and the jumps affect
/// neither its waits nor its fences.
#[tokio::test]
async fn t13_a_holders_wall_clock_jumps() {
    let server = RedisServer::start();
    let clock = WallClock::at(&server.dir().join("wall"));
    let mut command = holder("hold", &server);
    clock.drive(&mut command);
    command.args(["--owner=p", "--rounds=3", "--hold-least=2s", "--hold-most=2s", "--ttl=1s"]);
    command.arg("--history").arg(server.dir().join("p.jsonl"));
    command.arg("--registers").arg(server.dir());
    let mut program = Program::spawn(&mut command);
    let rival = locker(&server).await;
    let mut fences = Vec::new();
    for offset in ["+1h", "-1h", "+0"] {
        fences.push(program.wait_for("held").parse::<u64>().unwrap());
        clock.set(offset);
        let shown = rival.inspect("k").await.unwrap().expect("it is held");
        assert!(shown.holders[0].holder.lease_left <= Some(Duration::from_secs(1)));
        program.wait_for("released");
    }
    assert!(program.wait().success());
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    let history = tenure_testkit::history::read_file(&server.dir().join("p.jsonl")).unwrap();
    let verdict = tenure_testkit::judge::Judge::new(history).verdict();
    verdict.assert_clean();
    assert_eq!((verdict.grants, verdict.losses), (3, 0));
}
