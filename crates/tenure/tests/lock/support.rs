//! Shared parts of these tests: an application's error, a separate locker.

use tenure::{Locker, Memory};

/// An application's error.
#[derive(Debug)]
pub(crate) enum AppError {
    Lock(tenure::Error),
    Declined,
}

impl From<tenure::Error> for AppError {
    fn from(error: tenure::Error) -> Self {
        AppError::Lock(error)
    }
}

impl From<std::num::ParseIntError> for AppError {
    fn from(_: std::num::ParseIntError) -> Self {
        AppError::Declined
    }
}

impl AppError {
    /// The error of tenure; panics if it is another.
    pub(crate) fn lock(self) -> tenure::Error {
        match self {
            AppError::Lock(error) => error,
            AppError::Declined => panic!("the body's error where one of ours was expected"),
        }
    }
}

/// A locker on a space of its own.
pub(crate) fn alone() -> (Memory, Locker) {
    let memory = Memory::with_clock(tenure::time::Clock::system());
    (memory.clone(), Locker::new(memory))
}

/// The only locked key.
pub(crate) async fn only_key(locker: &Locker) -> Option<String> {
    let mut found = locker.list("*").await.unwrap();
    assert!(found.len() < 2, "{found:?}");
    found.pop().map(|lock| lock.key.as_str().into())
}
