//! Times that no clock can count.

use std::time::Duration;

use tenure_core::{Locker, Renew};
use tenure_testkit::wait::within;

use crate::support::still;

/// A time without end is refused where an end is needed: it neither overflows, nor hangs, nor closes
/// a lock for good.
#[tokio::test]
async fn times_without_end_are_refused() {
    let memory = still().1;
    let (holder, locker) = (Locker::new(memory.clone()), Locker::new(memory));
    let _guard = holder.lock("held").await.unwrap();
    let requests = [
        locker.lock("k").renew(Renew::Every(Duration::MAX)),
        locker.lock("k").at_least(Duration::MAX),
        locker.lock("held").retry_interval(Duration::MAX).attempts(2),
    ];
    for request in requests {
        let error = within("a refusal", request.into_future()).await.unwrap_err();
        assert!(error.is_invalid(), "{error:?}");
    }
}
