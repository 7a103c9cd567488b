//! The command line, as clap reads it.
//!
//! In: the arguments. Out: values that are valid in themselves. The engine checks the rest (a key, a ttl).
//! Usage errors exit with 64, not with clap's 2.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgGroup, Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use tenure::{Mode, PERMITS_MAX};

use crate::completions::{live_keys, url_starts};
use crate::status;
use crate::ui;

mod election;
mod page;

pub(crate) use election::{ElectArgs, LeaderArgs};
pub(crate) use page::{DemoArgs, ServeArgs};

/// Distributed locks: run commands under them, and see who holds what.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) everywhere: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Durations: 500ms, 10s, 5m, 1h30m. Data goes to stdout, messages to stderr.";

/// What every command understands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct GlobalArgs {
    /// Where the locks are kept: redis://HOST, etcd://HOST, file:/var/lock/app [env: TENURE_URL]
    ///
    /// Also redis+sentinel://HOST,HOST/SERVICE, redis-cluster://HOST,HOST and redis+quorum://HOST,HOST,HOST;
    /// rediss… and etcds:// with TLS.
    ///
    /// Without it, the URL comes from tenure.toml in the working directory, of this user or of this machine;
    /// then from REDIS_URL. If none of them has one, locks are kept in a directory of this user on this
    /// machine: /tmp/tenure-UID. Services with a /tmp of their own (systemd's PrivateTmp, containers) do not exclude
    /// each other there.
    #[arg(short, long, global = true, value_name = "URL", conflicts_with = "url_file")]
    #[arg(add = ArgValueCandidates::new(url_starts))]
    pub(crate) url: Option<String>,
    /// Read the URL from a file, to keep its password off the command line [env: TENURE_URL_FILE]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) url_file: Option<PathBuf>,
    /// The prefix of all keys on a server [default: tenure]
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// When to use colours; NO_COLOR turns `auto` off
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: When,
    /// Print only errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Log what the engine does; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Wait for a lock, run a command, release the lock
    Run(Box<RunArgs>),
    /// Wait to lead, run a command while leading, again after each loss
    Elect(ElectArgs),
    /// Print who leads, or each change of it
    Leader(LeaderArgs),
    /// Acquire a lock and exit, for scripts: the lock is not renewed
    #[command(after_help = ACQUIRE_AFTER_HELP)]
    Acquire(AcquireArgs),
    /// Release a lock of `acquire`, or take a lock away from its holder
    #[command(after_help = RELEASE_AFTER_HELP)]
    Release(ReleaseArgs),
    /// List the locks that are held or waited for
    #[command(after_help = INSPECT_AFTER_HELP)]
    Ls(LsArgs),
    /// Show who holds a lock and who waits for it
    #[command(after_help = INSPECT_AFTER_HELP)]
    Show(ShowArgs),
    /// Check whether locks are safe on this target, and print what to change
    #[command(after_help = DOCTOR_AFTER_HELP)]
    Doctor(DoctorArgs),
    /// Measure what a lock costs on this server, from this machine
    #[command(after_help = BENCH_AFTER_HELP)]
    Bench(BenchArgs),
    /// Print events of locks as they happen
    #[command(after_help = WATCH_AFTER_HELP)]
    Watch(WatchArgs),
    /// Serve a page that shows who holds what, who waits, and for how long
    #[command(after_help = page::SERVE_AFTER_HELP)]
    Serve(ServeArgs),
    /// Show what this is: processes that compete for locks, and the page on them, without a server
    #[command(after_help = page::DEMO_AFTER_HELP)]
    Demo(DemoArgs),
    /// Print the completion script for a shell; it also completes live keys
    #[command(after_help = COMPLETIONS_AFTER_HELP)]
    Completions(CompletionsArgs),
}

const INSPECT_AFTER_HELP: &str = "\
Exit status: 0, also if there are no locks; else
   69  backend unreachable, or its lock directory does not exist
   64  usage
Nothing is created. If no URL is chosen and the default directory is missing, there are no locks.";

