//! The command line, as clap reads it.
//!
//! In: the arguments. Out: values that are right by themselves; what only the engine can judge
//! (a key, a ttl) is judged there. Usage errors end with 64, not clap's 2.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use crate::complete::live_keys;
use crate::status;
use crate::talk;

/// Distributed locks: run commands under them, and see who holds what.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) everywhere: Everywhere,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Durations: 500ms, 10s, 5m, 1h30m. Data goes to stdout, talk to stderr.";

/// What every command understands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Everywhere {
    /// Where the locks are kept: redis://HOST, etcd://HOST, file:/var/lock/app [env: TENURE_URL, then REDIS_URL]
    ///
    /// Without one, tenure.toml chooses: of the working directory, this user or this machine. If none of
    /// them does, locks are kept in a directory of this user on this machine: /tmp/tenure-UID. Services with
    /// a /tmp of their own (systemd's PrivateTmp, containers) do not exclude each other there.
    #[arg(short, long, global = true, value_name = "URL", conflicts_with = "url_file")]
    pub(crate) url: Option<String>,
    /// Read the URL from a file, to keep its password off the command line [env: TENURE_URL_FILE]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) url_file: Option<PathBuf>,
    /// What all keys on a server start with [default: tenure]
    #[arg(long, global = true, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// When to use colours; NO_COLOR turns `auto` off
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: When,
    /// Say nothing but errors
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
    /// Wait for a lock, run a command, give the lock back
    Run(Box<RunArgs>),
    /// Take a lock and leave it taken, for scripts: nobody renews it
    #[command(after_help = ACQUIRE_AFTER_HELP)]
    Acquire(AcquireArgs),
    /// Give back what `acquire` took, or take a lock away from its holder
    #[command(after_help = RELEASE_AFTER_HELP)]
    Release(ReleaseArgs),
    /// List the locks that are held or waited for
    #[command(after_help = LOOK_AFTER_HELP)]
    Ls(LsArgs),
    /// Show who holds a lock and who waits for it
    #[command(after_help = LOOK_AFTER_HELP)]
    Show(ShowArgs),
    /// Look for what makes locks unsafe here, and say what to do about it
    #[command(after_help = DOCTOR_AFTER_HELP)]
    Doctor(DoctorArgs),
    /// Tell what happens to locks, as it happens
    #[command(after_help = WATCH_AFTER_HELP)]
    Watch(WatchArgs),
    /// Print a script that teaches a shell to complete `tenure`, live keys included
    Completions(CompletionsArgs),
}

const LOOK_AFTER_HELP: &str = "\
Exit status: 0, whatever there is to see; else
   69  backend unreachable, or its lock directory does not exist
   64  usage
Nothing is created: where nobody chose a place and there is none yet, there are no locks.";

#[derive(Clone, Debug, Args)]
#[command(after_help = RUN_AFTER_HELP)]
pub(crate) struct RunArgs {
    /// What to lock, such as db-migrate or order:42
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
    #[command(flatten)]
    pub(crate) asking: Asking,
    /// How long the lock outlives us if this machine dies; no effect on file: [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Keep the lock closed for at least this long, to keep clock-skewed cron twins apart
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) at_least: Option<Duration>,
    /// Hold the lock no longer than this: TERM comes --grace before, KILL at the end, status 79
    ///
    /// The exit status is 79 whether the command follows TERM or is ended by KILL. With --at-most 10s
    /// TERM comes after 8.9s and KILL after 9.9s: a tenth of a second is kept in reserve.
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) at_most: Option<Duration>,
    /// What to do with the command when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Time between TERM and KILL, at most a third of the ttl and half of --at-most [default: 5s]
    ///
    /// The default takes at most a tenth of --at-most.
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Write one JSON object here that says how it went
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) status_file: Option<PathBuf>,
}

