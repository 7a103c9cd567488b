//! `forked`: holds a lock, forks, and prints the results of the child's own calls for that lock.
//!
//! The child re-enters, waits, renews and releases. Each call gets one poll, because there is no runtime to
//! wait with; a call that would hang prints `waits`. A task of the parent waits for the lock, so that a
//! release could hand it over in memory.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program: it talks to its test on stdout, and what is unexpected ends it"
)]

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tenure::{Detached, Guard, Locker, Owner};
use tenure_testkit::wait::outcome;

fn main() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let owner = Owner::new();
    let (locker, guard) = runtime.block_on(hold(&owner));
    let detached = runtime.block_on(hold_detached(&locker));
    let waiter = runtime.spawn(locker.lock("k").into_future());
    runtime.block_on(async { tokio::task::yield_now().await });
    match split() {
        ForkResult::Child => child(&locker, guard, detached, owner),
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None);
            assert!(matches!(ended, Ok(WaitStatus::Exited(_, 0))), "{ended:?}");
            let renewed = runtime.block_on(guard.renew());
            println!("parent holds {}", renewed.is_ok() && guard.is_held());
            let released = runtime.block_on(locker.release("d")).is_ok();
            println!("parent releases {}", released && !waiter.is_finished());
        }
    }
}

async fn hold(owner: &Owner) -> (Locker, Guard) {
    let locker = tenure::connect("memory:").await.expect("the engine can be used");
    let guard = locker.lock("k").owner(owner.clone()).await.expect("free");
    (locker, guard)
}

async fn hold_detached(locker: &Locker) -> Detached {
    locker.lock("d").await.expect("free").detach()
}

#[allow(unsafe_code, reason = "fork is what this program is about")]
fn split() -> ForkResult {
    // SAFETY: the other threads of this process do not exist in the child, so it must not wait for a mutex
    // that one of them held. The engine's thread is idle at this point (the lock is held, the next renewal is
    // ten seconds away). The child allocates, which glibc makes safe, prints, and calls the engine's code,
    // which is under test.
    unsafe { fork() }.expect("fork")
}

fn child(locker: &Locker, guard: Guard, detached: Detached, owner: Owner) -> ! {
    println!("re-entry: {}", outcome(locker.lock("k").owner(owner).into_future()));
    println!("wait: {}", outcome(locker.lock("k").into_future()));
    println!("renew: {}", outcome(guard.renew()));
    println!("held: {}", guard.is_held() || guard.held().is_held() || locker.hold_count("k") > 0);
    println!("release: {}", outcome(guard.release()));
    println!("by key: {}", outcome(locker.release("d")));
    println!("write down: {}", outcome(detached.export()));
    std::process::exit(0)
}
