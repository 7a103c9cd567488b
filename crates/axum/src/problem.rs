//! Responses to errors of a lock, as problem documents (RFC 9457).
//!
//! In: an [`Error`] of a lock. Out: a response. Only [`Kind::status`] maps errors to statuses.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure_core::{Error, Mode, OncePerSecond, RunError};

/// `Retry-After` for a busy lock. The rest of the lease is no help, since a live holder renews it; most work
/// takes less than a second.
const RETRY_BUSY: Duration = Duration::from_secs(1);
/// `Retry-After` for an unavailable engine: as long as a connection may take.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(2);
/// On a busy key, while the server is unreachable, and with a template that does not fit its route, every request fails
/// for the same reason: one log line per second and kind is enough.
static BUSY: OncePerSecond = OncePerSecond::new();
static FULL: OncePerSecond = OncePerSecond::new();
static UNAVAILABLE: OncePerSecond = OncePerSecond::new();
static LOST: OncePerSecond = OncePerSecond::new();
static INVALID: OncePerSecond = OncePerSecond::new();
static FAILED: OncePerSecond = OncePerSecond::new();

/// The kind of a problem. Each kind has a status, and a word in the member `kind` of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Another owner holds the lock: `busy`, 409. With `Retry-After`.
    Busy,
    /// No permit of a semaphore is free: `full`, 429. With `Retry-After`.
    Full,
    /// The engine is unreachable or did not reply, or the locker is shutting down: `unavailable`, 503. With
    /// `Retry-After`.
    Unavailable,
    /// The lock was lost while the handler ran: `lost`, 500. Its work may be half done.
    Lost,
    /// A mistake of the application: `invalid`, 500. Invalid options, a template with a parameter that the
    /// route does not have, or an invalid key. If a [`LockLayer`](crate::LockLayer) builds an invalid key
    /// from the request, it is a [`BadRequest`](Kind::BadRequest).
    Invalid,
    /// Any other error, such as missing rights on the server: `failed`, 500.
    Failed,
    /// The request lacks a part of the key: `bad_request`, 400.
    BadRequest,
    /// The request needs a fence and has none: `fence_required`, 428.
    FenceRequired,
    /// A newer fence has been seen: `stale_fence`, 412. A retry does not help.
    StaleFence,
}

impl Kind {
    /// The kind of an error.
    pub fn of(error: &Error) -> Self {
        match error {
            error if matches!(error.wanted(), Some(Mode::Permits { .. })) => Kind::Full,
            error if error.is_busy() || error.is_already_held() => Kind::Busy,
            error if error.is_unavailable() || error.is_unknown() => Kind::Unavailable,
            // This application ended the wait or closed the locker, because it shuts down.
            error if error.is_closed() || error.is_cancelled() => Kind::Unavailable,
            error if error.is_lost() => Kind::Lost,
            error if error.is_invalid() => Kind::Invalid,
            _ => Kind::Failed,
        }
    }

    /// The status of the response, unless a [`ProblemLayer`](crate::ProblemLayer) sets another one.
    pub fn status(self) -> StatusCode {
        match self {
            Kind::Busy => StatusCode::CONFLICT,
            Kind::Full => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Lost | Kind::Invalid | Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::BadRequest => StatusCode::BAD_REQUEST,
            Kind::FenceRequired => StatusCode::PRECONDITION_REQUIRED,
            Kind::StaleFence => StatusCode::PRECONDITION_FAILED,
        }
    }

    /// The word for this kind in the response.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Busy => "busy",
            Kind::Full => "full",
            Kind::Unavailable => "unavailable",
            Kind::Lost => "lost",
            Kind::Invalid => "invalid",
            Kind::Failed => "failed",
            Kind::BadRequest => "bad_request",
            Kind::FenceRequired => "fence_required",
            Kind::StaleFence => "stale_fence",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Kind::Busy => "Locked by another",
            Kind::Full => "All permits taken",
            Kind::Unavailable => "Locks unavailable",
            Kind::Lost => "Lock lost",
            Kind::Invalid | Kind::Failed => "Lock failed",
            Kind::BadRequest => "Incomplete request",
            Kind::FenceRequired => "Fence required",
            Kind::StaleFence => "Stale fence",
        }
    }
}

