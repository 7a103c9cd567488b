//! The driver without tenure, for benchmarks. Not for use in programs.
//!
//! In: keys. Out: the requests that a program without a lock library would send, on a connection like ours.

use bytes::Bytes;
use tenure_core::Error;
use tenure_core::backend::Fault;
use tonic::Status;

use crate::builder::Builder;
use crate::error::EngineError;
use crate::link::bench_connection::{connect, unary, watch_prefix};
use crate::link::{Connection, Messages};
use crate::proto::{
    Compare, Filter, LeaseGrantRequest, LeaseRevokeRequest, Op, RangeRequest, TxnRequest,
    WatchCreateRequest, WatchRequest, WatchResponse, end_of,
};

/// The ttl of a run's lease, in seconds. It is not kept alive.
const TTL: i64 = 600;

/// A connection, and the lease of the keys that are put on it.
#[derive(Debug)]
pub struct BenchClient {
    connection: Connection,
    lease: i64,
}

/// The server's events about deleted keys.
pub struct Events(Messages<WatchResponse>);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listening(…)")
    }
}

impl Builder {
    /// A connection without tenure.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    pub async fn bench_client(self) -> Result<BenchClient, Error> {
        let connection =
            connect(self.cluster()?).await.map_err(|error| Error::from(Fault::from(error)))?;
        let lease = unary(&connection, LeaseGrantRequest { ttl: TTL }).await;
        let lease = lease.map_err(|status| failed(&connection, &status))?.id;
        Ok(BenchClient { connection, lease })
    }
}

impl BenchClient {
    /// Acquires the key `key` and releases it: two transactions.
    ///
    /// # Errors
    ///
    /// The error of the request that failed.
    pub async fn cycle(&self, key: &str) -> Result<bool, Error> {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let taken = self.request(TxnRequest {
            compare: vec![Compare::created(key.clone(), 0)],
            success: vec![Op::put(key.clone(), Bytes::from_static(b"held"), self.lease)],
            failure: vec![],
        });
        let taken = taken.await?;
        let released = self.request(TxnRequest {
            compare: vec![Compare::created(key.clone(), taken.revision())],
            success: vec![Op::delete(key)],
            failure: vec![],
        });
        Ok(taken.succeeded && released.await?.succeeded)
    }

    /// Deletes the key number `turn` under `prefix`, and puts the next one.
    ///
    /// # Errors
    ///
    /// The error of the request that failed.
    pub async fn hand_over(&self, prefix: &str, turn: u64) -> Result<(), Error> {
        let key = |turn: u64| Bytes::from(format!("{prefix}{turn}"));
        let next = Op::put(key(turn + 1), Bytes::new(), self.lease);
        let success = vec![Op::delete(key(turn)), next];
        self.request(TxnRequest { success, ..Default::default() }).await.map(drop)
    }

    /// Watches for deletions under `prefix`.
    ///
    /// # Errors
    ///
    /// The error of the request that failed.
    pub async fn watch_prefix(&self, prefix: &str) -> Result<Events, Error> {
        let key = Bytes::copy_from_slice(prefix.as_bytes());
        let (range_end, filters) = (end_of(&key), vec![Filter::NoPut.into()]);
        let create = WatchCreateRequest { key, range_end, filters, ..Default::default() };
        let stream = watch_prefix(&self.connection, WatchRequest { create: Some(create) }).await;
        stream.map(Events).map_err(|status| failed(&self.connection, &status))
    }

    /// Waits until a key was deleted, and reads one key.
    ///
    /// # Errors
    ///
    /// The error of the request that failed.
    pub async fn wait_for_turn(&self, events: &mut Events, read: &str) -> Result<(), Error> {
        loop {
            let response = events.0.message().await;
            let response = response.map_err(|status| failed(&self.connection, &status))?;
            if response.is_none_or(|response| !response.events.is_empty()) {
                break;
            }
        }
        let key = Bytes::copy_from_slice(read.as_bytes());
        let read = unary(&self.connection, RangeRequest::one(key)).await;
        read.map(drop).map_err(|status| failed(&self.connection, &status))
    }

    /// Revokes the lease, and so deletes the keys on it.
    ///
    /// # Errors
    ///
    /// The error of the request that failed.
    pub async fn clear(&self) -> Result<(), Error> {
        let ended = unary(&self.connection, LeaseRevokeRequest { id: self.lease }).await;
        ended.map(drop).map_err(|status| failed(&self.connection, &status))
    }

    async fn request(&self, request: TxnRequest) -> Result<crate::proto::TxnResponse, Error> {
        unary(&self.connection, request).await.map_err(|status| failed(&self.connection, &status))
    }
}

fn failed(connection: &Connection, status: &Status) -> Error {
    Fault::from(EngineError::of_status(connection.address(), status)).into()
}
