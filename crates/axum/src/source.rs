//! The key of a request: from its path, its headers, or a closure.
//!
//! In: a template such as `order:{order_id}`, and a request. Out: `order:42`, or a response that names the
//! missing part.

use std::fmt;
use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use tenure_core::Error;

use crate::problem::{Kind, Problem};

/// Where a key comes from.
#[derive(Clone)]
pub(crate) enum Source {
    Path(Template),
    Header(Template),
    Closure(Arc<Closure>),
}

// Boxed, since a response is large and rare here.
type Closure = dyn Fn(&Parts) -> Result<String, Box<Response>> + Send + Sync;

impl Source {
    pub(crate) fn path(template: &str) -> Result<Self, Error> {
        Template::parse(template).map(Source::Path)
    }

    pub(crate) fn header(template: &str) -> Result<Self, Error> {
        Template::parse(template).map(Source::Header)
    }

    pub(crate) fn closure<F, R>(name: F) -> Self
    where
        F: Fn(&Parts) -> Result<String, R> + Send + Sync + 'static,
        R: IntoResponse,
    {
        let boxed =
            move |parts: &Parts| name(parts).map_err(|refusal| Box::new(refusal.into_response()));
        Source::Closure(Arc::new(boxed))
    }

    /// The template, for metrics.
    pub(crate) fn template(&self) -> Option<&Arc<str>> {
        match self {
            Source::Path(template) | Source::Header(template) => Some(&template.text),
            Source::Closure(_) => None,
        }
    }

    /// The key of this request.
    pub(crate) async fn name(&self, parts: &mut Parts) -> Result<String, Box<Response>> {
        let made = match self {
            Source::Path(template) => from_path(template, parts).await,
            Source::Header(template) => template.fill(|name| header(parts, name)),
            Source::Closure(closure) => return closure(parts),
        };
        made.map_err(|problem| Box::new(problem.into_response()))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.template().map_or("closure", |template| template))
    }
}

async fn from_path(template: &Template, parts: &mut Parts) -> Result<String, Problem> {
    let found = match RawPathParams::from_request_parts(parts, &()).await {
        Ok(found) => found,
        Err(RawPathParamsRejection::MissingPathParams(_)) => {
            return Err(template
                .misfit("path parameters, but the layer is not on a route: use `route_layer`"));
        }
        Err(flaw) => return Err(Problem::bad_request(flaw.body_text())),
    };
    template.fill(|name| {
        let value = found.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
        value.ok_or_else(|| no_parameter(template, name, &found))
    })
}

fn no_parameter(template: &Template, name: &str, found: &RawPathParams) -> Problem {
    let has: Vec<String> = found.iter().map(|(key, _)| format!("`{key}`")).collect();
    let has = if has.is_empty() { "none".into() } else { has.join(", ") };
    template.misfit(&format!("the path parameter `{name}`, but the route has {has}"))
}

fn header(parts: &Parts, name: &str) -> Result<String, Problem> {
    let mut values = parts.headers.get_all(name).iter();
    let value = values.next().filter(|value| !value.is_empty());
    let value = value.ok_or_else(|| Problem::bad_request(format!("header `{name}` is missing")))?;
    if values.next().is_some() {
        // Proxies and servers may disagree on which value counts.
        return Err(Problem::bad_request(format!("header `{name}` is there more than once")));
    }
    let text = value.to_str().map(Into::into);
    text.map_err(|_| Problem::bad_request(format!("header `{name}` is not plain text")))
}

/// Text with placeholders: `order:{order_id}`. No expressions; `{{` and `}}` are braces.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    text: Arc<str>,
    pieces: Arc<[Piece]>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Placeholder(String),
}

impl Template {
    fn parse(text: &str) -> Result<Self, Error> {
        let flawed = |flaw: String| Error::invalid(format!("key template `{text}`: {flaw}"));
        let pieces = pieces(text).map_err(flawed)?;
        Ok(Template { text: text.into(), pieces: pieces.into() })
    }

    fn fill(&self, value: impl Fn(&str) -> Result<String, Problem>) -> Result<String, Problem> {
        let mut filled = String::with_capacity(self.text.len());
        for (at, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Placeholder(name) => {
                    let value = value(name)?;
                    if let Some(separator) = self.separator(at) {
                        ends_before(separator, name, &value)?;
                    }
                    filled.push_str(&value);
                }
            }
        }
        Ok(filled)
    }

    /// The error if the template does not fit the route. A layer does not know its route, so only a request
    /// shows it.
    fn misfit(&self, needs: &str) -> Problem {
        Problem::of_request(Kind::Invalid, format!("key template `{}` needs {needs}", self.text))
    }

    /// The text between the placeholder at `at` and the next one.
    fn separator(&self, at: usize) -> Option<&str> {
        match self.pieces.get(at + 1..at + 3) {
            Some([Piece::Text(text), Piece::Placeholder(_)]) => Some(text),
            _ => None,
        }
    }
}

