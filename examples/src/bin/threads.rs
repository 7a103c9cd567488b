//! Threads take turns, without async code: the same lock on any engine.
//!
//! `cargo run -p tenure-examples --bin threads`, or with a URL: `.. --bin threads redis://localhost`.

use std::time::Duration;

use tenure::blocking::{self, Locker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let locker = blocking::connect(&url)?;
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let locker = &locker;
            scope.spawn(move || {
                work(locker, name).unwrap_or_else(|error| println!("{name}: {error}"))
            });
        }
    });
    Ok(())
}

/// A thread is an owner: inside the lock it may lock the same key again.
fn work(locker: &Locker, name: &str) -> Result<(), tenure::Error> {
    let outer = locker.lock("account:7").wait(Duration::from_secs(10)).acquire()?;
    let inner = locker.lock("account:7").acquire()?;
    println!("{name} begins, {} deep, fence {}", inner.depth(), outer.fence());
    inner.release()?;
    println!("{name} ends");
    outer.release()?;
    Ok(())
}