#[derive(Clone, Debug, Args)]
#[command(after_help = RUN_AFTER_HELP)]
pub(crate) struct RunArgs {
    /// What to lock, such as db-migrate or order:42; of several keys all are held, or none
    #[arg(required = true, value_name = "KEY", add = ArgValueCompleter::new(live_keys))]
    pub(crate) keys: Vec<OsString>,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) asking: WaitArgs,
    /// Hold the keys together with others that say --shared, and keep out those that do not
    #[arg(short, long, conflicts_with = "slots")]
    pub(crate) shared: bool,
    /// Take one of N permits of the key: at most N commands run at a time, on all machines
    ///
    /// One permit has a number that no other holder has at the same time, from 0 to N-1: TENURE_SLOT.
    #[arg(short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) slots: Option<u32>,
    /// Take M of the permits instead of one
    #[arg(long, value_name = "M", requires = "slots", conflicts_with = "shared")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=PERMITS_MAX.into()))]
    pub(crate) take: Option<u32>,
    /// How long the lock stays held if this machine dies; no effect on file: [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Keep the lock closed for at least this long, to keep clock-skewed cron twins apart
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    /// Hold the lock no longer than this: TERM comes --grace before, KILL at the end, status 79
    ///
    /// The exit status is 79 whether the command follows TERM or is ended by KILL. With --max-hold 10s
    /// TERM comes after 8.5s and KILL after 9.5s: half a second, at most a tenth, is kept in reserve.
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) max_hold: Option<Duration>,
    /// What to do with the command when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Time between TERM and KILL, at most a third of the ttl and half of --max-hold [default: 5s]
    ///
    /// The default takes at most a tenth of --max-hold.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Write a report here, as one JSON object; the report of an earlier run is removed first
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) status_file: Option<PathBuf>,
}

impl RunArgs {
    /// How the keys are asked for.
    pub(crate) fn mode(&self) -> Mode {
        match self.slots {
            Some(capacity) => Mode::Permits { permits: self.take.unwrap_or(1), capacity },
            None if self.shared => Mode::Read,
            None => Mode::Exclusive,
        }
    }

    /// What clap cannot check by itself.
    fn contradiction(&self) -> Option<String> {
        let slots = self.slots?;
        let take = self.take.unwrap_or(1);
        if self.keys.len() > 1 {
            return Some("the argument '--slots <N>' cannot be used with several keys".into());
        }
        let what =
            format!("invalid value '{take}' for '--take <M>': there are {slots} permits (--slots)");
        (take > slots).then_some(what)
    }
}

/// How a lock is asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Do not wait if the lock is held
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait no longer than this, for the lock and for an unreachable server
    ///
    /// Without it, the wait for the lock has no limit. The wait for an unreachable server is limited to
    /// --unavailable-after. Without that, it is limited to a few seconds, and at the start there is none.
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Give up if the server does not answer for this long, also at the start [default: as long as --wait]
    #[arg(long, value_name = "DUR", value_parser = duration, conflicts_with = "no_wait")]
    pub(crate) unavailable_after: Option<Duration>,
    /// Exit status if the lock was not acquired [default: 75]
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// A text that others see while they wait for the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

const RUN_AFTER_HELP: &str = "\
Exit status: the command's own, or 128+N if signal N ended it; else
   75  not acquired (-E changes it)      79  lock lost while the command ran
   69  backend unreachable               64  usage
  126  command cannot be run            127  command not found
Signals are forwarded to the command's process group. While still waiting for the lock,
HUP, INT, QUIT and TERM end the wait with 128+N.
The command finds TENURE_KEY, TENURE_FENCE, TENURE_FENCES (of all keys, in their order), TENURE_MODE,
TENURE_OWNER and TENURE_TTL_MS in its environment; with --slots also TENURE_PERMITS, and for one
permit TENURE_SLOT. It finds neither our URL nor our passwords: TENURE_URL, TENURE_REDIS_PASSWORD,
ETCDCTL_USER, ETCDCTL_PASSWORD.
Without --url, services with a /tmp of their own (PrivateTmp, containers) do not exclude each other.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, then KILL before another process can acquire the lock
    Term,
    /// KILL before another process can acquire the lock
    Kill,
    /// Let it continue; the exit status is still 79
    Ignore,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    /// What to lock, such as db-migrate or order:42
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// How long the lock is held: it is not renewed, so choose more than the work can take
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) asking: WaitArgs,
    /// Print one JSON object with the token and the fence, instead of the token alone
    #[arg(long)]
    pub(crate) json: bool,
}

const ACQUIRE_AFTER_HELP: &str = "\
The token goes to stdout. Anyone who has it can release the lock:
  token=$(tenure acquire deploy --ttl 10m) || exit
  …
  printf %s \"$token\" | tenure release deploy --token-file -
Exit status: 0 acquired; else
   75  not acquired (-E changes it)      69  backend unreachable
   64  usage                          128+N  signal N ended the wait
A lock of file: or memory: ends with its process, so there it is refused: use `tenure run`.";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("by").required(true).multiple(true).args(["token", "token_file", "force"]))]
pub(crate) struct ReleaseArgs {
    /// The key of the lock, not a pattern
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// The token that `acquire` printed; other users of this machine can see it, so prefer --token-file
    ///
    /// With --force: the start of the token of one of several holders, as `show` prints it.
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub(crate) token: Option<String>,
    /// Read the token from a file, `-` for stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "force")]
    pub(crate) token_file: Option<PathBuf>,
    /// Take the lock away from its holder, or open one that --min-hold keeps closed; the key must be typed again
    #[arg(long)]
    pub(crate) force: bool,
    /// With --force: do not ask
    #[arg(long, requires = "force")]
    pub(crate) yes: bool,
    /// With --force: the reason that the former holder is given
    #[arg(long, value_name = "TEXT", requires = "force")]
    pub(crate) reason: Option<String>,
}

