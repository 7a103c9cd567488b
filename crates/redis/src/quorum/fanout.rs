//! Sends requests to many nodes at a time.
//!
//! In: a future for each node. Out: their answers, in the order in which they arrive.
//!
//! Dropping the fanout drops the futures that are still under way; [`Fanout::detach`] lets them finish.

use std::collections::VecDeque;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::time::TimeoutWheel;
use tokio::task::unconstrained;

pub(super) struct Fanout<T> {
    asked: Vec<(usize, BoxFuture<'static, T>)>,
    /// Answers that were received and not yet returned.
    heard: VecDeque<(usize, T)>,
}

impl<T: Send + 'static> Fanout<T> {
    pub(super) fn new() -> Self {
        Fanout { asked: Vec::new(), heard: VecDeque::new() }
    }

    /// Adds a request. It is sent when it is first polled, even if the calling task has used up its tokio
    /// budget: a delayed request could be overtaken by the request that undoes it.
    pub(super) fn ask(&mut self, who: usize, question: impl Future<Output = T> + Send + 'static) {
        self.asked.push((who, Box::pin(unconstrained(question))));
    }

    /// The next answer and its node; `None` if none is left, or none arrives in time.
    pub(super) async fn next(
        &mut self,
        (bounds, longest): (&TimeoutWheel, Duration),
    ) -> Option<(usize, T)> {
        bounds.within(longest, pin!(self.answer())).await.flatten()
    }

    async fn answer(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.heard.is_empty() {
                self.listen(cx);
            }
            match self.heard.pop_front() {
                None if !self.asked.is_empty() => Poll::Pending,
                answer => Poll::Ready(answer),
            }
        })
        .await
    }

    /// Polls all futures in the order in which they were added. It does not stop at the first answer, because
    /// the futures after it must be sent now as well.
    fn listen(&mut self, cx: &mut Context<'_>) {
        let mut at = 0;
        while let Some((who, question)) = self.asked.get_mut(at) {
            match question.as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => {
                    self.heard.push_back((*who, answer));
                    drop(self.asked.remove(at));
                }
            }
        }
    }

    /// The nodes whose answer has not been returned.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> {
        let heard = self.heard.iter().map(|(who, _)| *who);
        self.asked.iter().map(|(who, _)| *who).chain(heard)
    }

    /// Takes out the request to `who`, if its answer has not been returned.
    pub(super) fn take(&mut self, who: usize) -> Option<BoxFuture<'static, T>> {
        if let Some(at) = self.heard.iter().position(|(heard, _)| *heard == who) {
            let (_, answer) = self.heard.remove(at)?;
            return Some(Box::pin(ready(answer)));
        }
        let at = self.asked.iter().position(|(asked, _)| *asked == who)?;
        Some(self.asked.remove(at).1)
    }

    /// Lets the futures that are under way finish in a task of their own.
    pub(super) fn detach(mut self) {
        if !self.asked.is_empty() {
            tokio::spawn(async move { while self.answer().await.is_some() {} });
        }
    }
}
