//! Errors: messages for people, predicates for code.

use std::fmt;
use std::time::Duration;

use crate::fault::{Fault, FaultKind, Loss};
use crate::holder::{Holder, WaitStatus};
use crate::key::Key;
use crate::mode::Mode;

/// Why a call failed.
///
/// The type is opaque: use the predicates. "Held by another" is not an error of `try_lock`; for a `lock` with
/// a limit on waiting it is [`is_busy`](Self::is_busy). If the engine did not answer, the error
/// [`is_unknown`](Self::is_unknown); it is never reported as "not acquired".
///
/// ```
/// # tokio_test(async {
/// use std::time::Duration;
/// use tenure::{Locker, Memory};
///
/// let locker = Locker::new(Memory::space("errors"));
/// let _guard = locker.lock("order:42").await?;
/// let error = locker.lock("order:42").wait(Duration::ZERO).await.unwrap_err();
/// assert!(error.is_busy());
/// assert_eq!(error.key().map(|key| key.as_str()), Some("order:42"));
/// # Ok::<(), tenure::Error>(()) });
/// # fn tokio_test<T>(f: impl Future<Output = Result<T, tenure::Error>>) {
/// #     tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(f).unwrap();
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Why>);

#[derive(Clone, Debug)]
enum Why {
    Busy { key: Key, waited: Waited, holder: Option<Holder>, wanted: Mode },
    Cancelled { key: Key, waited: Duration },
    Closed { key: Option<Key> },
    AlreadyHeld { key: Key, by: HeldBy },
    NotHeld { key: Key },
    Lost { key: Key, loss: Loss, late: bool },
    TooLate { key: Key, ttl: Duration, took: Duration },
    Forked { key: Key },
    InBackground { what: &'static str },
    Invalid { message: String },
    Backend { key: Option<Key>, fault: Fault },
}

/// The limit of a wait that ended without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    Not,
    For { limit: Duration, elapsed: Duration },
    Attempts { made: u32, elapsed: Duration },
}

/// Who in this process holds a key already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBy {
    ThisOwner,
    ThisProcess,
    /// By this owner, in a mode that the new request does not fit into.
    OtherMode {
        held: &'static str,
        wanted: &'static str,
    },
}

impl Error {
    pub(crate) fn busy(key: &Key, waited: Waited, holder: Option<Holder>) -> Self {
        Why::Busy { key: key.clone(), waited, holder, wanted: Mode::Exclusive }.into()
    }

    /// Records how the key was asked for.
    pub(crate) fn for_mode(mut self, mode: &Mode) -> Self {
        if let Why::Busy { wanted, .. } = &mut *self.0 {
            wanted.clone_from(mode);
        }
        self
    }

    /// The error of one attempt without a grant: another holds the lock, or the server gave no answer.
    pub(crate) fn at_once(key: &Key, sight: WaitStatus) -> Self {
        match sight.fault {
            Some(fault) => Error::backend(Some(key), fault),
            None => Error::busy(key, Waited::Not, sight.holder),
        }
    }

    pub(crate) fn cancelled(key: &Key, waited: Duration) -> Self {
        Why::Cancelled { key: key.clone(), waited }.into()
    }

    pub(crate) fn closed(key: Option<&Key>) -> Self {
        Why::Closed { key: key.cloned() }.into()
    }

    pub(crate) fn already_held(key: &Key, by: HeldBy) -> Self {
        Why::AlreadyHeld { key: key.clone(), by }.into()
    }

    pub(crate) fn not_held(key: &Key) -> Self {
        Why::NotHeld { key: key.clone() }.into()
    }

    pub(crate) fn lost(key: &Key, loss: Loss) -> Self {
        Why::Lost { key: key.clone(), loss, late: false }.into()
    }

    /// The same loss, found after the body under the lock had succeeded.
    pub(crate) fn found_late(mut self) -> Self {
        if let Why::Lost { late, .. } = &mut *self.0 {
            *late = true;
        }
        self
    }

    pub(crate) fn too_late(key: &Key, ttl: Duration, took: Duration) -> Self {
        Why::TooLate { key: key.clone(), ttl, took }.into()
    }

    pub(crate) fn forked(key: &Key) -> Self {
        Why::Forked { key: key.clone() }.into()
    }

    pub(crate) fn blocking_inside_runtime(what: &'static str) -> Self {
        Why::InBackground { what }.into()
    }

    pub(crate) fn invalid_key(name: &str, flaw: String) -> Self {
        let shown = shorten(name).escape_debug().to_string();
        Self::invalid(format!("invalid key `{shown}`: {flaw}"))
    }

