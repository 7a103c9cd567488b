//! A client in a forked child.

use tenure_core::backend::{Fault, FaultKind};

/// Why a forked child cannot use the connections of its parent.
const FORKED: &str = "the client was made by the process that forked this one";

/// Refuses requests of a forked child: it has its parent's sockets, and would receive its parent's grants.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    /// The process that made the client.
    pid: u32,
}

impl ForkGuard {
    /// For a client of this process.
    pub fn of_this_process() -> Self {
        ForkGuard { pid: std::process::id() }
    }

    /// Refuses a request of this process, if another one made the client.
    ///
    /// # Errors
    ///
    /// A fault that is invalid.
    pub fn refuse_forked(self) -> Result<(), Fault> {
        self.refuse_other(std::process::id())
    }

    /// Refuses a request of `process`, if another one made the client.
    ///
    /// # Errors
    ///
    /// A fault that is invalid.
    pub fn refuse_other(self, process: u32) -> Result<(), Fault> {
        match process == self.pid {
            true => Ok(()),
            false => Err(Fault::new(FaultKind::Invalid, FORKED)),
        }
    }
}
