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
    /// If the library is not there.
    pub fn drive(&self, command: &mut Command) {
        // The C library's allocator before the program's own: jemalloc, which Redis has, asks for the
        // time while the shim is being set up, and neither gets any further.
        let preload = shim() + " libc.so.6";
        command.env("LD_PRELOAD", preload).env("FAKETIME_TIMESTAMP_FILE", &self.0);
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
    }
}

/// Where distributions put the library, below a directory of the machine's kind or not.
const PLACES: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// The library. Looked for, and not asked of the `faketime` command: that one leaves two files in
/// shared memory with each call, named by its process id, and fails when an id comes again.
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

/// The directory itself, and those in it.
fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    std::iter::once(dir.to_owned()).chain(entries.map(|entry| entry.path())).collect()
}
