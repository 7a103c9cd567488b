//! The engine of tenure: distributed locks as leases, the same on every backend.
//!
//! Start at [`Locker`]. Applications use the crate `tenure`, which re-exports all of this and knows
//! the engines by their URLs.
//!
//! The modules in the order in which a request passes through them:
//! `locker` → `request` → `acquire` → `gate` → [`backend`], and back up: `lease` ← `renewal` ← `engine`,
//! then `guard`, `run` and [`attribute`]. [`watch`] is for those who only look, [`doctor`] for those who
//! want to know first what they rely on.

mod locker;
mod request;
mod options;
mod owner;
mod key;
mod acquire;
mod gate;
mod claim;
pub mod watch;
mod hints;
pub mod backend;
pub mod doctor;
pub mod memory;
pub mod file;
mod lease;
mod renewal;
mod engine;
mod guard;
mod run;
pub mod attribute;
pub mod blocking;
pub mod fence;
pub mod glob;
pub mod time;
mod bound;
pub mod config;
mod error;
mod observe;

pub use attribute::{install, installed};
pub use backend::{Backend, Capabilities, Holding, LockInfo, Loss, Release, Waiting};
pub use claim::{Claim, Client, Holder, Mode, Sight, Terms, Token, TokenDigits};
pub use error::Error;
pub use fence::{Fence, FenceCheck, StaleFence};
pub use file::FileLocks;
pub use guard::{Detached, Guard, Held, Released, WrittenLease};
pub use key::{KEY_MAX, Key};
pub use lease::Lease;
pub use locker::{Locker, LockerBuilder, Shutdown};
pub use memory::Memory;
pub use options::{
    ATTRIBUTE_RETRY_INTERVAL_DEFAULT, ATTRIBUTE_TTL_DEFAULT, MAX_HOLD_MIN, RENEW_EVERY_MIN,
    RETRY_INTERVAL_DEFAULT, RETRY_INTERVAL_MIN, Reentry, Renew, TTL_DEFAULT, TTL_MAX, TTL_MIN,
    WithinProcess,
};
pub use owner::Owner;
pub use request::{Lock, TryLock};
pub use watch::Watch;
