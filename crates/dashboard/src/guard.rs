//! Which requests are answered at all, and the headers of every answer.
//!
//! In: a request. Out: the same request for a page, or a refusal: 403 for a foreign `Host` or origin, 401 without the
//! token.
//!
//! The check of `Host` keeps out a name of somebody else that was made to lead here (DNS rebinding). The check of the
//! origin keeps out forms of other sites; the CSRF token of a form is checked in `pages/release.rs`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::app::{App, same};

/// The names of this machine for itself: always allowed.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Nothing from elsewhere, nothing inline, no frame around it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Checks the request, and sets the headers of the answer.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&app, &request) {
        Some(refused) => refused,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Not `no-referrer`: browsers would then send `Origin: null` with our own form.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn refusal(app: &App, request: &Request) -> Option<Response> {
    let host = match host(request) {
        Some(host) if is_allowed(app, &host) => host,
        Some(host) => {
            let why = format!(
                "host `{host}` is not allowed; allow it with `--allow-host` or `Dashboard::allow_host`"
            );
            return Some(refuse(StatusCode::FORBIDDEN, &why));
        }
        None => return Some(refuse(StatusCode::BAD_REQUEST, "the request names no host")),
    };
    if !is_same_origin(request, &host) {
        return Some(refuse(
            StatusCode::FORBIDDEN,
            "the request comes from a page of another site",
        ));
    }
    if app.options.auth_token.as_ref().is_some_and(|token| !has_token(request.headers(), token)) {
        let mut refused = refuse(
            StatusCode::UNAUTHORIZED,
            "a token is needed: as the password, or as `Authorization: Bearer`",
        );
        let basic = HeaderValue::from_static("Basic realm=\"tenure\", charset=\"UTF-8\"");
        refused.headers_mut().insert(WWW_AUTHENTICATE, basic);
        return Some(refused);
    }
    None
}

/// A refusal in one line.
pub(crate) fn refuse(status: StatusCode, why: &str) -> Response {
    (status, format!("tenure: {why}\n")).into_response()
}

/// The host of the request, in lower case, with its port.
fn host(request: &Request) -> Option<String> {
    let named = request.headers().get(HOST).map(HeaderValue::to_str);
    let host = match named {
        Some(host) => host.ok()?,
        None => request.uri().authority()?.as_str(),
    };
    Some(host.to_ascii_lowercase())
}

fn is_allowed(app: &App, host: &str) -> bool {
    let name = without_port(host);
    let hosts = app.options.hosts.iter().map(String::as_str);
    LOOPBACK.into_iter().chain(hosts).any(|allowed| allowed.eq_ignore_ascii_case(name))
}

/// The host without its port: `[::1]:80` is `[::1]`.
fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    }
}

/// Whether the request comes from a page of ours, or from no page at all. A program sends no `Origin`; a browser
/// sends it with every form.
fn is_same_origin(request: &Request, host: &str) -> bool {
    let text = |name: HeaderName| {
        request.headers().get(name).map(|value| value.to_str().unwrap_or("null"))
    };
    if let Some(origin) = text(ORIGIN) {
        let rest = origin.split_once("://").map(|(_, rest)| rest);
        return rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host));
    }
    // Links from elsewhere may lead to a page, but nothing else may.
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match text(HeaderName::from_static("sec-fetch-site")) {
        Some("same-origin" | "none") | None => true,
        Some(_) => is_read && text(HeaderName::from_static("sec-fetch-mode")) == Some("navigate"),
    }
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let Some(sent) = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    match sent.split_once(' ') {
        Some((scheme, sent)) if scheme.eq_ignore_ascii_case("bearer") => same(sent.trim(), token),
        Some((scheme, sent)) if scheme.eq_ignore_ascii_case("basic") => {
            let decoded = BASE64_STANDARD.decode(sent.trim()).ok();
            let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            text.as_deref()
                .and_then(|text| text.split_once(':'))
                .is_some_and(|(_, password)| same(password, token))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports do not count; the colons of an IPv6 address are not the port's.
    #[test]
    fn hosts_without_ports() {
        let cases = [("a:80", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]")];
        for (host, name) in cases {
            assert_eq!(without_port(host), name);
        }
    }
}
