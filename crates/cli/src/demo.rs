//! `tenure demo`: a small fleet that competes for locks, and the page on it. No server is needed.
//!
//! In: the arguments. Out: child processes on the locks of a new directory, the page, and a process killed now and
//! then. At the end the children are killed and the directory is removed. If this process is killed itself, its
//! children notice that, remove the directory and end.

mod worker;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::{Locker, Token};
use tenure_dashboard::Dashboard;
use tokio::time::{Instant, interval_at, sleep};

use crate::args::DemoArgs;
use crate::error::CliError;
use crate::output;
use crate::serve::{ended, listen};
use crate::signals::Signals;
use crate::status::Outcome;
use crate::target::runtime;
use crate::ui::Ui;
use crate::watch::by;

/// How often a process is killed.
const KILL_EVERY: Duration = Duration::from_secs(15);

pub(crate) fn demo(args: &DemoArgs, ui: &mut Ui) -> u8 {
    let done = match &args.worker {
        Some(dir) => worker::work(dir),
        None => stage(args, ui),
    };
    done.unwrap_or_else(|trouble| ui.trouble(&trouble))
}

fn stage(args: &DemoArgs, ui: &mut Ui) -> Result<u8, CliError> {
    end_with_parent();
    runtime()?.block_on(async {
        let mut signals = Signals::ending()?;
        let place = Place::new()?;
        let locker = open(&place.0).await?;
        let listener = listen(args.listen).await?;
        let page = Dashboard::new(locker).command_options(format!("-u file:{}", place.0.display()));
        let fleet = Fleet::start(&place.0, args.processes)?;
        ui.info(&output::demo(args.processes, &place.0));
        tokio::select! {
            signal = signals.next() => Ok(by(signal)),
            () = sleep(args.time) => Ok(0),
            served = axum::serve(listener, page.router()) => Err(ended(served)),
            failed = fleet.run(ui) => Err(failed),
        }
    })
}

async fn open(dir: &Path) -> Result<Locker, CliError> {
    let opened = tenure::connect(&format!("file:{}", dir.display())).await;
    opened.map_err(|error| CliError::engine(&error))
}

/// Asks for TERM when the process that started us ends, so that a demo does not outlive its terminal.
fn end_with_parent() {
    #[cfg(target_os = "linux")]
    // Without it, the demo ends by itself after `--time`.
    let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM);
}

/// A new directory, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self, CliError> {
        let failed = |error: &dyn std::fmt::Display| {
            CliError::new(Outcome::Unreachable, format!("cannot make a directory: {error}"))
        };
        let name = Token::random().map_err(|error| failed(&error))?.expose();
        let dir = std::env::temp_dir().join(format!("tenure-demo-{}", &name[..12]));
        DirBuilder::new().mode(0o700).create(&dir).map_err(|error| failed(&error))?;
        Ok(Place(dir))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The child processes. Dropping it kills them and waits for their end.
struct Fleet<'a> {
    dir: &'a Path,
    workers: Vec<Child>,
}

impl<'a> Fleet<'a> {
    fn start(dir: &'a Path, count: u32) -> Result<Self, CliError> {
        let mut fleet = Fleet { dir, workers: Vec::new() };
        for _ in 0..count {
            let worker = fleet.spawn()?;
            fleet.workers.push(worker);
        }
        Ok(fleet)
    }

    /// The pipe to its stdin ends with us: so it notices our death.
    fn spawn(&self) -> Result<Child, CliError> {
        let program = std::env::current_exe();
        let spawned = program.and_then(|program| {
            let mut command = Command::new(program);
            command.args(["demo", "--worker"]).arg(self.dir);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        });
        spawned.map_err(|error| {
            CliError::new(Outcome::Unreachable, format!("cannot start a process: {error}"))
        })
    }

    /// Kills one process after another, and starts a new one in its place. Returns if that fails.
    async fn run(mut self, ui: &mut Ui) -> CliError {
        let mut turns = interval_at(Instant::now() + KILL_EVERY, KILL_EVERY);
        for index in (0..self.workers.len()).cycle() {
            turns.tick().await;
            let next = match self.spawn() {
                Ok(next) => next,
                Err(trouble) => return trouble,
            };
            let mut former = std::mem::replace(&mut self.workers[index], next);
            end(&mut former);
            ui.info(&output::demo_killed(former.id(), self.workers[index].id()));
        }
        CliError::usage("a demo needs processes")
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(end);
    }
}

fn end(worker: &mut Child) {
    // An error means that it has ended already.
    let _ = worker.kill();
    let _ = worker.wait();
}
