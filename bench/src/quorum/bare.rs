//! A lock on several servers with only the driver, without a library: each command is sent to all servers at
//! the same time, and is complete with the reply that makes a majority.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::task::unconstrained;

use crate::error::Error;
use crate::redis::Bare;
use crate::rounds::Lap;

/// The same key on every node.
pub(super) struct Majority {
    nodes: Vec<MultiplexedConnection>,
    take: Arc<Cmd>,
    give_back: Arc<Cmd>,
    /// Requests without a reply yet, each with the number of its step. The driver does not send a request
    /// whose future is dropped, so the slow ones are kept.
    asked: Vec<(u64, Asked)>,
    steps: u64,
}

type Asked = Pin<Box<dyn Future<Output = RedisResult<Value>>>>;

impl Majority {
    pub(super) fn of(nodes: &[Bare], key: &str) -> Result<Self, Error> {
        let first = nodes.first().ok_or_else(|| Error::Usage("the url names no host".into()))?;
        let (take, give_back) = first.lock(key.into()).commands();
        let (take, give_back) = (Arc::new(take), Arc::new(give_back));
        let nodes = nodes.iter().map(Bare::connection).collect();
        Ok(Majority { nodes, take, give_back, asked: Vec::new(), steps: 0 })
    }

    /// Acquires and releases until the lap is over. Returns the number of cycles.
    pub(super) async fn run(&mut self, lap: Lap) -> Result<u64, Error> {
        let mut cycles = 0;
        while lap.goes_on() {
            self.most(self.take.clone(), &Value::Okay).await?;
            self.most(self.give_back.clone(), &Value::Int(1)).await?;
            cycles += 1;
        }
        Ok(cycles)
    }

    /// Sends a command to all nodes; done with the reply that makes a majority.
    async fn most(&mut self, command: Arc<Cmd>, expected: &Value) -> Result<(), Error> {
        self.steps += 1;
        for node in &self.nodes {
            let (mut node, command) = (node.clone(), command.clone());
            let asked = async move { node.send_packed_command(&command).await };
            // `unconstrained`: the first poll sends the request, even if the task has used up its budget.
            // Otherwise the next step could overtake it.
            self.asked.push((self.steps, Box::pin(unconstrained(asked))));
        }
        for _ in 0..=self.nodes.len() / 2 {
            let answer = self.answer().await?;
            if answer != *expected {
                return Err(Error::surprise("a bare lock was not ours"));
            }
        }
        Ok(())
    }

    /// The next reply of the current step.
    async fn answer(&mut self) -> Result<Value, Error> {
        poll_fn(|cx| {
            let mut at = 0;
            while at < self.asked.len() {
                let (step, asked) = &mut self.asked[at];
                let (step, Poll::Ready(answer)) = (*step, asked.as_mut().poll(cx)) else {
                    at += 1;
                    continue;
                };
                // Keep the order: if a future is ready at once, later ones may not be sent yet.
                drop(self.asked.remove(at));
                if step == self.steps {
                    return Poll::Ready(Ok(answer?));
                }
            }
            Poll::Pending
        })
        .await
    }
}
