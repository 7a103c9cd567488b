//! A connection by itself, for measuring: see `bare.rs` above.

use std::sync::Arc;

use tonic::Status;

use super::Cluster;
use super::open::{self, Live, Messages, Then};
use crate::proto::{Call, WatchRequest, WatchResponse};
use crate::trouble::Trouble;

pub(crate) async fn connect(cluster: Cluster) -> Result<Live, Trouble> {
    open::connect(Arc::new(cluster)).await
}

pub(crate) async fn unary<Q: Call>(live: &Live, ask: Q) -> Result<Q::Answer, Status> {
    live.unary(ask).await
}

pub(crate) async fn listen(
    live: &Live,
    ask: WatchRequest,
) -> Result<Messages<WatchResponse>, Status> {
    live.stream(ask, Then::Listen).await
}
