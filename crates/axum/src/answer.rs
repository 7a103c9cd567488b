//! The application's own statuses and words for problems.
//!
//! In: a response that a [`Problem`] made. Out: the same problem in the application's words.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::response::{IntoResponse, Response};
use tower::{Layer, Service};

use crate::Answering;
use crate::problem::{Kind, Problem, Words};

/// Sets statuses and wording of [problems](Problem) for the whole application, and adds the request's path as
/// `instance`. Put it outside of everything that answers with problems.
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

    /// Answers problems of this kind with this status.
    pub fn status(self, kind: Kind, status: StatusCode) -> Self {
        self.change(|words| words.statuses.push((kind, status)))
    }

    /// Gives each kind a `type`: this, which should be a URL that ends in `/`, and the kind's [word](Kind::word).
    pub fn types(self, base: impl Into<String>) -> Self {
        self.change(|words| words.types = Some(base.into()))
    }

    /// Tells clients who holds a busy lock: user, machine and process id. For applications among friends.
    pub fn show_holder(self) -> Self {
        self.change(|words| words.show.holder = true)
    }

    /// Keeps the keys of busy locks from clients. For keys that are made of more than what the client sent.
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
            // The path alone: a query may have secrets in it.
            reword(&mut response, &words, uri.path());
            Ok(response)
        })
    }
}

fn reword(response: &mut Response, words: &Words, path: &str) {
    // Taken out: the layer next to the handler has the say.
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return };
    // What was said of the body that is replaced.
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().remove(CONTENT_ENCODING);
    problem.render(words, Some(path)).put_into(response);
}
