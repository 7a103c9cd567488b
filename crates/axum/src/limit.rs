//! A limit on how many requests run at once, over all processes.
//!
//! In: a request. Out: the handler's response, produced while it holds a permit; or 429 if no permit is free. The
//! service is that of `lock.rs`.

use std::fmt::{self, Arguments};
use std::ops::Deref;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use tenure_core::{Error, Held, LockRequest, Locker, Permits};
use tower::Layer;

use crate::lock::{LockLayer, LockService, UNNAMED};
use crate::problem::Problem;
use crate::source::Source;

/// Lets at most so many requests of a key run at a time, over all processes. Each holds one permit until the handler
/// has returned its response.
///
/// - If no permit is free, the response is 429 at once, with `Retry-After: 1` and the kind
///   [`Full`](crate::Kind::Full). [`options`](Self::options) can set a wait.
/// - This is no rate limit: it limits how many requests run at once, not how many come in a second.
/// - [`Permitted`] has the permit for the handler, with its slot.
/// - The request is the owner: a second limit on the same key inside the handler takes no second permit.
/// - Different processes may use different limits, for example during a deploy. The largest one is never exceeded.
/// - Everything else is as for a [`LockLayer`]. Keys of limits and of locks are one name space.
///
/// ```
/// use axum::Router;
/// use axum::routing::post;
/// use tenure::axum::{LimitLayer, Permitted};
/// use tenure::{Locker, Memory};
///
/// async fn export(permit: Permitted) -> String {
///     format!("by worker {:?}", permit.slot()) // 0 to 7; no other request of this tenant has it now
/// }
///
/// let locker = Locker::new(Memory::space("exports"));
/// let eight = LimitLayer::path(&locker, "limit:{tenant}", 8)?;
/// let app: Router = Router::new().route("/{tenant}/export", post(export).layer(eight));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct LimitLayer(LockLayer<Permits>);

impl LimitLayer {
    /// At most `limit` requests at a time with the same key, which is made of the path: `limit:{tenant}`. See
    /// [`LockLayer::path`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `limit` is 0, if the template is not valid, or if nothing separates two
    /// parameters.
    pub fn path(locker: &Locker, template: &str, limit: u32) -> Result<Self, Error> {
        Self::new(locker, Source::path(template)?, limit)
    }

    /// The same with a key that is made of headers. See [`LockLayer::header`].
    ///
    /// # Errors
    ///
    /// Those of [`path`](Self::path).
    pub fn header(locker: &Locker, template: &str, limit: u32) -> Result<Self, Error> {
        Self::new(locker, Source::header(template)?, limit)
    }

    /// The same with the key that `key` builds from the request's head; its error is the response. See
    /// [`LockLayer::with`].
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `limit` is 0.
    pub fn with<F, R>(locker: &Locker, key: F, limit: u32) -> Result<Self, Error>
    where
        F: Fn(&Parts) -> Result<String, R> + Send + Sync + 'static,
        R: IntoResponse,
    {
        Self::new(locker, Source::closure(key), limit)
    }

    fn new(locker: &Locker, source: Source, limit: u32) -> Result<Self, Error> {
        if limit == 0 {
            return Err(Error::invalid("the limit must not be 0"));
        }
        let ask = move |locker: &Locker, key: Arguments<'_>| {
            locker.permits_for_macro(UNNAMED, key, limit, 1)
        };
        let put = |extensions: &mut axum::http::Extensions, held| {
            extensions.insert(Permitted(held));
        };
        Ok(LimitLayer(LockLayer::around(locker, source, ask, put)))
    }

    /// Sets options of each permit, as [`LockLayer::options`] does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tenure::axum::LimitLayer;
    /// # use tenure::{Locker, Memory};
    /// # let locker = Locker::new(Memory::space("limit-options"));
    /// let patient = LimitLayer::path(&locker, "limit:{tenant}", 8)?
    ///     .options(|permit, _| permit.wait(Duration::from_secs(2)));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn options(
        self,
        options: impl Fn(LockRequest<Permits>, &Parts) -> LockRequest<Permits> + Send + Sync + 'static,
    ) -> Self {
        LimitLayer(self.0.options(options))
    }
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitLayer").field(&self.0).finish()
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LockService<S, Permits>;

    fn layer(&self, inner: S) -> Self::Service {
        self.0.layer(inner)
    }
}

/// The permit that a [`LimitLayer`] acquired for this request, for its handler. [`slot`](Held::slot) is a number below
/// the limit that no other request has at the same time.
///
/// With several such layers it is the permit of the innermost one. Without such a layer the response is 500.
#[derive(Clone, Debug)]
pub struct Permitted(pub Held);

impl Deref for Permitted {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.0
    }
}

impl<S: Sync> FromRequestParts<S> for Permitted {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let permit = parts.extensions.get().cloned();
        permit
            .ok_or_else(|| Error::invalid("`Permitted` is wanted where no `LimitLayer` is").into())
    }
}
