//! The [`Kv`] on a server: commands use the links of the locks, and the same prefix.
//!
//! In: commands. Out: the server's answers, each within the time-outs. Nothing is sent twice automatically,
//! except a script that the server did not know.

use std::sync::Arc;

use redis::{Pipeline, Value};
use tenure_core::backend::BoxFuture;
use tenure_core::time::Clock;

use tenure_kv::{Answer, Answers, Batch, Command, Error, ErrorKind, Flights, Kv, Verb};

use super::wire::{self, Scripts};
use crate::client::Client;
use crate::error::{Cause, EngineError};
use crate::link::{Connection, Link};

impl Kv for Client {
    fn ask<'a>(&'a self, command: &'a Command<'a>) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let started = self.now();
            let answer = match must_run() {
                Ok(()) => self.run(command).await,
                Err(paused) => Err(paused),
            };
            let failed = answer.as_ref().err();
            self.meters().note(
                command.verb.name(),
                &command.key,
                self.now().since(started),
                failed,
            );
            answer
        })
    }

    fn ask_all<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Answers, Error>> {
        Box::pin(async move {
            let started = self.now();
            let answers = match must_run() {
                Ok(()) => self.run_all(batch).await,
                Err(paused) => Err(paused),
            };
            let failed = match &answers {
                Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
                Err(error) => Some(error),
            };
            self.meters().note(batch.name, b"", self.now().since(started), failed);
            answers
        })
    }

    fn flights(&self) -> &Flights {
        self.flights_of_values()
    }
}

impl Client {
    async fn run(&self, command: &Command<'_>) -> Result<Answer, Error> {
        if let Verb::Scan { cursor } = &command.verb {
            return self.scan(&command.key, cursor).await;
        }
        let request = wire::spell(self.keys(), command, Scripts::ByHash)?;
        let link = self.commands().of_name(&command.key);
        let live = link.live().await?;
        match link.call(&live, request).await {
            Err(error) if error.cause() == Cause::NoScript => {
                self.run_anew(link, &live, command).await
            }
            reply => wire::read(command, reply?),
        }
    }

    /// One page. A cursor is valid only for the server process that returned it, so ours carries its
    /// `run_id`.
    async fn scan(&self, prefix: &[u8], cursor: &[u8]) -> Result<Answer, Error> {
        let (run_id, cursor) = cursor.split_at(cursor.iter().take_while(|b| **b != b' ').count());
        let command = Command::new(prefix, Verb::Scan { cursor: cursor.trim_ascii().into() });
        let request = wire::spell(self.keys(), &command, Scripts::ByHash)?;
        let link = self.commands().of_name(prefix);
        let live = link.live().await?;
        if !cursor.is_empty() && run_id != live.run_id().as_bytes() {
            let what = "the scan began on a server that restarted or was replaced: start it again";
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        let answer = wire::read(&command, link.call(&live, request).await?)?;
        let (next, keys) = wire::page(self.keys(), answer)?;
        let next = match next.is_empty() {
            true => next,
            false => [live.run_id().as_bytes(), b" ", &next].concat(),
        };
        Ok(Answer::List(vec![Answer::Bytes(next), Answer::Many(keys)]))
    }

    async fn run_anew(
        &self,
        link: &Link,
        live: &Arc<Connection>,
        command: &Command<'_>,
    ) -> Result<Answer, Error> {
        let request = wire::spell(self.keys(), command, Scripts::ByText)?;
        wire::read(command, link.call(live, request).await?)
    }

    async fn run_all(&self, batch: &Batch) -> Result<Answers, Error> {
        let requests = self.spell_all(batch)?;
        let link = self.commands().any();
        let live = link.live().await?;
        let replies = link.call_all(&live, &requests, link.response_timeout()).await?;
        let replies = if batch.atomic { self.executed(batch, replies)? } else { replies };
        let read = |(command, reply): (_, Result<Value, EngineError>)| wire::read(command, reply?);
        Ok(batch.commands.iter().zip(replies).map(read).collect())
    }

    /// All requests in one write: they arrive together, so `MULTI` is never without its `EXEC` on a
    /// connection that other calls share.
    fn spell_all(&self, batch: &Batch) -> Result<Pipeline, Error> {
        let mut requests = Pipeline::with_capacity(batch.commands.len() + 2);
        if batch.atomic {
            requests.cmd("MULTI");
        }
        for (index, command) in batch.commands.iter().enumerate() {
            let request = wire::spell(self.keys(), command, Scripts::ByText);
            requests.add_command(request.map_err(|error| error.at(index + 1, command))?);
        }
        if batch.atomic {
            requests.cmd("EXEC");
        }
        Ok(requests)
    }

    /// The replies inside the reply to `EXEC`.
    fn executed(&self, batch: &Batch, mut replies: Replies) -> Result<Replies, Error> {
        let executed = replies.pop().unwrap_or(Ok(Value::Nil));
        let queued = replies.into_iter().skip(1).zip(&batch.commands).enumerate();
        for (index, (reply, command)) in queued {
            if let Err(error) = reply {
                return Err(Error::from(error).at(index + 1, command));
            }
        }
        match executed? {
            Value::Array(replies) => {
                Ok(replies.into_iter().map(|reply| self.judged(reply)).collect())
            }
            _ => Err(Error::new(ErrorKind::Refused, "the transaction was not carried out")),
        }
    }

    fn judged(&self, reply: Value) -> Result<Value, EngineError> {
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let rest = error.details().unwrap_or_default();
        Err(EngineError::of_reply(&self.server().shown(), error.code(), rest))
    }
}

/// Refuses verbs while tokio's time is paused: their time-outs would end at once.
fn must_run() -> Result<(), Error> {
    Clock::system().must_run().map_err(|paused| Error::invalid(paused.to_string()))
}

type Replies = Vec<Result<Value, EngineError>>;
