//! Messages of `serve` and `demo`.

use std::path::Path;

use crate::text::escape;

/// Printed when the page is served.
pub(crate) fn serving(url: &str, allow_release: bool) -> String {
    let rights = if allow_release { "its users can release locks" } else { "read-only" };
    format!("tenure: serving the locks of {}, {rights}", escape(url))
}

/// Printed when the fleet of the demo has started.
pub(crate) fn demo(processes: u32, dir: &Path) -> String {
    let dir = dir.display().to_string();
    format!("tenure: {processes} processes compete for locks in {}; Ctrl-C ends them", escape(&dir))
}

/// Printed when a process of the demo was killed.
pub(crate) fn demo_killed(former: u32, next: u32) -> String {
    format!(
        "tenure: killed process {former}; the kernel has freed its locks; process {next} takes its place"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The full text of each message.
    #[test]
    fn messages() {
        assert_eq!(
            serving("redis://h", false),
            "tenure: serving the locks of redis://h, read-only"
        );
        assert_eq!(
            serving("file:/x", true),
            "tenure: serving the locks of file:/x, its users can release locks"
        );
        assert_eq!(
            demo(6, Path::new("/tmp/x")),
            "tenure: 6 processes compete for locks in /tmp/x; Ctrl-C ends them"
        );
        assert_eq!(
            demo_killed(7, 8),
            "tenure: killed process 7; the kernel has freed its locks; process 8 takes its place"
        );
    }
}
