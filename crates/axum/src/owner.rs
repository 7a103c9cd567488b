//! Each request is an owner.
//!
//! In: a request. Out: the same, with an [`Owner`] in scope while it is handled.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::extract::{FromRequestParts, Request};
use axum::http::Extensions;
use axum::http::request::Parts;
use tenure_core::Owner;
use tokio::task::JoinHandle;
use tower::{Layer, Service};

/// Makes each request an owner: locks that are nested in one request re-enter, two requests never
/// share a lock.
///
/// A task that a handler spawns has no owner; [`spawn_in_scope`] gives it the request's.
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

/// The request's owner, made now if it has none. Not the one in scope: a caller may be handling
/// several requests in one scope.
fn of_request(extensions: &mut Extensions) -> Owner {
    extensions.get_or_insert_with(|| RequestOwner(Owner::new())).0.clone()
}

/// The owner that locks of this request are asked for by: the one in scope, or a new one.
pub(crate) fn in_scope_or_new(extensions: &mut Extensions) -> Owner {
    Owner::current().unwrap_or_else(|| of_request(extensions))
}

/// The owner of the request, for handlers: `None` if there is no [`OwnerLayer`] or
/// [`LockLayer`](crate::LockLayer) on the way.
///
/// Wanted where work goes on in a place that the scope does not reach, such as a thread or an actor.
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

    /// Makes the request an owner if it has none.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(RequestOwner(in_scope_or_new(&mut parts.extensions)))
    }
}

/// Spawns a task with the owner in scope, so that locks asked for in it are the request's: it gets
/// those again that the request holds.
///
/// On demand, and not for every task: tasks that share an owner share its locks, so they are not
/// kept apart from each other.
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
