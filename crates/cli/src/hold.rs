//! What a command runs under: a lock, a reader, permits, or several keys.
//!
//! In: a guard of the library. Out: what `run.rs` and `supervise.rs` need of it, the same for every kind.

use std::time::Duration;

use tenure::backend::Loss;
use tenure::time::Time;
use tenure::{Error, Fence, Guard, GuardAll, Held, HeldMode, Key};

/// A guard, of one key or of several.
pub(crate) trait Hold {
    /// Whether every key can be relied on.
    fn is_held(&self) -> bool;
    /// How much remains of the lease that ends first.
    fn remaining(&self) -> Duration;
    /// Until when every key can be relied on without a renewal.
    fn valid_until(&self) -> Time;
    /// The name of the key whose lease ends first.
    fn first_to_end(&self) -> String;
    /// The fence of one of the keys.
    fn fence(&self, key: &Key) -> Fence;
    /// The slot of a numbered permit.
    fn slot(&self) -> Option<u32>;
    /// Waits until a key is lost. Cancel-safe.
    async fn lost(&self) -> (Key, Loss);
    /// Waits until less than `before` of a lease remains. Cancel-safe.
    async fn expiring(&self, before: Duration);
    /// Renews all leases now.
    async fn renew(&self) -> Result<(), Error>;
    /// Releases all keys. The error is about the first that was lost, if one was.
    async fn release(self) -> Result<(), Error>;
}

impl<M: HeldMode> Hold for Guard<M> {
    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn valid_until(&self) -> Time {
        self.valid_until()
    }

    fn first_to_end(&self) -> String {
        self.key().to_string()
    }

    fn fence(&self, _: &Key) -> Fence {
        self.fence()
    }

    fn slot(&self) -> Option<u32> {
        self.held().slot()
    }

    async fn lost(&self) -> (Key, Loss) {
        (self.key().clone(), self.lost().await)
    }

    async fn expiring(&self, before: Duration) {
        self.expiring(before).await;
    }

    async fn renew(&self) -> Result<(), Error> {
        self.renew().await
    }

    async fn release(self) -> Result<(), Error> {
        self.release().await.map(drop)
    }
}

impl Hold for GuardAll {
    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn valid_until(&self) -> Time {
        self.valid_until()
    }

    fn first_to_end(&self) -> String {
        let held = self.held();
        let left = |key: &&Key| held.get(key.as_str()).map(Held::remaining);
        self.keys().min_by_key(left).map(Key::to_string).unwrap_or_default()
    }

    fn fence(&self, key: &Key) -> Fence {
        self.fence(key.as_str()).unwrap_or(Fence::NONE)
    }

    fn slot(&self) -> Option<u32> {
        None
    }

    async fn lost(&self) -> (Key, Loss) {
        self.lost().await
    }

    async fn expiring(&self, before: Duration) {
        self.expiring(before).await;
    }

    async fn renew(&self) -> Result<(), Error> {
        self.renew().await
    }

    async fn release(self) -> Result<(), Error> {
        self.release().await
    }
}
