//! Locks in an axum application: what a request locks, who it is, and what it answers if it may not.
//!
//! - [`LockLayer`] takes a lock per request, by path, header or closure; [`Locked`] gives the handler its fence.
//! - [`Problem`] is a lock's error as an answer: 409 if it is busy, 503 if nobody can be asked. Handlers
//!   return it by `?`. [`ProblemLayer`] sets statuses and wording for the whole application.
//! - [`OwnerLayer`] makes each request an owner, so that nested locks on the same key re-enter.
//! - [`FenceLayer`] guards a resource: it refuses requests that carry an older [fence](FENCE_HEADER) than it has seen.
//!
//! Modules in the order in which a request passes through them.

mod owner;
mod source;
mod lock;
mod fence;
mod problem;
mod answer;

pub use answer::ProblemLayer;
pub use fence::{FENCE_HEADER, FenceLayer, Fenced, fence_header};
pub use lock::{LockLayer, Locked};
pub use owner::{OwnerLayer, RequestOwner, spawn_in_scope};
pub use problem::{Kind, Problem, problem};

/// What the services of our layers return.
pub(crate) type Answering<E> =
    std::pin::Pin<Box<dyn Future<Output = Result<axum::response::Response, E>> + Send>>;
