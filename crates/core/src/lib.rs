//! The core of tenure: distributed locks as leases, with the same API and rules on every engine.
//!
//! Start at [`Locker`]. Applications use the crate `tenure`, which re-exports this crate and opens an engine
//! by its URL.
//!
//! A request passes through `locker`, `builder` and `acquire`, which first asks `gate` for its turn, then calls
//! the [`backend`] itself. The reply comes back through `lease`, which `renewal` and `engine` keep alive, to
//! `guard`, `run` and [`scoped`]. [`watch`] reports what happens to locks; [`doctor`] checks whether an engine
//! is safe to rely on.

mod sync;
pub mod glob;
pub mod text;
mod join;
mod token;
mod fault;
mod mode;
pub mod time;
mod timeout;
mod key;
mod holder;
mod error;
mod paused;
pub mod config;
pub mod fence;
mod change_hints;
mod claim;
mod grant;
mod options;
mod owner;
mod lease;
mod report;
pub mod backend;
pub mod doctor;
pub mod memory;
pub mod file;
mod engine;
mod gate;
mod renewal;
mod observe;
mod request;
mod acquire;
mod guard;
mod builder;
mod run;
mod multi;
mod flush;
pub mod watch;
pub mod view;
mod locker;
mod semaphore;
mod election;
pub mod scoped;
pub mod blocking;

pub use backend::{Backend, Capabilities, Holding, LockInfo, Loss, Release, Waiting};
pub use builder::{LockRequest, TryLockRequest};
pub use claim::{Claim, ClaimOptions, RETRY_INTERVAL_DEFAULT};
pub use election::{Campaign, Election, Leader, Leadership, Leading, Observer, VALUE_MAX};
pub use error::Error;
pub use fence::{Fence, FenceCheck, StaleFence};
pub use file::FileLocks;
pub use grant::TTL_MIN;
pub use guard::{Detached, ExportedLease, Guard, Held, Permit, ReadGuard, Released};
pub use holder::{Holder, Process, WaitStatus};
pub use key::{KEY_MAX, Key};
pub use lease::Lease;
pub use locker::{Locker, LockerBuilder, Shutdown};
pub use memory::Memory;
pub use mode::{Exclusive, HeldMode, Mode, PERMITS_MAX, Permits, Shared, admits, free_slot};
pub use multi::{GuardAll, HeldAll, KEYS_MAX, LockAll, TryLockAll};
#[doc(hidden)]
pub use observe::OncePerSecond;
pub use options::{
    ATTRIBUTE_RETRY_INTERVAL_DEFAULT, ATTRIBUTE_TTL_DEFAULT, FLUSH_TIMEOUT_DEFAULT, MAX_HOLD_MIN,
    RENEW_EVERY_MIN, RETRY_INTERVAL_MIN, Reentry, Renew, TTL_DEFAULT, TTL_MAX, WithinProcess,
};
pub use owner::Owner;
pub use run::RunError;
pub use scoped::{install, installed};
pub use semaphore::Semaphore;
pub use token::{Token, TokenDigits};
pub use watch::Watch;
