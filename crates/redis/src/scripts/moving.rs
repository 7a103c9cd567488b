//! What to do while a slot moves from one node of a cluster to another.
//!
//! In: a request that a node did not carry out because of that. Out: its answer, from whichever node has
//! the key.
//!
//! Keys move one by one. A request is carried out by the node that has all its keys; one of whose keys
//! some are here and some there, or nowhere, is refused by both (`TRYAGAIN`). So what remains is a
//! request with one key: the lock's. The node that gives the slot away answers it if it has the key,
//! and else names the other one (`ASK`), which answers if it is told that we were sent (`ASKING`).

use redis::Arg;

use super::words::Words;
use super::{Answer, Run, read};
use crate::link::{Link, Way};
use crate::trouble::{Cause, Trouble};

/// How often a request is changed or sent elsewhere: to one key, to the other node, and once more each
/// if the move ended or began meanwhile.
const STEPS: usize = 4;
/// Where a script's keys start among the words of a request, and its first argument after one key.
const FIRST_KEY: usize = 3;

impl Run {
    /// Has the request answered that `trouble` kept from being carried out.
    pub(super) async fn moving<A: Answer>(
        &self,
        link: &Link,
        mut trouble: Trouble,
    ) -> Result<A, Trouble> {
        let (mut alone, mut there) = (None, None);
        for _ in 0..STEPS {
            match trouble.redirect() {
                Some(redirect) => there = Some(link.elsewhere(redirect).ok_or(trouble)?),
                None if alone.is_none() => alone = Some(self.alone().ok_or(trouble)?),
                None => return Err(trouble),
            }
            let run = alone.as_ref().unwrap_or(self);
            let asked = match &there {
                Some(there) => run.by(there.of_lock(self.lock_name()), Way::Asking).await,
                None => run.by(link, Way::Plain).await,
            };
            trouble = match asked {
                Err(trouble) if trouble.is_moving() => trouble,
                answer => return answer,
            };
        }
        Err(trouble)
    }

    async fn by<A: Answer>(&self, link: &Link, way: Way) -> Result<A, Trouble> {
        let live = link.live().await?;
        match link.call_by(&live, self.by_hash(&live), way).await {
            Err(trouble) if trouble.cause() == Cause::NoScript => self.anew(link, &live, way).await,
            reply => read(self.token, link, &live, reply?),
        }
    }

    /// The same with the lock's key alone, if that can be.
    fn alone(&self) -> Option<Run> {
        let (form, full) = (self.form?.moving?, self.form?);
        let keys: usize = full.keys.parse().ok()?;
        let mut words = super::begin(form);
        let rest = |index: usize| index == FIRST_KEY || index >= FIRST_KEY + keys;
        let args = self.command.args_iter().enumerate().filter(|(index, _)| rest(*index));
        args.for_each(|(_, arg)| words.add_arg(&arg));
        Some(Run::of(form, self.token, words))
    }

    /// The first key of a script, which is the lock's.
    fn lock_name(&self) -> &[u8] {
        match self.command.args_iter().nth(if self.form.is_some() { FIRST_KEY } else { 1 }) {
            Some(Arg::Simple(name)) => name,
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