    pub(crate) fn backend(key: Option<&Key>, fault: Fault) -> Self {
        Why::Backend { key: key.cloned(), fault }.into()
    }

    /// An error for a value that is not valid. The message names the value and what is allowed.
    pub fn invalid(message: impl Into<String>) -> Self {
        Why::Invalid { message: message.into() }.into()
    }

    /// Not acquired: another holds the lock, and the limit on waiting or on attempts was reached.
    pub fn is_busy(&self) -> bool {
        matches!(*self.0, Why::Busy { .. })
    }

    /// Not acquired within a limited wait; [`is_busy`](Self::is_busy) is `true` too.
    pub fn is_timeout(&self) -> bool {
        matches!(*self.0, Why::Busy { waited: Waited::For { .. }, .. })
    }

    /// The future given to `cancel_on` completed and ended the wait.
    pub fn is_cancelled(&self) -> bool {
        matches!(*self.0, Why::Cancelled { .. })
    }

    /// The locker is shut down.
    pub fn is_closed(&self) -> bool {
        matches!(*self.0, Why::Closed { .. })
    }

    /// This process holds the lock already, and the request was not to wait for it or to re-enter.
    pub fn is_already_held(&self) -> bool {
        matches!(*self.0, Why::AlreadyHeld { .. })
    }

    /// There is no detached lock of this key to release.
    pub fn is_not_held(&self) -> bool {
        matches!(*self.0, Why::NotHeld { .. })
    }

    /// The lock was granted, and ended before it was released.
    pub fn is_lost(&self) -> bool {
        matches!(*self.0, Why::Lost { .. })
    }

    /// The lock was lost, and this was found only after the body of [`run`](crate::LockRequest::run) or `#[lock]` had
    /// succeeded: its work is done, and another holder may have worked at the same time. Do not repeat the work
    /// without a check. [`is_lost`](Self::is_lost) is `true` too.
    pub fn is_late_loss(&self) -> bool {
        matches!(*self.0, Why::Lost { late: true, .. })
    }

    /// A key, an option or a setting is not valid, or a blocking call was made on a worker thread of an async
    /// runtime.
    pub fn is_invalid(&self) -> bool {
        matches!(*self.0, Why::Invalid { .. } | Why::InBackground { .. })
            || self.fault_is(FaultKind::Invalid)
    }

    /// The engine could not be reached, or a grant took longer than its ttl. A retry may succeed.
    pub fn is_unavailable(&self) -> bool {
        matches!(*self.0, Why::TooLate { .. }) || self.fault_is(FaultKind::Unavailable)
    }

    /// The engine did not answer: the request may have been done. If it was, it is undone in the background.
    pub fn is_unknown(&self) -> bool {
        self.fault_is(FaultKind::Unknown)
    }

    /// The engine refused permanently: missing rights, a full disk, a corrupt counter.
    pub fn is_refused(&self) -> bool {
        self.fault_is(FaultKind::Refused)
    }

    /// This engine cannot do that.
    pub fn is_unsupported(&self) -> bool {
        self.fault_is(FaultKind::Unsupported)
    }

    fn fault_is(&self, kind: FaultKind) -> bool {
        self.fault().is_some_and(|fault| fault.kind() == kind)
    }

    /// The fault of the engine, if the error is from the engine.
    pub fn fault(&self) -> Option<&Fault> {
        match &*self.0 {
            Why::Backend { fault, .. } => Some(fault),
            _ => None,
        }
    }

    /// The key of the lock, if the error is about one.
    pub fn key(&self) -> Option<&Key> {
        match &*self.0 {
            Why::Busy { key, .. }
            | Why::Cancelled { key, .. }
            | Why::AlreadyHeld { key, .. }
            | Why::NotHeld { key }
            | Why::Lost { key, .. }
            | Why::TooLate { key, .. }
            | Why::Forked { key } => Some(key),
            Why::Closed { key } | Why::Backend { key, .. } => key.as_ref(),
            Why::InBackground { .. } | Why::Invalid { .. } => None,
        }
    }

    /// Who held the lock, if it is known.
    pub fn holder(&self) -> Option<&Holder> {
        match &*self.0 {
            Why::Busy { holder, .. } => holder.as_ref(),
            _ => None,
        }
    }

    /// How the key was asked for, if the error [is busy](Self::is_busy): a web service can respond to a semaphore
    /// without a free permit in another way than to a lock that is held.
    pub fn wanted(&self) -> Option<&Mode> {
        match &*self.0 {
            Why::Busy { wanted, .. } => Some(wanted),
            _ => None,
        }
    }

