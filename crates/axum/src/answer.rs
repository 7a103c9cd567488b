//! The application's own statuses and texts for problems.
//!
//! In: the response of a [`Problem`]. Out: the same problem with the application's status and texts.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::response::{IntoResponse, Response};
use tower::{Layer, Service};

use crate::Answering;
use crate::problem::{Kind, Problem, Words};

/// Sets statuses and texts of [problems](Problem) for the whole application, and adds the request's path as
/// `instance`. Put it outside of everything that responds with problems.
///
/// ```
/// use axum::Router;
/// use axum::http::StatusCode;
/// use tenure::axum::{Kind, ProblemLayer};
///
/// let problems = ProblemLayer::new()
///     .status(Kind::Busy, StatusCode::LOCKED)
///     .types("https://example.com/problems/") // .../busy
///     .show_holder();
/// let app: Router = Router::new().layer(problems);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProblemLayer {
    words: Arc<Words>,
}

impl ProblemLayer {
    /// The statuses of [`Kind::status`], problems of type `about:blank`, no holders.
    pub fn new() -> Self {
        Self::default()
    }

    /// Responds to problems of this kind with this status.
    pub fn status(self, kind: Kind, status: StatusCode) -> Self {
        self.change(|words| words.statuses.push((kind, status)))
    }

    /// Sets a `type` for each kind: this base, which should be a URL that ends in `/`, and the kind's
    /// [word](Kind::word).
    pub fn types(self, base: impl Into<String>) -> Self {
        self.change(|words| words.types = Some(base.into()))
    }

    /// Shows the holder of a busy lock to clients: user, machine and process id. For internal applications.
    pub fn show_holder(self) -> Self {
        self.change(|words| words.show.holder = true)
    }

    /// Hides the keys of busy locks from clients. For keys that contain more than the client sent.
    pub fn hide_key(self) -> Self {
        self.change(|words| words.show.key = false)
    }

    fn change(mut self, change: impl FnOnce(&mut Words)) -> Self {
        change(Arc::make_mut(&mut self.words));
        self
    }
}

impl<S> Layer<S> for ProblemLayer {
    type Service = ProblemService<S>;

    fn layer(&self, inner: S) -> ProblemService<S> {
        ProblemService { inner, words: self.words.clone() }
    }
}

/// The service of a [`ProblemLayer`].
#[derive(Clone, Debug)]
pub struct ProblemService<S> {
    inner: S,
    words: Arc<Words>,
}

impl<S> Service<Request> for ProblemService<S>
where
    S: Service<Request>,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (words, uri) = (self.words.clone(), request.uri().clone());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?.into_response();
            // Only the path: a query may contain secrets.
            reword(&mut response, &words, uri.path());
            Ok(response)
        })
    }
}

fn reword(response: &mut Response, words: &Words, path: &str) {
    // The problem is removed, so that the layer next to the handler decides.
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return };
    // These headers describe the body that is replaced.
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().remove(CONTENT_ENCODING);
    problem.render(words, Some(path)).put_into(response);
}
