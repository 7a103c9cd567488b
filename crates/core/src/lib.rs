//! The engine of tenure.
pub mod backend;
mod claim;
mod error;
pub mod fence;
pub mod file;
pub mod glob;
mod key;
mod lease;
mod options;
mod owner;
pub mod time;

pub use claim::{Claim, Client, Holder, Mode, Sight, Terms, Token};
pub use error::Error;
pub use fence::{Fence, FenceCheck, StaleFence};
pub use file::FileLocks;
pub use key::Key;
pub use lease::Lease;
pub use options::{Reentry, Renew, WithinProcess};
pub use owner::Owner;
