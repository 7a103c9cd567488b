//! Races with hand-overs inside the engine, which cannot be seen from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use crate::claim::ClaimOptions;
use crate::options::Options;
use crate::time::Time;

/// How many renewals must have coincided with a hand-over.
const MEETINGS: usize = 50;

fn with_ttl(secs: u64) -> Options {
    Options { ttl: Duration::from_secs(secs), ..Options::default() }
}

/// Hands the lease to alternating holders with different ttls until `stop`.
fn hand_about(lease: &Lease, stop: &AtomicBool) {
    let options = [with_ttl(1), with_ttl(60)];
    for (serial, options) in (1..).zip(options.iter().cycle()) {
        if stop.load(Ordering::Acquire) {
            return;
        }
        lease.give_to(serial, options, Time::from_nanos(0));
    }
}

/// Sets `stop`, also when the test panics.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One renewal of a lease that the server has just granted again.
struct Met {
    /// The lease was handed over meanwhile.
    a_hand_over: bool,
    /// Until when the holder trusts the lease, and until when the server keeps it.
    believed: Time,
    kept: Time,
}

fn renew_afresh(memory: &Memory, lease: &Lease) -> Met {
    let key = lease.claim().key();
    memory.space.evict(key);
    assert!(matches!(memory.space.ask(lease.claim()), Ok(Attempt::Granted(_))));
    let holder = lease.holder();
    let renewal = memory.renew_one(lease);
    let a_hand_over = lease.holder() != holder;
    let Renewal::Renewed { validity: Validity::Lease { from, ttl }, .. } = renewal else {
        panic!("{renewal:?}");
    };
    let seen = memory.space.inspect(&Query::Key(key.clone()));
    let left = seen[0].holders[0].holder.lease_left.unwrap();
    Met { a_hand_over, believed: from.after(ttl), kept: memory.space.clock().now().after(left) }
}

fn lease_of(memory: &Memory) -> Lease {
    let terms = ClaimOptions::new(Duration::from_secs(1));
    let claim = Claim::new(Key::new("k").unwrap(), Token::random().unwrap(), terms);
    let term = Validity::Lease { from: memory.clock().now(), ttl: claim.ttl() };
    Lease::new(Arc::new(claim), Grant::new(1, term), memory.clock())
}

/// A renewal extends the lease by no more than the server granted, also while the lease is handed over.
#[test]
fn a_renewal_believes_what_the_server_gave() {
    let memory = Memory::with_clock(Clock::manual());
    let (lease, stop) = (lease_of(&memory), AtomicBool::new(false));
    let met: Vec<Met> = std::thread::scope(|scope| {
        scope.spawn(|| hand_about(&lease, &stop));
        let _stop = AtEnd(&stop);
        let renewals = std::iter::repeat_with(|| renew_afresh(&memory, &lease));
        renewals.filter(|met| met.a_hand_over).take(MEETINGS).collect()
    });
    let early = met.iter().filter(|met| met.believed > met.kept).count();
    assert_eq!(early, 0, "renewals that the server would have ended early, of {MEETINGS}");
}
