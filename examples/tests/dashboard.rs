//! The Grafana dashboard, the documentation and the library name the same metrics. There is one test, since a
//! recorder is installed once per process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use metrics_util::debugging::{DebuggingRecorder, Snapshotter};
use serde_json::Value;
use tenure::redis::{Client, KvExt};
use tenure::{Locker, Memory};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::eventually;

const DASHBOARD: &str = include_str!("../../docs/ops/dashboards/tenure.json");
const REFERENCE: &str = include_str!("../../docs/guide/reference.md");
const CLIENT: &str = include_str!("../../docs/guide/client.md");
const OBSERVING: &str = include_str!("../../docs/ops/observing.md");

/// The suffixes of a histogram's time series.
const OF_HISTOGRAMS: [&str; 3] = ["_bucket", "_count", "_sum"];

/// Metric names, each with its labels.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// E5: every metric that the library emits is on the dashboard, and the dashboard shows no other. It groups
/// and selects by existing labels. The same names are documented.
#[tokio::test]
async fn e5_the_dashboard_shows_what_is_emitted() {
    let recorder = DebuggingRecorder::new();
    let metrics = recorder.snapshotter();
    recorder.install().unwrap();
    live_through_everything().await;
    eventually("the loss to be counted", || async {
        emitted(&metrics).contains_key("tenure_lock_losses_total")
    })
    .await;
    let emitted = emitted(&metrics);
    let all: BTreeSet<&String> = emitted.keys().collect();

    let shown = shown();
    assert_eq!(shown.keys().collect::<BTreeSet<_>>(), all);
    for (name, labels) in &shown {
        let unknown: Vec<_> = labels.difference(&emitted[name]).collect();
        assert!(unknown.is_empty(), "`{name}` has no label {unknown:?}");
    }
    let tables = [REFERENCE, CLIENT].map(names).concat();
    assert_eq!(tables.iter().collect::<BTreeSet<_>>(), all, "in the tables");
    let told = names(OBSERVING);
    let untold: Vec<_> =
        all.iter().filter(|name| name.starts_with("tenure_lock") && !told.contains(name)).collect();
    assert!(untold.is_empty(), "{untold:?}");
}

/// Causes every kind of metric: locks acquired, rejected, waited for, renewed and lost; commands and their
/// errors.
async fn live_through_everything() {
    let server = Memory::space("dashboard");
    let locker = Locker::new(server.clone());
    let guard = locker.lock("k").await.unwrap();
    locker.lock("k").wait(Duration::from_millis(1)).await.unwrap_err();
    guard.renew().await.unwrap();
    server.revoke("k").unwrap();
    guard.lost().await;

    let redis = RedisServer::start();
    let client = Client::connect(&redis.url()).await.unwrap();
    client.set("k", "text").await.unwrap();
    client.lpop::<String>("k").await.unwrap_err();
}

fn emitted(metrics: &Snapshotter) -> Metrics {
    let mut all = Metrics::new();
    for (key, ..) in metrics.snapshot().into_vec() {
        let labels = key.key().labels().map(|label| label.key().to_owned());
        all.entry(key.key().name().to_owned()).or_default().extend(labels);
    }
    all
}

/// The metrics and labels in the dashboard's queries.
fn shown() -> Metrics {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut all = Metrics::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let names = names(query);
            assert_eq!(names.len(), 1, "one metric per query: {query}");
            all.entry(names[0].clone()).or_default().extend(labels(query));
        }
    }
    all
}

/// The names of metrics in a text.
fn names(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours =
        words.filter(|word| word.starts_with("tenure_lock_") || word.starts_with("tenure_redis_"));
    let mut names: Vec<String> = ours.map(|word| whole(word).to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

fn whole(series: &str) -> &str {
    OF_HISTOGRAMS.iter().find_map(|end| series.strip_suffix(end)).unwrap_or(series)
}

/// The labels that a query groups or selects by, except those that Prometheus adds itself.
fn labels(query: &str) -> BTreeSet<String> {
    let grouped = query.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    let grouped = grouped.flat_map(|list| list.split(','));
    let selected = query.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let selected =
        selected.flat_map(|list| list.split(',')).filter_map(|one| one.split(['=', '!']).next());
    let all = grouped.chain(selected).map(|label| label.trim().to_owned());
    all.filter(|label| !matches!(label.as_str(), "le" | "instance")).collect()
}
