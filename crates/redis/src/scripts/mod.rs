//! The scripts, each behind one typed function. Nothing above this file sees a `redis::Value`.
//!
//! In: a claim or lease, spelled out. Out: what the server made of it. A script runs by its hash,
//! and by its text where the server does not know it (any more): `SCRIPT FLUSH` and restarts heal.
//!
//! Every answer starts with the token that was asked about. If it is another's, replies have
//! shifted, and the connection is dropped.

mod answer;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, Script, Value};
use tenure_core::Token;

use crate::link::{Link, Live};
use crate::trouble::{Cause, Trouble};
pub(crate) use answer::{Answer, Asked, Freed, Renewed};

/// A script in its two forms: since version 7 it says under which conditions it may run.
pub(crate) struct Form {
    plain: Script,
    flagged: Script,
    text: String,
    flagged_text: String,
}

impl Form {
    fn new(header: &str, text: &str) -> Self {
        let flagged_text = format!("{header}\n{text}");
        Form {
            plain: Script::new(text),
            flagged: Script::new(&flagged_text),
            text: text.into(),
            flagged_text,
        }
    }

    fn hash(&self, live: &Live) -> &str {
        if live.has_flags() { self.flagged.get_hash() } else { self.plain.get_hash() }
    }

    fn text(&self, live: &Live) -> &str {
        if live.has_flags() { &self.flagged_text } else { &self.text }
    }
}

/// Refused up front by a full server, and by a replica.
const STRICT: &str = "#!lua";
/// What gives memory back, or keeps what is there, must work on a full server.
const ALWAYS: &str = "#!lua flags=allow-oom";

static ACQUIRE: LazyLock<Form> = LazyLock::new(|| Form::new(STRICT, include_str!("acquire.lua")));
static RELEASE: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, include_str!("release.lua")));
static RENEW: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, include_str!("renew.lua")));
static FORCE: LazyLock<Form> = LazyLock::new(|| Form::new(ALWAYS, include_str!("force.lua")));

/// One run of a script: which, on which keys, with what. The first argument is always the token.
pub(crate) struct Run {
    form: &'static Form,
    keys: Vec<String>,
    token: String,
    args: Vec<String>,
}

impl Run {
    /// Take the lock if it is free.
    pub(crate) fn acquire(
        lock: String,
        fence: &str,
        token: Token,
        value: String,
        ttl: Duration,
    ) -> Self {
        Self::of(&ACQUIRE, vec![lock, fence.into()], token, vec![value, millis(ttl)])
    }

    /// Free it, or keep it closed for a while.
    pub(crate) fn release(lock: String, token: Token, closed: Option<Duration>) -> Self {
        // Closed for less than the server can count is still closed, not free.
        let closed =
            closed.map_or_else(|| "0".into(), |rest| millis(rest.max(Duration::from_millis(1))));
        Self::of(&RELEASE, vec![lock], token, vec![closed])
    }

    /// Make it last.
    pub(crate) fn renew(lock: String, forced: String, token: Token, ttl: Duration) -> Self {
        Self::of(&RENEW, vec![lock, forced], token, vec![millis(ttl)])
    }

    /// Take it from the claim with this token.
    pub(crate) fn force(lock: String, forced: String, token: Token, by: &str) -> Self {
        Self::of(&FORCE, vec![lock, forced], token, vec![by.into()])
    }

    fn of(form: &'static Form, keys: Vec<String>, token: Token, args: Vec<String>) -> Self {
        Run { form, keys, token: token.expose(), args }
    }

    fn by_hash(&self, live: &Live) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        self.complete(command.arg(self.form.hash(live)));
        command
    }

    fn by_text(&self, live: &Live) -> Cmd {
        let mut command = redis::cmd("EVAL");
        self.complete(command.arg(self.form.text(live)));
        command
    }

    fn complete(&self, command: &mut Cmd) {
        command.arg(self.keys.len()).arg(&self.keys).arg(&self.token).arg(&self.args);
    }

    /// Runs it, and reads the answer.
    pub(crate) async fn on<A: Answer>(&self, link: &Link) -> Result<A, Trouble> {
        let live = link.live().await?;
        match link.call(&live, &self.by_hash(&live)).await {
            Err(trouble) if trouble.cause() == Cause::NoScript => self.anew(link, &live).await,
            reply => self.read(link, &live, reply?),
        }
    }

    /// Runs it by its text, which also makes it known.
    async fn anew<A: Answer>(&self, link: &Link, live: &Arc<Live>) -> Result<A, Trouble> {
        let reply = link.call(live, &self.by_text(live)).await?;
        self.read(link, live, reply)
    }

    fn read<A: Answer>(&self, link: &Link, live: &Arc<Live>, reply: Value) -> Result<A, Trouble> {
        A::read(&self.token, reply).ok_or_else(|| link.out_of_turn(live))
    }
}

/// Runs all of `runs` in one go within `within`, and reads each answer.
pub(crate) async fn run_all<A: Answer>(
    link: &Link,
    runs: &[Run],
    within: Duration,
) -> Result<Vec<Result<A, Trouble>>, Trouble> {
    let live = link.live().await?;
    let mut pipe = Pipeline::with_capacity(runs.len());
    for run in runs {
        pipe.add_command(run.by_hash(&live));
    }
    let mut replies = link.call_all(&live, &pipe, within).await?;
    heal(link, &live, runs, &mut replies, within).await?;
    let read = |(run, reply): (&Run, Result<Value, Trouble>)| run.read(link, &live, reply?);
    Ok(runs.iter().zip(replies).map(read).collect())
}

/// Runs those again whose script the server does not know. The first goes by its text, which makes
/// it known to the others.
async fn heal(
    link: &Link,
    live: &Arc<Live>,
    runs: &[Run],
    replies: &mut [Result<Value, Trouble>],
    within: Duration,
) -> Result<(), Trouble> {
    let unknown = |reply: &Result<Value, Trouble>| {
        reply.as_ref().is_err_and(|trouble| trouble.cause() == Cause::NoScript)
    };
    let mut missing =
        runs.iter().zip(replies).filter(|(_, reply)| unknown(reply)).collect::<Vec<_>>();
    if missing.is_empty() {
        return Ok(());
    }
    let mut pipe = Pipeline::with_capacity(missing.len());
    for (index, (run, _)) in missing.iter().enumerate() {
        pipe.add_command(if index == 0 { run.by_text(live) } else { run.by_hash(live) });
    }
    let healed = link.call_all(live, &pipe, within).await?;
    for ((_, reply), again) in missing.iter_mut().zip(healed) {
        **reply = again;
    }
    Ok(())
}

/// Whole milliseconds, rounded up: a ttl is never shorter than what we count with.
fn millis(duration: Duration) -> String {
    duration.as_nanos().div_ceil(1_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ttl is never rounded down, and never to zero.
    #[test]
    fn t55_millis_round_up() {
        assert_eq!(millis(Duration::from_millis(1_500)), "1500");
        assert_eq!(millis(Duration::from_nanos(1)), "1");
        assert_eq!(millis(Duration::from_micros(1_001)), "2");
    }

    /// Every script says its keys, arguments, answers, retry and slots.
    #[test]
    fn headers_are_complete() {
        for form in [&ACQUIRE, &RELEASE, &RENEW, &FORCE] {
            for word in
                ["-- KEYS[1] lock ", "-- ARGV[1] token", "-- Returns", "-- Retry", "-- Slots"]
            {
                assert!(form.text.contains(word), "`{word}` is missing from:\n{}", form.text);
            }
        }
    }
}
