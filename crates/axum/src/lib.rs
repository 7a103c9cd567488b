//! Locks in an axum application: the lock of a request, the request as an owner, and the responses to errors.
//!
//! - [`LockLayer`] acquires a lock per request, by path, header or closure. [`Locked`] has its fence for the handler.
//! - [`LimitLayer`] lets at most so many requests run at once, over all processes. [`Permitted`] has the slot.
//! - [`Problem`] is the response to a lock's error: 409 if the lock is busy, 429 if no permit is free, 503 if the
//!   engine is unavailable. Handlers return it by `?`. [`ProblemLayer`] sets statuses and texts for the whole
//!   application.
//! - [`OwnerLayer`] makes each request an owner, so that nested locks on the same key re-enter.
//! - [`FenceLayer`] protects a resource: it rejects requests with an older [fence](FENCE_HEADER) than it has seen.
//!
//! The modules are in the order in which a request passes through them.

mod owner;
mod source;
mod lock;
mod limit;
mod fence;
mod problem;
mod answer;

pub use answer::ProblemLayer;
pub use fence::{FENCE_HEADER, FenceLayer, Fenced, fence_header};
pub use limit::{LimitLayer, Permitted};
pub use lock::{LockLayer, Locked, LostLate};
pub use owner::{OwnerLayer, RequestOwner, spawn_in_scope};
pub use problem::{Kind, Problem, problem};

/// The future of our services.
pub(crate) type Answering<E> =
    std::pin::Pin<Box<dyn Future<Output = Result<axum::response::Response, E>> + Send>>;
