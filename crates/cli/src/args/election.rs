//! The command line of `elect` and `leader`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::duration;
use crate::completions::live_keys;

#[derive(Clone, Debug, Args)]
#[command(after_help = ELECT_AFTER_HELP)]
pub(crate) struct ElectArgs {
    /// What to lead, such as leader:scheduler
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    /// What others see of the leader, such as its address [default: user@host/pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    /// How long nobody leads if this machine dies; no effect on file: [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Time between TERM and KILL, at most a third of the ttl [default: 5s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// A text that others see while they wait to lead
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

pub(super) const ELECT_AFTER_HELP: &str = "\
Waits until this process leads, without a limit, and runs the command. If the leadership is lost,
the command gets TERM, and KILL before another process can lead; then this process waits to lead
again.
Exit status: the command's own when it ends by itself, or 128+N if signal N ended it; else
   79  the leadership ended before the command did, and only the resignation found out
   69  backend refused                   64  usage
  126  command cannot be run            127  command not found
Signals are forwarded to the command's process group. While waiting, HUP, INT, QUIT and TERM end
the wait with 128+N. The command finds TENURE_KEY, TENURE_FENCE (the term), TENURE_OWNER and
TENURE_TTL_MS in its environment.";

#[derive(Debug, Args)]
#[command(after_help = LEADER_AFTER_HELP)]
pub(crate) struct LeaderArgs {
    /// What is led
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// Print who leads, and then a line for each change
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print one JSON object, with --watch one per line
    #[arg(long)]
    pub(crate) json: bool,
    /// With --watch: exit after this many lines
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

pub(super) const LEADER_AFTER_HELP: &str = "\
Prints the value that the leader has proclaimed.
Exit status: 0 somebody leads, 1 nobody leads; with --watch 0 after --count lines, or when the
reader of stdout is gone; else
   69  backend unreachable at the start, or refused; later, --watch waits for it
   64  usage                          128+N  signal N ended --watch";
