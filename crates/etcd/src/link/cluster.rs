//! What all connections to one cluster have in common.
//!
//! In: where its members are, and who we are to them. Out: which one to ask first, and whether they
//! all belong together.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Clock;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::trouble::{Cause, Trouble};
use crate::url::{Address, Login};
use crate::version::{Opinion, opinion};

/// A cluster and how to reach it.
pub(crate) struct Cluster {
    pub(super) members: Vec<Member>,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    clock: Clock,
    /// Which member to try first: the one that served us last, or the one after that which did not.
    first: AtomicUsize,
    /// The cluster's own number, once a member has told; zero before.
    id: AtomicU64,
    /// A member has been met whose bugs are known.
    suspects: AtomicBool,
}

/// One member.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) address: Address,
    /// Whom its certificate must be for.
    pub(crate) name: Option<ServerName<'static>>,
}

/// Without the login, and without keys.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.members.iter().map(|member| &member.address).collect();
        f.debug_struct("Cluster").field("members", &addresses).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn new(
        members: Vec<Member>,
        login: Option<Login>,
        tls: Option<Arc<ClientConfig>>,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        let (clock, first) = (Clock::system(), AtomicUsize::new(0));
        let (id, suspects) = Default::default();
        Cluster {
            members,
            login,
            tls,
            connect_timeout,
            response_timeout,
            clock,
            first,
            id,
            suspects,
        }
    }

    /// Where its members are, as they were named.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.members.iter().map(|member| &member.address)
    }

    /// Who we are, if we say so.
    pub(crate) fn user(&self) -> Option<&str> {
        self.login.as_ref().map(|login| login.user.as_str())
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The members in the order in which to try them.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.members.len());
        (0..count).map(move |step| (first + step) % count)
    }

    /// Has `member` tried first from now on.
    pub(super) fn prefer(&self, member: usize) {
        self.first.store(member, Ordering::Relaxed);
    }

    /// Has the next one tried first, if `member` is the one that is now.
    pub(super) fn avoid(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let (relaxed, first) = (Ordering::Relaxed, &self.first);
        let _ = first.compare_exchange(member, next, relaxed, relaxed);
    }

    /// Whether a member has been met whose bugs are known.
    pub(super) fn has_suspects(&self) -> bool {
        self.suspects.load(Ordering::Acquire)
    }

    /// Refuses a member of another cluster: locks kept in two places exclude nobody.
    pub(super) fn meet(&self, id: u64, address: &Address) -> Result<(), Trouble> {
        let (ours, order) = (&self.id, Ordering::AcqRel);
        match ours.compare_exchange(0, id, order, Ordering::Acquire) {
            Err(known) if known != id => {
                let what = "it belongs to another cluster than the members met before";
                Err(Trouble::new(Cause::Refused, address, what))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a server that is too old, and warns once of one whose bugs are known.
    pub(super) fn judge(&self, version: &str, address: &Address) -> Result<(), Trouble> {
        match opinion(version) {
            Opinion::Good => Ok(()),
            Opinion::TooOld => {
                let what = format!("the server is too old ({version}): 3.4 or later is needed");
                Err(Trouble::new(Cause::Unsupported, address, what))
            }
            Opinion::Buggy(floor) => {
                let first = !self.suspects.swap(true, Ordering::AcqRel);
                if first && !was_named(address) {
                    tracing::warn!(
                        component = "tenure", %address, version, floor,
                        "this etcd has known bugs by which a lease can end while it seems to be \
                         kept alive (etcd issues 20547, 15247): upgrade it"
                    );
                }
                Ok(())
            }
        }
    }
}

/// Whether this process has been warned of a server before; from now on it has.
fn was_named(address: &Address) -> bool {
    static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    !NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_string())
}