const RELEASE_AFTER_HELP: &str = "\
Exit status: 0 released, with --force also if there was nothing to release; else
   79  not held with this token, or no longer: another process may have held it since
   75  not taken away: it has another holder by now, or the key was not typed again
   69  backend unreachable               64  usage
--force takes the lock from the holder that it has shown, never from a newer one. Of several
holders, --token says which:
  tenure show limit:reports
  tenure release limit:reports --force --token 1f3a9c2e";

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only keys that match: `*` any run, `?` one character, `[a-z]` a range, `\x` literally x
    #[arg(default_value = "*")]
    pub(crate) glob: String,
    /// The order of the list
    #[arg(long, value_name = "BY", default_value = "key")]
    pub(crate) sort: Sort,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By name
    Key,
    /// The longest held first
    Held,
    /// The most waiters first
    Waiters,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The key of the lock, not a pattern
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The ttl of your locks: the checks of latency depend on it [default: that of tenure.toml, or 30s]
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) ttl: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const DOCTOR_AFTER_HELP: &str = "\
One line per check: the verdict, the check, the target, what was tried, what was seen, what to do.
A lock with a random name is acquired for a moment; nothing else is changed, and nothing is left.
Exit status, by the worst verdict:
    0  good, or unknown: the user lacks the right to check
    1  warning: locks work, with weaker guarantees than possible
    2  unsafe: two processes can hold one lock, or none can; also if no server can be reached
   64  usage";

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// How long each of the four workloads runs
    #[arg(long, value_name = "DUR", value_parser = positive, default_value = "2s")]
    pub(crate) time: Duration,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH_AFTER_HELP: &str = "\
`one request` reads a lock: the cost of network and server alone. Compare the others with it.
Locks named tenure-bench:… are acquired and released without a pause, which slows other clients.
Exit status: 0; else
   69  backend unreachable               64  usage";

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Only keys that match, as with `ls`
    #[arg(default_value = "*")]
    pub(crate) glob: String,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Exit after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

const WATCH_AFTER_HELP: &str = "\
Events: acquired, released, handed over, lost (its lease ended without a release), forced, and ended
(released or lost, it is not known which). Changes in quick succession may be one event.
Exit status: 0 after --count events, or when the reader of stdout is gone; else
   69  backend unreachable at the start, or refused; later, `watch` waits for it
   64  usage                          128+N  signal N ended it";

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

const COMPLETIONS_AFTER_HELP: &str = "\
For every new shell:
  bash        echo 'source <(tenure completions bash)' >> ~/.bashrc
  zsh         echo 'source <(tenure completions zsh)' >> ~/.zshrc, after compinit
  fish        tenure completions fish > ~/.config/fish/completions/tenure.fish
  elvish      echo 'eval (tenure completions elvish | slurp)' >> ~/.config/elvish/rc.elv
  powershell  tenure completions powershell >> $PROFILE
Exit status: 0; 64 usage.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

/// Reads the command line. `Err` is the exit status: help, version or an error message has been printed.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    read(std::env::args_os()).map_err(|error| {
        // The status is the same whether the text could be printed or not.
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        ui::briefly(move || _ = error.print());
        ExitCode::from(status::USAGE)
    })
}

fn read(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let cli = Cli::try_parse_from(&words).map_err(|mut error| {
        if lacks_command(&error) && !words.iter().any(|word| word == "--") {
            let tip = vec![StyledStr::from("put `--` before the command")];
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tip));
        }
        error
    })?;
    match &cli.command {
        Command::Run(args) => args.contradiction().map_or(Ok(()), |flaw| Err(refusal("run", flaw))),
        _ => Ok(()),
    }
    .map(|()| cli)
}

/// An error of `command` in clap's form.
fn refusal(command: &str, flaw: String) -> clap::Error {
    let mut cli = Cli::command();
    cli.build();
    let command = cli.find_subcommand_mut(command);
    let kind = ErrorKind::ArgumentConflict;
    command.map_or_else(|| clap::Error::raw(kind, &flaw), |command| command.error(kind, &flaw))
}

/// Whether the only mistake is that `run` has keys and no command.
fn lacks_command(error: &clap::Error) -> bool {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    error.kind() == ErrorKind::MissingRequiredArgument
        && text(ContextKind::InvalidArg) == "<COMMAND>..."
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like 500ms, 10s, 5m or 1h30m"))
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests;
