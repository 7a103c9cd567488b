//! What a process uses: time on the processors, sockets.

use std::path::Path;
use std::time::Duration;

use crate::error::Error;

/// What this process has used of the processors.
pub(crate) fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// What another process has used of them, by the scheduler's own count.
pub(crate) fn cpu_time_of(pid: u32) -> Result<Duration, Error> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let used = stat.split_whitespace().next().and_then(|used| used.parse::<u64>().ok());
        nanos += used.ok_or_else(|| Error::surprise("an empty schedstat"))?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// How many sockets this process has open.
pub(crate) fn sockets() -> Result<u32, Error> {
    let is_socket = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let mut count = 0;
    for open in std::fs::read_dir("/proc/self/fd")? {
        count += u32::from(is_socket(&open?.path()));
    }
    Ok(count)
}
