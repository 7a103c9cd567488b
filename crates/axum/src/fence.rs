//! A resource that rejects stale holders by a header.
//!
//! In: a request with a fence. Out: the handler's response, or 412 if a newer fence has been seen.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use tenure_core::time::UnixMillis;
use tenure_core::{Error, Fence, FenceCheck};
use tower::{Layer, Service};

use crate::Answering;
use crate::problem::{Kind, Problem};
use crate::source::Source;

/// The header that carries a fence: a decimal number.
pub const FENCE_HEADER: HeaderName = HeaderName::from_static("fence");

/// The header with this fence, for a client that sends requests under a lock.
///
/// ```
/// use axum::body::Body;
/// use axum::http::Request;
/// use tenure::Fence;
/// use tenure::axum::fence_header;
///
/// let (name, value) = fence_header(Fence::from_raw(42)); // guard.fence()
/// let request = Request::put("/accounts/7").header(name, value).body(Body::empty())?;
/// assert_eq!(request.headers()["fence"], "42");
/// # Ok::<(), axum::http::Error>(())
/// ```
pub fn fence_header(fence: Fence) -> (HeaderName, HeaderValue) {
    (FENCE_HEADER, HeaderValue::from(fence.get()))
}

/// Lets a request through only if no newer fence has been seen for its resource.
///
/// - A request with an older fence gets 412: its sender has lost the lock, and a retry does not help. The same
///   fence may be used again. A request without a fence gets 428. A fence that no engine can have granted gets
///   400: not a number, or a number more than two days ahead of this machine's clock.
/// - A request that the handler rejects with 4xx does not record its fence. Every other request does, also if it
///   fails or panics, or its client disconnects: it may have changed something. So a handler that has changed
///   something must not respond with 4xx.
/// - Requests for the same resource are handled one at a time, in order. Otherwise a request with an older fence
///   that was let through just before one with a newer fence could write after it. Routes to the same resource
///   must use clones of one layer for that.
/// - The fences are in the [`FenceCheck`], in this process's memory, by default for at most 100,000 resources.
///   Beyond that the check forgets the oldest, and rejects older fences with 412 for every resource that it does
///   not know. A resource that outlives the process, or that several processes serve, compares in its own store:
///   see the guide on fencing.
/// - A fence is not a credential: a client that may write can lock out others with a high number. Let in only
///   clients that you trust with the resource.
///
/// ```
/// use std::sync::Arc;
/// use axum::Router;
/// use axum::routing::put;
/// use tenure::FenceCheck;
/// use tenure::axum::{FenceLayer, Fenced};
///
/// async fn write(Fenced(fence): Fenced) -> String {
///     format!("written under {fence}")
/// }
///
/// let guarded = FenceLayer::path(Arc::new(FenceCheck::new()), "account:{id}")?;
/// let app: Router = Router::new().route("/accounts/{id}", put(write).layer(guarded));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct FenceLayer {
    check: Arc<FenceCheck>,
    source: Source,
    turns: Arc<Turns>,
}

impl FenceLayer {
    /// Names the resource by the path: `account:{id}`, where `id` is a parameter of the route. As for
    /// [`LockLayer::path`](crate::LockLayer::path), no parameter may contain the text between it and the next
    /// one.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the template is not valid, or if nothing separates two
    /// parameters.
    pub fn path(check: Arc<FenceCheck>, template: &str) -> Result<Self, Error> {
        Source::path(template).map(|source| Self::new(check, source))
    }

    /// Names the resource by the text that `resource` builds from the request's head; its error is the
    /// response.
    pub fn with<F, R>(check: Arc<FenceCheck>, resource: F) -> Self
    where
        F: Fn(&Parts) -> Result<String, R> + Send + Sync + 'static,
        R: IntoResponse,
    {
        Self::new(check, Source::closure(resource))
    }

    fn new(check: Arc<FenceCheck>, source: Source) -> Self {
        FenceLayer { check, source, turns: Arc::default() }
    }

    fn check(&self, resource: &str, fence: Fence) -> Result<(), Problem> {
        let checked = self.check.check(resource, fence);
        checked.map_err(|stale| Problem::of_request(Kind::StaleFence, stale.to_string()))
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("resource", &self.source).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, layer: self.clone() }
    }
}

/// The service of a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct FenceService<S> {
    inner: S,
    layer: FenceLayer,
}