    /// How long the call waited before it failed.
    pub fn waited(&self) -> Option<Duration> {
        match &*self.0 {
            Why::Busy { waited: Waited::Not, .. } => Some(Duration::ZERO),
            Why::Busy {
                waited: Waited::For { elapsed, .. } | Waited::Attempts { elapsed, .. },
                ..
            } => Some(*elapsed),
            Why::Cancelled { waited, .. } => Some(*waited),
            _ => None,
        }
    }

    /// Why the lock was lost, if it was.
    pub fn loss(&self) -> Option<&Loss> {
        match &*self.0 {
            Why::Lost { loss, .. } => Some(loss),
            _ => None,
        }
    }
}

/// The start of a value, long enough to recognise it.
fn shorten(name: &str) -> String {
    const SHOWN: usize = 60;
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.into(),
    }
}

impl From<Why> for Error {
    fn from(why: Why) -> Self {
        Error(Box::new(why))
    }
}

/// The error of opening a backend, where no key is known yet.
impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::backend(None, fault)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Why::Busy { key, waited, holder, .. } => {
                write!(f, "lock `{key}` not acquired{waited}")?;
                holder
                    .as_ref()
                    .map_or(Ok(()), |holder| write!(f, ": held by {}", holder.in_words()))
            }
            Why::Cancelled { key, waited } => {
                write!(f, "lock `{key}` not acquired: the wait was cancelled after {waited:.1?}")
            }
            Why::Closed { key: Some(key) } => write!(f, "lock `{key}`: the locker is shut down"),
            Why::Closed { key: None } => f.write_str("the locker is shut down"),
            Why::AlreadyHeld { key, by: HeldBy::ThisOwner } => {
                write!(f, "lock `{key}` is already held by this owner")
            }
            Why::AlreadyHeld { key, by: HeldBy::ThisProcess } => {
                write!(f, "lock `{key}` is already held in this process")
            }
            Why::AlreadyHeld { key, by: HeldBy::OtherMode { held, wanted } } => {
                write!(
                    f,
                    "lock `{key}` is held as {held} by this owner, and asked for as {wanted}: it would wait \
                     for itself; release it first, or ask for {wanted} from the start"
                )
            }
            Why::NotHeld { key } => write!(f, "lock `{key}` is not held here"),
            Why::Lost { key, loss, late } => {
                write!(f, "lock `{key}` was lost: {loss}")?;
                if *late { f.write_str("; the work under it was done") } else { Ok(()) }
            }
            Why::TooLate { key, ttl, took } => {
                write!(
                    f,
                    "lock `{key}` not acquired: the grant took {took:.1?}, too long for a ttl of {ttl:?}"
                )
            }
            Why::Forked { key } => {
                write!(f, "lock `{key}` belongs to the process that forked this one")
            }
            Why::InBackground { what } => {
                write!(
                    f,
                    "`{what}` would block a worker thread of the async runtime; use `tenure::Locker` there, or \
                     call it in `spawn_blocking`"
                )
            }
            Why::Invalid { message } => f.write_str(message),
            Why::Backend { key, fault } => write_fault(f, key.as_ref(), fault),
        }
    }
}

