//! What to do while a slot moves from one node of a cluster to another.
//!
//! In: a request that a node did not carry out because of that. Out: its answer, from whichever node has
//! the key.
//!
//! Keys move one by one. A script on several keys is refused while some of them are here and some there,
//! or nowhere. So it is done in steps, each by a script on one key. The node that owns the slot is asked
//! first: it answers if it has the key, and else names the other node (`ASK`), which answers if it is
//! told that we were sent (`ASKING`).
//!
//! The answer of the owner to the whole script says nothing about a single key: before Redis 7.0.3 it is
//! `ASK` as soon as any of the keys is missing, also where the lock is still there.

use std::sync::LazyLock;

use redis::{Arg, Value};

use super::words::Words;
use super::{ALWAYS, Answer, Form, Run, STRICT, read};
use crate::link::{Link, Way};
use crate::trouble::{Cause, Trouble};

/// Where a script's keys start among the words of a request.
const FIRST_KEY: usize = 3;

/// What to do instead of a script while its slot moves.
pub(super) enum Moving {
    /// The same, at the other node if we are sent there: it has one key, or all of them are needed.
    Same,
    /// Nothing: a short form leaves it to the full one.
    More,
    /// These, one after the other.
    Steps(&'static [Step]),
}

/// A script on one key. It has the arguments of the whole, and after them what the step before it passed
/// on. It answers as the whole does, or with `next` and what to pass on.
pub(super) struct Step {
    /// Which of the keys of the whole.
    key: usize,
    pub(super) form: &'static LazyLock<Form>,
}

/// The lock first, then its number: a number that is drawn while the lock is ours is higher than those of
/// all holders before us. A step that fails leaves the lock to the claim, which asks again or is given up.
pub(super) static ACQUIRE: [Step; 2] =
    [Step { key: 0, form: &ACQUIRE_LOCK }, Step { key: 1, form: &ACQUIRE_FENCE }];
/// The lock first: it is free even if the node with the queue does not answer.
pub(super) static RELEASE: [Step; 3] = [
    Step { key: 0, form: &RELEASE_LOCK },
    Step { key: 2, form: &RELEASE_QUEUE },
    Step { key: 3, form: &RELEASE_BEAT },
];
/// Of a shared owner its share before the lock: the lock lasts as long as the shares, so it cannot end
/// between the two before our lease does.
pub(super) static RENEW: [Step; 3] = [
    Step { key: 0, form: &RENEW_LOCK },
    Step { key: 2, form: &RENEW_SHARE },
    Step { key: 0, form: &RENEW_LOCK },
];

static ACQUIRE_LOCK: LazyLock<Form> =
    LazyLock::new(|| Form::new(STRICT, "1", include_str!("moving/acquire.lua")));
static ACQUIRE_FENCE: LazyLock<Form> =
    LazyLock::new(|| Form::new(STRICT, "1", include_str!("moving/fence.lua")));
static RELEASE_LOCK: LazyLock<Form> =
    LazyLock::new(|| Form::new(ALWAYS, "1", include_str!("moving/release.lua")));
static RELEASE_QUEUE: LazyLock<Form> =
    LazyLock::new(|| Form::new(ALWAYS, "1", include_str!("moving/leave.lua")));
static RELEASE_BEAT: LazyLock<Form> =
    LazyLock::new(|| Form::new(ALWAYS, "1", include_str!("moving/beat.lua")));
static RENEW_LOCK: LazyLock<Form> =
    LazyLock::new(|| Form::new(ALWAYS, "1", include_str!("moving/renew.lua")));
static RENEW_SHARE: LazyLock<Form> =
    LazyLock::new(|| Form::new(ALWAYS, "1", include_str!("moving/share.lua")));

/// Which connection to the other node carries a request: that of the same kind.
#[derive(Clone, Copy)]
pub(super) enum Lane {
    Commands,
    /// On the engine's own thread.
    Renewals,
}

/// What a step answers.
enum Stepped<A> {
    Done(A),
    /// What to pass on to the next step.
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

impl Run {
    /// Has the request answered that `trouble` kept from being carried out.
    pub(super) async fn moving<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        trouble: Trouble,
    ) -> Result<A, Trouble> {
        match self.form.map(|form| &form.moving) {
            None | Some(Moving::Same) => {
                self.elsewhere(link, lane, self.lock_name(), trouble).await
            }
            Some(Moving::More) => self.more().ok_or(trouble),
            Some(Moving::Steps(steps)) => self.by_steps(link, lane, steps, trouble).await,
        }
    }