/// Rejects a value that contains its separator, alone or together with it. Otherwise `{tenant}:{order}` would
/// be the same for `acme` and `eu:42` as for `acme:eu` and `42`.
fn ends_before(separator: &str, name: &str, value: &str) -> Result<(), Problem> {
    if format!("{value}{separator}").find(separator) == Some(value.len()) {
        return Ok(());
    }
    Err(Problem::bad_request(format!("`{name}` must not contain `{separator}`, which ends it")))
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
            continue;
        }
        let (name, after) = placeholder(brace, after)?;
        if plain.is_empty() && !pieces.is_empty() {
            return Err(format!("nothing separates `{{{name}}}` from the parameter before it"));
        }
        pieces.push(Piece::Text(std::mem::take(&mut plain)));
        pieces.push(Piece::Placeholder(name));
        rest = after;
    }
    plain.push_str(rest);
    pieces.push(Piece::Text(plain));
    Ok(pieces)
}

fn placeholder<'a>(brace: &str, after: &'a str) -> Result<(String, &'a str), String> {
    if brace == "}" {
        return Err("`}` without `{`; write `}}` for a brace".into());
    }
    let (name, after) = after.split_once('}').ok_or("`{` without `}`; write `{{` for a brace")?;
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("`{{{name}}}` is no name of a parameter"));
    }
    Ok((name.into(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str) -> String {
        Template::parse(template).unwrap().fill(|name| Ok(format!("<{name}>"))).unwrap()
    }

    /// Placeholders are filled in, doubled braces become braces, all other text stays unchanged.
    #[test]
    fn templates_are_filled() {
        assert_eq!(filled("order:{order_id}"), "order:<order_id>");
        assert_eq!(filled("{a}:{b-c}:{{x}}"), "<a>:<b-c>:{x}");
        assert_eq!(filled("nightly"), "nightly");
        assert_eq!(filled("订单:{id}"), "订单:<id>");
    }

    /// No two lists of values produce the same key: a value that contains its separator, alone or together
    /// with it, is rejected. The last value may contain anything.
    #[test]
    fn values_cannot_move_a_boundary() {
        let parts = ["", "a", ":", "a:", ":a", "a:b", "-", "a-", "--", "%3A", "/"];
        for template in ["{0}:{1}", "k:{0}:{1}:{2}", "{0}--{1}", "{0}a{1}", "{0}:-{1}:{2}-"] {
            let parsed = Template::parse(template).unwrap();
            let places = u32::try_from(template.matches('{').count()).unwrap();
            let mut made = std::collections::HashMap::new();
            for turn in 0..parts.len().pow(places) {
                let value = |name: &str| {
                    let place = name.parse().unwrap();
                    Ok(parts[turn / parts.len().pow(place) % parts.len()].to_owned())
                };
                let Ok(name) = parsed.fill(value) else { continue };
                let before = made.insert(name.clone(), turn);
                assert!(before.is_none(), "{template}: turns {before:?} and {turn} make `{name}`");
            }
            assert!(made.len() >= 20, "{template}: most values are accepted");
        }
        let value = |name: &str| Ok(format!("{name}:1"));
        assert_eq!(Template::parse("order:{x}").unwrap().fill(value).unwrap(), "order:x:1");
    }

    /// The error for an invalid template names the mistake.
    #[test]
    fn bad_templates_are_refused() {
        let flaw = |template: &str| Template::parse(template).unwrap_err().to_string();
        assert_eq!(
            flaw("order:{id"),
            "key template `order:{id`: `{` without `}`; write `{{` for a brace"
        );
        assert_eq!(
            flaw("order:id}"),
            "key template `order:id}`: `}` without `{`; write `}}` for a brace"
        );
        assert_eq!(
            flaw("order:{a.b}"),
            "key template `order:{a.b}`: `{a.b}` is no name of a parameter"
        );
        assert_eq!(
            flaw("{tenant}{order}"),
            "key template `{tenant}{order}`: nothing separates `{order}` from the parameter before it"
        );
        assert_eq!(flaw("order:{}"), "key template `order:{}`: `{}` is no name of a parameter");
    }
}
