//! The server of the gate's model: who holds the one lock, who waits. Always right.

use std::collections::VecDeque;

/// A grant on its way to the process that asked.
pub(super) struct Delivery {
    pub(super) gate: usize,
    pub(super) token: u64,
    pub(super) fence: u64,
}

#[derive(Default)]
pub(super) struct Server {
    grants: u64,
    /// One, or several claims of the owner that processes share.
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
    deliveries: VecDeque<Delivery>,
}

struct Holder {
    token: u64,
    shared: bool,
    until: u64,
}

struct Waiter {
    gate: usize,
    token: u64,
    shared: bool,
}

impl Server {
    /// Grants the claim, or queues it.
    pub(super) fn ask(&mut self, gate: usize, token: u64, shared: bool, until: u64) {
        let waiter = Waiter { gate, token, shared };
        let joins = shared && self.holders.iter().any(|holder| holder.shared);
        if joins || (self.holders.is_empty() && self.queue.is_empty()) {
            self.grant(&waiter, until);
        } else {
            self.queue.push_back(waiter);
            self.next(until);
        }
    }

    fn grant(&mut self, to: &Waiter, until: u64) {
        self.grants += 1;
        self.holders.push(Holder { token: to.token, shared: to.shared, until });
        let fence = self.grants << 13;
        self.deliveries.push_back(Delivery { gate: to.gate, token: to.token, fence });
    }

    fn next(&mut self, until: u64) {
        if self.holders.is_empty()
            && let Some(waiter) = self.queue.pop_front()
        {
            self.grant(&waiter, until);
        }
    }

    pub(super) fn next_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// Extends the lease of whoever holds it under `token`; its new end.
    pub(super) fn renew(&mut self, token: u64, until: u64) -> Option<u64> {
        let holder = self.holders.iter_mut().find(|holder| holder.token == token)?;
        holder.until = until;
        Some(until)
    }

    /// Ends what `token` holds or waits for, and nothing else: release and abandon alike.
    pub(super) fn release(&mut self, token: u64, until: u64) {
        self.holders.retain(|holder| holder.token != token);
        self.queue.retain(|waiter| waiter.token != token);
        self.next(until);
    }

    /// Ends every lease whose time is over.
    pub(super) fn expire(&mut self, now: u64) {
        self.holders.retain(|holder| holder.until > now);
        self.next(now + super::gate::TTL);
    }

    /// Takes the lock from everybody; from whom.
    pub(super) fn force(&mut self, until: u64) -> Vec<u64> {
        let tokens = self.holders.drain(..).map(|holder| holder.token).collect();
        self.next(until);
        tokens
    }

    pub(super) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}
