//! The answers of an engine to one claim, and what the engine can do at all.

use std::time::Duration;

use crate::fault::{Fault, FaultKind, Loss};
use crate::holder::Holder;
use crate::time::Time;

/// The shortest ttl. With a shorter one, the margin and one round trip leave no time to rely on the lock.
pub const TTL_MIN: Duration = Duration::from_millis(10);

/// What an engine can and cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the engine as in a URL: `memory`, `file`, `redis`, `etcd`.
    pub engine: &'static str,
    /// Grants the lock to waiters in the order in which they arrived.
    pub fifo: bool,
    /// Waiters may poll without the engine knowing them, so a process that re-acquires a lock often must
    /// pause for them.
    pub polling_waiters: bool,
    /// Leases expire at the server. If not, the lock of a dead process is freed by other means.
    pub expires: bool,
    /// Can count the claims of a shared owner.
    pub shared_owners: bool,
    /// Can grant a key to several readers together.
    pub readers: bool,
    /// Can grant permits out of a capacity, numbered or not.
    pub permits: bool,
    /// A renewal can change the label that is shown with a held lock.
    pub relabels: bool,
    /// Another process that knows the token can take over a lock.
    pub adoptable: bool,
    /// An operator can release a lock by force.
    pub force_release: bool,
    /// Every ttl must be a multiple of this.
    pub ttl_unit: Duration,
    /// The shortest ttl.
    pub ttl_min: Duration,
    /// How long connecting or a failover may take. A wait without a limit continues for this time and five
    /// retry intervals while no server can be reached.
    pub reachable_within: Duration,
    /// The longest time of one call by the engine's own time-outs, for connecting and for the reply.
    pub call_time: Duration,
}

impl Capabilities {
    /// An engine with all capabilities; change the fields that differ.
    pub fn full(engine: &'static str) -> Self {
        Capabilities {
            engine,
            fifo: true,
            polling_waiters: false,
            expires: true,
            shared_owners: true,
            readers: true,
            permits: true,
            relabels: true,
            adoptable: true,
            force_release: true,
            ttl_unit: Duration::from_millis(1),
            ttl_min: TTL_MIN,
            reachable_within: Duration::from_secs(2),
            call_time: Duration::ZERO,
        }
    }
}

impl Capabilities {
    pub(crate) fn not_adoptable(&self) -> Fault {
        let engine = self.engine;
        let why = format!(
            "a lock of `{engine}:` ends with its process, so no other process can adopt it"
        );
        Fault::new(FaultKind::Unsupported, why)
    }

    pub(crate) fn not_relabelled(&self) -> Fault {
        let engine = self.engine;
        let why = format!("`{engine}:` cannot change the value that a leader has proclaimed");
        Fault::new(FaultKind::Unsupported, why)
    }
}

/// The answer to one attempt.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The claim was granted.
    Granted(Grant),
    /// Another claim holds the lock.
    Held(Box<Holder>),
}

/// The positive answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The fence number of the server, at most [`SERVER_FENCE_MAX`](crate::fence::SERVER_FENCE_MAX); zero
    /// without fencing.
    pub fence: u64,
    /// How long the grant is valid.
    pub validity: Validity,
    /// Another process is already known to wait.
    pub contended: bool,
    /// The slot of a numbered permit.
    pub slot: Option<u32>,
}

impl Grant {
    /// A grant without a known waiter.
    pub fn new(fence: u64, validity: Validity) -> Self {
        Grant { fence, validity, contended: false, slot: None }
    }

    /// Sets whether another process is known to wait.
    pub fn contended(self, contended: bool) -> Self {
        Grant { contended, ..self }
    }

    /// Sets the slot of a numbered permit.
    pub fn slot(self, slot: Option<u32>) -> Self {
        Grant { slot, ..self }
    }
}

/// How long a grant or a renewal is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// For `ttl`, counted from `from`.
    Lease {
        /// Read from the clock before the request was sent.
        from: Time,
        /// The ttl that the server really granted.
        ttl: Duration,
    },
    /// Until it is released or the process ends.
    Unbounded,
}

/// The answer to one renewal.
#[derive(Debug)]
pub enum Renewal {
    /// The lease was extended.
    Renewed {
        /// The new validity.
        validity: Validity,
        /// Whether another process waits.
        contended: bool,
    },
    /// The server answered that the claim no longer holds the lock.
    Lost(Loss),
    /// No reliable answer. The lease ends by the clock unless a later renewal succeeds.
    Unknown(Fault),
}

/// What happens to a lock after its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRelease {
    /// The next claim can be granted.
    Free,
    /// No claim is granted for this long.
    Cooldown(Duration),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The claim held the lock. It is free now, or granted to the next claim.
    Freed,
    /// The claim held the lock, and this many other claims of its shared owner still hold it.
    StillHeld(u32),
    /// The claim did not hold the lock, or no longer.
    NotHeld,
}
