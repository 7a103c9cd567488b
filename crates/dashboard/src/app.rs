//! What all requests share, and the options of the page.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use tenure_core::{Capabilities, Key, Locker, Token};
use tokio::sync::Semaphore;

use crate::checkup::Checkup;
use crate::collector::Collector;

/// How many streams of events may be open.
pub(crate) const STREAMS_MAX: usize = 500;

/// The options of the page.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) allow_release: bool,
    pub(crate) watch_at_once: bool,
    pub(crate) auth_token: Option<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) command_options: Option<String>,
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) locker: Locker,
    pub(crate) can: Capabilities,
    pub(crate) options: Options,
    pub(crate) collector: Collector,
    pub(crate) checkup: Checkup,
    pub(crate) streams: Arc<Semaphore>,
    /// Random keys of this router: only it can compute the names of claims and the value of its forms.
    secret: RandomState,
}

impl App {
    pub(crate) fn new(locker: Locker, options: Options) -> Self {
        let (can, collector) = (locker.capabilities(), Collector::new(locker.clone()));
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        let (checkup, secret) = Default::default();
        App { locker, can, options, collector, checkup, streams, secret }
    }

    /// The name of a claim: neither a part of its token nor made from it by a function that others know.
    pub(crate) fn claim_name(&self, key: &Key, token: Token) -> String {
        format!("{:016x}", self.secret.hash_one((key, token)))
    }

    /// What every form of this router must send back: a page of another origin cannot read it.
    pub(crate) fn csrf(&self) -> String {
        let half = |number: u8| self.secret.hash_one(("csrf", number));
        format!("{:016x}{:016x}", half(0), half(1))
    }

    /// Whether holders can be released by force on this page.
    pub(crate) fn may_release(&self) -> bool {
        self.options.allow_release && self.can.force_release
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { allow_release, watch_at_once, auth_token, hosts, command_options } = self;
        let auth = auth_token.as_ref().map(|_| "…");
        let mut all = f.debug_struct("Options");
        all.field("allow_release", allow_release).field("auth_token", &auth);
        all.field("watch_at_once", watch_at_once);
        all.field("hosts", hosts).field("command_options", command_options).finish()
    }
}

/// Compares two secrets in a time that does not depend on where they differ.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differ) == 0
}
