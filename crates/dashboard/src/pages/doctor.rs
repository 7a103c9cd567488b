//! The checks of `tenure doctor`.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use tenure_core::doctor::Finding;

use super::show::{moment, sign, text};
use super::{Frame, html};
use crate::app::App;

#[derive(Template)]
#[template(path = "doctor.html")]
struct Page {
    frame: Frame,
    at: Option<String>,
    worst: &'static str,
    rows: Vec<Row>,
    command: String,
}

struct Row {
    verdict: &'static str,
    sign: &'static str,
    check: String,
    target: String,
    tried: String,
    seen: String,
    advice: Option<String>,
}

/// `GET /doctor`.
pub(crate) async fn doctor(State(app): State<Arc<App>>) -> Response {
    let findings = app.checkup.findings(&app.locker).await;
    let snapshot = app.collector.fresh().await;
    let mut frame = Frame::new(&app, "doctor", "Doctor".into(), &snapshot);
    frame.is_live = false;
    let options = app.options.command_options.iter().map(String::as_str);
    let mut rows: Vec<Row> = findings.iter().flat_map(|findings| &findings.list).map(row).collect();
    rows.sort_by_key(|row| {
        ["unsafe", "warning", "unknown"].iter().position(|word| *word == row.verdict).unwrap_or(3)
    });
    html(
        StatusCode::OK,
        &Page {
            frame,
            at: findings.as_ref().map(|findings| moment(findings.at)),
            worst: findings.as_ref().map_or("", |findings| findings.worst.as_str()),
            rows,
            command: ["tenure doctor"].into_iter().chain(options).collect::<Vec<_>>().join(" "),
        },
    )
}

fn row(finding: &Finding) -> Row {
    let verdict = finding.verdict.as_str();
    Row {
        verdict,
        sign: sign(verdict),
        check: finding.check.into(),
        target: text(&finding.target),
        tried: text(&finding.tried),
        seen: text(&finding.seen),
        advice: finding.advice.as_deref().map(text),
    }
}
