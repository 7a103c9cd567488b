//! Sends the calls of scripts, and reads the replies.
//!
//! In: calls, and a link or one of its connections. Out: typed replies. A script that the server does not know
//! is sent again as text; a call whose slot moves goes on in `slot_migration`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};
use tenure_core::Token;
use tenure_core::backend::BoxFuture;

use super::slot_migration::Lane;
use super::text::{Form, LuaScript};
use super::{Answer, ScriptCall};
use crate::error::{Cause, EngineError};
use crate::link::{Connection, Link, SendMode};
use crate::wire::command::starting_with;

impl LuaScript {
    fn form_for(&self, live: &Connection) -> &Form {
        match (live.has_flags(), live.is_of_cluster()) {
            (true, true) => &self.sharded,
            (true, false) => &self.flagged,
            (false, _) => &self.plain,
        }
    }
}

/// What to do if the server does not know the script.
pub(crate) enum IfUnknown<'a> {
    /// Send it again, as text.
    Repeat,
    /// The same while this holds. Afterwards the call must not execute: the error is the result.
    RepeatWhile(&'a (dyn Fn() -> bool + Sync)),
    /// Nothing: it is sent as text at once, because the server may not know it.
    SendText,
}

impl IfUnknown<'_> {
    fn repeats(&self) -> bool {
        match self {
            IfUnknown::RepeatWhile(wanted) => wanted(),
            IfUnknown::Repeat | IfUnknown::SendText => true,
        }
    }
}

impl ScriptCall {
    /// Runs the call that `make` returns, and reads the reply. If the call must be sent again, which is rare,
    /// `make` returns it again, so the call need not be kept.
    pub(crate) async fn once<A: Answer>(
        make: impl Fn() -> ScriptCall,
        link: &Link,
    ) -> Result<A, EngineError> {
        let (run, live) = (make(), link.live().await?);
        let (token, way) = (run.token, run.way);
        match link.call_by(&live, run.into_command(&live), way).await {
            Err(error) if error.cause() == Cause::NoScript || error.is_moving() => {
                let run = make();
                Box::pin(run.again(link, &live, error)).await
            }
            reply => read(token, link, &live, reply?),
        }
    }

    fn into_command(self, live: &Connection) -> Cmd {
        match live.has_flags() {
            true => self.command,
            false => self.by_hash(live),
        }
    }

    pub(super) fn by_hash(&self, live: &Connection) -> Cmd {
        match self.form {
            Some(form) if !live.has_flags() => {
                starting_with(&["EVALSHA", &form.plain.hash], &self.command)
            }
            _ => self.command.clone(),
        }
    }

    fn by_text(&self, live: &Connection) -> Cmd {
        match self.form {
            Some(form) => starting_with(&["EVAL", &form.form_for(live).text], &self.command),
            None => self.command.clone(),
        }
    }

    /// Runs the call, and reads the reply.
    pub(crate) async fn on<A: Answer>(&self, link: &Link) -> Result<A, EngineError> {
        let live = link.live().await?;
        self.on_live(link, &live, IfUnknown::Repeat).await
    }

    /// Runs the call on a connection that the caller has examined before.
    pub(crate) async fn on_live<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Connection>,
        unknown: IfUnknown<'_>,
    ) -> Result<A, EngineError> {
        if matches!(unknown, IfUnknown::SendText) {
            return Box::pin(self.anew(link, live, self.way)).await;
        }
        match link.call_by(live, self.by_hash(live), self.way).await {
            Err(error) if error.cause() == Cause::NoScript && !unknown.repeats() => Err(error),
            Err(error) if error.cause() == Cause::NoScript || error.is_moving() => {
                Box::pin(self.again(link, live, error)).await
            }
            reply => read(self.token, link, live, reply?),
        }
    }

    /// Runs a call again that did not execute for a reason that we can handle: the server does not know the
    /// script, or the slot is moving to another node.
    async fn again<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Connection>,
        error: EngineError,
    ) -> Result<A, EngineError> {
        match error.cause() {
            Cause::NoScript => self.anew(link, live, SendMode::Plain).await,
            _ => self.moving(link, Lane::Commands, error).await,
        }
    }

    /// Sends the script as text, which also makes its hash known. So the error "unknown script" cannot be its
    /// reply.
    pub(super) async fn anew<A: Answer>(
        &self,
        link: &Link,
        live: &Arc<Connection>,
        way: SendMode,
    ) -> Result<A, EngineError> {
        match link.call_by(live, self.by_text(live), way).await {
            Err(error) if error.cause() == Cause::NoScript => Err(link.desynced(live)),
            reply => read(self.token, link, live, reply?),
        }
    }
}

