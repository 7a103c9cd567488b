//! `forked_client URL`: connects a client, forks, and prints the results of the child's own locker on that
//! client.
//!
//! Each of the child's calls gets one poll, so that a call that would reach the server prints `waits`.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test program: it talks to its test on stdout, and what is unexpected ends it"
)]

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tenure::Locker;
use tenure::redis::{Client, Redis};
use tenure_testkit::wait::outcome;

fn main() {
    let url = std::env::args().nth(1).expect("a URL");
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let client = runtime.block_on(Client::connect(&url)).expect("the server can be used");
    match split() {
        ForkResult::Child => child(&Locker::new(Redis::with(&client))),
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None);
            assert!(matches!(ended, Ok(WaitStatus::Exited(_, 0))), "{ended:?}");
        }
    }
}

#[allow(unsafe_code, reason = "fork is what this program is about")]
fn split() -> ForkResult {
    // SAFETY: this process has one thread, so no other thread can have held a mutex.
    unsafe { fork() }.expect("fork")
}

fn child(locker: &Locker) -> ! {
    println!("try: {}", outcome(locker.try_lock("k").into_future()));
    println!("wait: {}", outcome(locker.lock("k").into_future()));
    println!("list: {}", outcome(locker.list("*")));
    std::process::exit(0)
}
