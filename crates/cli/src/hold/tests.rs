//! The watch over a command, with a server that falls silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use clap::Parser as _;
use tenure::backend::{Answers, Backend, BoxFuture, Fault, FaultKind, Renewal};
use tenure::{Lease, Locker, Memory};
use tenure_testkit::meddle::{Meddled, Meddler};

use super::*;
use crate::args::{Cli, Command};
use crate::command::{Task, start};
use crate::talk::Line;

const SECOND: Duration = Duration::from_secs(1);

fn policy(line: &str, ttl: Duration, expires: bool) -> Policy {
    let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
    let Command::Run(args) = cli.command else { panic!("not a run") };
    Policy::new(&args, ttl, expires)
}

/// The grace that was asked for stands where the lease has room for it.
#[test]
fn grace_as_asked() {
    let policy = policy("tenure run k -- x", 30 * SECOND, true);
    assert_eq!((policy.grace, policy.reserve), (5 * SECOND, RESERVE));
    assert_eq!(policy.warning(), Some(5 * SECOND + RESERVE));
}

/// A short lease shortens the grace, so that a healthy one is never taken for a dying one.
#[test]
fn grace_is_cut_to_the_lease() {
    let cut = policy("tenure run k -- x", 3 * SECOND, true);
    assert_eq!(cut.grace, SECOND);
    assert!(cut.warning().unwrap() < 2 * SECOND);
    let endless = policy("tenure run k -- x", 3 * SECOND, false);
    assert_eq!(endless.grace, 5 * SECOND);
    let most = policy("tenure run --at-most 4s k -- x", 3 * SECOND, false);
    assert_eq!(most.grace, Duration::from_millis(400));
    let tiny = policy("tenure run k -- x", Duration::from_millis(100), true);
    assert_eq!(tiny.reserve, Duration::from_millis(10));
}

/// Nobody who sets a limit loses more than a tenth of it to a grace that they did not ask for.
#[test]
fn grace_is_cut_to_the_limit() {
    let default = policy("tenure run --at-most 10s k -- x", 30 * SECOND, false);
    assert_eq!(default.warning(), Some(SECOND + RESERVE), "TERM comes after 8.9 s");
    let long = policy("tenure run --at-most 5m k -- x", 30 * SECOND, false);
    assert_eq!(long.grace, 5 * SECOND);
    let asked = policy("tenure run --at-most 10s --grace 5s k -- x", 30 * SECOND, false);
    assert_eq!(asked.grace, 5 * SECOND);
    let greedy = policy("tenure run --at-most 10s --grace 8s k -- x", 30 * SECOND, false);
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

/// What is to be done decides how early it must be known.
#[test]
fn warnings() {
    let kill = policy("tenure run --on-lost kill k -- x", 30 * SECOND, true);
    assert_eq!(kill.warning(), Some(RESERVE));
    let ignore = policy("tenure run --on-lost ignore k -- x", 30 * SECOND, true);
    assert_eq!(ignore.warning(), None);
}

/// A server that goes on granting and releasing, and stops answering renewals when told to.
#[derive(Default)]
struct Silent(AtomicBool);

impl Meddler for Silent {
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

/// What a watched command came to, and how much of the lease was left then.
struct Seen {
    end: End,
    loss: Option<Loss>,
    left: Duration,
    said: Receiver<Line>,
}

/// Runs `script` under a lease of one second, of which `meddle` decides the rest.
async fn watched(line: &str, script: &str, meddle: impl FnOnce(&Memory, &Silent)) -> Seen {
    let (memory, silent) = (Memory::with_clock(Clock::system()), Arc::<Silent>::default());
    let locker = Locker::new(Meddled::new(Arc::new(memory.clone()), silent.clone()));
    let guard = locker.lock("k").ttl(SECOND).await.unwrap();
    let words = ["sh", "-c", script].map(Into::into);
    let child = start(&Task { words: &words, added: vec![], removed: vec![] }, None).unwrap();
    meddle(&memory, &silent);
    let (mut talk, said) = Talk::overheard();
    let (clock, since) = (locker.clock(), locker.clock().now());
    let policy = policy(line, SECOND, true);
    let (guard, talk, fate, loss) = (&guard, &mut talk, Fate::Secure, None);
    let hold = Hold { guard, clock, since, policy, child, terminal: None, talk, fate, loss };
    let (end, loss) = hold.until_the_end(&mut Signals::none()).await;
    Seen { end, loss, left: guard.remaining(), said }
}

const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.01; done";

/// When the server falls silent the command is asked, then killed, and dead before the lease ends.
#[tokio::test]
async fn t69_silence_kills_before_the_lease_ends() {
    let mute = |_: &Memory, silent: &Silent| silent.0.store(true, Ordering::Relaxed);
    let seen = watched("tenure run --grace 300ms k -- x", STUBBORN, mute).await;
    assert_eq!((seen.end, seen.loss), (End::Signalled(9), Some(Loss::Expired)));
    assert!(!seen.left.is_zero(), "killed too late");
    let line = seen.said.try_recv().unwrap().0;
    let (start, rest) = line.split_once("sent TERM to ").unwrap();
    assert_eq!(start, "tenure: losing k: no renewal confirmed for 0s (connection refused); ");
    assert!(rest.contains(", KILL in ") && rest.ends_with("ms\n"), "{rest}");
}

/// While the server answers, a lease shorter than the command never worries anybody.
#[tokio::test]
async fn t69_renewals_keep_the_command_alive() {
    let seen = watched("tenure run --grace 300ms k -- x", "sleep 1.5; exit 3", |_, _| ()).await;
    assert_eq!((seen.end, seen.loss), (End::Exited(3), None));
    assert!(seen.said.try_recv().is_err(), "nothing is said");
}

/// A lock that was taken away leaves no time to ask.
#[tokio::test]
async fn t69_a_revoked_lock_kills_at_once() {
    let revoke = |memory: &Memory, _: &Silent| assert!(memory.revoke("k").unwrap());
    let seen = watched("tenure run k -- x", STUBBORN, revoke).await;
    assert_eq!((seen.end, seen.loss), (End::Signalled(9), Some(Loss::Gone)));
    let line = seen.said.try_recv().unwrap().0;
    assert!(line.starts_with("tenure: losing k: "), "{line}");
    assert!(line.contains("; sent KILL to "), "{line}");
}
