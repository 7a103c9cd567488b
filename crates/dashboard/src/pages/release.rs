//! Release by force: a form that shows the holder, and its answer.
//!
//! In: a key, the name of the claim that was shown, the key typed again, a reason. Out: that claim is released, or
//! nothing is. The engine compares and deletes its token, so a newer holder is never hit.

use std::sync::Arc;

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use tenure_core::text::shell_word;
use tenure_core::{Error, Holding, Key, Process, Release};

use super::show::{HolderCell, link, text};
use super::{Frame, html};
use crate::app::{App, same};
use crate::guard::refuse;
use crate::secrets::scrub;

/// A longer reason is cut.
const REASON_MAX: usize = 200;

#[derive(Template)]
#[template(path = "release.html")]
struct Page {
    frame: Frame,
    key: String,
    raw_key: String,
    link: String,
    holder: Option<HolderCell>,
    claim: String,
    csrf: String,
    reason: String,
    problem: Option<String>,
    reason_max: usize,
}

#[derive(Template)]
#[template(path = "released.html")]
struct Done {
    frame: Frame,
    key: String,
    link: String,
    message: String,
}

/// The claim that a page has shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Shown {
    key: String,
    claim: String,
}

/// The form.
#[derive(Debug, Deserialize)]
pub(crate) struct Sent {
    key: String,
    claim: String,
    #[serde(default)]
    csrf: String,
    #[serde(default)]
    typed: String,
    #[serde(default)]
    reason: String,
}

/// `GET /release?key=KEY&claim=NAME`.
pub(crate) async fn form(State(app): State<Arc<App>>, Query(shown): Query<Shown>) -> Response {
    if let Some(refused) = read_only(&app) {
        return refused;
    }
    ask(&app, &shown, "", StatusCode::OK, None).await
}

/// `POST /release`.
pub(crate) async fn release(State(app): State<Arc<App>>, Form(sent): Form<Sent>) -> Response {
    if let Some(refused) = read_only(&app) {
        return refused;
    }
    if !same(&sent.csrf, &app.csrf()) {
        return refuse(
            StatusCode::FORBIDDEN,
            "the form is not from this page, or the page was restarted: load it again",
        );
    }
    let reason: String = sent.reason.trim().chars().take(REASON_MAX).collect();
    let shown = Shown { key: sent.key, claim: sent.claim };
    // A key with invisible characters is typed as the page shows it.
    if sent.typed != shown.key && sent.typed != text(&shown.key) {
        let problem = Some("Nothing was released: the key was not typed.".into());
        return ask(&app, &shown, &reason, StatusCode::UNPROCESSABLE_ENTITY, problem).await;
    }
    match take_away(&app, &shown, &reason).await {
        Ok(message) => done(&app, &shown.key, StatusCode::OK, message).await,
        Err(refused) => done(&app, &shown.key, refused.0, refused.1).await,
    }
}

fn read_only(app: &App) -> Option<Response> {
    let why = match (app.can.force_release, app.options.allow_release) {
        (true, true) => return None,
        (false, _) => "this engine cannot release a lock by force: end the process that holds it",
        (true, false) => {
            "this page is read-only; releases need `--allow-release` or `Dashboard::allow_release`"
        }
    };
    Some(refuse(StatusCode::FORBIDDEN, why))
}

async fn ask(
    app: &App,
    shown: &Shown,
    reason: &str,
    status: StatusCode,
    problem: Option<String>,
) -> Response {
    let key = match Key::new(&shown.key) {
        Ok(key) => key,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let snapshot = app.collector.fresh().await;
    let holder = snapshot.get(&key).and_then(|seen| {
        let mut both = seen.info.holders.iter().zip(&seen.signs);
        both.find(|(holding, _)| is_meant(app, &key, holding, &shown.claim))
            .map(|(holding, signs)| HolderCell::new(app, &key, holding, signs))
    });
    let mut frame = Frame::new(app, "lock", format!("Release {}", text(key.as_str())), &snapshot);
    frame.is_live = false;
    html(
        status,
        &Page {
            frame,
            key: text(key.as_str()),
            raw_key: key.as_str().into(),
            link: link(key.as_str()),
            holder,
            claim: shown.claim.clone(),
            csrf: app.csrf(),
            reason: reason.into(),
            problem,
            reason_max: REASON_MAX,
        },
    )
}

fn is_meant(app: &App, key: &Key, holding: &Holding, claim: &str) -> bool {
    holding.token.is_some_and(|token| app.claim_name(key, token) == claim)
}

/// Releases the claim that was shown. The message for the operator, or a status and why nothing was released.
async fn take_away(app: &App, shown: &Shown, reason: &str) -> Result<String, (StatusCode, String)> {
    let key = Key::new(&shown.key).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    let changed = || {
        (
            StatusCode::CONFLICT,
            "Nothing was released: that claim does not hold the lock any more.".to_string(),
        )
    };
    // Asked of the engine now, not read from the last look.
    let lock = app.locker.inspect(key.as_str()).await.map_err(|error| failed(&error))?;
    let holders = lock.map(|lock| lock.holders).unwrap_or_default();
    let meant = holders.iter().find(|holding| is_meant(app, &key, holding, &shown.claim));
    let token = meant.and_then(|holding| holding.token).ok_or_else(changed)?;
    match app.locker.force_release(key.as_str(), token, &by(reason)).await.map_err(|error| failed(&error))? {
        Release::NotHeld => Err(changed()),
        Release::Freed | Release::StillHeld(_) => {
            Ok("Released by force. The former holder sees it at its next renewal, and may continue until then.".into())
        }
    }
}

fn failed(error: &Error) -> (StatusCode, String) {
    let status =
        if error.is_unsupported() { StatusCode::FORBIDDEN } else { StatusCode::BAD_GATEWAY };
    (status, format!("Not known whether it was released: {}", text(&scrub(&error.to_string()))))
}

/// Who released the lock, and why: a text for the former holder.
fn by(reason: &str) -> String {
    let Process { user, host, .. } = Process::this_process();
    match reason {
        "" => format!("{user}@{host} on the page"),
        reason => format!("{user}@{host} on the page: {reason}"),
    }
}

async fn done(app: &App, key: &str, status: StatusCode, message: String) -> Response {
    tracing::info!(component = "tenure", key = %shell_word(key), message, "release on the page");
    let snapshot = app.collector.fresh().await;
    let mut frame = Frame::new(app, "lock", format!("Release {}", text(key)), &snapshot);
    frame.is_live = false;
    html(status, &Done { frame, key: text(key), link: link(key), message })
}