fn write_fault(f: &mut fmt::Formatter<'_>, key: Option<&Key>, fault: &Fault) -> fmt::Result {
    if let Some(key) = key {
        write!(f, "lock `{key}`: ")?;
    }
    let what = match fault.kind() {
        FaultKind::Unavailable => "engine unavailable",
        FaultKind::Unknown => "no answer from the engine, it may have been done",
        FaultKind::Refused => "refused by the engine",
        FaultKind::Invalid => "not valid for this engine",
        FaultKind::Unsupported => "not supported by this engine",
    };
    write!(f, "{what}: {fault}")
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waited::Not => Ok(()),
            Waited::For { limit, .. } => write!(f, " within {limit:?}"),
            Waited::Attempts { made: 1, .. } => f.write_str(" after 1 attempt"),
            Waited::Attempts { made, .. } => write!(f, " after {made} attempts"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.0 {
            // The fault's own message is part of ours, so its source is the next in the chain.
            Why::Backend { fault, .. } => fault.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Process;

    fn key() -> Key {
        Key::new("order:42").unwrap()
    }

    fn holder() -> Holder {
        let client =
            Process { host: "ci-7".into(), pid: 812, user: "deploy".into(), program: "api".into() };
        Holder { process: Some(client), ..Holder::unknown() }
    }

    fn permits(permits: u32) -> Holder {
        Holder { mode: Some(Mode::Permits { permits, capacity: 4 }), ..holder() }
    }

    /// Every message, in full.
    #[test]
    fn messages() {
        let five = Duration::from_secs(5);
        let in_time = Waited::For { limit: five, elapsed: five };
        let tries = Waited::Attempts { made: 3, elapsed: five };
        let fault = |kind| Error::backend(Some(&key()), Fault::new(kind, "connection refused"));
        let cases = [
            (
                Error::busy(&key(), in_time, Some(holder())),
                "lock `order:42` not acquired within 5s: held by `deploy@ci-7/812`",
            ),
            (Error::busy(&key(), tries, None), "lock `order:42` not acquired after 3 attempts"),
            (
                Error::busy(&key(), Waited::Not, Some(Holder::unknown())),
                "lock `order:42` not acquired: held by `an unknown holder`",
            ),
            (
                Error::cancelled(&key(), Duration::from_millis(1200)),
                "lock `order:42` not acquired: the wait was cancelled after 1.2s",
            ),
            (
                Error::busy(
                    &key(),
                    Waited::Not,
                    Some(Holder { mode: Some(Mode::Read), ..holder() }),
                ),
                "lock `order:42` not acquired: held by `deploy@ci-7/812` as a reader",
            ),
            (
                Error::busy(&key(), in_time, Some(permits(1))),
                "lock `order:42` not acquired within 5s: held by `deploy@ci-7/812` with 1 of 4 permits",
            ),
            (
                Error::busy(&key(), Waited::Not, Some(permits(3))),
                "lock `order:42` not acquired: held by `deploy@ci-7/812` with 3 of 4 permits",
            ),
            (Error::closed(Some(&key())), "lock `order:42`: the locker is shut down"),
            (Error::closed(None), "the locker is shut down"),
            (
                Error::already_held(&key(), HeldBy::ThisOwner),
                "lock `order:42` is already held by this owner",
            ),
            (
                Error::already_held(&key(), HeldBy::ThisProcess),
                "lock `order:42` is already held in this process",
            ),
            (Error::not_held(&key()), "lock `order:42` is not held here"),
            (
                Error::lost(&key(), Loss::Expired),
                "lock `order:42` was lost: no renewal was confirmed in time",
            ),
            (
                Error::lost(&key(), Loss::Expired).found_late(),
                "lock `order:42` was lost: no renewal was confirmed in time; the work under it was done",
            ),
            (
                Error::lost(&key(), Loss::Gone),
                "lock `order:42` was lost: the engine no longer knows it as ours",
            ),
            (
                Error::lost(&key(), Loss::Forced("ann: stuck".into())),
                "lock `order:42` was lost: released by force: ann: stuck",
            ),
            (
                Error::lost(&key(), Loss::MaxHold),
                "lock `order:42` was lost: held for as long as allowed",
            ),
            (
                Error::lost(&key(), Loss::Session),
                "lock `order:42` was lost: the session with the server ended",
            ),
            (
                Error::lost(&key(), Loss::Shutdown),
                "lock `order:42` was lost: the locker was shut down",
            ),
            (
                Error::too_late(&key(), Duration::from_millis(10), Duration::from_millis(12)),
                "lock `order:42` not acquired: the grant took 12.0ms, too long for a ttl of 10ms",
            ),
            (Error::forked(&key()), "lock `order:42` belongs to the process that forked this one"),
            (
                fault(FaultKind::Unavailable),
                "lock `order:42`: engine unavailable: connection refused",
            ),
            (
                fault(FaultKind::Unknown),
                "lock `order:42`: no answer from the engine, it may have been done: connection refused",
            ),
            (
                fault(FaultKind::Refused),
                "lock `order:42`: refused by the engine: connection refused",
            ),
            (
                fault(FaultKind::Invalid),
                "lock `order:42`: not valid for this engine: connection refused",
            ),
            (
                fault(FaultKind::Unsupported),
                "lock `order:42`: not supported by this engine: connection refused",
            ),
            (
                Error::blocking_inside_runtime("lock"),
                "`lock` would block a worker thread of the async runtime; use `tenure::Locker` there, or call it in \
                 `spawn_blocking`",
            ),
        ];
        for (error, message) in cases {
            assert_eq!(error.to_string(), message);
        }
    }

    /// A message does not repeat its source, and `source` returns it.
    #[test]
    fn causes_are_sources() {
        let fault = Fault::new(FaultKind::Refused, "cannot write `a.json`");
        let error = Error::backend(None, fault.caused_by(std::io::Error::other("disk full")));
        assert_eq!(error.to_string(), "refused by the engine: cannot write `a.json`");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "disk full");
    }
}