/// Reads the reply to a call that carried `token`.
pub(super) fn read<A: Answer>(
    token: Token,
    link: &Link,
    live: &Arc<Connection>,
    reply: Value,
) -> Result<A, EngineError> {
    A::read(&token.digits(), reply).ok_or_else(|| link.desynced(live))
}

/// Sends all of `runs` as one pipeline within `within`, and reads each reply.
pub(crate) async fn run_all<A: Answer + Send>(
    link: &Link,
    runs: &[ScriptCall],
    within: Duration,
) -> Result<Vec<Result<A, EngineError>>, EngineError> {
    run_all_on(link, &link.live().await?, runs, within).await
}

/// `run_all` on a connection that the caller has chosen.
pub(crate) async fn run_all_on<A: Answer + Send>(
    link: &Link,
    live: &Arc<Connection>,
    runs: &[ScriptCall],
    within: Duration,
) -> Result<Vec<Result<A, EngineError>>, EngineError> {
    let answers = run_all_here(link, live, runs, within).await?;
    let settled = runs.iter().zip(answers).map(|(run, answer)| -> BoxFuture<'_, _> {
        Box::pin(async move {
            match answer {
                Err(error) if error.is_moving() => run.renew_moving(link, error).await,
                answer => answer,
            }
        })
    });
    Ok(join_all(settled).await)
}

/// `run_all_on` without other nodes: for a slot that moves, the result is the error of this node.
pub(crate) async fn run_all_here<A: Answer>(
    link: &Link,
    live: &Arc<Connection>,
    runs: &[ScriptCall],
    within: Duration,
) -> Result<Vec<Result<A, EngineError>>, EngineError> {
    let mut pipe = Pipeline::with_capacity(runs.len());
    for run in runs {
        pipe.add_command(run.by_hash(live));
    }
    let mut replies = link.call_all(live, &pipe, within).await?;
    heal(link, live, runs, &mut replies, within).await?;
    let read = |(run, reply): (&ScriptCall, Result<Value, EngineError>)| {
        reply.and_then(|reply| read(run.token, link, live, reply))
    };
    Ok(runs.iter().zip(replies).map(read).collect())
}

/// Sends those calls again whose script the server does not know. The first goes as text, which makes the
/// hash known to the others.
async fn heal(
    link: &Link,
    live: &Arc<Connection>,
    runs: &[ScriptCall],
    replies: &mut [Result<Value, EngineError>],
    within: Duration,
) -> Result<(), EngineError> {
    let unknown = |reply: &Result<Value, EngineError>| {
        reply.as_ref().is_err_and(|error| error.cause() == Cause::NoScript)
    };
    let mut missing =
        runs.iter().zip(replies).filter(|(_, reply)| unknown(reply)).collect::<Vec<_>>();
    if missing.is_empty() {
        return Ok(());
    }
    let mut pipe = Pipeline::with_capacity(missing.len());
    for (index, (run, _)) in missing.iter().enumerate() {
        let command = if index == 0 { run.by_text(live) } else { run.by_hash(live) };
        pipe.add_command(command);
    }
    let healed = link.call_all(live, &pipe, within).await?;
    for ((_, reply), again) in missing.iter_mut().zip(healed) {
        **reply = again;
    }
    Ok(())
}
