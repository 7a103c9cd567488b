//! A lock around a handler.
//!
//! In: a request. Out: the handler's response, produced under the lock; or the response to an error of the
//! lock.

use std::fmt::{self, Arguments};
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{FromRequestParts, Request};
use axum::http::Extensions;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use tenure_core::{Error, Exclusive, Held, HeldMode, Key, LockRequest, Locker, RunError, Shared};
use tower::{Layer, Service};

use crate::Answering;
use crate::owner;
use crate::problem::Problem;
use crate::source::Source;

/// Acquires a lock for each request and holds it until the handler has returned its response.
///
/// - If the lock is busy, the response is 409 at once, with `Retry-After`; [`options`](Self::options) can set a wait.
///   For every other error, [`Kind`](crate::Kind) lists the response.
/// - If the lock is lost, the handler is dropped at its next await point, and the response is 500.
/// - If the loss is detected only after the handler has returned its response, that response is sent: its work is done.
///   [`LostLate`] is in its extensions, and the log warns.
/// - If the client disconnects, its handler is dropped and the lock is released.
/// - The lock is not held while a streaming response body is sent.
/// - The lock is acquired before the handler reads the request body, so a slow client holds it as long as it sends.
///   Limit that by [`max_hold`](LockRequest::max_hold) in [`options`](Self::options), or read the body outside of
///   this layer.
/// - The request is the lock's owner: a lock on the same key inside the handler re-enters.
///
/// Put it on a route or a method (`route_layer`, `post(..).layer(..)`): path parameters are known only there.
///
/// ```
/// use axum::Router;
/// use axum::routing::post;
/// use tenure::axum::{LockLayer, Locked};
/// use tenure::{Locker, Memory};
///
/// async fn pay(held: Locked) -> String {
///     format!("paid under fence {}", held.fence())
/// }
///
/// let locker = Locker::new(Memory::space("orders"));
/// let one_at_a_time = LockLayer::path(&locker, "order:{order_id}")?;
/// let app: Router = Router::new().route("/orders/{order_id}/pay", post(pay).layer(one_at_a_time));
/// # Ok::<(), tenure::Error>(())
/// ```
pub struct LockLayer<M: HeldMode = Exclusive> {
    locker: Locker,
    source: Source,
    ask: Arc<Ask<M>>,
    put: fn(&mut Extensions, Held),
    options: Option<Arc<Options<M>>>,
}

impl<M: HeldMode> Clone for LockLayer<M> {
    fn clone(&self) -> Self {
        let (source, ask, options) = (self.source.clone(), self.ask.clone(), self.options.clone());
        LockLayer { locker: self.locker.clone(), source, ask, put: self.put, options }
    }
}

/// The name in metrics of a lock whose key comes from a closure.
pub(crate) const UNNAMED: &str = "unnamed";

