//! `tenure`: run commands under a distributed lock, and see who holds what.
//!
//! The modules, in the order in which a run uses them:

mod args; // the command line
mod completions; // shell completion of the command line
mod target; // where the locks are stored, and which parts of its URL may be printed

mod run; // `tenure run`: from the checks to the exit status
mod elect; // `tenure elect`: runs a command while this process leads
mod command; // the command: the check that it can be run, and its start
mod wait; // the wait for the lock, and the progress messages during it
mod hold; // what the command runs under: one key or several, in every mode
mod supervise; // watches the running command and its lock
mod child; // the running command: its process group and its end
mod signals; // the signals that are sent to us
mod terminal; // which process group may read the keyboard

mod acquire; // `tenure acquire`: a lock that outlives our process
mod release; // `tenure release`: by token
mod force; // `tenure release --force`: without the token

mod ls; // `tenure ls`
mod show; // `tenure show`
mod leader; // `tenure leader`
mod watch; // `tenure watch`
mod json; // locks and events as values and as JSON

mod serve; // `tenure serve`
mod demo; // `tenure demo`

mod doctor; // `tenure doctor`
mod bench; // `tenure bench`

mod output; // the text of every message for people
mod ui; // writes messages to stderr
mod status; // outcomes, exit statuses, the status file
mod error; // errors and their outcomes
mod text; // durations, names and errors as text

use std::process::ExitCode;

use crate::args::{Command, parse};
use crate::ui::Ui;

fn main() -> ExitCode {
    completions::answer();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let mut ui = Ui::new(&cli.everywhere);
    ui.trace(&cli.everywhere);
    let code = match &cli.command {
        Command::Run(args) => run::run(args, &cli.everywhere, &mut ui),
        Command::Elect(args) => elect::elect(args, &cli.everywhere, &mut ui),
        Command::Leader(args) => leader::leader(args, &cli.everywhere, &mut ui),
        Command::Acquire(args) => acquire::acquire(args, &cli.everywhere, &mut ui),
        Command::Release(args) => release::release(args, &cli.everywhere, &mut ui),
        Command::Ls(args) => ls::ls(args, &cli.everywhere, &mut ui),
        Command::Show(args) => show::show(args, &cli.everywhere, &mut ui),
        Command::Doctor(args) => doctor::doctor(args, &cli.everywhere, &mut ui),
        Command::Bench(args) => bench::bench(args, &cli.everywhere, &mut ui),
        Command::Watch(args) => watch::watch(args, &cli.everywhere, &mut ui),
        Command::Serve(args) => serve::serve(args, &cli.everywhere, &mut ui),
        Command::Demo(args) => demo::demo(args, &mut ui),
        Command::Completions(args) => completions::script(args, &mut ui),
    };
    ui.finish();
    ExitCode::from(code)
}
