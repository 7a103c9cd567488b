//! A connection by itself, for measuring: see `bare.rs` above.

use std::sync::Arc;

use tonic::Status;

use super::Cluster;
use super::open::{self, Live, Messages, Then};
use crate::builder::RESPONSE_TIMEOUT_DEFAULT;
use crate::proto::{Call, WatchRequest, WatchResponse};
use crate::trouble::Trouble;

pub(crate) async fn connect(cluster: Cluster) -> Result<Live, Trouble> {
    open::connect(Arc::new(cluster)).await
}

/// With a time-out on the answer, as everybody has who does not want to wait for a lost one for ever.
pub(crate) async fn unary<Q: Call>(live: &Live, ask: Q) -> Result<Q::Answer, Status> {
    let late = |_| Err(Status::deadline_exceeded("no answer"));
    tokio::time::timeout(RESPONSE_TIMEOUT_DEFAULT, live.unary(Arc::new(ask)))
        .await
        .unwrap_or_else(late)
}

pub(crate) async fn listen(
    live: &Live,
    ask: WatchRequest,
) -> Result<Messages<WatchResponse>, Status> {
    live.stream(ask, Then::Listen).await
}