    /// The same for a renewal, or what else goes by the connection for renewals.
    pub(crate) async fn renew_moving<A: Answer>(
        &self,
        link: &Link,
        trouble: Trouble,
    ) -> Result<A, Trouble> {
        self.moving(link, Lane::Renewals, trouble).await
    }

    async fn by_steps<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        steps: &[Step],
        trouble: Trouble,
    ) -> Result<A, Trouble> {
        let mut passed: Option<Vec<u8>> = None;
        for step in steps {
            let run = self.step(step, passed.as_deref());
            passed = match run.at_either(link, lane, self.lock_name()).await {
                Ok(Stepped::Done(answer)) => return Ok(answer),
                Ok(Stepped::Next(next)) => Some(next),
                // What is free is free, whatever becomes of a place in the queue.
                Err(_) if passed.as_deref() == Some(b"freed") => break,
                Err(trouble) => return Err(trouble),
            };
        }
        let freed = passed.filter(|passed| passed == b"freed");
        freed.and_then(|_| A::of("freed", &mut std::iter::empty())).ok_or(trouble)
    }

    /// Asks the owner of the slot, and the other node if the owner has not got the key.
    async fn at_either<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        lock: &[u8],
    ) -> Result<A, Trouble> {
        match self.by(link, Way::Plain).await {
            Err(trouble) if trouble.is_moving() => self.elsewhere(link, lane, lock, trouble).await,
            answer => answer,
        }
    }

    /// Asks the node that `trouble` names, by the connection of the lock that it is about.
    async fn elsewhere<A: Answer>(
        &self,
        link: &Link,
        lane: Lane,
        lock: &[u8],
        trouble: Trouble,
    ) -> Result<A, Trouble> {
        let Some(there) = trouble.redirect().and_then(|redirect| link.elsewhere(redirect)) else {
            return Err(trouble);
        };
        let link = match lane {
            Lane::Commands => there.of_lock(lock),
            Lane::Renewals => there.renewals(),
        };
        self.by(link, Way::Asking).await
    }

    async fn by<A: Answer>(&self, link: &Link, way: Way) -> Result<A, Trouble> {
        let live = link.live().await?;
        match link.call_by(&live, self.by_hash(&live), way).await {
            Err(trouble) if trouble.cause() == Cause::NoScript => self.anew(link, &live, way).await,
            reply => read(self.token, link, &live, reply?),
        }
    }

    /// The request of one step.
    fn step(&self, step: &Step, passed: Option<&[u8]>) -> Run {
        let (mut words, first) = (super::begin(step.form), self.first_argument());
        let wanted = |index: usize| index == FIRST_KEY + step.key || index >= first;
        let args = self.command.args_iter().enumerate().filter(|(index, _)| wanted(*index));
        args.for_each(|(_, arg)| words.add_arg(&arg));
        passed.inspect(|passed| words.add_bytes(passed));
        Run::of(step.form, self.token, words)
    }

    /// What a short form answers where it is not plain: there is nothing plain about a slot that moves.
    fn more<A: Answer>(&self) -> Option<A> {
        let line = [self.word(self.first_argument()), b" more"].concat();
        A::read(&self.token.digits(), Value::BulkString(line))
    }

    /// The first key of a script, which is the lock's.
    fn lock_name(&self) -> &[u8] {
        self.word(if self.form.is_some() { FIRST_KEY } else { 1 })
    }

    /// Where a script's arguments start among the words of a request.
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

impl Words {
    fn add_arg(&mut self, arg: &Arg<&[u8]>) {
        if let Arg::Simple(word) = arg {
            self.add_bytes(word);
        }
    }
}
