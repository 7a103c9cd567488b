//! One request for a lock, with all its options, as the gate and `acquire.rs` see it.
//!
//! In: what `builder.rs` has checked.

use std::sync::{Arc, OnceLock};

use tokio::task;

use crate::backend::BoxFuture;
use crate::claim::ClaimOptions;
use crate::key::Key;
use crate::mode::Mode;
use crate::observe::Series;
use crate::options::{Options, Renew};
use crate::owner::Owner;
use crate::sync::{ThreadId, thread};

/// One request with all its options, as `acquire.rs` and the gate see it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) options: Options,
    /// How the key is asked for.
    pub(crate) mode: Mode,
    /// The permit gets a slot of its own.
    pub(crate) numbered: bool,
    /// An owner that holds permits of the key already gets more of them, instead of re-entering.
    pub(crate) separate: bool,
    /// The lease belongs to this request only: the server shows its label.
    pub(crate) lone: bool,
    pub(crate) owner: Option<Owner>,
    /// The owner was created for this request, so no other request has this owner before the lock is
    /// acquired.
    pub(crate) alone: bool,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    pub(crate) name: Option<Arc<str>>,
    /// The metrics of `name`, cached by the first lookup.
    pub(crate) series: OnceLock<Arc<Series>>,
    /// Set by the first poll: a request may be built in one task and awaited in another.
    pub(crate) asker: OnceLock<Asker>,
}

/// The task that waits, or the thread where there is no task, as in `block_on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    Task(task::Id),
    Thread(ThreadId),
}

impl Asker {
    fn current() -> Self {
        task::try_id().map_or_else(|| Asker::Thread(thread::current().id()), Asker::Task)
    }
}

impl Request {
    /// Records the current task as the asker.
    pub(crate) fn set_asker(&self) {
        self.asker.get_or_init(Asker::current);
    }

    /// The part of the request that the server sees.
    pub(crate) fn claim_options(&self) -> ClaimOptions {
        ClaimOptions::new(self.options.ttl)
            .renewed(self.is_renewed())
            .fenced(self.options.fencing)
            .mode(self.mode.clone())
            .numbered(self.numbered)
            .lone(self.lone)
            .label(self.label.clone())
            .reason(self.reason.clone())
            .retry_interval(self.options.retry_interval)
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.options.renew != Renew::Off
    }
}

/// A future that cancels a wait when it completes.
pub(crate) type Cancel = BoxFuture<'static, ()>;
