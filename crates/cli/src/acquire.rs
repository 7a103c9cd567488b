//! `tenure acquire`: a lock that outlives us, for scripts.
//!
//! In: the command line. Out: the token on stdout, and the lock held under it until its ttl has
//! passed or `tenure release` gives it back. Nobody renews it meanwhile, so the ttl is not ours to
//! choose. A token that cannot be handed over leaves no lock behind.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use serde::Serialize;
use tenure::time::UnixMillis;
use tenure::{Guard, Key, Locker, Renew, WrittenLease};

use crate::args::{AcquireArgs, Everywhere};
use crate::output;
use crate::signals::Signals;
use crate::status::{Outcome, millis};
use crate::talk::Talk;
use crate::text;
use crate::trouble::{self, Trouble};
use crate::url::{self, Place};
use crate::view::{SCHEMA, json};
use crate::wait::{self, Waited};

/// Takes the lock and prints its token.
pub(crate) fn acquire(args: &AcquireArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    match checked(args, flags, talk) {
        Ok(None) => 0,
        Ok(Some(Outcome::NotAcquired)) => {
            let other = args.asking.conflict_exit_code;
            other.unwrap_or_else(|| Outcome::NotAcquired.code())
        }
        Ok(Some(outcome)) => outcome.code(),
        Err(trouble) => talk.trouble(&trouble),
    }
}

/// No outcome: it went as it should.
fn checked(
    args: &AcquireArgs,
    flags: &Everywhere,
    talk: &mut Talk,
) -> Result<Option<Outcome>, Trouble> {
    let key = trouble::key(&args.key)?;
    let place = Place::find(flags)?;
    if let Some(engine) = place.confined() {
        place.introduce(talk);
        return Err(refused(engine));
    }
    let taking = Taking { args, key: &key, place: &place, talk };
    url::runtime()?.block_on(taking.go())
}

fn refused(engine: &str) -> Trouble {
    let why =
        format!("`tenure acquire` needs a server: a lock of `{engine}` ends with its process");
    Trouble::usage(why).hint("name a server with --url, or put the work under `tenure run`")
}

/// One lock, on its way to a script.
struct Taking<'a> {
    args: &'a AcquireArgs,
    key: &'a Key,
    place: &'a Place,
    talk: &'a mut Talk,
}

impl Taking<'_> {
    async fn go(mut self) -> Result<Option<Outcome>, Trouble> {
        let mut signals = Signals::ending()?;
        match wait::connect(self.place, &mut signals, self.talk).await {
            Ok(locker) => self.with(&locker?, &mut signals).await,
            Err(signal) => Ok(Some(Outcome::Interrupted(signal as i32))),
        }
    }

    async fn with(
        &mut self,
        locker: &Locker,
        signals: &mut Signals,
    ) -> Result<Option<Outcome>, Trouble> {
        let start = locker.clock().now();
        let AcquireArgs { ttl, asking, .. } = self.args;
        let request = wait::request(locker, self.key, *ttl, asking).renew(Renew::Off);
        let result = match wait::acquire(locker, self.key, request, signals, self.talk).await {
            Waited::Acquired(guard) => {
                let waited = locker.clock().now().since(start);
                self.hand_over(locker, guard, waited).await.map(|()| None)
            }
            Waited::Interrupted(signal) => Ok(Some(Outcome::Interrupted(signal as i32))),
            Waited::Failed(error) => wait::failed(&error, self.key, asking, self.place, self.talk)
                .map(|()| Some(Outcome::NotAcquired)),
        };
        wait::farewell(locker, signals).await;
        result
    }

    /// The lock is ours: it becomes the script's. A signal that comes now changes nothing any more.
    async fn hand_over(
        &mut self,
        locker: &Locker,
        guard: Guard,
        waited: Duration,
    ) -> Result<(), Trouble> {
        let (fence, left) = (guard.fence().to_string(), guard.remaining());
        let written = guard.detach().write_down().await;
        let written = written.map_err(|error| self.place.trouble(&error))?;
        let until = UnixMillis(UnixMillis::now().0.saturating_add(millis(left)));
        let token = written.token().expose();
        let text =
            if self.args.json { self.as_json(&token, &fence, until, waited) } else { token + "\n" };
        match print(&text) {
            Ok(()) => self.say_how_long(until),
            Err(error) => return Err(self.take_back(locker, &written, &error).await),
        }
        Ok(())
    }

    fn as_json(&self, token: &str, fence: &str, until: UnixMillis, waited: Duration) -> String {
        #[derive(Serialize)]
        struct Acquired<'a> {
            schema: u32,
            key: &'a str,
            token: &'a str,
            /// A string: as a number it would not survive a reader that uses doubles.
            fence: &'a str,
            ttl_ms: u64,
            valid_until_unix_ms: u64,
            waited_ms: u64,
        }
        json(&Acquired {
            schema: SCHEMA,
            key: self.key.as_str(),
            token,
            fence,
            ttl_ms: millis(self.args.ttl),
            valid_until_unix_ms: until.0,
            waited_ms: millis(waited),
        })
    }

    fn say_how_long(&mut self, until: UnixMillis) {
        let key = self.key.as_str();
        self.talk.say(&output::not_renewed(key, self.args.ttl, until));
        // A script knows what to do with what it reads; a person has it before their eyes.
        if io::stdout().is_terminal() {
            let options = [self.place.option(), Some("--token TOKEN".into())];
            let options = options.into_iter().flatten().collect::<Vec<_>>().join(" ");
            self.talk.say(&output::hint(&output::paste("release", Some(&options), key)));
        }
    }

    /// Nobody knows the token, so nobody could give the lock back.
    async fn take_back(
        &self,
        locker: &Locker,
        written: &WrittenLease,
        error: &io::Error,
    ) -> Trouble {
        let undone = async { locker.adopt(written).await?.release().await };
        let then = match undone.await {
            Ok(_) => "the lock was given back".into(),
            Err(error) => self.place.scrub(&text::chain(&error)),
        };
        Trouble::usage(format!("cannot print the token of `{}`: {error}; {then}", self.key))
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}