/// Makes the request for a key.
type Ask<M> = dyn Fn(&Locker, Arguments<'_>) -> LockRequest<M> + Send + Sync;
type Options<M> = dyn Fn(LockRequest<M>, &Parts) -> LockRequest<M> + Send + Sync;

impl LockLayer {
    /// Locks by path: `order:{order_id}`, where `order_id` is a parameter of the route. The template is the
    /// lock's name in metrics.
    ///
    /// If the route does not have that parameter, every request gets 500, with the reason. If a parameter
    /// contains the text between it and the next one, the response is 400: with `{tenant}:{order}` a tenant
    /// must not contain `:`, so that no tenant can acquire another tenant's locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the template is not valid, or if nothing separates two
    /// parameters.
    pub fn path(locker: &Locker, template: &str) -> Result<Self, Error> {
        Source::path(template).map(|source| Self::new(locker, source))
    }

    /// Locks by header: `payment:{idempotency-key}`, where `idempotency-key` is a header's name.
    ///
    /// A request without that header, or with more than one, gets 400. So does a request whose header
    /// contains the text between this header and the next one, as for [`path`](Self::path).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the template is not valid, or if nothing separates two
    /// parameters.
    pub fn header(locker: &Locker, template: &str) -> Result<Self, Error> {
        Source::header(template).map(|source| Self::new(locker, source))
    }

    /// Locks by the key that `key` builds from the request's head; its error is the response. Set a
    /// [name](LockRequest::name) in [`options`](Self::options) to see this lock separately in metrics.
    ///
    /// ```
    /// use axum::http::request::Parts;
    /// use tenure::axum::{LockLayer, Problem};
    /// # use tenure::{Locker, Memory};
    /// # let locker = Locker::new(Memory::space("closures"));
    ///
    /// let by_query = LockLayer::with(&locker, |parts: &Parts| {
    ///     let query = parts.uri.query().ok_or(Problem::bad_request("no query"))?;
    ///     Ok::<_, Problem>(format!("report:{query}"))
    /// });
    /// ```
    pub fn with<F, R>(locker: &Locker, key: F) -> Self
    where
        F: Fn(&Parts) -> Result<String, R> + Send + Sync + 'static,
        R: IntoResponse,
    {
        Self::new(locker, Source::closure(key))
    }

    fn new(locker: &Locker, source: Source) -> Self {
        let alone = |locker: &Locker, key: Arguments<'_>| locker.lock_for_macro(UNNAMED, key);
        Self::around(locker, source, alone, |extensions, held| _ = extensions.insert(held))
    }

    /// The same layer for requests that only read: it holds the key together with other readers, and a layer without
    /// `shared` keeps them out. Call it before [`options`](Self::options), which it removes.
    ///
    /// On an engine without readers every request gets 500.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::{get, put};
    /// use tenure::axum::LockLayer;
    /// use tenure::{Locker, Memory};
    ///
    /// let locker = Locker::new(Memory::space("catalogs"));
    /// let write = LockLayer::path(&locker, "catalog:{shop}")?;
    /// let read = LockLayer::path(&locker, "catalog:{shop}")?.shared();
    /// let app: Router = Router::new()
    ///     .route("/catalogs/{shop}", get(async || "all prices").layer(read))
    ///     .route("/catalogs/{shop}", put(async || "changed").layer(write));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn shared(self) -> LockLayer<Shared> {
        let read = |locker: &Locker, key: Arguments<'_>| locker.read_for_macro(UNNAMED, key);
        LockLayer::around(&self.locker, self.source, read, self.put)
    }
}

impl<M: HeldMode> LockLayer<M> {
    /// A layer that asks for each key by `ask`, and stores the lock for the handler by `put`.
    pub(crate) fn around(
        locker: &Locker,
        source: Source,
        ask: impl Fn(&Locker, Arguments<'_>) -> LockRequest<M> + Send + Sync + 'static,
        put: fn(&mut Extensions, Held),
    ) -> Self {
        LockLayer { locker: locker.clone(), source, ask: Arc::new(ask), put, options: None }
    }

    /// Sets options of each lock, with access to the request's head. The defaults are those of `#[lock]`: the
    /// locker's own setting, or a ttl of 10 s and no wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure::axum::LockLayer;
    /// # use tenure::{Locker, Memory};
    /// # let locker = Locker::new(Memory::space("options"));
    /// let patient = LockLayer::path(&locker, "order:{order_id}")?
    ///     .options(|lock, _| lock.ttl(Duration::from_secs(15)).wait(Duration::from_secs(2)));
    ///
    /// // No request holds the lock for longer than this, however slowly its body arrives.
    /// let bounded = LockLayer::path(&locker, "order:{order_id}")?
    ///     .options(|lock, _| lock.max_hold(Duration::from_secs(5)));
    ///
    /// let traced = LockLayer::path(&locker, "order:{order_id}")?.options(|lock, parts| {
    ///     match parts.headers.get("x-request-id").and_then(|id| id.to_str().ok()) {
    ///         Some(id) => lock.label(id), // shown to operators and waiters
    ///         None => lock,
    ///     }
    /// });
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn options(
        mut self,
        options: impl Fn(LockRequest<M>, &Parts) -> LockRequest<M> + Send + Sync + 'static,
    ) -> Self {
        self.options = Some(Arc::new(options));
        self
    }

    /// Builds the lock request of this HTTP request.
    async fn ask(&self, parts: &mut Parts) -> Result<LockRequest<M>, Box<Response>> {
        let name = self.source.name(parts).await?;
        // Checked here and not by the lock, because the client sent this name: an invalid one is its error
        // (400).
        let key = Key::new(&name)
            .map_err(|flaw| Box::new(Problem::bad_request(flaw.to_string()).into_response()))?;
        let lock = (self.ask)(&self.locker, format_args!("{key}"));
        let lock = match self.source.template() {
            Some(template) => lock.name(template.clone()),
            None => lock,
        };
        Ok(match &self.options {
            Some(options) => options(lock, parts),
            None => lock,
        })
    }
}

impl<M: HeldMode> fmt::Debug for LockLayer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").field("key", &self.source).finish_non_exhaustive()
    }
}

