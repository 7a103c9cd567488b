//! A program with a wall clock of its own, which can be set while it runs.
//!
//! Debian's `faketime` library shifts what the program reads by what a file says. Its monotonic
//! clocks stay real: it is the wall clock that administrators and time servers set.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The wall clock of a program.
#[derive(Clone, Debug)]
pub struct WallClock(PathBuf);

impl WallClock {
    /// A clock kept in the file at `path`, right for now.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn at(path: &Path) -> Self {
        let clock = WallClock(path.into());
        clock.set("+0");
        clock
    }

    /// Sets it to so much before or after the real one: `+1h`, `-60s`.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn set(&self, offset: &str) {
        // Renamed into place: the program may look at any moment, and must not find half of it.
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{offset}\n")).expect("the clock can be set");
        std::fs::rename(&new, &self.0).expect("the clock can be set");
    }

    /// Makes `command` go by this clock.
    ///
    /// # Panics
    ///
    /// If there is no `faketime`.
    pub fn drive(&self, command: &mut Command) {
        // The C library's allocator before the program's own: jemalloc, which Redis has, asks for the
        // time while the shim is being set up, and neither gets any further.
        let preload = shim() + " libc.so.6";
        command.env("LD_PRELOAD", preload).env("FAKETIME_TIMESTAMP_FILE", &self.0);
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
    }
}

/// The library, as the `faketime` command knows it. Asked once: under load that command fails now and
/// then (its semaphores are named by process ids, which come again), and says nothing on stdout.
fn shim() -> String {
    static SHIM: OnceLock<String> = OnceLock::new();
    SHIM.get_or_init(|| {
        let asked = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
        let output = asked.unwrap_or_else(|error| {
            panic!("no `faketime` found, `cargo xtask test` installs it: {error}")
        });
        let shim = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(shim.contains("faketime"), "`faketime` does not name its library: {output:?}");
        shim
    })
    .clone()
}
