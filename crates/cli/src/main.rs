//! `tenure`: run commands under a distributed lock, and see who holds what.
//!
//! A contents page, in the order in which a run passes through:

mod args; // what was asked: the command line
mod complete; // the same for shells that complete it
mod url; // where the locks are kept, and what of that may be shown

mod run; // `tenure run`: from the checks to the exit status
mod command; // the command: whether it can be run, and its start
mod wait; // the wait for the lock, and what is said meanwhile
mod hold; // the command runs and the lock is watched
mod child; // the running command: its group, its end
mod signals; // what others send us
mod terminal; // whose keyboard it is

mod acquire; // `tenure acquire`: a lock that outlives us
mod release; // `tenure release`: by its token
mod force; // `tenure release --force`: from whoever holds it

mod ls; // `tenure ls`
mod show; // `tenure show`
mod watch; // `tenure watch`
mod view; // what they show, as values and as JSON

mod doctor; // `tenure doctor`

mod output; // every line for people
mod talk; // how lines reach them
mod status; // outcomes, exit statuses, the status file
mod trouble; // what went wrong, and which outcome that is
mod text; // durations, names and errors in words

use std::process::ExitCode;

use crate::args::{Command, parse};
use crate::talk::Talk;

fn main() -> ExitCode {
    complete::answer();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let mut talk = Talk::new(&cli.everywhere);
    talk.trace(&cli.everywhere);
    let code = match &cli.command {
        Command::Run(args) => run::run(args, &cli.everywhere, &mut talk),
        Command::Acquire(args) => acquire::acquire(args, &cli.everywhere, &mut talk),
        Command::Release(args) => release::release(args, &cli.everywhere, &mut talk),
        Command::Ls(args) => ls::ls(args, &cli.everywhere, &mut talk),
        Command::Show(args) => show::show(args, &cli.everywhere, &mut talk),
        Command::Doctor(args) => doctor::doctor(args, &cli.everywhere, &mut talk),
        Command::Watch(args) => watch::watch(args, &cli.everywhere, &mut talk),
        Command::Completions(args) => complete::script(args, &mut talk),
    };
    talk.finish();
    ExitCode::from(code)
}
