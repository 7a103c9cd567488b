//! Resources of a process: processor time and sockets.

use std::path::Path;
use std::time::Duration;

use crate::error::Error;

/// Leaves one processor to the server, if there is another: then client and server stay on separate
/// processors, as on two machines. If they share all processors, it depends on chance whether a request finds
/// the other side awake, and the same cycle takes half or twice the time, for both sides.
#[cfg(target_os = "linux")]
pub(crate) fn leave_a_processor() -> Result<(), Error> {
    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

    let mut ours = sched_getaffinity(None).map_err(std::io::Error::from)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|processor| ours.is_set(*processor));
    let Some(last) = last.filter(|_| ours.count() > 1) else { return Ok(()) };
    ours.unset(last);
    // Set all current threads; threads that they start inherit the setting.
    for thread in std::fs::read_dir("/proc/self/task")? {
        let number = thread?.file_name().to_str().and_then(|number| number.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            // A thread that has just ended can be ignored.
            let _ = sched_setaffinity(Some(thread), &ours);
        }
    }
    Ok(())
}

/// Other systems do not let a process choose its processors.
#[cfg(not(target_os = "linux"))]
pub(crate) fn leave_a_processor() -> Result<(), Error> {
    Ok(())
}

/// The processor time of this process.
pub(crate) fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// The processor time of another process, from the scheduler's own statistics.
pub(crate) fn cpu_time_of(pid: u32) -> Result<Duration, Error> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let used = stat.split_whitespace().next().and_then(|used| used.parse::<u64>().ok());
        nanos += used.ok_or_else(|| Error::surprise("an empty schedstat"))?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// The number of open sockets of this process.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A process with several processors gives one up; a process with one keeps it.
    #[test]
    fn one_processor_is_left() {
        let count = || rustix::thread::sched_getaffinity(None).unwrap().count();
        let before = count();
        leave_a_processor().unwrap();
        assert_eq!(count(), (before - 1).max(1));
    }
}
