//! `tenure release`: gives back what `tenure acquire` took, by its token.
//!
//! In: a key and a token. Out: a free lock, or word that it was not ours any more. What has no token
//! is in `force.rs`.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use tenure::{Error, Key, Locker, Token, WrittenLease};

use crate::args::{Everywhere, ReleaseArgs};
use crate::force::Forcing;
use crate::output;
use crate::status::Outcome;
use crate::talk::Talk;
use crate::text;
use crate::trouble::{self, Trouble};
use crate::url::{self, Place};

/// How long the lock is ours once we have found it: long enough for two requests and their
/// time-outs, and no great loss if we die in between.
const GRASP: Duration = Duration::from_secs(10);
/// How long a release that was not answered is repeated before we go.
const FAREWELL: Duration = Duration::from_secs(5);

/// Gives the lock back.
pub(crate) fn release(args: &ReleaseArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    match checked(args, flags, talk) {
        Ok(None) => 0,
        Ok(Some(outcome)) => outcome.code(),
        Err(trouble) => talk.trouble(&trouble),
    }
}

/// No outcome: it went as it should.
fn checked(
    args: &ReleaseArgs,
    flags: &Everywhere,
    talk: &mut Talk,
) -> Result<Option<Outcome>, Trouble> {
    let key = trouble::key(&args.key)?;
    let token = token(args)?;
    let place = Place::find(flags)?;
    place.introduce(talk);
    if let (Some(_), Some(engine)) = (token, place.confined()) {
        return Err(refused(engine, &key));
    }
    url::runtime()?.block_on(async {
        let locker = place.look().await?;
        let freed = match token {
            Some(token) => by_token(&locker, &key, token, talk).await,
            None => Forcing { args, key: &key, place: &place, locker: &locker, talk }.go().await,
        };
        locker.shutdown(FAREWELL).await;
        freed.map_err(|unfreed| unfreed.trouble(&place))
    })
}

/// Why nothing was freed: the engine's words, or ours.
pub(crate) enum Unfreed {
    Engine(Error),
    Ours(Trouble),
}

impl From<Error> for Unfreed {
    fn from(error: Error) -> Self {
        Unfreed::Engine(error)
    }
}

impl From<Trouble> for Unfreed {
    fn from(trouble: Trouble) -> Self {
        Unfreed::Ours(trouble)
    }
}

impl Unfreed {
    fn trouble(self, place: &Place) -> Trouble {
        match self {
            Unfreed::Engine(error) => place.trouble(&error),
            Unfreed::Ours(trouble) => trouble,
        }
    }
}

fn refused(engine: &str, key: &Key) -> Trouble {
    let why = format!("there are no tokens here: a lock of `{engine}` ends with its process");
    Trouble::usage(why).hint(output::paste("show", None, key.as_str()))
}

/// The token that was given, if one was. It is not repeated in a message: it may be nearly right.
fn token(args: &ReleaseArgs) -> Result<Option<Token>, Trouble> {
    let text = match (&args.token, &args.token_file) {
        (Some(token), _) => token.clone(),
        (None, Some(path)) => read(path)?,
        (None, None) => return Ok(None),
    };
    let wrong = "invalid token: expected the 32 hexadecimal digits that `tenure acquire` printed";
    Token::parse(text.trim()).map(Some).ok_or_else(|| Trouble::usage(wrong))
}

fn read(path: &Path) -> Result<String, Trouble> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => io::stdin().read_to_string(&mut text).map(|_| text),
        _ => fs::read_to_string(path),
    };
    read.map_err(|error| {
        let (shown, cause) = (path.display(), text::chain(&error));
        Trouble::usage(format!("cannot read the token from `{shown}`: {cause}"))
    })
}

async fn by_token(
    locker: &Locker,
    key: &Key,
    token: Token,
    talk: &mut Talk,
) -> Result<Option<Outcome>, Unfreed> {
    let written = WrittenLease::from_token(key, token, GRASP);
    let freed = async { locker.adopt(&written).await?.release().await };
    match freed.await {
        Ok(_) => talk.say(&output::released(key.as_str())),
        Err(error) if error.is_lost() => {
            // Whoever has it now is a help to know, and no more than that.
            let now = locker.inspect(key.as_str()).await.unwrap_or_default();
            talk.insist(&output::not_ours(key.as_str(), now.as_ref()));
            return Ok(Some(Outcome::Lost));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(None)
}
