//! Requests while a slot moves from one node of a cluster to another.
//!
//! In: a request that a node did not execute because the slot moves. Out: its reply, from the node that has
//! the key.
//!
//! Keys move one by one. A script with several keys is refused while some of them are on one node and some on
//! the other, or absent. So the script runs in steps, each with one of its keys. A step goes first to the node
//! that owns the slot. This node executes it if it has the key; otherwise it names the other node (`ASK`), which
//! executes it after `ASKING`.
//!
//! The owner's reply to the whole script does not tell where a single key is: before Redis 7.0.3 it is `ASK`
//! as soon as any of the keys is missing, even if the lock is still there.

use redis::{Arg, Value};

use super::run::read;
use super::{Answer, ScriptCall};
use crate::error::{Cause, EngineError};
use crate::link::{Link, SendMode};
use crate::wire::command::CommandWriter;

/// The index of a script's first key among the arguments of a request.
const FIRST_KEY: usize = 3;

/// What to run instead of a script while its slot moves.
pub(super) enum WhileMoving {
    /// The same script, on the other node if we are redirected: it has one key, or needs all of them.
    Same,
    /// Nothing: a short script leaves the case to the full one.
    UseFull,
    /// The script with one key at a time: the indexes of the keys. It gets all its arguments, followed by the
    /// data that the previous step passed on. It replies as with all keys, or with `next` and the data to pass
    /// on.
    Steps(&'static [usize]),
}

/// The lock first, then its fence: a fence that is drawn while the lock is ours is higher than the fences of
/// all earlier holders. If a step fails, the lock stays with the claim, which asks again or is abandoned.
pub(super) const ACQUIRE: WhileMoving = WhileMoving::Steps(&[0, 1]);
/// The lock first: it is free even if the node with the queue does not answer. Then the queue and the
/// heartbeats.
pub(super) const RELEASE: WhileMoving = WhileMoving::Steps(&[0, 2, 3]);
/// For a shared owner, our claim in `holders` is renewed before the lock. The lock lives as long as the
/// claims in `holders`, so it cannot end between the two steps before our lease does.
pub(super) const RENEW: WhileMoving = WhileMoving::Steps(&[0, 2, 0]);

/// Which connection to the other node carries a request: the one of the same kind.
#[derive(Clone, Copy)]
pub(super) enum Lane {
    Commands,
    /// On the engine's own thread.
    Renewals,
}

/// The reply of a step.
enum Stepped<A> {
    Done(A),
    /// The data to pass on to the next step.
    Next(Vec<u8>),
}

impl<A: Answer> Answer for Stepped<A> {
    fn of(word: &str, rest: &mut dyn Iterator<Item = Value>) -> Option<Self> {
        match (word, rest.next()) {
            ("next", Some(Value::BulkString(passed))) => Some(Stepped::Next(passed)),
            (word, first) => A::of(word, &mut first.into_iter().chain(rest)).map(Stepped::Done),
        }
    }

    fn read_line(token: &str, line: &str) -> Option<Self> {
        A::read_line(token, line).map(Stepped::Done)
    }
}

impl ScriptCall {
    /// Runs the request that `error` prevented from being executed.
    pub(super) async fn moving<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        error: EngineError,
    ) -> Result<A, EngineError> {
        match self.form.map(|form| &form.moving) {
            None | Some(WhileMoving::Same) => {
                self.elsewhere(link, lane, self.lock_name(), error).await
            }
            Some(WhileMoving::UseFull) => self.use_full().ok_or(error),
            Some(WhileMoving::Steps(keys)) => self.by_steps(link, lane, keys, error).await,
        }
    }

    /// Runs a renewal, or another request of the connection for renewals, that `error` prevented.
    pub(crate) async fn renew_moving<A: Answer>(
        &self,
        link: &Link,
        error: EngineError,
    ) -> Result<A, EngineError> {
        self.moving(link, Lane::Renewals, error).await
    }

    async fn by_steps<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        keys: &[usize],
        error: EngineError,
    ) -> Result<A, EngineError> {
        let mut passed: Option<Vec<u8>> = None;
        for key in keys {
            let run = self.step(*key, passed.as_deref());
            passed = match run.at_either(link, lane, self.lock_name()).await {
                Ok(Stepped::Done(answer)) => return Ok(answer),
                Ok(Stepped::Next(next)) => Some(next),
                // A lock that was freed is free, whatever happens to the entry in the queue.
                Err(_) if passed.as_deref() == Some(b"freed") => break,
                Err(error) => return Err(error),
            };
        }
        // The last step of a release passes on the result for the lock.
        let result = passed.as_deref().and_then(|passed| str::from_utf8(passed).ok());
        result.and_then(|word| A::of(word, &mut std::iter::empty())).ok_or(error)
    }

    /// Asks the owner of the slot, and the other node if the owner does not have the key.
    async fn at_either<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        lock: &[u8],
    ) -> Result<A, EngineError> {
        match self.by(link, SendMode::Plain).await {
            Err(error) if error.is_moving() => self.elsewhere(link, lane, lock, error).await,
            answer => answer,
        }
    }

    /// Asks the node that `error` names, on the connection that is used for this lock.
    async fn elsewhere<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        lock: &[u8],
        error: EngineError,
    ) -> Result<A, EngineError> {
        let Some(there) = error.redirect().and_then(|redirect| link.redirect_target(redirect))
        else {
            return Err(error);
        };
        let link = match lane {
            Lane::Commands => there.of_lock(lock),
            Lane::Renewals => there.renewals(),
        };
        self.by(link, SendMode::Asking).await
    }

    async fn by<A: Answer>(&self, link: &Link, way: SendMode) -> Result<A, EngineError> {
        let live = link.live().await?;
        match link.call_by(&live, self.by_hash(&live), way).await {
            Err(error) if error.cause() == Cause::NoScript => self.anew(link, &live, way).await,
            reply => read(self.token, link, &live, reply?),
        }
    }

    /// The request of one step, with this key.
    fn step(&self, key: usize, passed: Option<&[u8]>) -> ScriptCall {
        let mut words = CommandWriter::new(&["EVALSHA"]);
        for word in [self.word(1), b"1", self.word(FIRST_KEY + key)] {
            words.add_bytes(word);
        }
        self.command.args_iter().skip(self.first_argument()).for_each(|arg| words.add_arg(&arg));
        passed.inspect(|passed| words.add_bytes(passed));
        let (form, token) = (self.form, self.token);
        ScriptCall { form, token, command: words.command(), way: SendMode::Plain }
    }

    /// The reply `use_full` of a short script: while a slot moves, only the full script can be used.
    fn use_full<A: Answer>(&self) -> Option<A> {
        let line = [self.word(self.first_argument()), b" use_full"].concat();
        A::read(&self.token.digits(), Value::BulkString(line))
    }

    /// The first key of a script: the key of the lock.
    fn lock_name(&self) -> &[u8] {
        self.word(if self.form.is_some() { FIRST_KEY } else { 1 })
    }

    /// The index of a script's first argument among the arguments of a request.
    fn first_argument(&self) -> usize {
        let keys = self.form.and_then(|form| form.keys.parse::<usize>().ok());
        FIRST_KEY + keys.unwrap_or_default()
    }

    fn word(&self, index: usize) -> &[u8] {
        match self.command.args_iter().nth(index) {
            Some(Arg::Simple(word)) => word,
            _ => b"",
        }
    }
}

impl CommandWriter {
    fn add_arg(&mut self, arg: &Arg<&[u8]>) {
        if let Arg::Simple(word) = arg {
            self.add_bytes(word);
        }
    }
}
