//! `tenure acquire`: a lock that outlives our process, for scripts.
//!
//! In: the command line. Out: the token on stdout, and a lock that is held under it until its ttl has passed
//! or `tenure release` releases it. Nothing renews the lock in between, so the caller must choose the ttl. If
//! the token cannot be printed, the lock is released.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fstat, stat};
use serde::Serialize;
use tenure::time::UnixMillis;
use tenure::{ExportedLease, Guard, Key, Locker, Mode, Renew};
use tokio::sync::oneshot;

use crate::args::{AcquireArgs, GlobalArgs};
use crate::error::{self, CliError};
use crate::json::{SCHEMA, json};
use crate::output;
use crate::signals::Signals;
use crate::status::{Outcome, millis};
use crate::target::{self, Target};
use crate::text;
use crate::ui::Ui;
use crate::wait::{self, Waited, Wanted};

/// Acquires the lock and prints its token.
pub(crate) fn acquire(args: &AcquireArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    match checked(args, flags, ui) {
        Ok(None) => 0,
        Ok(Some(Outcome::NotAcquired)) => {
            let other = args.asking.conflict_exit_code;
            other.unwrap_or_else(|| Outcome::NotAcquired.code())
        }
        Ok(Some(outcome)) => outcome.code(),
        Err(trouble) => ui.trouble(&trouble),
    }
}

/// `None` means success.
fn checked(
    args: &AcquireArgs,
    flags: &GlobalArgs,
    ui: &mut Ui,
) -> Result<Option<Outcome>, CliError> {
    let key = error::key(&args.key)?;
    if is_closed(io::stdout()) {
        return Err(CliError::usage(format!(
            "cannot print the token of `{key}`: stdout is closed"
        )));
    }
    let target = Target::find(flags)?;
    if let Some(engine) = target.is_local() {
        target.introduce(ui);
        return Err(refused(engine));
    }
    let taking = Taking { args, key: &key, target: &target, ui };
    target::runtime()?.block_on(taking.go())
}

fn refused(engine: &str) -> CliError {
    let why =
        format!("`tenure acquire` needs a server: a lock of `{engine}` ends with its process");
    CliError::usage(why).hint("name a server with --url, or use `tenure run`")
}

/// One `tenure acquire` in progress.
struct Taking<'a> {
    args: &'a AcquireArgs,
    key: &'a Key,
    target: &'a Target,
    ui: &'a mut Ui,
}

impl Taking<'_> {
    async fn go(mut self) -> Result<Option<Outcome>, CliError> {
        let mut signals = Signals::ending()?;
        match wait::connect(self.target, &self.args.asking, &mut signals, self.ui).await {
            Ok(locker) => self.with(&locker?, &mut signals).await,
            Err(signal) => Ok(Some(Outcome::Interrupted(signal as i32))),
        }
    }

    async fn with(
        &mut self,
        locker: &Locker,
        signals: &mut Signals,
    ) -> Result<Option<Outcome>, CliError> {
        let start = locker.clock().now();
        let AcquireArgs { ttl, asking, .. } = self.args;
        let request = locker.lock(self.key.as_str()).renew(Renew::Off);
        let request = wait::request(request, *ttl, asking);
        let longest = wait::gives_up_after(asking, self.target);
        let wanted = Wanted { keys: std::slice::from_ref(self.key), mode: &Mode::Exclusive };
        let waited = wait::acquire(locker, wanted, request, longest, signals, self.ui).await;
        let result = match waited {
            Waited::Acquired(guard) => {
                let waited = locker.clock().now().since(start);
                self.hand_over(locker, guard, waited, signals).await
            }
            Waited::Interrupted(signal) => Ok(Some(Outcome::Interrupted(signal as i32))),
            Waited::Failed(error, waited) => {
                wait::failed(&error, waited, self.key, asking, self.target, self.ui)
                    .map(|()| Some(Outcome::NotAcquired))
            }
        };
        wait::shutdown(locker, &result, signals).await;
        result
    }

    /// Exports the acquired lock and prints its token, if the token can be printed before the lease ends.
    /// Otherwise the lock is released.
    async fn hand_over(
        &mut self,
        locker: &Locker,
        guard: Guard,
        waited: Duration,
        signals: &mut Signals,
    ) -> Result<Option<Outcome>, CliError> {
        let (fence, left) = (guard.fence().to_string(), guard.remaining());
        let written = guard.detach().export().await;
        let written = written.map_err(|error| self.target.trouble(&error))?;
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
                    self.ui.always(&output::not_released(self.key.as_str(), &cause));
                }
                return Ok(Some(Outcome::Interrupted(signal as i32)));
            }
            () = tokio::time::sleep(left) => "it was not read".into(),
        };
        let undone = self.take_back(locker, &written).await;
        let then = undone.map_or_else(|cause| cause, |()| "the lock was released".into());
        Err(CliError::usage(format!("cannot print the token of `{}`: {why}; {then}", self.key)))
    }

    fn as_json(&self, token: &str, fence: &str, until: UnixMillis, waited: Duration) -> String {
        #[derive(Serialize)]
        struct Acquired<'a> {
            schema: u32,
            key: &'a str,
            token: &'a str,
            /// A string: a JSON reader that uses doubles would round a number.
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
        self.ui.info(&output::not_renewed(key, self.args.ttl, until));
        // Only a person at a terminal needs the hint; a script reads the token from stdout.
        if io::stdout().is_terminal() {
            let options = [self.target.option(), Some("--token TOKEN".into())];
            let options = options.into_iter().flatten().collect::<Vec<_>>().join(" ");
            self.ui.info(&output::hint(&output::paste("release", Some(&options), key)));
        }
    }

    /// Releases the lock. Only this process knows the token, so no other process could.
    async fn take_back(&self, locker: &Locker, written: &ExportedLease) -> Result<(), String> {
        let undone = async { locker.adopt(written).await?.release().await };
        undone.await.map(drop).map_err(|error| self.target.scrub(&text::chain(&error)))
    }
}

/// Whether stdout was closed when we started. The standard library replaces a closed stream by `/dev/null`,
/// opened for reading and writing; a shell's `>/dev/null` is opened for writing only.
fn is_closed(stream: impl AsFd) -> bool {
    let opened = fcntl_getfl(&stream).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
    let device = |stat: Stat| stat.st_rdev;
    opened && fstat(&stream).map(device) == stat("/dev/null").map(device)
}

/// Prints on a detached thread, because a write cannot be cancelled. `Stdout` is not used: it treats a write
/// to a closed stream as a success.
async fn print(text: String) -> io::Result<()> {
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new().spawn(move || tell.send(stdout.write_all(text.as_bytes())))?;
    told.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