/// How a lock is asked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Asking {
    /// Do not wait if the lock is held
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait no longer than this [default: for ever]
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Exit status if the lock was not acquired [default: 75]
    #[arg(short = 'E', long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Shown to whoever waits for the lock
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
The command finds TENURE_KEY, TENURE_FENCE, TENURE_OWNER and TENURE_TTL_MS in its environment, and
neither our URL nor our passwords: TENURE_URL, TENURE_REDIS_PASSWORD, ETCDCTL_USER, ETCDCTL_PASSWORD.
Without --url, services with a /tmp of their own (PrivateTmp, containers) do not exclude each other.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, then KILL before another can have the lock
    Term,
    /// KILL before another can have the lock
    Kill,
    /// Let it run on; the exit status still says 79
    Ignore,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    /// What to lock, such as db-migrate or order:42
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// How long the lock is kept: nobody renews it, so longer than the work can take
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) asking: Asking,
    /// Print one JSON object with the token and the fence, instead of the token alone
    #[arg(long)]
    pub(crate) json: bool,
}

const ACQUIRE_AFTER_HELP: &str = "\
The token goes to stdout, and whoever has it can release the lock:
  token=$(tenure acquire deploy --ttl 10m) || exit
  …
  printf %s \"$token\" | tenure release deploy --token-file -
Exit status: 0 acquired; else
   75  not acquired (-E changes it)      69  backend unreachable
   64  usage                          128+N  signal N ended the wait
A lock of file: or memory: ends with its process, so there it is refused: use `tenure run`.";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("by").required(true).args(["token", "token_file", "force"]))]
pub(crate) struct ReleaseArgs {
    /// The lock, taken literally
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// What `acquire` printed; other users of this machine can see it, so rather use --token-file
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Read the token from a file, `-` for stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
    /// Take the lock away from whoever holds it; the key must be typed again
    #[arg(long)]
    pub(crate) force: bool,
    /// With --force: do not ask
    #[arg(long, requires = "force", conflicts_with_all = ["token", "token_file"])]
    pub(crate) yes: bool,
    /// With --force: told to the former holder
    #[arg(long, value_name = "TEXT", requires = "force")]
    #[arg(conflicts_with_all = ["token", "token_file"])]
    pub(crate) reason: Option<String>,
}

const RELEASE_AFTER_HELP: &str = "\
Exit status: 0 released, with --force also if there was nothing to release; else
   79  not held under this token (any more): another may have held it meanwhile
   75  not taken away: it has another holder by now, is only kept closed, or the
       key was not typed again
   69  backend unreachable               64  usage
--force takes the lock from the holder that it has shown, never from a newer one.";

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only keys that match: `*` any run, `?` one character, `[a-z]` a range, `\x` literally x
    #[arg(default_value = "*")]
    pub(crate) glob: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The lock, taken literally
    #[arg(add = ArgValueCompleter::new(live_keys))]
    pub(crate) key: OsString,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The ttl that the locks will have: what is slow depends on it [default: that of tenure.toml, or 30s]
    #[arg(long, value_name = "DUR", value_parser = positive)]
    pub(crate) ttl: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const DOCTOR_AFTER_HELP: &str = "\
One line per check: the verdict, the check, the place, what was tried, what was seen, what to do.
A lock of a random name is taken for a moment; nothing is changed and nothing is left.
Exit status, by the worst verdict:
    0  good, or unknown: the server may not be asked
    1  warning: locks work, and promise less than they could
    2  unsafe: two can hold the same lock, or none can be had; also if nobody can be reached
   64  usage";

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Only keys that match, as with `ls`
    #[arg(default_value = "*")]
    pub(crate) glob: String,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

const WATCH_AFTER_HELP: &str = "\
Events: acquired, released, handed over, lost (its lease ended without a release), forced, and ended
(released or lost, nobody saw which). What happens faster than it can be looked at is told together.
Exit status: 0 after --count events, or when nobody reads any more; else
   69  backend unreachable at the start, or refused; later it is waited for
   64  usage                          128+N  signal N ended it";

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

/// Reads the command line. `Err` is the status to end with: help and version have been printed, or
/// what is wrong has been said.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    read(std::env::args_os()).map_err(|error| {
        // Whether it reaches the terminal or not, the status is the same.
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        talk::briefly(move || _ = error.print());
        ExitCode::from(status::USAGE)
    })
}

fn read(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    Cli::try_parse_from(&words).map_err(|mut error| {
        if lacks_dashes(&error) && !words.iter().any(|word| word == "--") {
            let tip = vec![StyledStr::from("put `--` before the command")];
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tip));
        }
        error
    })
}

