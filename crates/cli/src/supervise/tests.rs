//! The supervision of a command, with a server that stops replying.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use clap::Parser as _;
use tenure::backend::{Answers, Backend, BoxFuture, Fault, FaultKind, Renewal};
use tenure::{Lease, Locker, Memory};
use tenure_testkit::intercept::{Intercepted, Interceptor};

use super::*;
use crate::args::{Cli, Command};
use crate::command::{Task, start};
use crate::ui::Line;

const SECOND: Duration = Duration::from_secs(1);

fn policy(line: &str, ttl: Duration, expires: bool) -> Policy {
    let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
    let Command::Run(args) = cli.command else { panic!("not a run") };
    Policy::new(&args, ttl, expires)
}

/// The default grace is used if the lease is long enough for it.
#[test]
fn grace_as_asked() {
    let policy = policy("tenure run k -- x", 30 * SECOND, true);
    assert_eq!((policy.grace, policy.reserve), (5 * SECOND, RESERVE));
    assert_eq!(policy.warning(), Some(5 * SECOND + RESERVE));
}

/// A short lease shortens the grace, so that a healthy lease never causes a warning.
#[test]
fn grace_is_cut_to_the_lease() {
    let cut = policy("tenure run k -- x", 3 * SECOND, true);
    assert_eq!((cut.grace, cut.reserve), (SECOND, 3 * SECOND / 10));
    assert!(cut.warning().unwrap() < 2 * SECOND);
    let endless = policy("tenure run k -- x", 3 * SECOND, false);
    assert_eq!(endless.grace, 5 * SECOND);
    let most = policy("tenure run --max-hold 4s k -- x", 3 * SECOND, false);
    assert_eq!(most.grace, Duration::from_millis(400));
    let tiny = policy("tenure run k -- x", Duration::from_millis(100), true);
    assert_eq!(tiny.reserve, Duration::from_millis(10));
}

/// The default grace takes at most a tenth of `--max-hold`, an explicit one at most half.
#[test]
fn grace_is_cut_to_the_limit() {
    let default = policy("tenure run --max-hold 10s k -- x", 30 * SECOND, false);
    assert_eq!(default.warning(), Some(SECOND + RESERVE), "TERM comes after 8.5 s");
    let long = policy("tenure run --max-hold 5m k -- x", 30 * SECOND, false);
    assert_eq!(long.grace, 5 * SECOND);
    let asked = policy("tenure run --max-hold 10s --grace 5s k -- x", 30 * SECOND, false);
    assert_eq!(asked.grace, 5 * SECOND);
    let greedy = policy("tenure run --max-hold 10s --grace 8s k -- x", 30 * SECOND, false);
    assert_eq!(greedy.grace, 5 * SECOND);
}

/// KILL comes after the grace, and always before the end of the lease.
#[test]
fn kill_lands_before_the_end() {
    let policy = policy("tenure run k -- x", 30 * SECOND, true);
    let now = Time::from_nanos(1);
    assert_eq!(policy.kill_at(now, now.after(20 * SECOND)), now.after(5 * SECOND));
    let late = policy.kill_at(now, now.after(2 * SECOND));
    assert_eq!(late, now.after(2 * SECOND).before(RESERVE));
    assert_eq!(policy.kill_at(now, Time::NEVER), now.after(5 * SECOND));
}

/// The measure decides how early the warning must come.
#[test]
fn warnings() {
    let kill = policy("tenure run --on-lost kill k -- x", 30 * SECOND, true);
    assert_eq!(kill.warning(), Some(RESERVE));
    let ignore = policy("tenure run --on-lost ignore k -- x", 30 * SECOND, true);
    assert_eq!(ignore.warning(), None);
}

/// A server that stops replying to renewals when the flag is set, and otherwise works.
#[derive(Default)]
struct Silent(AtomicBool);

impl Interceptor for Silent {
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        if !self.0.load(Ordering::Relaxed) {
            return inner.renew(leases, answers);
        }
        let refused = || Fault::new(FaultKind::Unavailable, "connection refused");
        (0..leases.len()).for_each(|index| answers(index, Renewal::Unknown(refused())));
        Box::pin(async {})
    }
}

/// The end of a supervised command, the time left of the lease then, and the printed lines.
struct Seen {
    end: End,
    loss: Option<Loss>,
    left: Duration,
    said: Receiver<Line>,
}

