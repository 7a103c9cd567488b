//! What others send us.
//!
//! In: signals. Out: one at a time, for `wait.rs` and `hold.rs` to act on.
//!
//! A signal that was ignored when we started stays ignored, for us and for the command: that is
//! what `nohup` and shells without job control ask for.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::status::Outcome;
use crate::trouble::Trouble;

/// Those that mean "stop": they end a wait.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Those that mean something only to a running command. What a fault raises, what cannot be caught,
/// and what only concerns our own files is not among them.
const FOR_THE_COMMAND: [Signal; 8] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals that reach us from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ignored: u64,
}

impl Signals {
    /// Listens for those that end a wait.
    pub(crate) fn ending() -> Result<Self, Trouble> {
        let mut signals = Signals { streams: Vec::new(), ignored: ignored_now() };
        signals.listen(&ENDING)?;
        Ok(signals)
    }

    /// For tests: nobody sends anything.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Signals { streams: Vec::new(), ignored: 0 }
    }

    /// Listens also for those that a command may want. Not before there is one: until then Ctrl-Z
    /// stops us as it stops any program.
    pub(crate) fn for_the_command(&mut self) -> Result<(), Trouble> {
        self.listen(&FOR_THE_COMMAND)
    }

    fn listen(&mut self, to: &[Signal]) -> Result<(), Trouble> {
        let ignored = self.ignored;
        for signal in to.iter().filter(|signal| !is_in(ignored, **signal)) {
            let stream = unix::signal(SignalKind::from_raw(*signal as i32));
            self.streams.push((*signal, stream.map_err(|error| unable(&error))?));
        }
        Ok(())
    }

    /// The next one. Cancel-safe: a signal that was not returned is returned next time.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        let arrived = |(signal, stream): &mut (Signal, unix::Signal)| {
            stream.poll_recv(cx).is_ready().then_some(*signal)
        };
        self.streams.iter_mut().find_map(arrived).map_or(Poll::Pending, Poll::Ready)
    }
}

/// The system would not let us listen.
fn unable(error: &io::Error) -> Trouble {
    Trouble::new(Outcome::Unreachable, format!("cannot listen for signals: {error}"))
}

/// The set of ignored signals. The kernel says it in `/proc`; elsewhere none is taken to be.
fn ignored_now() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status).unwrap_or(0)
}

fn ignored_in(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal as i32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's mask is read bit by bit.
    #[test]
    fn ignored_signals_are_recognised() {
        let mask = ignored_in("Name:\tx\nSigIgn:\t0000000000001001\n").unwrap();
        assert!(is_in(mask, Signal::SIGHUP) && is_in(mask, Signal::SIGPIPE));
        assert!(!is_in(mask, Signal::SIGINT));
        assert_eq!(ignored_in("Name:\tx\n"), None);
    }

    /// A signal that arrives while nobody listens is there when somebody does.
    #[tokio::test]
    async fn signals_are_kept_until_asked_for() {
        let mut signals = Signals::none();
        signals.listen(&[Signal::SIGUSR2]).unwrap();
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        assert_eq!(signals.next().await, Signal::SIGUSR2);
    }
}
