//! Asking many at a time.
//!
//! In: a future for each node. Out: their answers, as they come.
//!
//! What is still under way when the crowd is dropped is dropped with it; [`Crowd::see_through`] lets
//! it come to its end.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::time::Bounds;
use tokio::task::unconstrained;

pub(super) struct Crowd<T> {
    asked: Vec<(usize, BoxFuture<'static, T>)>,
}

impl<T: Send + 'static> Crowd<T> {
    pub(super) fn new() -> Self {
        Crowd { asked: Vec::new() }
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
            for (at, (who, question)) in self.asked.iter_mut().enumerate() {
                if let Poll::Ready(answer) = question.as_mut().poll(cx) {
                    let who = *who;
                    drop(self.asked.swap_remove(at));
                    return Poll::Ready(Some((who, answer)));
                }
            }
            if self.asked.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Those who have not answered.
    pub(super) fn silent(&self) -> impl Iterator<Item = usize> {
        self.asked.iter().map(|(who, _)| *who)
    }

    /// Takes out the question to `who`, if it is unanswered.
    pub(super) fn take(&mut self, who: usize) -> Option<BoxFuture<'static, T>> {
        let at = self.asked.iter().position(|(asked, _)| *asked == who)?;
        Some(self.asked.swap_remove(at).1)
    }

    /// Lets what is under way come to its end, whoever waits for it.
    pub(super) fn see_through(mut self) {
        if !self.asked.is_empty() {
            tokio::spawn(async move { while self.answer().await.is_some() {} });
        }
    }
}
