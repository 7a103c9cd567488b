//! A program with its own wall clock, which a test can set while the program runs.
//!
//! Debian's `faketime` library shifts the time that the program reads by an offset from a file. Monotonic
//! clocks stay real, because administrators and time servers set only the wall clock.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The wall clock of a program.
#[derive(Clone, Debug)]
pub struct WallClock(PathBuf);

impl WallClock {
    /// A clock in the file at `path`, without an offset at first.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn at(path: &Path) -> Self {
        let clock = WallClock(path.into());
        clock.set("+0");
        clock
    }

    /// Sets the clock to an offset from the real one, such as `+1h` or `-60s`.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn set(&self, offset: &str) {
        // Write and rename, because the program may read the file at any moment and must not see half of it.
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{offset}\n")).expect("the clock can be set");
        std::fs::rename(&new, &self.0).expect("the clock can be set");
    }

    /// Makes `command` use this clock.
    ///
    /// # Panics
    ///
    /// If the library is not installed.
    pub fn drive(&self, command: &mut Command) {
        // Load the C library's allocator before the program's own. Redis has jemalloc, which asks for the
        // time while the shim is being set up, and then both are stuck.
        let preload = shim() + " libc.so.6";
        command.env("LD_PRELOAD", preload).env("FAKETIME_TIMESTAMP_FILE", &self.0);
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
    }
}

/// Where distributions install the library: here, or in a subdirectory named after the architecture.
const PLACES: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// The path of the library. We search for it and do not ask the `faketime` command: each call of that command
/// leaves two files in shared memory, named by its process id, and fails when a process id is used again.
fn shim() -> String {
    static SHIM: OnceLock<String> = OnceLock::new();
    SHIM.get_or_init(|| {
        let places = PLACES.iter().flat_map(|place| below(Path::new(place)));
        let mut found = places.map(|dir| dir.join("faketime/libfaketime.so.1"));
        let found = found.find(|path| path.is_file());
        let found = found.expect("no `faketime` library found: `cargo xtask test` installs it");
        found.to_string_lossy().into_owned()
    })
    .clone()
}

/// The directory itself and its entries.
fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    std::iter::once(dir.to_owned()).chain(entries.map(|entry| entry.path())).collect()
}