/// Why a request was not handled. Handlers return it: `?` converts an [`Error`], and axum turns it into an
/// `application/problem+json` response, with `Retry-After` if a retry may help.
///
/// The holder of a lock is in the log; it is in the response only if a [`ProblemLayer`](crate::ProblemLayer)
/// shows it. The engine's own message is never in the response.
///
/// ```
/// use tenure::axum::Problem;
/// use tenure::Locker;
///
/// async fn close_books(locker: Locker) -> Result<&'static str, Problem> {
///     let Some(guard) = locker.try_lock("books").await? else { return Ok("somebody is at it") };
///     guard.release().await?;
///     Ok("closed")
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Problem(What);

#[derive(Clone, Debug)]
enum What {
    Lock(Error),
    Request { kind: Kind, detail: String },
}

impl Problem {
    /// The request is incomplete or not valid: 400. `detail` is shown to the client.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::of_request(Kind::BadRequest, detail.into())
    }

    pub(crate) fn of_request(kind: Kind, detail: String) -> Self {
        Problem(What::Request { kind, detail })
    }

    /// The kind of this problem.
    pub fn kind(&self) -> Kind {
        match &self.0 {
            What::Lock(error) => Kind::of(error),
            What::Request { kind, .. } => *kind,
        }
    }

    /// The lock's error, if there is one.
    pub fn error(&self) -> Option<&Error> {
        match &self.0 {
            What::Lock(error) => Some(error),
            What::Request { .. } => None,
        }
    }

    /// The text for the client.
    fn detail(&self, show: Show) -> String {
        let error = match &self.0 {
            What::Request { detail, .. } => return detail.clone(),
            What::Lock(error) => error,
        };
        match (self.kind(), error.key()) {
            (Kind::Busy | Kind::Full, Some(_)) if show.holder => error.to_string(),
            (Kind::Busy, Some(key)) if show.key => format!("lock `{key}` is held by another"),
            (Kind::Busy, _) => "the lock is held by another".into(),
            (Kind::Full, Some(key)) if show.key => format!("no permit of `{key}` is free"),
            (Kind::Full, _) => "no permit is free".into(),
            (Kind::Unavailable, _) => "locks cannot be had at the moment".into(),
            (Kind::Lost, _) => {
                "the lock was lost before the work was done; some of it may be done".into()
            }
            _ => "the lock could not be asked for".into(),
        }
    }

    /// When a retry may help.
    fn retry_after(&self) -> Option<Duration> {
        let error = self.error()?;
        match self.kind() {
            // The lock was released and stays closed for the rest of its lease.
            Kind::Busy | Kind::Full => match error.holder() {
                Some(holder) if holder.cooling_down => {
                    Some(holder.lease_left.unwrap_or(RETRY_BUSY))
                }
                _ => Some(RETRY_BUSY),
            },
            Kind::Unavailable => Some(RETRY_UNAVAILABLE),
            _ => None,
        }
    }

    /// Logs the whole problem for operators, with the holder: one line per second and kind, the others at `debug`.
    fn log(&self) {
        let kind = self.kind().word();
        match (&self.0, self.kind()) {
            (What::Request { detail, .. }, Kind::Invalid) => match self.limit().due() {
                Some(left_out) => {
                    tracing::warn!(component = "tenure", kind, left_out, detail, "request failed");
                }
                None => tracing::debug!(component = "tenure", kind, detail, "request failed"),
            },
            (What::Request { detail, .. }, _) => {
                tracing::debug!(component = "tenure", kind, detail, "request refused");
            }
            (What::Lock(error), of) => match (of, self.limit().due()) {
                (Kind::Busy | Kind::Full, Some(left_out)) => {
                    tracing::info!(component = "tenure", kind, left_out, %error, "request refused");
                }
                (_, Some(left_out)) => {
                    tracing::warn!(component = "tenure", kind, left_out, %error, "request failed");
                }
                (_, None) => tracing::debug!(component = "tenure", kind, %error, "request failed"),
            },
        }
    }

    fn limit(&self) -> &'static OncePerSecond {
        match self.kind() {
            Kind::Busy => &BUSY,
            Kind::Full => &FULL,
            Kind::Unavailable => &UNAVAILABLE,
            Kind::Lost => &LOST,
            Kind::Invalid => &INVALID,
            _ => &FAILED,
        }
    }

    /// The response with these texts.
    pub(crate) fn render(&self, words: &Words, instance: Option<&str>) -> Rendered {
        let kind = self.kind();
        let status = words.status(kind);
        // Without a type of its own, a problem has its status as the title (RFC 9457, 4.2.1).
        let title = match &words.types {
            Some(_) => kind.title(),
            None => status.canonical_reason().unwrap_or(kind.title()),
        };
        let body = Members {
            r#type: words.type_of(kind),
            title,
            status: status.as_u16(),
            detail: self.detail(words.show),
            instance,
            kind: kind.word(),
            key: self.shown_key(words.show),
        };
        let body = serde_json::to_vec(&body).unwrap_or_default();
        Rendered { status, retry_after: self.retry_after().map(whole_seconds), body }
    }

    fn shown_key(&self, show: Show) -> Option<&str> {
        let is_shown = matches!(self.kind(), Kind::Busy | Kind::Full) && show.key;
        let key = self.error()?.key().filter(|_| is_shown);
        key.map(|key| key.as_str())
    }
}

