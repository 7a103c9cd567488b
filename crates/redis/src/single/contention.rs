//! Learning whether other processes want a lock that this process holds.
//!
//! In: a lease. Out: a note on its claim when another process waits for the lock.

use std::sync::Arc;

use tenure_core::time::Clock;
use tenure_core::{Claim, Lease};
use tokio::runtime::Handle;

use super::PING_EVERY;
use crate::client::Client;
use crate::inbox::Inbox;
use crate::link::Pool;
use crate::wire::keys::Keys;

#[derive(Clone, Debug)]
pub(crate) struct ContentionWatch {
    keys: Keys,
    clock: Clock,
    commands: Arc<Pool>,
    inbox: Arc<Inbox>,
}

impl ContentionWatch {
    pub(super) fn new(client: &Client) -> Self {
        ContentionWatch {
            keys: client.keys().clone(),
            clock: client.server().clock().clone(),
            commands: client.commands().clone(),
            inbox: client.inbox().clone(),
        }
    }

    /// From now on new waiters for this lock notify our inbox. Waiters that had come before the last grant or
    /// renewal are known already.
    pub(crate) fn watch(&self, lease: &Lease) {
        if self.keys.has_slots() {
            let slot = self.keys.slot(lease.claim().key());
            self.inbox.listen(slot);
            self.inbox.keep(slot, lease.valid_until());
        } else if self.inbox.hears_waiters_since(lease.valid_until().before(lease.ttl())) {
            return;
        }
        if let Ok(here) = Handle::try_current() {
            here.spawn(self.clone().refresh_contended(lease.claim().clone()));
        }
    }

    /// Checks whether a waiter came before we were subscribed. Only this lock is checked: many leases may be watched
    /// at the same time.
    async fn refresh_contended(self, claim: Arc<Claim>) {
        let slot = self.keys.slot(claim.key());
        // If the subscription fails, the next renewal finds waiters.
        if tokio::time::timeout(PING_EVERY, self.inbox.subscribed(slot)).await.is_err() {
            return;
        }
        if self.has_waiters(&claim).await.unwrap_or(false) {
            claim.set_contended(self.clock.now());
        }
    }

    /// Whether claims wait for this lock: its flag says so, or for a lock that is held together, its queue.
    async fn has_waiters(&self, claim: &Claim) -> Option<bool> {
        let (key, together) = (claim.key(), claim.mode().is_together());
        let mut command = redis::cmd(if together { "EXISTS" } else { "GET" });
        command.arg(if together { self.keys.queue(key) } else { self.keys.lock(key) });
        let link = self.commands.of(key);
        let reply = link.call(&link.live().await.ok()?, command).await.ok()?;
        if together {
            return redis::from_redis_value(reply).ok();
        }
        let value: String = redis::from_redis_value(reply).ok()?;
        Some(value.starts_with('*') && value.contains(&claim.token().expose()))
    }
}
