//! What somebody would write who has the driver, several servers and no library: each command to all of
//! them at a time, and on with the answer that makes a majority.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use crate::error::Error;
use crate::redis::{Bare, BareLock};
use crate::rounds::Lap;

/// The same key on every node.
pub(super) struct Majority(Vec<BareLock>);

type Asked<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

impl Majority {
    pub(super) fn of(nodes: &[Bare], key: &str) -> Self {
        Majority(nodes.iter().map(|node| node.lock(key.into())).collect())
    }

    /// Takes it and gives it back, until the lap is over. How often.
    pub(super) async fn run(&mut self, lap: Lap) -> Result<u64, Error> {
        let mut cycles = 0;
        while lap.goes_on() {
            self.most(|lock| Box::pin(lock.take())).await?;
            self.most(|lock| Box::pin(lock.give_back())).await?;
            cycles += 1;
        }
        Ok(cycles)
    }

    /// Asks all; done with the answer that makes a majority. The others have been sent, and are carried
    /// out in their order.
    async fn most<'a>(
        &'a mut self,
        ask: impl Fn(&'a mut BareLock) -> Asked<'a>,
    ) -> Result<(), Error> {
        let mut left = self.0.len() / 2 + 1;
        let mut asked: Vec<Asked<'a>> = self.0.iter_mut().map(ask).collect();
        poll_fn(|cx| {
            let mut at = 0;
            while at < asked.len() && left > 0 {
                match asked[at].as_mut().poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) => {
                        drop(asked.swap_remove(at));
                        left -= 1;
                    }
                }
            }
            if left == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }
}
