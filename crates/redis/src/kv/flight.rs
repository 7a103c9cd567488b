//! Loads under way: one at a time for each key.
//!
//! In: a key. Out: the right to load, or what another's load came to. Whoever has the right and is
//! dropped before it lands, because it was cancelled or panicked, passes it on to the next who waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::Error;

/// What a load came to: the bytes of the value, for each who waits to read.
pub(crate) type Outcome = Result<Arc<[u8]>, Error>;

/// The loads of [`remember`](super::KvExt::remember) that are under way in a process, by key.
#[derive(Debug, Default)]
pub struct Flights {
    open: Mutex<HashMap<Vec<u8>, Arc<Flight>>>,
}

#[derive(Debug)]
struct Flight {
    /// One permit: the right to load. Closed when it has landed, which wakes all who wait.
    right: Arc<Semaphore>,
    outcome: OnceLock<Outcome>,
}

/// What came of waiting.
pub(crate) enum Joined<'a> {
    /// It is ours to load.
    Lead(Lead<'a>),
    /// Another did.
    Landed(Outcome),
}

/// The right to load. To be landed; dropped, it goes to the next who waits.
pub(crate) struct Lead<'a> {
    seat: Seat<'a>,
    _right: OwnedSemaphorePermit,
}

/// Somebody's part in a flight. The last one to leave clears it away.
struct Seat<'a> {
    flights: &'a Flights,
    key: &'a [u8],
    flight: Arc<Flight>,
}

impl Flights {
    /// None under way.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until the load of `key` is ours or has landed.
    pub(crate) async fn join<'a>(&'a self, key: &'a [u8]) -> Joined<'a> {
        let seat = self.seat(key);
        match seat.flight.right.clone().acquire_owned().await {
            Ok(right) => Joined::Lead(Lead { seat, _right: right }),
            Err(_) => Joined::Landed(seat.outcome()),
        }
    }

    fn seat<'a>(&'a self, key: &'a [u8]) -> Seat<'a> {
        let mut open = self.open();
        let flight = open.get(key).cloned().unwrap_or_else(|| {
            let flight =
                Arc::new(Flight { right: Arc::new(Semaphore::new(1)), outcome: OnceLock::new() });
            open.insert(key.to_vec(), flight.clone());
            flight
        });
        Seat { flights: self, key, flight }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<Flight>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lead<'_> {
    /// Tells all who wait. Whoever comes from now on looks for the value anew.
    pub(crate) fn land(self, outcome: Outcome) {
        // Nobody else sets it: there is one right.
        let _ = self.seat.flight.outcome.set(outcome);
        self.seat.leave(|_| true);
        self.seat.flight.right.close();
    }
}

impl Seat<'_> {
    fn outcome(&self) -> Outcome {
        let never = || Err(Error::invalid("the load ended without an outcome"));
        self.flight.outcome.get().cloned().unwrap_or_else(never)
    }

    /// Takes the flight out of the list if it is still in there, and `when` says so.
    fn leave(&self, when: impl FnOnce(&Arc<Flight>) -> bool) {
        let mut open = self.flights.open();
        let listed = open.get(self.key).filter(|flight| Arc::ptr_eq(flight, &self.flight));
        if listed.is_some_and(when) {
            open.remove(self.key);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // Seats are taken with the list locked: two means the list's and ours.
        self.leave(|flight| Arc::strong_count(flight) == 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right passes on when it is dropped; what landed reaches all; nothing is left behind.
    #[tokio::test]
    async fn the_right_passes_on() {
        let flights = Flights::new();
        let Joined::Lead(first) = flights.join(b"k").await else { panic!("nobody loads") };
        let wait = || async {
            match flights.join(b"k").await {
                Joined::Lead(lead) => lead.land(Ok(b"loaded by another".as_slice().into())),
                Joined::Landed(outcome) => return outcome.unwrap(),
            }
            b"loaded".as_slice().into()
        };
        let cancel = async {
            tokio::task::yield_now().await;
            drop(first);
        };
        let (second, third, ()) = tokio::join!(wait(), wait(), cancel);
        assert_eq!((&*second, &*third), (&b"loaded"[..], &b"loaded by another"[..]));
        assert!(flights.open().is_empty());
    }

    /// One that is cancelled with nobody waiting is cleared away.
    #[tokio::test]
    async fn nothing_is_left_of_a_cancelled_one() {
        let flights = Flights::new();
        drop(flights.join(b"k").await);
        assert!(flights.open().is_empty());
    }
}
