//! One lock: who holds it, who waits in which order, what has happened, what to type.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use tenure_core::text::short;
use tenure_core::time::UnixMillis;
use tenure_core::view::state;
use tenure_core::watch::Event;
use tenure_core::{Holder, Key, Waiting};

use super::show::{HolderCell, UNKNOWN, Who, age, clock, command, exact, mode, moment, sign, text};
use super::{Frame, html};
use crate::app::App;
use crate::guard::refuse;
use crate::history::{BUCKETS, Histogram, KeyHistory, LAST_BUCKET, Tenure};
use crate::snapshot::{Seen, Snapshot};

/// Of a longer queue the rest is counted.
const QUEUE_SHOWN: usize = 100;

#[derive(Template)]
#[template(path = "lock.html")]
struct Page {
    frame: Frame,
    key: String,
    /// Percent-encoded, for links.
    query: String,
    state: String,
    is_free: bool,
    holders: Vec<HolderCell>,
    /// `None` if the engine does not tell.
    queue: Option<Vec<Waiter>>,
    queue_more: usize,
    commands: Vec<Command>,
    tenures: Vec<Bar>,
    histograms: Vec<Chart>,
    events: Vec<Line>,
    watched: String,
    advice: &'static str,
}

struct Waiter {
    who: Who,
    mode: String,
    waiting: String,
}

struct Command {
    what: &'static str,
    line: String,
}

/// A tenure on the time line; `x` and `width` in percent.
struct Bar {
    who: Who,
    since: String,
    from: String,
    held: String,
    end: &'static str,
    sign: &'static str,
    x: u64,
    width: u64,
}

/// A histogram; `width` in percent of the longest row.
struct Chart {
    name: &'static str,
    count: u64,
    mean: String,
    rows: Vec<ChartRow>,
}

struct ChartRow {
    label: &'static str,
    count: u64,
    width: u64,
}

pub(crate) struct Line {
    pub(crate) at: String,
    pub(crate) clock: String,
    /// The name of the style.
    pub(crate) kind: &'static str,
    pub(crate) word: &'static str,
    pub(crate) sign: &'static str,
    pub(crate) who: String,
}

#[derive(Deserialize)]
pub(crate) struct AskedLock {
    key: String,
}

/// `GET /lock?key=KEY`.
pub(crate) async fn lock(State(app): State<Arc<App>>, Query(named): Query<AskedLock>) -> Response {
    let key = match Key::new(&named.key) {
        Ok(key) => key,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let snapshot = app.collector.fresh().await;
    let seen = snapshot.get(&key).map(|seen| &**seen);
    let (history, watched) = {
        let history = app.collector.history();
        (history.of(&key).cloned().unwrap_or_default(), history.since)
    };
    let name = text(key.as_str());
    let frame = Frame::new(&app, "lock", name.clone(), &snapshot);
    let queue = seen.map_or(Some(Vec::new()), |seen| seen.info.waiters.as_deref().map(queue));
    html(
        StatusCode::OK,
        &Page {
            frame,
            key: name,
            query: super::show::link(key.as_str()).split_off("lock?".len()),
            state: seen.map_or_else(|| "free".into(), |seen| state(&seen.info)),
            is_free: seen.is_none(),
            holders: seen.map(|seen| holders(&app, seen)).unwrap_or_default(),
            queue_more: seen.map_or(0, |seen| seen.waiters().len().saturating_sub(QUEUE_SHOWN)),
            queue,
            commands: commands(&app, &key, seen),
            tenures: bars(&history, &snapshot, seen),
            histograms: vec![chart("Waits", &history.waits), chart("Holds", &history.holds)],
            events: history.events.iter().rev().map(|event| line(event)).collect(),
            watched: moment(watched),
            advice: advice(&app),
        },
    )
}

fn holders(app: &App, seen: &Seen) -> Vec<HolderCell> {
    let both = seen.info.holders.iter().zip(&seen.signs);
    both.map(|(holding, signs)| HolderCell::new(app, &seen.info.key, holding, signs)).collect()
}

fn queue(waiters: &[Waiting]) -> Vec<Waiter> {
    let waiter = |waiting: &Waiting| Waiter {
        who: Who::new(waiting.process.as_ref(), None, &waiting.label, &waiting.reason),
        mode: mode(&waiting.mode),
        waiting: age(waiting.since),
    };
    waiters.iter().take(QUEUE_SHOWN).map(waiter).collect()
}

/// What the page cannot do by itself, in words.
fn advice(app: &App) -> &'static str {
    match (app.can.force_release, app.options.allow_release) {
        (false, _) => {
            "This engine cannot take a lock from a live process: to free it, end the process on its host."
        }
        (true, false) => "This page is read-only: it cannot release a lock.",
        (true, true) => "",
    }
}