impl<S> Service<Request> for FenceService<S>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Error: Send,
    S::Future: Send,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // `poll_ready` was called on this instance, so this instance is called; the clone stays for the next
        // request.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(handle(self.layer.clone(), inner, request))
    }
}

async fn handle<S>(layer: FenceLayer, mut inner: S, request: Request) -> Result<Response, S::Error>
where
    S: Service<Request>,
    S::Response: IntoResponse,
{
    let (mut parts, body) = request.into_parts();
    let fence = match fence_of(&parts) {
        Ok(fence) => fence,
        Err(problem) => return Ok(problem.into_response()),
    };
    let resource = match layer.source.name(&mut parts).await {
        Ok(resource) => resource,
        Err(refusal) => return Ok(*refusal),
    };
    let _turn = layer.turns.take(&resource).await;
    if let Err(problem) = layer.check(&resource, fence) {
        return Ok(problem.into_response());
    }
    parts.extensions.insert(Fenced(fence));
    let mut visit = Visit { check: &layer.check, resource: &resource, fence, counts: true };
    let answer = inner.call(Request::from_parts(parts, body)).await?.into_response();
    visit.counts = !answer.status().is_client_error();
    Ok(answer)
}

/// A request in its handler. However the request ends, its drop records the fence if `counts`.
struct Visit<'a> {
    check: &'a FenceCheck,
    resource: &'a str,
    fence: Fence,
    counts: bool,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if self.counts {
            // The fence can be stale now only if the application itself recorded a higher one in the check.
            let _ = self.check.accept(self.resource, self.fence);
        }
    }
}

fn fence_of(parts: &Parts) -> Result<Fence, Problem> {
    let mut sent = parts.headers.get_all(FENCE_HEADER).iter();
    let Some(value) = sent.next() else {
        let detail = format!("header `{FENCE_HEADER}` is missing");
        return Err(Problem::of_request(Kind::FenceRequired, detail));
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let number = number.filter(|fence: &Fence| *fence != Fence::NONE && sent.next().is_none());
    let Some(fence) = number else {
        let detail = format!("header `{FENCE_HEADER}` must be one whole number above zero");
        return Err(Problem::bad_request(detail));
    };
    if !fence.is_plausible(UnixMillis::now()) {
        let detail =
            format!("header `{FENCE_HEADER}` is more than two days ahead of the clock here");
        return Err(Problem::bad_request(detail));
    }
    Ok(fence)
}

/// The fence that a [`FenceLayer`] let through, for its handler. Without such a layer the response is 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced(pub Fence);

impl<S: Sync> FromRequestParts<S> for Fenced {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let fence = parts.extensions.get().copied();
        fence.ok_or_else(|| Error::invalid("`Fenced` is wanted where no `FenceLayer` is").into())
    }
}

/// A queue of requests for each resource.
#[derive(Default)]
struct Turns {
    queues: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Turns {
    /// Waits for the turn at `resource`. The turn ends when the returned value is dropped.
    async fn take(self: &Arc<Self>, resource: &str) -> Turn {
        // Created before the wait, so that a request that is dropped while it waits is cleaned up.
        let mut turn = self.line_up(resource);
        turn.mine = Some(turn.queue.clone().lock_owned().await);
        turn
    }

    fn line_up(self: &Arc<Self>, resource: &str) -> Turn {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(resource.into()).or_default().clone();
        Turn { turns: self.clone(), resource: resource.into(), queue, mine: None }
    }
}

struct Turn {
    turns: Arc<Turns>,
    resource: String,
    queue: Arc<tokio::sync::Mutex<()>>,
    mine: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.mine.take());
        let mut queues = self.turns.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // Two references, ours and the map's, mean that no request waits.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue is kept while a request has the turn or waits for it, and removed also if a waiting request is
    /// dropped.
    #[tokio::test]
    async fn turns_leave_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let kept = || turns.queues.lock().unwrap().len();
        let (first, other) = (turns.take("a").await, turns.take("b").await);
        let mut waiting = Box::pin(turns.take("a"));
        let gone = tokio::time::timeout(std::time::Duration::ZERO, turns.take("a")).await;
        assert!(gone.is_err() && kept() == 2);
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("not its turn"),
            () = std::future::ready(()) => {}
        }
        drop((first, other));
        assert_eq!(kept(), 1, "one waits");
        drop(waiting.await);
        assert_eq!(kept(), 0);
    }
}
