//! The signals that are sent to us.
//!
//! In: signals. Out: one at a time, for `wait.rs`, `supervise.rs`, `acquire.rs` and `watch.rs`.
//!
//! A signal that was ignored when we started stays ignored, for us and for the command: `nohup` and shells
//! without job control rely on it.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::error::CliError;
use crate::status::Outcome;

/// The signals that mean "stop": they end a wait.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// The signals that matter only to a running command. Not in the list: signals that a fault raises, signals
/// that cannot be caught, and signals about our own files.
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

/// The signals that we receive.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ignored: u64,
    /// The last signal that means "stop".
    ending: Option<Signal>,
}

impl Signals {
    /// Listens for the signals that end a wait.
    pub(crate) fn ending() -> Result<Self, CliError> {
        let mut signals = Signals { streams: Vec::new(), ignored: ignored_now(), ending: None };
        signals.listen(&ENDING)?;
        Ok(signals)
    }

    /// For tests: no signal arrives.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Signals { streams: Vec::new(), ignored: 0, ending: None }
    }

    /// Listens also for the signals that a command may want. Call it only when a command is about to start:
    /// until then Ctrl-Z stops us like any other program.
    pub(crate) fn for_the_command(&mut self) -> Result<(), CliError> {
        self.listen(&FOR_THE_COMMAND)
    }

    fn listen(&mut self, to: &[Signal]) -> Result<(), CliError> {
        let ignored = self.ignored;
        for signal in to.iter().filter(|signal| !is_in(ignored, **signal)) {
            let stream = unix::signal(SignalKind::from_raw(*signal as i32));
            self.streams.push((*signal, stream.map_err(|error| unable(&error))?));
        }
        Ok(())
    }

    /// The next signal. Cancel-safe: a signal that was not returned is returned by the next call.
    pub(crate) async fn next(&mut self) -> Signal {
        let signal = poll_fn(|cx| self.poll(cx)).await;
        if ENDING.contains(&signal) {
            self.ending = Some(signal);
        }
        signal
    }

    /// The last signal that meant "stop", also if it was only forwarded.
    pub(crate) fn asked_to_end(&self) -> Option<Signal> {
        self.ending
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        let arrived = |(signal, stream): &mut (Signal, unix::Signal)| {
            stream.poll_recv(cx).is_ready().then_some(*signal)
        };
        self.streams.iter_mut().find_map(arrived).map_or(Poll::Pending, Poll::Ready)
    }
}

/// The error if the system does not let us listen.
fn unable(error: &io::Error) -> CliError {
    CliError::new(Outcome::Unreachable, format!("cannot listen for signals: {error}"))
}

/// The set of ignored signals, from `/proc`. On systems without it, the set is empty.
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

    /// Each signal is one bit of the kernel's mask.
    #[test]
    fn ignored_signals_are_recognised() {
        let mask = ignored_in("Name:\tx\nSigIgn:\t0000000000001001\n").unwrap();
        assert!(is_in(mask, Signal::SIGHUP) && is_in(mask, Signal::SIGPIPE));
        assert!(!is_in(mask, Signal::SIGINT));
        assert_eq!(ignored_in("Name:\tx\n"), None);
    }

    /// A signal that arrives before `next` is called is returned by `next`.
    #[tokio::test]
    async fn signals_are_kept_until_asked_for() {
        let mut signals = Signals::none();
        signals.listen(&[Signal::SIGUSR2]).unwrap();
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        assert_eq!(signals.next().await, Signal::SIGUSR2);
    }
}