/// The command lines that do the same as the page, and what the page cannot do.
fn commands(app: &App, key: &Key, seen: Option<&Seen>) -> Vec<Command> {
    let key = key.as_str();
    let line = |what, verb, options: Option<&str>| Command {
        what,
        line: command(app, verb, options, key),
    };
    let mut lines = vec![
        line("Who holds it, and who waits", "show", None),
        line("What happens to it", "watch", None),
    ];
    let holders = seen.map(|seen| &seen.info.holders[..]).unwrap_or_default();
    for holding in holders.iter().filter(|_| app.can.force_release) {
        let start = holding.token.as_ref().map(tenure_core::view::token_start);
        let several =
            start.filter(|_| holders.len() > 1).map(|start| format!("--force --token {start}"));
        lines.push(line(
            "Take it from its holder",
            "release",
            Some(several.as_deref().unwrap_or("--force")),
        ));
    }
    let processes = holders.iter().filter(|_| !app.can.force_release);
    for process in processes.filter_map(|holding| holding.holder.process.as_ref()) {
        lines.push(Command {
            what: "End the holder, on its host",
            line: format!("kill {}", process.pid),
        });
    }
    lines
}

fn bars(history: &KeyHistory, look: &Snapshot, seen: Option<&Seen>) -> Vec<Bar> {
    let now = UnixMillis::now().0;
    let first = history.tenures.iter().map(|tenure| tenure.since.0).min().unwrap_or(now);
    let whole = now.saturating_sub(first).max(1);
    let percent = |at: u64| at.saturating_sub(first).min(whole) * 100 / whole;
    let bar = |tenure: &Tenure| {
        let until = tenure.end.as_ref().map_or(now, |(at, _)| at.0);
        let word = tenure
            .end
            .as_ref()
            .map_or_else(|| open_end(tenure, look, seen), |(_, what)| what.as_str());
        let x = percent(tenure.since.0).min(99);
        Bar {
            who: Who::holds(&tenure.holder),
            since: moment(tenure.since),
            from: clock(tenure.since),
            held: exact(std::time::Duration::from_millis(until.saturating_sub(tenure.since.0))),
            end: word,
            sign: sign(if word == "holds it" { "alive" } else { word }),
            x,
            width: percent(until).saturating_sub(x).max(1),
        }
    };
    history.tenures.iter().rev().map(bar).collect()
}

/// How a tenure stands whose end was not seen: changes in quick succession may be one event.
fn open_end(tenure: &Tenure, look: &Snapshot, seen: Option<&Seen>) -> &'static str {
    let mut holders =
        seen.iter().flat_map(|seen| &seen.info.holders).map(|holding| &holding.holder);
    let holds = holders.any(|holder| {
        holder.process == tenure.holder.process && holder.since == tenure.holder.since
    });
    // The look may be older than the tenure.
    let is_newer = look.at.is_none_or(|at| at < tenure.seen);
    if holds || is_newer { "holds it" } else { "unknown" }
}

fn chart(name: &'static str, histogram: &Histogram) -> Chart {
    let most = histogram.counts.iter().copied().max().unwrap_or(0).max(1);
    let labels = BUCKETS.iter().map(|(_, label)| *label).chain([LAST_BUCKET]);
    let row =
        |(label, count): (&'static str, u64)| ChartRow { label, count, width: count * 100 / most };
    let count = histogram.count();
    let mean = u32::try_from(count)
        .ok()
        .filter(|count| *count > 0)
        .map(|count| exact(histogram.sum / count));
    let rows = labels.zip(histogram.counts).map(row).collect();
    Chart { name, count, mean: mean.unwrap_or_else(|| UNKNOWN.into()), rows }
}

/// An event, as one line.
fn line(event: &Event) -> Line {
    let word = event.what.as_str();
    let name = |holder: &Option<Holder>| {
        holder.as_ref().map(|holder| {
            let Who { name, pid, .. } = Who::holds(holder);
            [Some(name), pid].into_iter().flatten().collect::<Vec<_>>().join(" ")
        })
    };
    let by = match &event.what {
        tenure_core::watch::EventKind::Forced(by) => Some(format!("by {}", text(by))),
        _ => name(&event.from).map(|from| format!("from {from}")),
    };
    let who = [name(&event.holder), by].into_iter().flatten().collect::<Vec<_>>().join(" ");
    Line {
        at: moment(event.at),
        clock: clock(event.at),
        kind: word,
        word: words(word),
        sign: sign(word),
        who,
    }
}

fn words(word: &'static str) -> &'static str {
    if word == "handed_over" { "handed over to" } else { word }
}

/// A duration in words for the pages that count waits.
pub(crate) fn total(duration: std::time::Duration) -> String {
    if duration.is_zero() { UNKNOWN.into() } else { short(duration) }
}
