//! The errors of a bench.

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The user asked to stop. No keys are left behind.
    #[error("stopped")]
    Stopped,
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// Our side failed.
    #[error(transparent)]
    Lock(#[from] tenure::Error),
    /// The bare driver failed.
    #[error("the bare driver: {0}")]
    Bare(#[from] redis::RedisError),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// An unexpected state.
    #[error("{0}")]
    Surprise(String),
}

impl Error {
    pub(crate) fn surprise(what: impl Into<String>) -> Self {
        Error::Surprise(what.into())
    }
}
