//! `tenure serve`: the page that shows who holds what, on an address of this machine.
//!
//! In: the arguments. Out: the page of `tenure-dashboard`, until a signal ends it.

use std::net::SocketAddr;
use std::path::Path;

use tenure_dashboard::Dashboard;
use tokio::net::TcpListener;

use crate::args::{GlobalArgs, ServeArgs};
use crate::error::CliError;
use crate::output;
use crate::signals::Signals;
use crate::status::Outcome;
use crate::target::{self, Target};
use crate::text;
use crate::ui::{self, Ui};
use crate::watch::by;

/// A shorter token can be guessed.
const TOKEN_LEAST: usize = 16;

pub(crate) fn serve(args: &ServeArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match attempt(args, flags, ui) {
        Ok(code) => code,
        Err(trouble) => ui.trouble(&trouble),
    }
}

fn attempt(args: &ServeArgs, flags: &GlobalArgs, ui: &mut Ui) -> Result<u8, CliError> {
    let token = args.auth_token_file.as_deref().map(auth_token).transpose()?;
    if token.is_none() && !args.listen.ip().is_loopback() {
        return Err(too_open(args.listen));
    }
    let target = Target::find(flags)?;
    target::runtime()?.block_on(async {
        let mut signals = Signals::ending()?;
        // The page itself says if the server cannot be reached.
        let locker = target.connect(ui, true).await?;
        let mut page = Dashboard::new(locker).watch_at_once().allow_host(host(args.listen));
        page = args.allow_host.iter().fold(page, |page, name| page.allow_host(name));
        page = target.option().into_iter().fold(page, Dashboard::command_options);
        page = token.into_iter().fold(page, Dashboard::auth_token);
        if args.allow_release {
            page = page.allow_release();
        }
        let listener = listen(args.listen).await?;
        ui.info(&output::serving(&target.shown(), args.allow_release));
        tokio::select! {
            signal = signals.next() => Ok(by(signal)),
            served = axum::serve(listener, page.router()) => Err(ended(served)),
        }
    })
}

/// Listens, and prints the address of the page.
pub(crate) async fn listen(at: SocketAddr) -> Result<TcpListener, CliError> {
    let failed = |error: std::io::Error| {
        CliError::new(Outcome::Unreachable, format!("cannot listen on `{at}`: {error}"))
    };
    let listener = TcpListener::bind(at).await.map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    ui::data(&format!("http://{at}/\n"));
    Ok(listener)
}

/// The error of a server that has ended by itself.
pub(crate) fn ended(served: std::io::Result<()>) -> CliError {
    let why = served.err().map_or_else(|| "it ended".into(), |error| error.to_string());
    CliError::new(Outcome::Unreachable, format!("cannot serve the page: {why}"))
}

/// The address as a browser names it.
fn host(at: SocketAddr) -> String {
    match at {
        SocketAddr::V4(at) => at.ip().to_string(),
        SocketAddr::V6(at) => format!("[{}]", at.ip()),
    }
}

fn too_open(at: SocketAddr) -> CliError {
    let why = format!("other machines can reach `{at}`, so a token is needed");
    CliError::usage(why).hint("add --auth-token-file FILE, or listen on 127.0.0.1 behind a proxy")
}

/// The token in a file. Error messages do not repeat it.
fn auth_token(path: &Path) -> Result<String, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        CliError::usage(format!("cannot read the token from `{shown}`: {}", text::chain(&error)))
    })?;
    let token = text.trim();
    match token.len() {
        TOKEN_LEAST.. => Ok(token.into()),
        length => Err(CliError::usage(format!(
            "the token in `{shown}` has {length} characters, at least {TOKEN_LEAST} are needed"
        ))),
    }
}
