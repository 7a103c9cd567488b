//! A client of one server, which several lockers can share.
//!
//! In: the address of the server, from `builder.rs`. Out: the links for commands, and the identity of this
//! process on the server.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tenure_core::Error;
use tenure_core::backend::Fault;
#[cfg(feature = "kv")]
use tenure_core::time::Time;
#[cfg(feature = "kv")]
use tenure_kv::{Flights, Meters};
use tenure_net::ForkGuard;

use crate::inbox::Inbox;
use crate::link::{Pool, Server};
use crate::replication::ReplicationCheck;
use crate::sentinel::Sentinels;
use crate::wire::keys::Keys;
use crate::wire::timing::lifetime_at_first;
use crate::wire::value::ValueWriter;

/// Connections to a Redis or Valkey server, for any number of lockers.
///
/// Cheap to clone; the clones are one client. The code that made the client closes it: the shutdown of a
/// locker that was built [with it](crate::Redis::with) leaves it open. It is also closed when the last clone
/// and the last locker on it are dropped. Each locker adds one connection, for its renewals.
///
/// ```no_run
/// # async fn example() -> Result<(), tenure_core::Error> {
/// use tenure_core::Locker;
/// use tenure_redis::{Client, Redis};
///
/// let client = Client::connect("redis://localhost").await?;
/// let (orders, reports) = (Locker::new(Redis::with(&client)), Locker::new(Redis::with(&client)));
/// # drop((orders, reports));
/// client.close();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: Arc<Server>,
    commands: Arc<Pool>,
    inbox: Arc<Inbox>,
    keys: Keys,
    writer: ValueWriter,
    fork_guard: ForkGuard,
    #[cfg(feature = "kv")]
    meters: Meters,
    #[cfg(feature = "kv")]
    flights: Flights,
    replication: Option<Arc<ReplicationCheck>>,
    sentinels: Option<Arc<Sentinels>>,
}

/// What a client needs besides its server.
pub(crate) struct ClientOptions {
    pub(crate) pool_size: NonZeroUsize,
    pub(crate) keys: Keys,
    pub(crate) writer: ValueWriter,
    /// Whether every verb is logged.
    #[cfg_attr(not(feature = "kv"), expect(dead_code))]
    pub(crate) debug: bool,
    /// How many replicas must have a grant.
    pub(crate) replicas: Option<NonZeroUsize>,
    /// The Sentinels that name the server, if there are any.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
}

impl Client {
    /// Closes the connections that its lockers share. A locker that still sends requests makes new ones: shut
    /// it down first.
    pub fn close(&self) {
        self.shared.inbox.close();
        self.shared.commands.close();
        self.shared.replication.iter().for_each(|replication| replication.close());
        self.shared.server.end_watch();
    }

    pub(crate) fn new(server: Arc<Server>, options: ClientOptions) -> Self {
        let ClientOptions { pool_size, keys, writer, replicas, sentinels, .. } = options;
        let commands = Arc::new(Pool::new(&server, pool_size));
        let writer = writer.waiter_lifetime(lifetime_at_first(server.target().response_timeout()));
        let inbox = Arc::new(Inbox::new(&server, &commands, &keys, &writer));
        let replication = replicas.map(|wanted| Arc::new(ReplicationCheck::new(&server, wanted)));
        let shared = Shared {
            server,
            commands,
            inbox,
            keys,
            writer,
            fork_guard: ForkGuard::of_this_process(),
            #[cfg(feature = "kv")]
            meters: Meters::new(options.debug),
            #[cfg(feature = "kv")]
            flights: Flights::new(),
            replication,
            sentinels,
        };
        Client { shared: Arc::new(shared) }
    }

    /// Whether the server can be used.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let live = self.commands().any().live().await;
        live.map(drop).map_err(|error| Fault::from(error).into())
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.shared.server
    }

    pub(crate) fn commands(&self) -> &Arc<Pool> {
        &self.shared.commands
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.shared.inbox
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    pub(crate) fn fork_guard(&self) -> ForkGuard {
        self.shared.fork_guard
    }

    pub(crate) fn writer(&self) -> &ValueWriter {
        &self.shared.writer
    }

    /// Waits until replicas have a grant, if that was configured.
    pub(crate) fn replication(&self) -> Option<&Arc<ReplicationCheck>> {
        self.shared.replication.as_ref()
    }

    /// The Sentinels that name the server, if there are any.
    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        self.shared.sentinels.as_ref()
    }

    /// Measures the verbs.
    #[cfg(feature = "kv")]
    pub(crate) fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// The values that are being computed, for `remember`.
    #[cfg(feature = "kv")]
    pub(crate) fn flights_of_values(&self) -> &Flights {
        &self.shared.flights
    }

    #[cfg(feature = "kv")]
    pub(crate) fn now(&self) -> Time {
        self.shared.server.clock().now()
    }
}
