//! `cargo xtask bench`: the cost of locks on this machine, against the cost of the bare commands.
//!
//! In: the arguments. Out: a table or JSON on stdout; meanwhile a progress bar on stderr, if that is a
//! terminal. The library does the measuring.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenure_bench::{Bench, Error, Progress, Report, Size};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit status of `--check` if a bar is missed.
const MISSED: u8 = 1;
/// The same exit statuses as `tenure`: invalid arguments, server unreachable, ended by signal N.
const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;
const SIGNALLED: u8 = 128;
/// The resolution of the progress bar: enough for a wide terminal.
const PARTS: u64 = 1_000;

/// Measures the cost of locks on this machine, against the cost of the bare commands
#[derive(Debug, Parser)]
#[command(after_help = AFTER_HELP, max_term_width = 100)]
struct Args {
    /// The URL of the server; without one, the embedded engines are measured
    #[arg(short, long, value_name = "URL", env = "TENURE_URL", hide_env_values = true)]
    url: Option<String>,
    /// Only figures whose name contains this, such as uncontended or held/10000
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    only: String,
    /// The number of rounds of each side for a median
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// A quick look: a tenth of the time or less, and rough figures
    #[arg(long)]
    quick: bool,
    /// Also use the processor that is otherwise left to a server on this machine
    #[arg(long)]
    all_processors: bool,
    /// Exit with 1 if a bar is missed
    #[arg(long)]
    check: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Used by the bench itself: be one of the processes that compete for a lock.
    #[arg(long, hide = true, value_name = "URL")]
    contender: Option<String>,
}

const AFTER_HELP: &str = "\
A figure is ours, what the bare thing costs, and their ratio: medians of rounds in turn, in this run,
with metrics and logs on. On redis: the bare thing is the same driver with SET NX PX and a script that
compares and deletes, on etcd: with two transactions. Keys are under a prefix of the run's own and gone
afterwards, also after Ctrl-C. Clients of both sides keep off one processor: a server on this machine has
it to itself, as on a machine of its own. Without a server: the embedded engines, in a space of their own.
Exit status: 0, whatever the figures; else
    1  a bar was missed (--check)
   69  backend unreachable
   64  usage
 128+N  signal N ended it";

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // The exit status is the same if printing fails.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    // A multi-threaded runtime, as in a service.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let measured = runtime.map_err(Error::from).and_then(|runtime| match &args.contender {
        Some(url) => runtime.block_on(tenure_bench::contend(url)).map(|()| ExitCode::SUCCESS),
        None => runtime.block_on(measure(&args)),
    });
    measured.unwrap_or_else(|error| {
        say(&format!("error: {error}{}", causes(&error)));
        ExitCode::from(status(&error))
    })
}

async fn measure(args: &Args) -> Result<ExitCode, Error> {
    let size = if args.quick { Size::Quick } else { Size::Full };
    let bench = Bench::new(args.url.as_deref())?;
    let bench = bench.only(&args.only).rounds(args.rounds).size(size);
    let bench = bench.all_processors(args.all_processors);
    if args.url.is_some() && bench.is_embedded() && !args.quiet {
        say("embedded engines are measured in a space of their own, not in the one that was named");
    }
    tenure_bench::observe()?;
    let (bar, stop) = (progress_bar(args), CancellationToken::new());
    let shown = |Progress { figure, done }: Progress| {
        bar.set_message(figure);
        bar.set_position((done * PARTS as f64) as u64);
    };
    let (report, number) = until_signalled(bench.run(&stop, &shown), &stop).await?;
    bar.finish_and_clear();
    match (report, number) {
        (Err(Error::Stopped), Some(number)) => {
            say("stopped, nothing is left behind");
            Ok(ExitCode::from(SIGNALLED + number))
        }
        (report, _) => Ok(show(&report?, args)),
    }
}

fn show(report: &Report, args: &Args) -> ExitCode {
    let text = if args.json { report.json() } else { report.to_string() };
    // A reader that closes the pipe early (`| head`) is not an error.
    let _ = io::stdout().write_all(text.as_bytes());
    let missed = report.missed();
    if missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !args.quiet {
        say(&format!("missed: {}", missed.join(", ")));
    }
    ExitCode::from(if args.check { MISSED } else { 0 })
}

/// Runs until done. A signal asks the run to stop, and we wait for its end, because it has keys to remove.
async fn until_signalled<T>(
    run: impl Future<Output = T>,
    stop: &CancellationToken,
) -> Result<(T, Option<u8>), Error> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut number = None;
    let mut run = std::pin::pin!(run);
    loop {
        tokio::select! {
            done = &mut run => return Ok((done, number)),
            _ = int.recv() => number = Some(2),
            _ = term.recv() => number = Some(15),
        }
        stop.cancel();
    }
}

fn progress_bar(args: &Args) -> ProgressBar {
    let target = match io::stderr().is_terminal() && !args.quiet {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(PARTS), target);
    // An invalid template would show in the first run; then the default style is used.
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg:18}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn status(error: &Error) -> u8 {
    match error {
        Error::Usage(_) => USAGE,
        Error::Lock(error) if error.is_invalid() || error.is_unsupported() => USAGE,
        _ => UNREACHABLE,
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    error.source().map(|cause| format!(": {cause}{}", causes(cause))).unwrap_or_default()
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "tenure-bench: {line}");
}
