//! `tenure release`: releases a lock of `tenure acquire` by its token.
//!
//! In: a key and a token. Out: a free lock, or the message that the token no longer holds it. A release
//! without a token is in `force.rs`.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use tenure::{Error, ExportedLease, Key, Locker, Token};

use crate::args::{GlobalArgs, ReleaseArgs};
use crate::error::{self, CliError};
use crate::force::Forcing;
use crate::json::TOKEN_SHOWN;
use crate::output;
use crate::status::Outcome;
use crate::target::{self, Target};
use crate::text;
use crate::ui::Ui;

/// The ttl of the adopted lock: long enough for two requests and their time-outs, and short enough that a
/// crash in between does little harm.
const GRASP: Duration = Duration::from_secs(10);
/// How long an unanswered release is retried before we exit.
const FAREWELL: Duration = Duration::from_secs(5);

pub(crate) fn release(args: &ReleaseArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match checked(args, flags, ui) {
        Ok(None) => 0,
        Ok(Some(outcome)) => outcome.code(),
        Err(trouble) => ui.trouble(&trouble),
    }
}

/// `None` means success.
fn checked(
    args: &ReleaseArgs,
    flags: &GlobalArgs,
    ui: &mut Ui,
) -> Result<Option<Outcome>, CliError> {
    let key = error::key(&args.key)?;
    let token = token(args)?;
    let target = Target::find(flags)?;
    target.introduce(ui);
    if let (Some(_), Some(engine)) = (token, target.is_local()) {
        return Err(refused(engine, &key));
    }
    target::runtime()?.block_on(async {
        let locker = target.look().await?;
        let freed = match token {
            Some(token) => by_token(&locker, &key, token, ui).await,
            None => Forcing { args, key: &key, target: &target, locker: &locker, ui }.go().await,
        };
        locker.shutdown(FAREWELL).await;
        freed.map_err(|unfreed| unfreed.trouble(&target))
    })
}

/// Why the lock was not released: an error of the engine, or of ours.
pub(crate) enum Unfreed {
    Engine(Error),
    Ours(CliError),
}

impl From<Error> for Unfreed {
    fn from(error: Error) -> Self {
        Unfreed::Engine(error)
    }
}

impl From<CliError> for Unfreed {
    fn from(trouble: CliError) -> Self {
        Unfreed::Ours(trouble)
    }
}

impl Unfreed {
    fn trouble(self, target: &Target) -> CliError {
        match self {
            Unfreed::Engine(error) => target.trouble(&error),
            Unfreed::Ours(trouble) => trouble,
        }
    }
}

fn refused(engine: &str, key: &Key) -> CliError {
    let why = format!("`{engine}` has no tokens: its locks end with their process");
    CliError::usage(why).hint(output::paste("show", None, key.as_str()))
}

/// The token from the command line or a file, if there is one. Error messages do not repeat it: a mistyped
/// token may be nearly right, and it is secret.
fn token(args: &ReleaseArgs) -> Result<Option<Token>, CliError> {
    let text = match (&args.token, &args.token_file) {
        // The start of a token, which names one of several holders.
        _ if args.force => return args.token.as_deref().map_or(Ok(()), start).map(|()| None),
        (Some(token), _) => token.clone(),
        (None, Some(path)) => read(path)?,
        (None, None) => return Ok(None),
    };
    let wrong = "invalid token: expected the 32 hexadecimal digits that `tenure acquire` printed";
    Token::parse(text.trim()).map(Some).ok_or_else(|| CliError::usage(wrong))
}

/// Checks the start of a token. It is no secret: `show` prints it.
fn start(text: &str) -> Result<(), CliError> {
    let digits = text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
    match digits && (TOKEN_SHOWN..=32).contains(&text.len()) {
        true => Ok(()),
        false => Err(CliError::usage(format!(
            "invalid start of a token: expected the {TOKEN_SHOWN} hexadecimal digits that \
             `tenure show` prints"
        ))),
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => io::stdin().read_to_string(&mut text).map(|_| text),
        _ => fs::read_to_string(path),
    };
    read.map_err(|error| {
        let (shown, cause) = (path.display(), text::chain(&error));
        CliError::usage(format!("cannot read the token from `{shown}`: {cause}"))
    })
}

async fn by_token(
    locker: &Locker,
    key: &Key,
    token: Token,
    ui: &mut Ui,
) -> Result<Option<Outcome>, Unfreed> {
    let written = ExportedLease::from_token(key, token, GRASP);
    let freed = async { locker.adopt(&written).await?.release().await };
    match freed.await {
        Ok(_) => ui.info(&output::released(key.as_str())),
        Err(error) if error.is_lost() => {
            // The present holder is only extra information, so an error here is ignored.
            let now = locker.inspect(key.as_str()).await.unwrap_or_default();
            ui.always(&output::not_ours(key.as_str(), now.as_ref()));
            return Ok(Some(Outcome::Lost));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(None)
}