/// The ttl of a supervised command: long enough for the full reserve, which a busy machine needs.
const TTL: Duration = Duration::from_secs(5);

/// Runs `script` under a lease of [`TTL`]; `meddle` can disturb the engine.
async fn watched(line: &str, script: &str, meddle: impl FnOnce(&Memory, &Silent)) -> Seen {
    let (memory, silent) = (Memory::with_clock(Clock::system()), Arc::<Silent>::default());
    let locker = Locker::new(Intercepted::new(Arc::new(memory.clone()), silent.clone()));
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    let words = ["sh", "-c", script].map(Into::into);
    let child = start(&Task { words: &words, added: vec![], removed: vec![] }, None).unwrap();
    meddle(&memory, &silent);
    let (mut ui, said) = Ui::for_test();
    let (clock, since) = (locker.clock(), locker.clock().now());
    let policy = policy(line, TTL, true);
    let (guard, ui, fate, loss) = (&guard, &mut ui, LockState::Secure, None);
    let hold = Supervisor { guard, clock, since, policy, child, terminal: None, ui, fate, loss };
    let (end, loss) = hold.run(&mut Signals::none()).await;
    let loss = loss.map(|(key, loss)| {
        assert_eq!(key, "k");
        loss
    });
    Seen { end, loss, left: guard.remaining(), said }
}

const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.01; done";

/// If the server stops replying, the command gets TERM, then KILL, and is dead before the lease ends.
#[tokio::test]
async fn t69_silence_kills_before_the_lease_ends() {
    let mute = |_: &Memory, silent: &Silent| silent.0.store(true, Ordering::Relaxed);
    let seen = watched("tenure run --grace 300ms k -- x", STUBBORN, mute).await;
    assert_eq!((seen.end, seen.loss), (End::Signalled(9), Some(Loss::Expired)));
    assert!(!seen.left.is_zero(), "killed too late");
    let line = seen.said.try_recv().unwrap().0;
    let (start, rest) = line.split_once("sent TERM to ").unwrap();
    assert_eq!(start, "tenure: losing k: no renewal confirmed for 4s (connection refused); ");
    assert!(rest.contains(", KILL in ") && rest.ends_with("ms\n"), "{rest}");
}

/// While the server replies, a command that runs longer than the ttl is not disturbed.
#[tokio::test]
async fn t69_renewals_keep_the_command_alive() {
    let seen = watched("tenure run --grace 300ms k -- x", "sleep 6; exit 3", |_, _| ()).await;
    assert_eq!((seen.end, seen.loss), (End::Exited(3), None));
    assert!(seen.said.try_recv().is_err(), "nothing is said");
}

/// F1: if a lock that is about to end turns out to be lost, the command gets no TERM with a grace.
#[tokio::test]
async fn t69_a_lost_lock_is_not_about_to_end() {
    let memory = Memory::with_clock(Clock::system());
    let locker = Locker::new(memory.clone());
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    assert!(memory.revoke("k").unwrap());
    guard.lost().await;
    let words = ["sh", "-c", STUBBORN].map(Into::into);
    let child = start(&Task { words: &words, added: vec![], removed: vec![] }, None).unwrap();
    let (mut ui, said) = Ui::for_test();
    let (clock, since) = (locker.clock(), locker.clock().now());
    let policy = policy("tenure run k -- x", TTL, true);
    let (guard, ui, fate, loss) = (&guard, &mut ui, LockState::Secure, None);
    let mut hold =
        Supervisor { guard, clock, since, policy, child, terminal: None, ui, fate, loss };
    hold.endangered().await;
    assert_eq!((hold.fate, said.try_recv().is_err()), (LockState::Secure, true), "no TERM");
    let (end, loss) = hold.run(&mut Signals::none()).await;
    assert_eq!((end, loss), (End::Signalled(9), Some(("k".into(), Loss::Gone))));
}

/// F1: if the lock is revoked, the command gets KILL at once.
#[tokio::test]
async fn t69_a_revoked_lock_kills_at_once() {
    let revoke = |memory: &Memory, _: &Silent| assert!(memory.revoke("k").unwrap());
    let seen = watched("tenure run k -- x", STUBBORN, revoke).await;
    assert_eq!((seen.end, seen.loss), (End::Signalled(9), Some(Loss::Gone)));
    let line = seen.said.try_recv().unwrap().0;
    assert!(line.starts_with("tenure: losing k: "), "{line}");
    assert!(line.contains("; sent KILL to "), "{line}");
}
