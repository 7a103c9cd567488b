//! Several futures at a time, for those who cannot be given to tasks: they borrow.
//!
//! In: futures. Out: what each came to, when all have ended. Each goes on while the others wait.

use std::future::poll_fn;
use std::task::Poll;

use tenure_core::backend::BoxFuture;

/// Awaits all of them.
pub(crate) async fn together<'a, T>(futures: impl IntoIterator<Item = BoxFuture<'a, T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().collect();
    let mut ended: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, ended) in futures.iter_mut().zip(&mut ended) {
            if ended.is_none()
                && let Poll::Ready(came_to) = future.as_mut().poll(cx)
            {
                *ended = Some(came_to);
            }
        }
        if ended.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    ended.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    /// One that takes long keeps none of the others: each here waits for the one after it.
    #[tokio::test]
    async fn each_goes_on() {
        let bells: Vec<Notify> = (0..3).map(|_| Notify::new()).collect();
        let ringing = |index: usize| -> BoxFuture<'_, usize> {
            let bells = &bells;
            Box::pin(async move {
                if let Some(next) = bells.get(index + 1) {
                    next.notified().await;
                }
                bells[index].notify_one();
                index
            })
        };
        assert_eq!(together((0..3).map(ringing)).await, [0, 1, 2]);
        assert!(together(Vec::<BoxFuture<'_, ()>>::new()).await.is_empty());
    }
}
