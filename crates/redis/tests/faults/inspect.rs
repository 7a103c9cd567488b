//! What `inspect` shows of a lock: the fence of its holder.

use std::time::Duration;

use tenure_core::Fence;
use tenure_core::backend::{Operator, Query};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{eventually, lapse, within};

use crate::support::{claim, granted, locker, redis};

/// So long that no renewal and no expiry happens while a test waits.
const LONG: Duration = Duration::from_secs(300);

/// `inspect` shows the fence of the holder: after a wait, by the fast and by the full script; after a second
/// reply to the same claim, which has a higher fence; and no fence without fencing.
#[tokio::test(flavor = "multi_thread")]
async fn the_fence_is_shown() {
    let server = RedisServer::start();
    let (a, b) = (locker(&server).await, locker(&server).await);
    let shown = || async { a.inspect("k").await.unwrap().unwrap().holders[0].fence };
    for waits in [Duration::ZERO, Duration::from_millis(1_500)] {
        let guard = a.lock("k").ttl(LONG).await.unwrap();
        assert_eq!(shown().await, Some(guard.fence()));
        let waiting = tokio::spawn(b.lock("k").ttl(LONG).into_future());
        eventually("b to wait", || async {
            a.inspect("k").await.unwrap().unwrap().waiters.is_some_and(|queue| queue.len() == 1)
        })
        .await;
        lapse(waits).await;
        guard.release().await.unwrap();
        let next = within("the turn of b", waiting).await.unwrap().unwrap();
        assert_eq!(shown().await, Some(next.fence()));
        next.release().await.unwrap();
    }
    let (store, asked) = (redis(&server).await, claim("again", LONG));
    let (first, second) = (granted(&store, &asked).await, granted(&store, &asked).await);
    assert!(second.fence > first.fence);
    let info = store.inspect(&Query::Key(asked.key().clone())).await.unwrap();
    assert_eq!(info[0].holders[0].fence, Some(Fence::from_server(second.fence)));
    let unfenced = a.lock("k").fencing(false).await.unwrap();
    assert_eq!((shown().await, unfenced.fence()), (None, Fence::NONE));
    let waiting = tokio::spawn(b.lock("k").fencing(false).ttl(LONG).into_future());
    eventually("b to wait", || async {
        a.inspect("k").await.unwrap().unwrap().waiters.is_some_and(|queue| queue.len() == 1)
    })
    .await;
    unfenced.release().await.unwrap();
    let next = within("the turn of b", waiting).await.unwrap().unwrap();
    assert_eq!((shown().await, next.fence()), (None, Fence::NONE));
}
