//! Loads under way: one at a time for each key.
//!
//! In: a key. Out: the right to load, or the outcome of another caller's load. If the caller with the right
//! is dropped before the load has landed, because it was cancelled or panicked, the right goes to the next
//! waiter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::Error;

/// The outcome of a load: the bytes of the value, which each waiter decodes.
pub(crate) type Outcome = Result<Arc<[u8]>, Error>;

/// The loads of [`remember`](super::KvExt::remember) that are under way in a process, by key.
#[derive(Debug, Default)]
pub struct Flights {
    open: Mutex<HashMap<Vec<u8>, Arc<Flight>>>,
}

#[derive(Debug)]
struct Flight {
    /// One permit: the right to load. Closed when the load has landed, which wakes all waiters.
    right: Arc<Semaphore>,
    outcome: OnceLock<Outcome>,
}

/// The result of waiting.
pub(crate) enum Joined<'a> {
    /// This caller loads.
    Lead(Lead<'a>),
    /// Another caller has loaded.
    Landed(Outcome),
}

/// The right to load. It ends with `land`; if it is dropped, it goes to the next waiter.
pub(crate) struct Lead<'a> {
    entry: FlightEntry<'a>,
    _right: OwnedSemaphorePermit,
}

/// One caller's part in a flight. The last one to leave removes the flight.
struct FlightEntry<'a> {
    flights: &'a Flights,
    key: &'a [u8],
    flight: Arc<Flight>,
}

impl Flights {
    /// No load is under way.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until this caller may load `key`, or its load has landed.
    pub(crate) async fn join<'a>(&'a self, key: &'a [u8]) -> Joined<'a> {
        let entry = self.entry(key);
        match entry.flight.right.clone().acquire_owned().await {
            Ok(right) => Joined::Lead(Lead { entry, _right: right }),
            Err(_) => Joined::Landed(entry.outcome()),
        }
    }

    fn entry<'a>(&'a self, key: &'a [u8]) -> FlightEntry<'a> {
        let mut open = self.open();
        let flight = open.get(key).cloned().unwrap_or_else(|| {
            let flight =
                Arc::new(Flight { right: Arc::new(Semaphore::new(1)), outcome: OnceLock::new() });
            open.insert(key.to_vec(), flight.clone());
            flight
        });
        FlightEntry { flights: self, key, flight }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<Flight>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lead<'_> {
    /// Sends the outcome to all waiters. Later callers look for the value anew.
    pub(crate) fn land(self, outcome: Outcome) {
        // This cannot be set twice: there is one right.
        let _ = self.entry.flight.outcome.set(outcome);
        self.entry.leave(|_| true);
        self.entry.flight.right.close();
    }
}

impl FlightEntry<'_> {
    fn outcome(&self) -> Outcome {
        let never = || Err(Error::invalid("the load ended without an outcome"));
        self.flight.outcome.get().cloned().unwrap_or_else(never)
    }

    /// Removes the flight from the list if it is still there and `when` is true for it.
    fn leave(&self, when: impl FnOnce(&Arc<Flight>) -> bool) {
        let mut open = self.flights.open();
        let listed = open.get(self.key).filter(|flight| Arc::ptr_eq(flight, &self.flight));
        if listed.is_some_and(when) {
            open.remove(self.key);
        }
    }
}

impl Drop for FlightEntry<'_> {
    fn drop(&mut self) {
        // Seats are created with the list locked: a count of two is the list's reference and ours.
        self.leave(|flight| Arc::strong_count(flight) == 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dropped right goes to the next waiter; an outcome reaches all waiters; nothing is left behind.
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

    /// A cancelled load without waiters is removed.
    #[tokio::test]
    async fn nothing_is_left_of_a_cancelled_one() {
        let flights = Flights::new();
        drop(flights.join(b"k").await);
        assert!(flights.open().is_empty());
    }
}
