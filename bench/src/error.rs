//! What keeps a bench from being finished.

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody asked to stop. Nothing is left behind.
    #[error("stopped")]
    Stopped,
    /// What was asked makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Our own side failed.
    #[error(transparent)]
    Lock(#[from] tenure::Error),
    /// The bare driver failed.
    #[error("the bare driver: {0}")]
    Bare(#[from] redis::RedisError),
    /// The system failed.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// Something was not as it must be.
    #[error("{0}")]
    Surprise(String),
}

impl Error {
    pub(crate) fn surprise(what: impl Into<String>) -> Self {
        Error::Surprise(what.into())
    }
}
