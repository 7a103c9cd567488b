//! Who holds a lock, and what a waiting claim knows about it.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, FaultKind};
use crate::mode::Mode;
use crate::time::{Time, UnixMillis};

/// The identity of a process, for people to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The host name.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
    /// The user name, or `uid 1000` for a user without a name.
    pub user: String,
    /// The name of the executable, without its extension.
    pub program: String,
}

impl Process {
    /// The process that this code runs in.
    pub fn this_process() -> &'static Process {
        static THIS: OnceLock<Process> = OnceLock::new();
        THIS.get_or_init(|| Process {
            host: host_name(),
            pid: std::process::id(),
            user: user_name(),
            program: program_name(),
        })
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}", self.user, self.host, self.pid)
    }
}

#[cfg(unix)]
fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "localhost".into())
}

/// Looks up the effective user id in `/etc/passwd`. `USER` is only the fallback, because it may be wrong or
/// missing, as under cron.
#[cfg(unix)]
fn user_name() -> String {
    let number = rustix::process::geteuid().as_raw().to_string();
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = list.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
        [name, _, uid, ..] if uid == number => Some(name.to_owned()),
        _ => None,
    });
    let named = named.or_else(|| std::env::var("USER").ok()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("uid {number}"))
}

#[cfg(not(unix))]
fn user_name() -> String {
    std::env::var("USERNAME").unwrap_or_else(|_| "unknown".into())
}

fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_stem().map_or_else(|| "unknown".into(), |name| name.to_string_lossy().into_owned())
}

/// The holder of a lock, as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// The process; `None` if the holder does not use tenure, or its record cannot be read.
    pub process: Option<Process>,
    /// Since when it holds the lock, by the holder's wall clock.
    pub since: Option<UnixMillis>,
    /// The label of the request, such as a trace id or a request id.
    pub label: Option<String>,
    /// Why the lock is held, if the request gave a reason.
    pub reason: Option<String>,
    /// How much of the lease remains; `None` if the lease does not expire.
    pub lease_left: Option<Duration>,
    /// The lock is already released, and stays closed for the rest of its `min_hold`.
    pub cooling_down: bool,
    /// How it holds the lock, if the engine says so where it refuses a claim. [`Holding`](crate::Holding) always has
    /// it.
    #[serde(skip)]
    pub mode: Option<Mode>,
    /// The holder uses a newer version of tenure, whose record this version cannot read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub newer: bool,
}

impl Holder {
    /// A holder without any known properties.
    pub fn unknown() -> Self {
        Holder {
            process: None,
            since: None,
            label: None,
            reason: None,
            lease_left: None,
            cooling_down: false,
            mode: None,
            newer: false,
        }
    }

    /// The holder in a message: its process in backticks, and how it holds the lock if that is not alone.
    pub(crate) fn in_words(&self) -> String {
        match &self.mode {
            Some(Mode::Read) => format!("`{self}` as a reader"),
            Some(Mode::Permits { permits, capacity }) => {
                format!("`{self}` with {permits} of {capacity} permits")
            }
            _ => format!("`{self}`"),
        }
    }

    /// A holder that uses a newer version of tenure; nothing else is known.
    pub fn newer() -> Self {
        Holder { newer: true, ..Holder::unknown() }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some(client) => client.fmt(f),
            None if self.newer => f.write_str("a newer version of tenure"),
            None => f.write_str("an unknown holder"),
        }
    }
}

/// The last report about a waiting claim: who holds the lock, the position in the queue, and errors.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WaitStatus {
    /// Who holds the lock.
    pub holder: Option<Holder>,
    /// The position in the engine's queue, 1 for the first; `None` if the engine has no queue.
    pub position: Option<u64>,
    /// The error that prevents an answer of the engine at the moment.
    pub fault: Option<Fault>,
    /// Since when the server has not given a usable answer.
    pub(crate) unanswered_since: Option<Time>,
    /// Since when no server could be reached.
    pub(crate) unreachable_since: Option<Time>,
}

impl WaitStatus {
    /// The lock is held by `holder`, and the claim is at `position` of the queue.
    pub fn of(holder: Holder, position: Option<u64>) -> Self {
        WaitStatus { holder: Some(holder), position, ..WaitStatus::default() }
    }

    /// A request sent at `since` got no usable answer: none in time, or "try again later".
    pub fn unanswered(fault: Fault, since: Time) -> Self {
        WaitStatus { fault: Some(fault), unanswered_since: Some(since), ..WaitStatus::default() }
    }

    /// A request sent at `since` could not reach a server.
    pub fn unreachable(fault: Fault, since: Time) -> Self {
        WaitStatus { unreachable_since: Some(since), ..WaitStatus::unanswered(fault, since) }
    }

    /// The wait ended before the server had answered at all.
    pub(crate) fn nothing_heard() -> Self {
        WaitStatus { fault: Some(WaitStatus::silence()), ..WaitStatus::default() }
    }

    /// The fault of an engine that has not answered yet.
    pub(crate) fn silence() -> Fault {
        Fault::new(FaultKind::Unknown, "none came within the wait")
    }

    /// Keeps the earlier start times if the same kind of failure continues.
    pub(crate) fn after(mut self, earlier: &WaitStatus) -> Self {
        let first =
            |now: Option<Time>, before: Option<Time>| Some(now?.min(before.unwrap_or(Time::NEVER)));
        self.unanswered_since = first(self.unanswered_since, earlier.unanswered_since);
        self.unreachable_since = first(self.unreachable_since, earlier.unreachable_since);
        self
    }
}
