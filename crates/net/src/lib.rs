//! What the engines that speak to servers share.
//!
//! For a builder: `setters`, `timeouts`, `tls`. For a link: `reconnect`, `jitter`. For requests: `fork_guard`, and
//! `holder_text` for the fields of a value that are for people.
//!
//! Internal to tenure: its items change without notice.

mod fork_guard;
mod holder_text;
mod jitter;
mod reconnect;
mod setters;
mod timeouts;
mod tls;

pub use fork_guard::ForkGuard;
pub use holder_text::{escape, is_newer, parse_holder, process_fields};
pub use jitter::{jittered, up_to};
pub use reconnect::Reconnect;
pub use timeouts::{
    CONNECT_TIMEOUT_DEFAULT, RESPONSE_TIMEOUT_DEFAULT, TIMEOUT_MAX, TIMEOUT_MIN, Timeouts,
};
pub use tls::{Duplex, Pem, Tls, encrypted, explain_tls, server_name};
