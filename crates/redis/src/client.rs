//! A client of one server, which several lockers can share.
//!
//! In: where the server is, from `builder.rs`. Out: the links that commands travel on, and who we
//! are on the server.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tenure_core::Error;
use tenure_core::backend::Fault;
use tenure_core::time::{Clock, Time};

use crate::builder::Builder;
use crate::inbox::Inbox;
use crate::keys::Keys;
use crate::kv::{Flights, Meters};
use crate::link::{Links, Server, Target};
use crate::value::Author;
use crate::wait;
use crate::witness::Witness;

/// Connections to a Redis or Valkey server, for as many lockers as like.
///
/// Cheap to clone; the clones are one client. Whoever made it closes it: shutting a locker down that
/// was built [with it](crate::Redis::with) leaves it open, and dropping the last clone and the last
/// locker on it closes it too. Each locker adds one connection, for its renewals.
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
    commands: Arc<Links>,
    inbox: Arc<Inbox>,
    keys: Keys,
    author: Author,
    /// The process that made it.
    pid: u32,
    meters: Meters,
    loads: Flights,
    witness: Option<Arc<Witness>>,
}

impl Client {
    /// Connects to the server at `url`, and checks that it can keep locks.
    ///
    /// # Errors
    ///
    /// Those of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).client().await
    }

    /// Starts from `url`, to say more than a URL can; [`Builder::client`] ends it.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// Lets go of the connections that its lockers share. A locker that still has something to ask
    /// makes new ones: shut it down first.
    pub fn close(&self) {
        self.shared.inbox.close();
        self.shared.commands.close();
        self.shared.witness.iter().for_each(|witness| witness.close());
        self.shared.server.end_watch();
    }

    pub(crate) fn new(
        target: Target,
        pool_size: NonZeroUsize,
        keys: Keys,
        author: Author,
        debug: bool,
        replicas: Option<NonZeroUsize>,
    ) -> Self {
        let server = Arc::new(Server::new(target, Clock::system()));
        Self::on(server, pool_size, keys, author, debug, replicas)
    }

    /// A client of a server of which more is known.
    pub(crate) fn on(
        server: Arc<Server>,
        pool_size: NonZeroUsize,
        keys: Keys,
        author: Author,
        debug: bool,
        replicas: Option<NonZeroUsize>,
    ) -> Self {
        let commands = Arc::new(Links::new(&server, pool_size));
        let author = author.believed(wait::believed_at_first(server.target().response_timeout()));
        let inbox = Arc::new(Inbox::new(&server, &commands, &keys, &author));
        let (pid, meters, loads) = (std::process::id(), Meters::new(debug), Flights::new());
        let witness = replicas.map(|wanted| Arc::new(Witness::new(&server, wanted)));
        let shared = Shared { server, commands, inbox, keys, author, pid, meters, loads, witness };
        Client { shared: Arc::new(shared) }
    }

    /// Whether the server can be used.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let live = self.commands().any().live().await;
        live.map(drop).map_err(|trouble| Fault::from(trouble).into())
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.shared.server
    }

    pub(crate) fn commands(&self) -> &Arc<Links> {
        &self.shared.commands
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.shared.inbox
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    /// The process that made it. A forked child has the same sockets and the same inbox: what it did
    /// on them would be done in the name of its parent.
    pub(crate) fn pid(&self) -> u32 {
        self.shared.pid
    }

    pub(crate) fn author(&self) -> &Author {
        &self.shared.author
    }

    /// Who sees to it that replicas have a grant, if anybody is to.
    pub(crate) fn witness(&self) -> Option<&Arc<Witness>> {
        self.shared.witness.as_ref()
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    pub(crate) fn loads(&self) -> &Flights {
        &self.shared.loads
    }

    pub(crate) fn now(&self) -> Time {
        self.shared.server.clock().now()
    }
}
