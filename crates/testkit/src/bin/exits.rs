//! `exits URL HOW [FILE]`: acquires the lock `k` for ten minutes, and ends without an explicit release as
//! soon as FILE exists.
//!
//! HOW selects the form of `main`. Nothing here waits for a release: the drops send all that reaches the
//! server.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test program: it talks to its test on stdout, and what is unexpected ends it"
)]

use std::future::pending;
use std::time::Duration;

use tenure::{Error, Guard, Locker, blocking};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_secs(600);
/// Enough guards that a wait for each, one after the other, takes longer than any test allows.
const MANY: usize = 40;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (url, how) = (args.next().expect("a URL"), args.next().expect("how"));
    match how.as_str() {
        "returns" => workers(2).block_on(returns(&url)),
        "current-thread" => current_thread().block_on(returns(&url)),
        "question-mark" => workers(2).block_on(fails(&url)),
        "installed" => workers(2).block_on(installed(&url)),
        "guard-only" => workers(2).block_on(guard_only(&url)),
        "task" => tasks(&workers(1), &url),
        "task-of-current-thread" => tasks(&current_thread(), &url),
        "thread" => threads(&url),
        "panic" => workers(2).block_on(panics(&url)),
        "many" => workers(2).block_on(many(&url)),
        "many-guards" => workers(2).block_on(many_guards(&url)),
        "many-tasks" => many_tasks(&workers(1), &url),
        "many-tasks-of-current-thread" => many_tasks(&current_thread(), &url),
        "never-waits" => workers(2).block_on(never_waits(&url)),
        other => panic!("unknown: {other}"),
    }
}

fn workers(many: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(many).enable_all().build().expect("a runtime")
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn hold(locker: &Locker) -> Result<Guard, Error> {
    let guard = locker.lock("k").ttl(TTL).await?;
    holds();
    Ok(guard)
}

fn holds() {
    println!("holds");
    if let Some(file) = std::env::args().nth(3) {
        while !std::path::Path::new(&file).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

async fn returns(url: &str) -> Result<(), Error> {
    let locker = tenure::connect(url).await?;
    let _guard = hold(&locker).await?;
    Ok(())
}

async fn installed(url: &str) -> Result<(), Error> {
    tenure::install(tenure::connect(url).await?)?;
    let _guard = hold(tenure::installed()?).await?;
    Ok(())
}

async fn fails(url: &str) -> Result<(), Error> {
    let locker = tenure::connect(url).await?;
    let _guard = hold(&locker).await?;
    locker.lock("k").wait(Duration::ZERO).await.map(drop)
}

async fn guard_only(url: &str) -> Result<(), Error> {
    let _guard = hold(&tenure::connect(url).await?).await?;
    Ok(())
}

/// The task owns the locker and the guard when the runtime is dropped.
fn tasks(runtime: &Runtime, url: &str) -> Result<(), Error> {
    let locker = runtime.block_on(tenure::connect(url))?;
    let (sender, held) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        let _guard = hold(&locker).await.expect("free");
        let _ = sender.send(());
        pending::<()>().await;
    });
    runtime.block_on(held).expect("the task holds the lock");
    Ok(())
}

fn threads(url: &str) -> Result<(), Error> {
    let locker = blocking::connect(url)?;
    let _guard = locker.lock("k").ttl(TTL).acquire()?;
    holds();
    Ok(())
}

async fn panics(url: &str) -> Result<(), Error> {
    let locker = tenure::connect(url).await?;
    let _guard = hold(&locker).await?;
    panic!("on purpose");
}

/// Has used every connection of the pool before it holds the lock.
async fn many(url: &str) -> Result<(), Error> {
    let redis = tenure::redis::Redis::builder(url).pool_size(64).connect().await?;
    let locker = Locker::new(redis);
    for key in 0..1000 {
        locker.lock(format!("{key}")).await?.release().await?;
    }
    let _guard = hold(&locker).await?;
    Ok(())
}

/// Guards of `MANY` keys. Their locker is gone.
async fn hold_many(url: &str) -> Result<Vec<Guard>, Error> {
    let locker = tenure::connect(url).await?;
    let mut guards = Vec::new();
    for key in 0..MANY {
        guards.push(locker.lock(format!("{key}")).ttl(TTL).await?);
    }
    Ok(guards)
}

async fn many_guards(url: &str) -> Result<(), Error> {
    let _guards = hold_many(url).await?;
    holds();
    Ok(())
}

/// Each guard is owned by a task of its own when the runtime is dropped.
fn many_tasks(runtime: &Runtime, url: &str) -> Result<(), Error> {
    for guard in runtime.block_on(hold_many(url))? {
        runtime.spawn(async move {
            let _guard = guard;
            pending::<()>().await;
        });
    }
    holds();
    Ok(())
}

async fn never_waits(url: &str) -> Result<(), Error> {
    let redis = tenure::redis::Redis::connect(url).await?;
    let locker = Locker::builder(redis).flush_timeout(Duration::ZERO).build()?;
    let _guard = hold(&locker).await?;
    Ok(())
}
