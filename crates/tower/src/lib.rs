//! A lock around a tower service: for hyper, tonic and every other service that takes HTTP requests.
//!
//! In: a request. Out: the response of the inner service, which runs while the lock is held; or a response to
//! an error of the lock.
//!
//! On purpose there are no key templates and no problem documents here: they need a router and a body type,
//! so they are in `tenure-axum`.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Extensions, Request};
use tenure_core::{Error, Held, HeldMode, LockRequest, OncePerSecond, RunError};
use tower_layer::Layer;
use tower_service::Service;

/// A server that lost its data loses every lock at once: one line a second is enough.
static LATE_LOSSES: OncePerSecond = OncePerSecond::new();

/// Acquires a lock for each request and holds it until the inner service has returned its response.
///
/// It needs two functions. `ask` builds the [`LockRequest`] for a request, with its key and options: a lock, a
/// reader or permits of a semaphore. If it cannot, it returns a response (boxed, since responses are large).
/// `refuse` turns an [`Error`] of the lock into a response, or into an error of the service.
///
/// - [`Locker::lock`](tenure_core::Locker::lock) waits without a limit: set [`wait`](LockRequest::wait).
/// - The inner service finds the lock in the extensions of its request: [`Held`], with the fence, and the slot of a
///   numbered permit. tonic copies the extensions into its own request.
/// - If the lock is lost, the inner future is dropped at its next await point, and `refuse` gets the error.
///   If the caller drops the future, the lock is released.
/// - If the loss is detected only after the inner service has returned its response, that response is sent: its
///   work is done. The log warns, since another holder may have worked at the same time. [`call`] leaves the
///   decision to you.
/// - The lock is not held while a streaming response body is sent.
/// - The lock is acquired before the request body is read. A slow client holds the lock, until
///   [`max_hold`](LockRequest::max_hold) if that is set.
/// - The request is the lock's owner: a nested lock on the same key re-enters.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use http::{Request, Response, StatusCode};
/// use tenure::tower::LockLayer;
/// use tenure::{Held, Locker, Memory};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// fn status(status: StatusCode) -> Response<String> {
///     let mut response = Response::new(String::new());
///     *response.status_mut() = status;
///     response
/// }
///
/// let locker = Locker::new(Memory::space("tower"));
/// let one_at_a_time = LockLayer::new(
///     move |request: &Request<String>| match request.headers().get("x-order").map(|id| id.to_str()) {
///         Some(Ok(id)) => Ok(locker.lock(format!("order:{id}")).wait(Duration::from_secs(2))),
///         _ => Err(status(StatusCode::BAD_REQUEST).into()),
///     },
///     |error: tenure::Error| match error.is_busy() {
///         true => Ok(status(StatusCode::CONFLICT)),
///         false => Ok(status(StatusCode::SERVICE_UNAVAILABLE)),
///     },
/// );
/// let pay = one_at_a_time.layer(service_fn(async |request: Request<String>| {
///     let fence = request.extensions().get::<Held>().map(Held::fence);
///     Ok::<_, Infallible>(Response::new(format!("paid under fence {fence:?}")))
/// }));
/// let paid = pay.oneshot(Request::post("/pay").header("x-order", "42").body(String::new())?).await?;
/// assert_eq!(paid.status(), StatusCode::OK);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockLayer<A, R> {
    ask: A,
    refuse: R,
}

impl<A, R> LockLayer<A, R> {
    /// Creates a layer that acquires the lock of `ask`, and turns errors of the lock into responses with
    /// `refuse`.
    pub fn new<B, M, T, E>(ask: A, refuse: R) -> Self
    where
        M: HeldMode,
        A: Fn(&Request<B>) -> Result<LockRequest<M>, Box<T>>,
        R: Fn(Error) -> Result<T, E>,
    {
        LockLayer { ask, refuse }
    }
}

impl<A, R> fmt::Debug for LockLayer<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").finish_non_exhaustive()
    }
}

impl<S, A: Clone, R: Clone> Layer<S> for LockLayer<A, R> {
    type Service = LockService<S, A, R>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService { inner, layer: self.clone() }
    }
}

/// The service of a [`LockLayer`].
#[derive(Clone, Debug)]
pub struct LockService<S, A, R> {
    inner: S,
    layer: LockLayer<A, R>,
}

impl<S, B, A, R, M> Service<Request<B>> for LockService<S, A, R>
where
    M: HeldMode,
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    A: Fn(&Request<B>) -> Result<LockRequest<M>, Box<S::Response>>,
    R: Fn(Error) -> Result<S::Response, S::Error> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` was called on this instance, so this instance is called; the clone stays for the next
        // request.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let lock = match (self.layer.ask)(&request) {
            Ok(lock) => lock,
            Err(response) => return Box::pin(ready(Ok(*response))),
        };
        let refuse = self.layer.refuse.clone();
        Box::pin(async move {
            match call(lock, inner, request).await {
                Ok(answer) => answer,
                Err(RunError::Lost { value: Some(response), .. }) => Ok(response),
                Err(error) => refuse(error.into()),
            }
        })
    }
}

/// Calls `inner` with `request` while `lock` is held. The extensions of the request contain the [`Held`].
///
/// # Errors
///
/// The errors of [`LockRequest::run`]. The inner result is the service's own. A response that was complete before
/// the loss was detected is in [`RunError::Lost`]; the log warns of it.
///
/// # Cancel safety
///
/// The same as [`LockRequest::run`].
pub async fn call<S, B, M>(
    lock: LockRequest<M>,
    inner: S,
    request: Request<B>,
) -> Result<Result<S::Response, S::Error>, RunError<S::Response>>
where
    S: Service<Request<B>>,
    M: HeldMode,
{
    call_with(lock, inner, request, |extensions, held| _ = extensions.insert(held)).await
}

/// As [`call`]; `put` stores the [`Held`] in the extensions of the request, for example in a type that tells two
/// nested layers apart.
///
/// # Errors
///
/// Those of [`call`].
///
/// # Cancel safety
///
/// The same as [`LockRequest::run`].
pub async fn call_with<S, B, M>(
    lock: LockRequest<M>,
    mut inner: S,
    mut request: Request<B>,
    put: impl FnOnce(&mut Extensions, Held),
) -> Result<Result<S::Response, S::Error>, RunError<S::Response>>
where
    S: Service<Request<B>>,
    M: HeldMode,
{
    let under_lock = |held| {
        put(request.extensions_mut(), held);
        inner.call(request)
    };
    lock.run(under_lock).await.inspect_err(warn_of_late_loss)
}

fn warn_of_late_loss<T>(error: &RunError<T>) {
    let RunError::Lost { value: Some(_), error } = error else { return };
    match LATE_LOSSES.due() {
        Some(left_out) => {
            tracing::warn!(component = "tenure", left_out, %error, "request was done when its lock was lost");
        }
        None => {
            tracing::debug!(component = "tenure", %error, "request was done when its lock was lost");
        }
    }
}
