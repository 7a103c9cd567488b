//! Which process group may read the keyboard.
//!
//! The command has its own process group, which is a background job for the terminal: the kernel would stop
//! it as soon as it reads (SIGTTIN). So we lend it the terminal: from the start if we have the terminal to
//! ourselves, or at its first read if other programs of a pipeline may need the terminal too (`… | less`).

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// Our controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    /// The terminal was lent to the command, and is lent again after `fg`.
    lent: bool,
}

impl Terminal {
    /// Opens our controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, lent: false })
    }

    /// Whether our group is in the foreground, so that we may lend the terminal.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(getpgrp())
    }

    /// A handle with which the child takes the terminal at its start, if no other program of our pipeline can
    /// be reading from it.
    pub(crate) fn for_the_start(&mut self) -> Option<File> {
        let alone = [
            io::stdin().is_terminal(),
            io::stdout().is_terminal(),
            io::stderr().is_terminal(),
            self.is_ours(),
        ];
        self.lent = alone.iter().all(|yes| *yes);
        self.lent.then(|| self.tty.try_clone().ok()).flatten()
    }

    /// Lends the terminal to a group that wants to read. `false` if our group does not have it.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let lent = self.is_ours() && set_foreground(&self.tty, group).is_ok();
        self.lent |= lent;
        lent
    }

    /// Lends the terminal again, if it was lent before and a shell has just returned it to us (`fg`, not
    /// `bg`).
    pub(crate) fn lend_again(&mut self, group: Pid) {
        if self.lent {
            self.lend(group);
        }
    }

    /// Takes the terminal back from `group`, if `group` still has it.
    pub(crate) fn take_back(&self, group: Pid) {
        if tcgetpgrp(&self.tty) == Ok(group) {
            // An error means that the terminal is gone, so it needs no owner.
            let _ = set_foreground(&self.tty, getpgrp());
        }
    }
}

/// Makes `group` the foreground group. It is also called from the background, where the kernel would stop us
/// with SIGTTOU; so that signal is blocked meanwhile. Safe between fork and exec.
pub(crate) fn set_foreground(tty: &File, group: Pid) -> nix::Result<()> {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = ttou.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let done = tcsetpgrp(tty, group);
    before.thread_set_mask()?;
    done
}