impl<S, M: HeldMode> Layer<S> for LockLayer<M> {
    type Service = LockService<S, M>;

    fn layer(&self, inner: S) -> LockService<S, M> {
        LockService { inner, layer: self.clone() }
    }
}

/// The service of a [`LockLayer`] or of a [`LimitLayer`](crate::LimitLayer).
#[derive(Debug)]
pub struct LockService<S, M: HeldMode = Exclusive> {
    inner: S,
    layer: LockLayer<M>,
}

impl<S: Clone, M: HeldMode> Clone for LockService<S, M> {
    fn clone(&self) -> Self {
        LockService { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, M> Service<Request> for LockService<S, M>
where
    M: HeldMode,
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

    fn call(&mut self, mut request: Request) -> Self::Future {
        // `poll_ready` was called on this instance, so this instance is called; the clone stays for the next
        // request.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let owner = owner::in_scope_or_new(request.extensions_mut());
        Box::pin(owner.scope(handle(layer, inner, request)))
    }
}

async fn handle<S, M>(layer: LockLayer<M>, inner: S, request: Request) -> Result<Response, S::Error>
where
    M: HeldMode,
    S: Service<Request>,
    S::Response: IntoResponse,
{
    let (mut parts, body) = request.into_parts();
    let lock = match layer.ask(&mut parts).await {
        Ok(lock) => lock,
        Err(refusal) => return Ok(*refusal),
    };
    let request = Request::from_parts(parts, body);
    match tenure_tower::call_with(lock, inner, request, layer.put).await {
        Ok(answer) => answer.map(IntoResponse::into_response),
        Err(RunError::Lost { value: Some(response), error }) => {
            let mut response = response.into_response();
            response.extensions_mut().insert(LostLate(error));
            Ok(response)
        }
        Err(error) => Ok(Problem::from(error).into_response()),
    }
}

/// In the extensions of a response whose lock was lost when the handler had finished: another holder may have
/// worked at the same time. A middleware outside of the [`LockLayer`] can mark such a response or replace it.
///
/// ```
/// use axum::middleware::map_response;
/// use axum::response::Response;
/// use tenure::axum::LostLate;
///
/// async fn mark(mut response: Response) -> Response {
///     if response.extensions().get::<LostLate>().is_some() {
///         response.headers_mut().insert("x-check-by-hand", "lock-lost".parse().expect("a valid header"));
///     }
///     response
/// }
/// # let _: axum::Router = axum::Router::new().layer(map_response(mark));
/// ```
#[derive(Clone, Debug)]
pub struct LostLate(pub Error);

/// The lock that a [`LockLayer`] acquired for this request, for its handler. The handler passes its
/// [fence](Held::fence) to the resource.
///
/// With several such layers it is the lock of the innermost one. Without such a layer the response is 500.
#[derive(Clone, Debug)]
pub struct Locked(pub Held);

impl Deref for Locked {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for Locked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let held = parts.extensions.get().cloned().map(Locked);
        held.ok_or_else(|| Error::invalid("`Locked` is wanted where no `LockLayer` is").into())
    }
}
