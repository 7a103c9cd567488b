//! A lock round a handler.
//!
//! In: a request. Out: the handler's answer, given under the lock; or the answer that says why not.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use tenure_core::{Error, Held, Key, Lock, Locker};
use tower::{Layer, Service};

use crate::Answering;
use crate::owner;
use crate::problem::Problem;
use crate::source::Source;

/// Takes a lock for each request and holds it until the handler has answered.
///
/// - A lock that is busy answers 409 at once, with `Retry-After`; [`options`](Self::options) can have it wait.
///   Every other error is answered as [`Kind`](crate::Kind) says.
/// - If the lock is lost, the handler is dropped at its next await point, and the answer is 500.
/// - A client that goes away takes its handler with it, and the lock is released.
/// - "Answered" means that the handler has returned its response. A body that streams on after that does so
///   without the lock.
/// - The lock is taken before the handler reads the request's body, so a slow sender holds it for as long as it likes to
///   send. Bound that by [`max_hold`](Lock::max_hold) in [`options`](Self::options), or read the body outside of this layer.
/// - The request is the lock's owner, so that a lock on the same key inside the handler re-enters.
///
/// Put it on a route or a method (`route_layer`, `post(..).layer(..)`): path parameters are known from there on.
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
#[derive(Clone)]
pub struct LockLayer {
    locker: Locker,
    source: Source,
    options: Option<Arc<Options>>,
}

/// What metrics call a lock of which only a closure knows the name.
const UNNAMED: &str = "unnamed";

type Options = dyn Fn(Lock, &Parts) -> Lock + Send + Sync;

impl LockLayer {
    /// Locks by path: `order:{order_id}`, where `order_id` is a parameter of the route. The template is the
    /// lock's name in metrics.
    ///
    /// A request without that parameter is answered 400. So is one whose parameter contains the text that stands between it
    /// and the next one: with `{tenant}:{order}` a tenant contains no `:`, so that no tenant can take another's locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the template is none, or if nothing separates two parameters.
    pub fn path(locker: &Locker, template: &str) -> Result<Self, Error> {
        Source::path(template).map(|source| Self::new(locker, source))
    }

    /// Locks by header: `payment:{idempotency-key}`, where `idempotency-key` is a header's name.
    ///
    /// A request without that header, or with more than one, is answered 400. So is one whose header contains the text that
    /// stands between it and the next one, as for [`path`](Self::path).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the template is none, or if nothing separates two parameters.
    pub fn header(locker: &Locker, template: &str) -> Result<Self, Error> {
        Source::header(template).map(|source| Self::new(locker, source))
    }

    /// Locks by what `key` makes of the request's head; its error is the answer. Give the lock a
    /// [name](Lock::name) by [`options`](Self::options) if metrics shall tell it from others.
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
        LockLayer { locker: locker.clone(), source, options: None }
    }

    /// Sets options of each lock, knowing the request's head. What is not said is as for `#[lock]`: the locker's own
    /// setting, or a ttl of 10 s and no waiting.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure::axum::LockLayer;
    /// # use tenure::{Locker, Memory};
    /// # let locker = Locker::new(Memory::space("options"));
    /// let patient = LockLayer::path(&locker, "order:{order_id}")?
    ///     .options(|lock, _| lock.ttl(Duration::from_secs(15)).wait(Duration::from_secs(2)));
    ///
    /// // However slowly its body comes, no request holds the lock for longer than this.
    /// let bounded = LockLayer::path(&locker, "order:{order_id}")?
    ///     .options(|lock, _| lock.max_hold(Duration::from_secs(5)));
    ///
    /// let traced = LockLayer::path(&locker, "order:{order_id}")?.options(|lock, parts| {
    ///     match parts.headers.get("x-request-id").and_then(|id| id.to_str().ok()) {
    ///         Some(id) => lock.label(id), // shown to whoever looks or waits
    ///         None => lock,
    ///     }
    /// });
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn options(
        mut self,
        options: impl Fn(Lock, &Parts) -> Lock + Send + Sync + 'static,
    ) -> Self {
        self.options = Some(Arc::new(options));
        self
    }

    /// What this request asks for.
    async fn ask(&self, parts: &mut Parts) -> Result<Lock, Box<Response>> {
        let name = self.source.name(parts).await?;
        // Here and not by the lock: this name was made of what a client sent.
        let key = Key::new(&name)
            .map_err(|flaw| Box::new(Problem::bad_request(flaw.to_string()).into_response()))?;
        let lock = self.locker.lock_by_attribute(UNNAMED, format_args!("{key}"));
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

impl fmt::Debug for LockLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").field("key", &self.source).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for LockLayer {
    type Service = LockService<S>;

    fn layer(&self, inner: S) -> LockService<S> {
        LockService { inner, layer: self.clone() }
    }
}

/// The service of a [`LockLayer`].
#[derive(Clone, Debug)]
pub struct LockService<S> {
    inner: S,
    layer: LockLayer,
}

impl<S> Service<Request> for LockService<S>
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

    fn call(&mut self, mut request: Request) -> Self::Future {
        // The one that was made ready is the one to call.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        let owner = owner::in_scope_or_new(request.extensions_mut());
        Box::pin(owner.scope(handle(layer, inner, request)))
    }
}

async fn handle<S>(layer: LockLayer, mut inner: S, request: Request) -> Result<Response, S::Error>
where
    S: Service<Request>,
    S::Response: IntoResponse,
{
    let (mut parts, body) = request.into_parts();
    let lock = match layer.ask(&mut parts).await {
        Ok(lock) => lock,
        Err(refusal) => return Ok(*refusal),
    };
    let under_lock = |held: Held| {
        parts.extensions.insert(Locked(held));
        inner.call(Request::from_parts(parts, body))
    };
    match lock.run(under_lock).await {
        Ok(answer) => answer.map(IntoResponse::into_response),
        Err(error) => Ok(Problem::from(error).into_response()),
    }
}

/// The lock that a [`LockLayer`] took for this request, for its handler: above all its
/// [fence](Held::fence), to be given to the resource.
///
/// With several such layers it is the innermost one's. Without one, the answer is 500.
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
        let held = parts.extensions.get().cloned();
        held.ok_or_else(|| Error::invalid("`Locked` is wanted where no `LockLayer` is").into())
    }
}
