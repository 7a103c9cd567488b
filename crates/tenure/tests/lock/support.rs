//! What these tests share: an application's error, a locker of one's own.

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
    /// Ours, which it must be.
    pub(crate) fn lock(self) -> tenure::Error {
        match self {
            AppError::Lock(error) => error,
            AppError::Declined => panic!("the body's error where one of ours was expected"),
        }
    }
}

/// A locker on a space that is the caller's alone.
pub(crate) fn alone() -> (Memory, Locker) {
    let memory = Memory::with_clock(tenure::time::Clock::system());
    (memory.clone(), Locker::new(memory))
}

/// The only key that is locked.
pub(crate) async fn only_key(locker: &Locker) -> Option<String> {
    let mut found = locker.list("*").await.unwrap();
    assert!(found.len() < 2, "{found:?}");
    found.pop().map(|lock| lock.key.as_str().into())
}
