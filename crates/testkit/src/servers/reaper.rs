//! Ends a server, and clears up after it, when the process that started it is gone: also when that
//! was killed, and for a server that lives in a `static`, which nobody drops.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits for the end of its input, which comes with the end of whoever holds the other end.
const SCRIPT: &str = r#"trap '' INT TERM HUP; read -r _; kill -9 "$1"; rm -rf "$2""#;

/// Does nothing for as long as we live. Called off when dropped.
#[derive(Debug)]
pub(super) struct Reaper(Child);

impl Reaper {
    /// For the process `pid`, which keeps its things in `dir`.
    pub(super) fn of(pid: u32, dir: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "reaper", &pid.to_string()]).arg(dir);
        // Its input is ours to close; it must not keep our output open.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Reaper(command.spawn().expect("a shell can be started"))
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
