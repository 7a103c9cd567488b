//! What a release leaves behind.

use std::time::Duration;

use tenure_core::{Locker, Owner};

use crate::support::still;

const LONG: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(100);

/// Two processes of one shared owner hold with these `at_least`s and release in this order: the lock
/// stays closed for the longer one's time.
async fn closed_for_the_longer(order: [Duration; 2]) {
    let (clock, memory) = still();
    let [a, b, rival] = [(); 3].map(|()| Locker::new(memory.clone()));
    let owner = Owner::shared("mates");
    let first = a.lock("k").owner(owner.clone()).at_least(order[0]).await.unwrap();
    let second = b.lock("k").owner(owner).at_least(order[1]).await.unwrap();
    first.release().await.unwrap();
    second.release().await.unwrap();
    clock.advance(LONG - SHORT);
    assert!(rival.try_lock("k").await.unwrap().is_none(), "{order:?}");
    clock.advance(SHORT);
    assert!(rival.try_lock("k").await.unwrap().is_some(), "{order:?}");
}

/// A release never shortens the time for which another one has closed the lock.
#[tokio::test]
async fn a_closed_lock_stays_closed_for_the_longest() {
    closed_for_the_longer([LONG, SHORT]).await;
    closed_for_the_longer([SHORT, LONG]).await;
}
