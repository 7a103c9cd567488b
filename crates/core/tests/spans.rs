//! The spans of locks, as an exporter sees them. One test, since a subscriber is installed once per process.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{Error, Locker, Memory, Owner};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Instrument, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// E4: every acquisition is a span `acquire`, and every `run` a span `lock` around acquisition and body, with
/// these fields, as children of the caller's span. The `acquire` span ends with the acquisition.
#[tokio::test]
async fn e4_spans_of_a_lock() {
    let spans = Spans::default();
    tracing_subscriber::registry().with(spans.clone()).init();
    let locker = Locker::new(Memory::space("spans"));

    let request = tracing::info_span!("request");
    let owner = Owner::new();
    let ask = locker.lock("order:1").name("order:{id}").owner(owner.clone());
    let guard = ask.into_future().instrument(request.clone()).await.unwrap();
    let acquire = spans.only("acquire");
    assert_eq!(acquire.parent.as_deref(), Some("request"));
    let fence = guard.fence().to_string();
    let fields = [
        ("fence", fence.as_str()),
        ("key", "order:1"),
        ("name", "order:{id}"),
        ("owner", &owner.to_string()),
        ("result", "acquired"),
    ];
    assert_eq!(acquire.fields, owned(&fields));
    assert!(acquire.closed, "the lock is held on, its acquisition is over");

    assert!(locker.try_lock("order:1").await.unwrap().is_none());
    assert_eq!(spans.only("acquire").fields, owned(&[("key", "order:1"), ("result", "busy")]));
    let timeout = locker.lock("order:1").wait(Duration::from_millis(1)).await.unwrap_err();
    assert!(timeout.is_timeout());
    assert_eq!(spans.only("acquire").fields["result"], "timeout");
    guard.release().await.unwrap();

    let body = async |_| {
        tracing::info_span!("body").in_scope(|| ());
        Ok::<_, Error>(())
    };
    locker.lock("order:2").run(body).instrument(request).await.unwrap().unwrap();
    let seen = spans.take();
    let tree: Vec<(&str, Option<&str>)> =
        seen.iter().map(|span| (span.name, span.parent.as_deref())).collect();
    assert_eq!(
        tree,
        [("lock", Some("request")), ("acquire", Some("lock")), ("body", Some("lock"))]
    );
    assert_eq!(seen[0].fields, owned(&[("key", "order:2")]));
    assert!(seen.iter().all(|span| span.closed));
}

fn owned(fields: &[(&'static str, &str)]) -> BTreeMap<&'static str, String> {
    fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

/// A recorded span.
#[derive(Clone, Debug)]
struct Seen {
    id: Id,
    name: &'static str,
    parent: Option<String>,
    fields: BTreeMap<&'static str, String>,
    closed: bool,
}

/// Every span of the library and of this test, except `request`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

impl Spans {
    /// All spans since the last call.
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn only(&self, name: &str) -> Seen {
        let mut seen = self.take();
        assert!(seen.len() == 1 && seen[0].name == name, "not one `{name}`: {seen:?}");
        seen.remove(0)
    }

    fn change(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        self.0.lock().unwrap().iter_mut().filter(|seen| seen.id == *id).last().map(change);
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        if span.name() == "request" {
            return;
        }
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = span.parent().map(|parent| parent.name().to_owned());
        let seen =
            Seen { id: id.clone(), name: span.name(), parent, fields: fields.0, closed: false };
        self.0.lock().unwrap().push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        self.change(id, |seen| seen.fields.extend(fields.0));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.change(&id, |seen| seen.closed = true);
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }
}
