//! `tenure bench`: what locks cost here, beside what the bare thing costs.
//!
//! In: the arguments. Out: a table or JSON on stdout; a bar on stderr meanwhile, if that is a terminal.
//! The measuring is in the crate `tenure-bench`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenure_bench::{Bench, Error, Progress, Report, Size};
use tokio_util::sync::CancellationToken;

use crate::args::{BenchArgs, Everywhere};
use crate::output;
use crate::signals::Signals;
use crate::status::Outcome;
use crate::talk::{self, Talk};
use crate::text;
use crate::trouble::Trouble;
use crate::url::Place;

/// The end of `--check` when a bar is missed.
const MISSED: u8 = 1;
/// Parts of the bar: fine enough for a wide terminal.
const PARTS: u64 = 1_000;

/// Measures, and shows it.
pub(crate) fn bench(args: &BenchArgs, flags: &Everywhere, talk: &mut Talk) -> u8 {
    let measured = runtime().and_then(|runtime| match &args.contender {
        Some(url) => runtime.block_on(contend(url)).map(|()| None),
        None => runtime.block_on(measure(args, flags, talk)).map(Some),
    });
    match measured {
        Ok(Some(report)) => show(&report, args, talk),
        Ok(None) => 0,
        Err(Trouble { outcome: outcome @ Outcome::Interrupted(_), .. }) => {
            talk.say(&output::bench_stopped());
            outcome.code()
        }
        Err(trouble) => talk.trouble(&trouble),
    }
}

fn show(report: &Report, args: &BenchArgs, talk: &mut Talk) -> u8 {
    talk::data(&if args.json { report.json() } else { report.to_string() });
    let missed = report.missed();
    if missed.is_empty() {
        return 0;
    }
    talk.say(&output::bars_missed(&missed));
    if args.check { MISSED } else { 0 }
}

async fn measure(args: &BenchArgs, flags: &Everywhere, talk: &mut Talk) -> Result<Report, Trouble> {
    let place = Place::if_named(flags)?;
    let trouble = |error| trouble(&error, place.as_ref());
    let size = if args.quick { Size::Quick } else { Size::Full };
    let bench = Bench::new(place.as_ref().map(Place::secret)).map_err(trouble)?;
    let bench = bench.only(&args.only).rounds(args.rounds).size(size);
    let bench = bench.all_processors(args.all_processors);
    if let Some(place) = place.as_ref().filter(|_| bench.is_embedded()) {
        talk.say(&output::bench_elsewhere(&place.shown()));
    }
    tenure_bench::observe().map_err(trouble)?;
    let (bar, stop) = (progress_bar(talk), CancellationToken::new());
    let shown = |Progress { figure, done }: Progress| {
        bar.set_message(figure);
        bar.set_position((done * PARTS as f64) as u64);
    };
    let run = bench.run(&stop, &shown);
    let (report, signal) = until_signalled(run, &stop).await?;
    bar.finish_and_clear();
    match (report, signal) {
        (Err(Error::Stopped), Some(signal)) => {
            Err(Trouble::new(Outcome::Interrupted(signal), "stopped"))
        }
        (report, _) => report.map_err(trouble),
    }
}

/// Runs until done. A signal asks it to stop, and it is waited for: it has keys to remove.
async fn until_signalled<T>(
    run: impl Future<Output = T>,
    stop: &CancellationToken,
) -> Result<(T, Option<i32>), Trouble> {
    let (mut signals, mut signal) = (Signals::ending()?, None);
    let mut run = std::pin::pin!(run);
    loop {
        tokio::select! {
            done = &mut run => return Ok((done, signal)),
            which = signals.next() => {
                stop.cancel();
                signal = Some(which as i32);
            }
        }
    }
}

async fn contend(url: &str) -> Result<(), Trouble> {
    tenure_bench::contend(url).await.map_err(|error| trouble(&error, None))
}

fn progress_bar(talk: &Talk) -> ProgressBar {
    let target = match talk.is_live() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(PARTS), target);
    // A template of ours that is wrong would show in the first run; the default one will do.
    let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg:18}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// What went wrong, without our password.
fn trouble(error: &Error, place: Option<&Place>) -> Trouble {
    let trouble = match error {
        Error::Lock(error) => Trouble::engine(error),
        Error::Usage(what) => Trouble::usage(what),
        error => Trouble::new(Outcome::Unreachable, text::chain(error)),
    };
    match place {
        Some(place) => Trouble { chain: place.scrub(&trouble.chain), ..trouble },
        None => trouble,
    }
}

/// Several threads, as a service has.
fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Trouble::new(Outcome::Unreachable, format!("cannot start: {error}")))
}
