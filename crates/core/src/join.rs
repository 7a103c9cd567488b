//! Several futures in one task: all of them, or the first that is ready.
//!
//! A wake polls every future that is pending. They are as many as the keys of a request, so that is cheap.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Several futures. The result has the outputs in the order of the futures.
pub(crate) struct Joined<F: Future> {
    parts: Vec<Part<F>>,
}

enum Part<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
}

impl<F: Future> Joined<F> {
    pub(crate) fn new(futures: impl IntoIterator<Item = F>) -> Self {
        let parts = futures.into_iter().map(|future| Part::Running(Box::pin(future)));
        Joined { parts: parts.collect() }
    }

    /// The outputs so far; `None` for a future that is not ready.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = Option<&F::Output>> {
        self.parts.iter().map(|part| match part {
            Part::Running(_) => None,
            Part::Done(output) => Some(output),
        })
    }
}

impl<F: Future<Output: Unpin>> Future for Joined<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        for part in &mut self.parts {
            if let Part::Running(future) = part
                && let Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *part = Part::Done(output);
            }
        }
        if self.outputs().any(|output| output.is_none()) {
            return Poll::Pending;
        }
        let done = std::mem::take(&mut self.parts).into_iter().filter_map(|part| match part {
            Part::Done(output) => Some(output),
            Part::Running(_) => None,
        });
        Poll::Ready(done.collect())
    }
}

/// Waits for the first of several futures. Returns its number and its output; of several that are ready, the one with
/// the lowest number. Waits for ever if there is none.
pub(crate) async fn first<F: Future>(futures: impl IntoIterator<Item = F>) -> (usize, F::Output) {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|cx| {
        for (number, future) in running.iter_mut().enumerate() {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready((number, output));
            }
        }
        Poll::Pending
    })
    .await
}
