//! Makes each request an owner.
//!
//! In: a request. Out: the same request, with an [`Owner`] in scope while it is handled.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::extract::{FromRequestParts, Request};
use axum::http::Extensions;
use axum::http::request::Parts;
use tenure_core::Owner;
use tokio::task::JoinHandle;
use tower::{Layer, Service};

/// Makes each request an owner: nested locks of one request re-enter, and two requests never share a lock.
///
/// A task that a handler spawns has no owner, unless [`spawn_in_scope`] passes the request's owner to it.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tenure::axum::OwnerLayer;
///
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(OwnerLayer);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnerLayer;

impl<S> Layer<S> for OwnerLayer {
    type Service = OwnerService<S>;

    fn layer(&self, inner: S) -> OwnerService<S> {
        OwnerService { inner }
    }
}

/// The service of an [`OwnerLayer`].
#[derive(Clone, Debug)]
pub struct OwnerService<S> {
    inner: S,
}

impl<S> Service<Request> for OwnerService<S>
where
    S: Service<Request>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let owner = of_request(request.extensions_mut());
        Box::pin(owner.scope(self.inner.call(request)))
    }
}

/// The request's owner, created now if it has none. The owner in scope is not used: a caller may handle
/// several requests in one scope.
fn of_request(extensions: &mut Extensions) -> Owner {
    extensions.get_or_insert_with(|| RequestOwner(Owner::new())).0.clone()
}

/// The owner of this request's locks: the one in scope, or else the request's own.
pub(crate) fn in_scope_or_new(extensions: &mut Extensions) -> Owner {
    Owner::current().unwrap_or_else(|| of_request(extensions))
}

/// The owner of the request, for handlers. As an `Option` it is `None` if the request passed neither an
/// [`OwnerLayer`] nor a [`LockLayer`](crate::LockLayer).
///
/// Needed if work continues where the scope does not reach, such as in a thread or an actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOwner(pub Owner);

impl<S: Sync> axum::extract::OptionalFromRequestParts<S> for RequestOwner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

impl<S: Sync> FromRequestParts<S> for RequestOwner {
    type Rejection = Infallible;

    /// Creates an owner if the request has none.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(RequestOwner(in_scope_or_new(&mut parts.extensions)))
    }
}

/// Spawns a task with the owner in scope, so that its locks belong to the request: the task re-enters the
/// locks that the request holds.
///
/// This is a choice for each task: tasks that share an owner share its locks, so they do not exclude each
/// other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tenure::axum::spawn_in_scope;
/// use tenure::{Locker, Memory, Owner};
///
/// let locker = Locker::new(Memory::space("spawned"));
/// Owner::new().scope(async {
///     let _held = locker.lock("order:42").await?;
///     let ask = { let locker = locker.clone(); async move { locker.lock("order:42").await } };
///     assert_eq!(spawn_in_scope(ask).await??.depth(), 2);
///     Ok::<_, Box<dyn std::error::Error>>(())
/// }).await?;
/// # Ok(()) }
/// ```
pub fn spawn_in_scope<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Owner::current() {
        Some(owner) => tokio::spawn(owner.scope(task)),
        None => tokio::spawn(task),
    }
}
