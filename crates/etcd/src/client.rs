//! A client of one cluster, which several lockers can share.
//!
//! In: a cluster, from `builder.rs`. Out: the link for requests, and a number for each locker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_core::Error;
use tenure_core::backend::Fault;

use crate::keys::Keys;
use crate::link::{Cluster, Link};

/// A connection to an etcd cluster, for any number of lockers.
///
/// Cheap to clone; the clones are one client. The code that made the client closes it: the shutdown of a
/// locker that was built [with it](crate::Etcd::with) leaves it open. It is also closed when the last clone
/// and the last locker on it are dropped. Each locker adds one connection, for its renewals, and has a
/// session of its own.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_core::Locker;
/// use tenure_etcd::{Client, Etcd};
///
/// let client = Client::connect("etcd://localhost").await?;
/// let (orders, reports) = (Locker::new(Etcd::with(&client)), Locker::new(Etcd::with(&client)));
/// # drop((orders, reports));
/// client.close();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    requests: Arc<Link>,
    prefix: Arc<str>,
    /// The number of the next locker. Lockers of all processes must have different ones, so it starts at random.
    next_number: Arc<AtomicU64>,
}

impl Client {
    pub(crate) fn new(cluster: Cluster, prefix: &str) -> Result<Self, Error> {
        let number = getrandom::u64().map_err(|error| {
            Error::invalid(format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Client {
            requests: Arc::new(Link::new(Arc::new(cluster))),
            prefix: prefix.into(),
            next_number: Arc::new(AtomicU64::new(number)),
        })
    }

    /// Closes the connection that its lockers share. A locker that still sends requests makes a new one: shut
    /// it down first.
    pub fn close(&self) {
        self.requests.close();
    }

    /// Connects, and so checks that the cluster can be used.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let connection = self.requests.connection().await;
        connection.map(drop).map_err(|error| Fault::from(error).into())
    }

    pub(crate) fn requests(&self) -> &Arc<Link> {
        &self.requests
    }

    /// The keys of a new locker.
    pub(crate) fn keys(&self) -> Keys {
        Keys::new(&self.prefix, self.next_number.fetch_add(1, Ordering::Relaxed))
    }
}
