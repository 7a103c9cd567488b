//! Whose keyboard it is.
//!
//! The command has a process group of its own, which makes it a background job to the terminal:
//! it would be stopped as soon as it reads (SIGTTIN). So the terminal is lent to it: from the start
//! where we are alone on it, or when it first asks where a pipeline may need it too (`… | less`).

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal that controls us.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    /// We lent it to the command, and do so again after `fg`.
    lent: bool,
}

impl Terminal {
    /// The terminal that controls us, if one does.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, lent: false })
    }

    /// Whether we may give it away: the keyboard is ours now.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(getpgrp())
    }

    /// Our handle for the child to take it by, if it is to have it from the start: nobody else of
    /// our pipeline can be reading from it.
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

    /// Lends it to a group that asked for it. `false` if it is not ours to lend.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let lent = self.is_ours() && set_foreground(&self.tty, group).is_ok();
        self.lent |= lent;
        lent
    }

    /// Lends it again, if it was lent before and a shell has just given it to us (`fg`, not `bg`).
    pub(crate) fn lend_again(&mut self, group: Pid) {
        if self.lent {
            self.lend(group);
        }
    }

    /// Takes it back from `group`, if it still has it.
    pub(crate) fn take_back(&self, group: Pid) {
        if tcgetpgrp(&self.tty) == Ok(group) {
            // A terminal that is gone needs no owner.
            let _ = set_foreground(&self.tty, getpgrp());
        }
    }
}

/// Makes `group` the one that reads the keyboard. Called from the background too, where the kernel
/// would stop us for asking, were SIGTTOU not held back. Safe between fork and exec.
pub(crate) fn set_foreground(tty: &File, group: Pid) -> nix::Result<()> {
    let mut ttou = SigSet::empty();
    ttou.add(Signal::SIGTTOU);
    let before = ttou.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let done = tcsetpgrp(tty, group);
    before.thread_set_mask()?;
    done
}