/// Whether this is about a word of `run` that looks like the beginning of its command.
fn lacks_dashes(error: &clap::Error) -> bool {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    error.kind() == ErrorKind::UnknownArgument
        && text(ContextKind::Usage).contains("tenure run ")
        && !text(ContextKind::InvalidArg).starts_with('-')
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
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(line: &str) -> Result<RunArgs, String> {
        let words = line.split_whitespace();
        match read(words).map_err(|error| error.to_string())?.command {
            Command::Run(args) => Ok(*args),
            other => Err(format!("{other:?}")),
        }
    }

    /// clap finds no contradiction in our definitions.
    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }

    /// Everything after `--` is the command's, also what looks like our options.
    #[test]
    fn the_command_is_taken_literally() {
        let args = run("tenure run -n db -- ls -n --wait -- x").unwrap();
        assert!(args.asking.no_wait && args.asking.wait.is_none());
        assert_eq!(args.command, ["ls", "-n", "--wait", "--", "x"]);
    }

    /// Durations are read as people write them, and refused with the value and an example.
    #[test]
    fn durations() {
        assert_eq!(
            run("tenure run -w 1h30m k -- x").unwrap().asking.wait.unwrap().as_secs(),
            5_400
        );
        assert_eq!(run("tenure run --grace 5s k -- x").unwrap().grace.unwrap().as_secs(), 5);
        let refused = run("tenure run -w soon k -- x").unwrap_err();
        assert!(refused.contains("invalid value 'soon' for '--wait <DUR>'"), "{refused}");
        assert!(refused.contains("write it like 500ms, 10s, 5m or 1h30m"), "{refused}");
        let refused = run("tenure run --at-most 0s k -- x").unwrap_err();
        assert!(refused.contains("it must be more than zero"), "{refused}");
    }

    /// Whoever leaves out `--` is told so, in full; other mistakes have other remedies.
    #[test]
    fn missing_dashes() {
        assert_eq!(
            run("tenure run a echo hi").unwrap_err(),
            "error: unexpected argument 'echo' found\n\n  tip: put `--` before the command\n\n\
             Usage: tenure run [OPTIONS] <KEY> -- <COMMAND>...\n\n\
             For more information, try '--help'.\n"
        );
        for line in ["run a b -- echo", "run --nope a", "run a", "show a b", "ls a b"] {
            let refused = run(&format!("tenure {line}")).unwrap_err();
            assert!(!refused.contains("put `--`"), "{refused}");
        }
    }

    /// The help says when TERM comes, what status that gives, and what a look never does.
    #[test]
    fn help_says_when_and_how() {
        let help = |name: &str| {
            let mut cli = Cli::command();
            cli.find_subcommand_mut(name).unwrap().render_long_help().to_string()
        };
        let run = help("run").split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "Hold the lock no longer than this: TERM comes --grace before, KILL at the end, status 79",
            "With --at-most 10s TERM comes after 8.9s and KILL after 9.9s",
            "at most a third of the ttl and half of --at-most [default: 5s]",
            "The default takes at most a tenth of --at-most",
            "Without --url, services with a /tmp of their own (PrivateTmp, containers) do not exclude",
            "neither our URL nor our passwords",
        ] {
            assert!(run.contains(text), "{text}: {run}");
        }
        let ends = [
            ("ls", LOOK_AFTER_HELP),
            ("show", LOOK_AFTER_HELP),
            ("acquire", ACQUIRE_AFTER_HELP),
            ("release", RELEASE_AFTER_HELP),
            ("doctor", DOCTOR_AFTER_HELP),
        ];
        for (name, end) in ends {
            assert!(help(name).contains(end), "{name}");
        }
    }

    /// What cannot be meant together is refused.
    #[test]
    fn contradictions() {
        assert!(run("tenure run -n -w 1s k -- x").is_err());
        assert!(run("tenure run -u memory: --url-file f k -- x").is_err());
        assert!(run("tenure run k").is_err());
        assert!(run("tenure run k x").is_err());
        assert!(run("tenure run -E 256 k -- x").is_err());
    }
}
