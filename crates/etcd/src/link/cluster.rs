//! State that all connections to one cluster share.
//!
//! In: the addresses of its members, and our login. Out: which member to try first, and whether all members
//! belong to one cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::time::Clock;
use tenure_net::Timeouts;
use tokio_rustls::rustls::ClientConfig;

use crate::error::{EngineError, ErrorKind};
use crate::url::{Address, Login};
use crate::version::{Support, support};

/// A cluster and how to reach it.
pub(crate) struct Cluster {
    pub(super) members: Vec<Address>,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) timeouts: Timeouts,
    clock: Clock,
    /// The member to try first: the one that served us last, or the next one after a member that failed.
    first: AtomicUsize,
    /// The cluster id, once a member has reported it; zero before.
    id: AtomicU64,
    /// A member with known bugs was seen.
    buggy_member: AtomicBool,
}

/// Without the login, and without keys.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("members", &self.members).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn new(
        members: Vec<Address>,
        login: Option<Login>,
        tls: Option<Arc<ClientConfig>>,
        timeouts: Timeouts,
    ) -> Self {
        let (clock, first) = (Clock::system(), AtomicUsize::new(0));
        let (id, buggy_member) = Default::default();
        Cluster { members, login, tls, timeouts, clock, first, id, buggy_member }
    }

    /// The addresses of its members, as they were named.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.members
    }

    /// All addresses, for messages.
    pub(super) fn shown(&self) -> String {
        self.members.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// Our user name, if we log in.
    pub(crate) fn user(&self) -> Option<&str> {
        self.login.as_ref().map(|login| login.user.as_str())
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The members in the order in which to try them.
    pub(super) fn try_order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.members.len());
        (0..count).map(move |step| (first + step) % count)
    }

    /// Makes `member` the first to try.
    pub(super) fn prefer(&self, member: usize) {
        self.first.store(member, Ordering::Relaxed);
    }

    /// Makes the next member the first to try, if `member` is the first now.
    pub(super) fn avoid(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let (relaxed, first) = (Ordering::Relaxed, &self.first);
        let _ = first.compare_exchange(member, next, relaxed, relaxed);
    }

    /// Whether a member with known bugs was seen.
    pub(super) fn has_buggy_member(&self) -> bool {
        self.buggy_member.load(Ordering::Acquire)
    }

    /// Refuses a member of another cluster: locks in two clusters do not exclude each other.
    pub(super) fn check_cluster_id(&self, id: u64, address: &Address) -> Result<(), EngineError> {
        let (ours, order) = (&self.id, Ordering::AcqRel);
        match ours.compare_exchange(0, id, order, Ordering::Acquire) {
            Err(known) if known != id => {
                let what = "it belongs to another cluster than the members met before";
                Err(EngineError::new(ErrorKind::Refused, address, what))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a server that is too old, and warns once about a server with known bugs.
    pub(super) fn check_version(
        &self,
        version: &str,
        address: &Address,
    ) -> Result<(), EngineError> {
        match support(version) {
            Support::Good => Ok(()),
            Support::TooOld => {
                let what = format!("the server is too old ({version}): 3.4 or later is needed");
                Err(EngineError::new(ErrorKind::Unsupported, address, what))
            }
            Support::Buggy(floor) => {
                let first = !self.buggy_member.swap(true, Ordering::AcqRel);
                if first && !was_warned_about(address) {
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

/// Records that this process has warned about a server. Returns whether it had before.
fn was_warned_about(address: &Address) -> bool {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    !WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_string())
}
