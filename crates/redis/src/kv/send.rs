//! The [`Kv`] on a server: commands go out on the links that the locks use, under the same prefix.
//!
//! In: commands. Out: the server's answers, each within the time-outs. Nothing is sent twice by
//! itself, but for a script that the server did not know.

use std::sync::Arc;

use redis::{Pipeline, Value};
use tenure_core::backend::BoxFuture;

use super::command::{Answer, Answers, Batch, Command, Kv};
use super::error::{Error, ErrorKind};
use super::flight::Flights;
use super::meter::PIPELINE;
use super::wire::{self, Scripts};
use crate::client::Client;
use crate::link::{Link, Live};
use crate::trouble::{Cause, Trouble};

impl Kv for Client {
    fn ask<'a>(&'a self, command: &'a Command<'a>) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async move {
            let started = self.now();
            let answer = self.run(command).await;
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
            let answers = self.run_all(batch).await;
            let failed = match &answers {
                Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
                Err(error) => Some(error),
            };
            self.meters().note(PIPELINE, b"", self.now().since(started), failed);
            answers
        })
    }

    fn flights(&self) -> &Flights {
        self.loads()
    }
}

impl Client {
    async fn run(&self, command: &Command<'_>) -> Result<Answer, Error> {
        let request = wire::spell(self.keys(), command, Scripts::ByHash)?;
        let link = self.commands().of_name(&command.key);
        let live = link.live().await?;
        match link.call(&live, request).await {
            Err(trouble) if trouble.cause() == Cause::NoScript => {
                self.run_anew(link, &live, command).await
            }
            reply => wire::read(command, reply?),
        }
    }

    async fn run_anew(
        &self,
        link: &Link,
        live: &Arc<Live>,
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
        let read = |(command, reply): (_, Result<Value, Trouble>)| wire::read(command, reply?);
        Ok(batch.commands.iter().zip(replies).map(read).collect())
    }

    /// All requests in one piece: what is sent together arrives together, so `MULTI` never stands
    /// without its `EXEC` on a connection that others share.
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

    /// The replies inside that of `EXEC`.
    fn executed(&self, batch: &Batch, mut replies: Replies) -> Result<Replies, Error> {
        let executed = replies.pop().unwrap_or(Ok(Value::Nil));
        let queued = replies.into_iter().skip(1).zip(&batch.commands).enumerate();
        for (index, (reply, command)) in queued {
            if let Err(trouble) = reply {
                return Err(Error::from(trouble).at(index + 1, command));
            }
        }
        match executed? {
            Value::Array(replies) => {
                Ok(replies.into_iter().map(|reply| self.judged(reply)).collect())
            }
            _ => Err(Error::new(ErrorKind::Refused, "the transaction was not carried out")),
        }
    }

    fn judged(&self, reply: Value) -> Result<Value, Trouble> {
        let Value::ServerError(error) = reply else { return Ok(reply) };
        let rest = error.details().unwrap_or_default();
        Err(Trouble::of_reply(&self.server().shown(), error.code(), rest))
    }
}

type Replies = Vec<Result<Value, Trouble>>;
