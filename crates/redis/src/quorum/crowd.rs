//! Asking many at a time.
//!
//! In: a future for each node. Out: their answers, as they come.
//!
//! What is still under way when the crowd is dropped is dropped with it; [`Crowd::see_through`] lets
//! it come to its end.

use std::collections::VecDeque;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::time::Bounds;
use tokio::task::unconstrained;

pub(super) struct Crowd<T> {
    asked: Vec<(usize, BoxFuture<'static, T>)>,
    /// Answers that nobody has taken yet.
    heard: VecDeque<(usize, T)>,
}

impl<T: Send + 'static> Crowd<T> {
    pub(super) fn new() -> Self {
        Crowd { asked: Vec::new(), heard: VecDeque::new() }
    }

    /// Takes a question along. It is sent as soon as it is first polled, whatever else the calling task
    /// has done in its turn: one that stayed behind could be overtaken by what undoes it.
    pub(super) fn ask(&mut self, who: usize, question: impl Future<Output = T> + Send + 'static) {
        self.asked.push((who, Box::pin(unconstrained(question))));
    }

    /// The next answer, and whose it is; `None` if there will be no more, or none in time.
    pub(super) async fn next(
        &mut self,
        (bounds, longest): (&Bounds, Duration),
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

    /// Polls all of them, in the order in which they were asked: also those behind one that has answered
    /// already are to be asked now.
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

    /// Those whose answer has not been taken.
    pub(super) fn silent(&self) -> impl Iterator<Item = usize> {
        let heard = self.heard.iter().map(|(who, _)| *who);
        self.asked.iter().map(|(who, _)| *who).chain(heard)
    }

    /// Takes out the question to `who`, if its answer has not been taken.
    pub(super) fn take(&mut self, who: usize) -> Option<BoxFuture<'static, T>> {
        if let Some(at) = self.heard.iter().position(|(heard, _)| *heard == who) {
            let (_, answer) = self.heard.remove(at)?;
            return Some(Box::pin(ready(answer)));
        }
        let at = self.asked.iter().position(|(asked, _)| *asked == who)?;
        Some(self.asked.remove(at).1)
    }

    /// Lets what is under way come to its end, whoever waits for it.
    pub(super) fn see_through(mut self) {
        if !self.asked.is_empty() {
            tokio::spawn(async move { while self.answer().await.is_some() {} });
        }
    }
}
