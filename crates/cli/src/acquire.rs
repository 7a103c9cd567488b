//! `tenure acquire`: a lock that outlives us, for scripts.
//!
//! In: the command line. Out: the token on stdout, and the lock held under it until its ttl has
//! passed or `tenure release` gives it back. Nobody renews it meanwhile, so the ttl is not ours to
//! choose. A token that cannot be handed over leaves no lock behind.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fstat, stat};
use serde::Serialize;
use tenure::time::UnixMillis;
use tenure::{Guard, Key, Locker, Renew, WrittenLease};
use tokio::sync::oneshot;

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
    if is_closed(io::stdout()) {
        return Err(Trouble::usage(format!("cannot print the token of `{key}`: stdout is closed")));
    }
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
                self.hand_over(locker, guard, waited, signals).await
            }
            Waited::Interrupted(signal) => Ok(Some(Outcome::Interrupted(signal as i32))),
            Waited::Failed(error) => wait::failed(&error, self.key, asking, self.place, self.talk)
                .map(|()| Some(Outcome::NotAcquired)),
        };
        wait::farewell(locker, signals).await;
        result
    }

    /// The lock is ours: it becomes the script's, if the script reads its token while it is worth something.
    async fn hand_over(
        &mut self,
        locker: &Locker,
        guard: Guard,
        waited: Duration,
        signals: &mut Signals,
    ) -> Result<Option<Outcome>, Trouble> {
        let (fence, left) = (guard.fence().to_string(), guard.remaining());
        let written = guard.detach().write_down().await;
        let written = written.map_err(|error| self.place.trouble(&error))?;
        let until = UnixMillis(UnixMillis::now().0.saturating_add(millis(left)));
        let token = written.token().expose();
        let text =
            if self.args.json { self.as_json(&token, &fence, until, waited) } else { token + "\n" };
        let why = tokio::select! {
            biased;
            printed = print(text) => match printed {
                Ok(()) => {
                    self.say_how_long(until);
                    return Ok(None);
                }
                Err(error) => error.to_string(),
            },
            signal = signals.next() => {
                if let Err(cause) = self.take_back(locker, &written).await {
                    self.talk.insist(&output::not_released(self.key.as_str(), &cause));
                }
                return Ok(Some(Outcome::Interrupted(signal as i32)));
            }
            () = tokio::time::sleep(left) => "nobody has read it".into(),
        };
        let undone = self.take_back(locker, &written).await;
        let then = undone.map_or_else(|cause| cause, |()| "the lock was given back".into());
        Err(Trouble::usage(format!("cannot print the token of `{}`: {why}; {then}", self.key)))
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

    /// Nobody knows the token, so nobody else could give the lock back.
    async fn take_back(&self, locker: &Locker, written: &WrittenLease) -> Result<(), String> {
        let undone = async { locker.adopt(written).await?.release().await };
        undone.await.map(drop).map_err(|error| self.place.scrub(&text::chain(&error)))
    }
}

/// Whether nobody can read what is written here. The standard library opens `/dev/null` for reading and
/// writing in the place of a stream that was closed; a shell's `>/dev/null` is for writing only.
fn is_closed(stream: impl AsFd) -> bool {
    let opened = fcntl_getfl(&stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    let device = |stat: Stat| stat.st_rdev;
    opened && fstat(&stream).map(device) == stat("/dev/null").map(device)
}

/// Prints on a thread that nobody waits for: a write cannot be cancelled. Not by way of `Stdout`, which
/// takes a stream that cannot be written to for written.
async fn print(text: String) -> io::Result<()> {
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new().spawn(move || tell.send(stdout.write_all(text.as_bytes())))?;
    told.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
