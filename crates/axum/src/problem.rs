//! What keeps a request from being handled, as an answer (RFC 9457).
//!
//! In: an [`Error`] of a lock. Out: a response; its status is [`Kind::status`], the one place that maps them.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure_core::Error;

/// When to come again to a lock that is held: what is left of its lease does not tell, since a living
/// holder renews it, and most work is done within a second.
const RETRY_BUSY: Duration = Duration::from_secs(1);
/// When to come again to an engine that does not answer: as long as connecting to it may take.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(2);

/// What kind of problem a request has. Each has a status, and a word in the answer's member `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Another holds the lock: `busy`, 409. With `Retry-After`.
    Busy,
    /// The engine cannot be asked or did not answer, or the locker is shutting down: `unavailable`, 503. With
    /// `Retry-After`.
    Unavailable,
    /// The lock was lost while the handler ran: `lost`, 500. Something may be half done.
    Lost,
    /// Options that make no sense: `invalid`, 500, since they are the application's. So is a key that is none, but
    /// for those that a [`LockLayer`](crate::LockLayer) makes of the request: these are [`BadRequest`](Kind::BadRequest).
    Invalid,
    /// Anything else, such as missing rights at the server: `failed`, 500.
    Failed,
    /// The request lacks what the key is made of: `bad_request`, 400.
    BadRequest,
    /// The request carries no fence where one is needed: `fence_required`, 428.
    FenceRequired,
    /// A request with a newer fence has been here: `stale_fence`, 412. Trying again does not help.
    StaleFence,
}

impl Kind {
    /// The kind of an error.
    pub fn of(error: &Error) -> Self {
        match error {
            error if error.is_busy() || error.is_already_held() => Kind::Busy,
            error if error.is_unavailable() || error.is_unknown() => Kind::Unavailable,
            // Whoever ended the wait or the locker is this application, on its way down.
            error if error.is_closed() || error.is_cancelled() => Kind::Unavailable,
            error if error.is_lost() => Kind::Lost,
            error if error.is_invalid() => Kind::Invalid,
            _ => Kind::Failed,
        }
    }

    /// The status it is answered with, unless a [`ProblemLayer`](crate::ProblemLayer) says otherwise.
    pub fn status(self) -> StatusCode {
        match self {
            Kind::Busy => StatusCode::CONFLICT,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Lost | Kind::Invalid | Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::BadRequest => StatusCode::BAD_REQUEST,
            Kind::FenceRequired => StatusCode::PRECONDITION_REQUIRED,
            Kind::StaleFence => StatusCode::PRECONDITION_FAILED,
        }
    }

    /// Its word, as in the answer.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Busy => "busy",
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
            Kind::Unavailable => "Locks unavailable",
            Kind::Lost => "Lock lost",
            Kind::Invalid | Kind::Failed => "Lock failed",
            Kind::BadRequest => "Incomplete request",
            Kind::FenceRequired => "Fence required",
            Kind::StaleFence => "Stale fence",
        }
    }
}

/// What keeps a request from being handled. Handlers return it: `?` makes it of an [`Error`], and axum makes it an
/// answer, `application/problem+json`, with `Retry-After` where coming again may help.
///
/// Who holds a lock is in the log; in the answer only if a [`ProblemLayer`](crate::ProblemLayer) says so. What
/// the engine said is never in the answer.
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
    /// The request lacks something, or makes no sense: 400. `detail` is shown to the client.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::of_request(Kind::BadRequest, detail.into())
    }

    pub(crate) fn of_request(kind: Kind, detail: String) -> Self {
        Problem(What::Request { kind, detail })
    }

    /// What kind of problem it is.
    pub fn kind(&self) -> Kind {
        match &self.0 {
            What::Lock(error) => Kind::of(error),
            What::Request { kind, .. } => *kind,
        }
    }

    /// The lock's error, if it is one.
    pub fn error(&self) -> Option<&Error> {
        match &self.0 {
            What::Lock(error) => Some(error),
            What::Request { .. } => None,
        }
    }

    /// What the client is told in words.
    fn detail(&self, show: Show) -> String {
        let error = match &self.0 {
            What::Request { detail, .. } => return detail.clone(),
            What::Lock(error) => error,
        };
        match (self.kind(), error.key()) {
            (Kind::Busy, Some(_)) if show.holder => error.to_string(),
            (Kind::Busy, Some(key)) if show.key => format!("lock `{key}` is held by another"),
            (Kind::Busy, _) => "the lock is held by another".into(),
            (Kind::Unavailable, _) => "locks cannot be had at the moment".into(),
            (Kind::Lost, _) => {
                "the lock was lost before the work was done; some of it may be done".into()
            }
            _ => "the lock could not be asked for".into(),
        }
    }

    /// When it may help to come again.
    fn retry_after(&self) -> Option<Duration> {
        let error = self.error()?;
        match self.kind() {
            // Released already, and kept closed: that it is for as long as the lease says.
            Kind::Busy => match error.holder() {
                Some(holder) if holder.closing => Some(holder.lease_left.unwrap_or(RETRY_BUSY)),
                _ => Some(RETRY_BUSY),
            },
            Kind::Unavailable => Some(RETRY_UNAVAILABLE),
            _ => None,
        }
    }

    /// For those who run the application: the whole of it, with the holder.
    fn log(&self) {
        let kind = self.kind().word();
        match (&self.0, self.kind()) {
            (What::Request { detail, .. }, _) => {
                tracing::debug!(component = "tenure", kind, detail, "request refused");
            }
            (What::Lock(error), Kind::Busy) => {
                tracing::info!(component = "tenure", kind, %error, "request refused");
            }
            (What::Lock(error), _) => {
                tracing::warn!(component = "tenure", kind, %error, "request failed");
            }
        }
    }

    /// The answer in these words.
    pub(crate) fn render(&self, words: &Words, instance: Option<&str>) -> Rendered {
        let kind = self.kind();
        let status = words.status(kind);
        // Without a type of its own, a problem is titled by its status (RFC 9457, 4.2.1).
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
        let key = self.error()?.key().filter(|_| self.kind() == Kind::Busy && show.key);
        key.map(|key| key.as_str())
    }
}

/// At least one, and rounded up: who comes too early comes in vain.
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

/// How an application words its problems.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub(crate) statuses: Vec<(Kind, StatusCode)>,
    pub(crate) types: Option<String>,
    pub(crate) show: Show,
}

/// What a client may know.
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

/// A problem in words, to be put into a response.
pub(crate) struct Rendered {
    status: StatusCode,
    retry_after: Option<HeaderValue>,
    body: Vec<u8>,
}

impl Rendered {
    /// Replaces what the response says, and nothing else of it.
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

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.log();
        let mut response = Response::default();
        self.render(&Words::default(), None).put_into(&mut response);
        // For the layer, which knows the application's words.
        response.extensions_mut().insert(self);
        response
    }
}

/// The answer to an error, for applications that have an error type of their own:
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
