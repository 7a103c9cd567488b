//! A connection by itself, for benchmarks: see `bench_client.rs`.

use std::sync::Arc;

use tenure_net::RESPONSE_TIMEOUT_DEFAULT;
use tonic::Status;

use super::Cluster;
use super::connection::{self, Connection, Messages, SendHalf};
use crate::error::EngineError;
use crate::proto::{Call, WatchRequest, WatchResponse};

pub(crate) async fn connect(cluster: Cluster) -> Result<Connection, EngineError> {
    connection::connect(Arc::new(cluster)).await
}

/// With a time-out for the reply, as in every program that must survive a lost reply.
pub(crate) async fn unary<Q: Call>(
    connection: &Connection,
    request: Q,
) -> Result<Q::Answer, Status> {
    let late = |_| Err(Status::deadline_exceeded("no answer"));
    tokio::time::timeout(RESPONSE_TIMEOUT_DEFAULT, connection.unary(Arc::new(request)))
        .await
        .unwrap_or_else(late)
}

pub(crate) async fn watch_prefix(
    connection: &Connection,
    request: WatchRequest,
) -> Result<Messages<WatchResponse>, Status> {
    connection.stream(request, SendHalf::Open).await
}
