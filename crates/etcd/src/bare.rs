//! The driver without us, for measuring what we cost. Not for use.
//!
//! In: keys. Out: the requests that somebody would send who has the driver and no library, on a connection
//! like ours.

use bytes::Bytes;
use tenure_core::Error;
use tenure_core::backend::Fault;
use tonic::Status;

use crate::builder::Builder;
use crate::link::bare::{connect, listen, unary};
use crate::link::{Live, Messages};
use crate::proto::{
    Compare, Filter, LeaseGrantRequest, LeaseRevokeRequest, Op, RangeRequest, TxnRequest,
    WatchCreateRequest, WatchRequest, WatchResponse, end_of,
};
use crate::trouble::Trouble;

/// How long the lease of a run lasts, in seconds: nobody keeps it alive.
const TTL: i64 = 600;

/// A connection, and a lease for what is put on it.
#[derive(Debug)]
pub struct Bare {
    live: Live,
    lease: i64,
}

/// What the server tells of deleted keys.
pub struct Listening(Messages<WatchResponse>);

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listening(…)")
    }
}

impl Builder {
    /// A connection without us.
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    pub async fn bare(self) -> Result<Bare, Error> {
        let live =
            connect(self.cluster()?).await.map_err(|trouble| Error::from(Fault::from(trouble)))?;
        let lease = unary(&live, LeaseGrantRequest { ttl: TTL }).await;
        let lease = lease.map_err(|status| failed(&live, &status))?.id;
        Ok(Bare { live, lease })
    }
}

impl Bare {
    /// Takes the key `key` and gives it back: two transactions.
    ///
    /// # Errors
    ///
    /// What went wrong.
    pub async fn cycle(&self, key: &str) -> Result<bool, Error> {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let taken = self.ask(TxnRequest {
            compare: vec![Compare::created(key.clone(), 0)],
            success: vec![Op::put(key.clone(), Bytes::from_static(b"held"), self.lease)],
            failure: vec![],
        });
        let taken = taken.await?;
        let given = self.ask(TxnRequest {
            compare: vec![Compare::created(key.clone(), taken.revision())],
            success: vec![Op::delete(key)],
            failure: vec![],
        });
        Ok(taken.succeeded && given.await?.succeeded)
    }

    /// Deletes the key number `turn` under `prefix`, and puts the next there.
    ///
    /// # Errors
    ///
    /// What went wrong.
    pub async fn tell(&self, prefix: &str, turn: u64) -> Result<(), Error> {
        let key = |turn: u64| Bytes::from(format!("{prefix}{turn}"));
        let next = Op::put(key(turn + 1), Bytes::new(), self.lease);
        let success = vec![Op::delete(key(turn)), next];
        self.ask(TxnRequest { success, ..Default::default() }).await.map(drop)
    }

    /// Listens to what is deleted under `prefix`.
    ///
    /// # Errors
    ///
    /// What went wrong.
    pub async fn listen(&self, prefix: &str) -> Result<Listening, Error> {
        let key = Bytes::copy_from_slice(prefix.as_bytes());
        let (range_end, filters) = (end_of(&key), vec![Filter::NoPut.into()]);
        let create = WatchCreateRequest { key, range_end, filters, ..Default::default() };
        let stream = listen(&self.live, WatchRequest { create: Some(create) }).await;
        stream.map(Listening).map_err(|status| failed(&self.live, &status))
    }

    /// Waits until something was deleted, and reads one key.
    ///
    /// # Errors
    ///
    /// What went wrong.
    pub async fn hear(&self, listening: &mut Listening, read: &str) -> Result<(), Error> {
        loop {
            let told = listening.0.message().await;
            let told = told.map_err(|status| failed(&self.live, &status))?;
            if told.is_none_or(|told| !told.events.is_empty()) {
                break;
            }
        }
        let key = Bytes::copy_from_slice(read.as_bytes());
        let read = unary(&self.live, RangeRequest::one(key)).await;
        read.map(drop).map_err(|status| failed(&self.live, &status))
    }

    /// Ends the lease, and what was put on it.
    ///
    /// # Errors
    ///
    /// What went wrong.
    pub async fn clear(&self) -> Result<(), Error> {
        let ended = unary(&self.live, LeaseRevokeRequest { id: self.lease }).await;
        ended.map(drop).map_err(|status| failed(&self.live, &status))
    }

    async fn ask(&self, ask: TxnRequest) -> Result<crate::proto::TxnResponse, Error> {
        unary(&self.live, ask).await.map_err(|status| failed(&self.live, &status))
    }
}

fn failed(live: &Live, status: &Status) -> Error {
    Fault::from(Trouble::of_status(live.address(), status)).into()
}