/// At least one, and rounded up, because a retry that is too early fails.
fn whole_seconds(time: Duration) -> HeaderValue {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    seconds.max(1).into()
}

/// The members of a problem, in the order in which people read them.
#[derive(Serialize)]
struct Members<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// The application's statuses and texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub(crate) statuses: Vec<(Kind, StatusCode)>,
    pub(crate) types: Option<String>,
    pub(crate) show: Show,
}

/// What a client may see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Show {
    pub(crate) key: bool,
    pub(crate) holder: bool,
}

impl Default for Show {
    fn default() -> Self {
        Show { key: true, holder: false }
    }
}

impl Words {
    fn status(&self, kind: Kind) -> StatusCode {
        let set = self.statuses.iter().rev().find(|(of, _)| *of == kind);
        set.map_or(kind.status(), |(_, status)| *status)
    }

    fn type_of(&self, kind: Kind) -> String {
        match &self.types {
            Some(base) => format!("{base}{}", kind.word()),
            None => "about:blank".into(),
        }
    }
}

/// A rendered problem, to be put into a response.
pub(crate) struct Rendered {
    status: StatusCode,
    retry_after: Option<HeaderValue>,
    body: Vec<u8>,
}

impl Rendered {
    /// Replaces status, body and their headers; other headers stay.
    pub(crate) fn put_into(self, response: &mut Response) {
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds);
        }
        *response.body_mut() = Body::from(self.body);
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem(What::Lock(error))
    }
}

/// For `?` after [`LockRequest::run`](tenure_core::LockRequest::run) in a handler. The value of a body that
/// succeeded is dropped.
impl<T> From<RunError<T>> for Problem {
    fn from(error: RunError<T>) -> Self {
        Error::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.log();
        let mut response = Response::default();
        self.render(&Words::default(), None).put_into(&mut response);
        // For the `ProblemLayer`, which knows the application's texts.
        response.extensions_mut().insert(self);
        response
    }
}

/// The response to an error, for applications with their own error type:
///
/// ```
/// use axum::http::StatusCode;
/// use axum::response::{IntoResponse, Response};
///
/// enum AppError {
///     Lock(tenure::Error),
///     NoSuchOrder,
/// }
///
/// impl IntoResponse for AppError {
///     fn into_response(self) -> Response {
///         match self {
///             AppError::Lock(error) => tenure::axum::problem(&error),
///             AppError::NoSuchOrder => StatusCode::NOT_FOUND.into_response(),
///         }
///     }
/// }
///
/// impl From<tenure::Error> for AppError {
///     fn from(error: tenure::Error) -> Self {
///         AppError::Lock(error)
///     }
/// }
/// ```
pub fn problem(error: &Error) -> Response {
    Problem::from(error.clone()).into_response()
}
