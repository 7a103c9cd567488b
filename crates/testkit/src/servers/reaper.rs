//! Ends a server and deletes its files when the process that started it has ended: also after a kill, and for
//! a server in a `static`, which is never dropped.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits for the end of its input, which comes when the process with the other end of the pipe ends.
const SCRIPT: &str = r#"trap '' INT TERM HUP; read -r _; kill -9 "$1"; rm -rf "$2""#;

/// Waits while our process lives. It is stopped when dropped.
#[derive(Debug)]
pub(super) struct Reaper(Child);

impl Reaper {
    /// A reaper for the process `pid` with files in `dir`.
    pub(super) fn of(pid: u32, dir: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "reaper", &pid.to_string()]).arg(dir);
        // We hold the other end of its input. It must not keep our output open.
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
