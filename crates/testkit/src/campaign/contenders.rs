//! The contenders: programs that are started, stopped, continued, killed, and ended.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Contenders, Counts, Plan};
use crate::history::{Event, Recorder};
use crate::judge::Reached;
use crate::process::Program;
use crate::register::{FileRegister, Tally};
use crate::rng::Rng;
use crate::wait::{DEADLINE, pass};

/// The key of the probe, for which no other process competes, and the pause between its requests. The probe
/// shows whether a free key can be acquired at all.
pub(super) const PROBE: &str = "probe";
const PROBE_EVERY: &str = "10ms";
/// The shortest time for which a contender is stopped.
const STOPPED_LEAST: Duration = Duration::from_millis(10);
/// The longest time for which any engine considers a dead contender alive.
pub(super) const BELIEVED_MOST: Duration = Duration::from_secs(6);
/// How often a register is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(super) struct Contestants {
    dir: TempDir,
    url: String,
    plan: Plan,
    recorder: Recorder,
    programs: Vec<(String, Program)>,
    /// A contender without faults, for the figures of `pauses.rs`. It observes the election too.
    probe: Option<Program>,
    started: u64,
    /// When the last contender was killed.
    killed: Option<Instant>,
}

impl Contestants {
    /// Starts all contenders and returns when they are ready.
    pub(super) fn new(url: &str, plan: &Plan, rng: &mut Rng) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for sub in ["history", "registers"] {
            std::fs::create_dir(dir.path().join(sub)).expect("a directory");
        }
        let recorder = Recorder::append_to(&dir.path().join("history/faults.jsonl"));
        let recorder = recorder.expect("the history can be written");
        let (url, programs, probe, started, killed) = (url.into(), Vec::new(), None, 0, None);
        let plan = plan.clone();
        let mut field = Contestants { dir, url, plan, recorder, programs, probe, started, killed };
        field.probe = Some(field.spawn(PROBE, |command| {
            command.arg(format!("--key={PROBE}")).args(["--tasks=1", "--brisk", "--seed=1"]);
            command.arg(format!("--pause={PROBE_EVERY}"));
            let elected = field.plan.keys.last().filter(|_| field.plan.mixed);
            command.args(elected.map(|key| format!("--observe={key}")));
        }));
        for _ in 0..field.plan.processes {
            let program = field.start(rng);
            field.programs.push(program);
        }
        field
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(super) fn histories(&self) -> PathBuf {
        self.path("history")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&mut self, rng: &mut Rng) -> (String, Program) {
        let (owner, seed) = (format!("p{}", self.started), rng.roll());
        self.started += 1;
        let program = self.spawn(&owner, |command| {
            command.args(self.plan.keys.iter().map(|key| format!("--key={key}")));
            command.arg(format!("--tasks={}", self.plan.tasks)).arg(format!("--seed={seed}"));
            command.args(self.plan.brisk.then_some("--brisk"));
            command.args(self.plan.mixed.then_some("--mixed"));
        });
        (owner, program)
    }

    /// Starts a contender, and waits until it is ready.
    fn spawn(&self, owner: &str, what: impl FnOnce(&mut Command)) -> Program {
        let mut command = Command::new(&self.plan.program);
        command.arg("contend").arg("--url").arg(&self.url).arg("--owner").arg(owner);
        let ttls = self.plan.pace.ttls.iter();
        command.args(ttls.map(|ttl| format!("--ttl={}", humantime::format_duration(*ttl))));
        command.arg("--history").arg(self.path("history").join(format!("{owner}.jsonl")));
        command.arg("--registers").arg(self.path("registers"));
        command.arg("--until").arg(self.path("over"));
        what(&mut command);
        let mut program = Program::spawn(&mut command);
        program.wait_for("ready");
        program
    }

    /// Stops and kills contenders, or only waits, until `end`.
    pub(super) fn strike_until(
        &mut self,
        end: Instant,
        contenders: Contenders,
        rng: &mut Rng,
    ) -> Counts {
        let mut counts = Counts::new();
        while Instant::now() < end {
            pass(self.plan.pause(rng));
            if contenders == Contenders::Struck {
                *counts.entry(self.inject(rng)).or_default() += 1;
            }
        }
        counts
    }

    fn inject(&mut self, rng: &mut Rng) -> &'static str {
        let victim = usize::try_from(rng.below(self.programs.len() as u64)).expect("it fits");
        if rng.one_in(3) {
            self.kill(victim);
            self.programs[victim] = self.start(rng);
            return "client killed";
        }
        self.programs[victim].1.stop();
        // Sometimes longer than any ttl.
        pass(rng.between(STOPPED_LEAST, self.plan.pace.longest() * 5 / 3));
        self.programs[victim].1.go_on();
        "client stopped"
    }

    /// Stops the contender first, so that it does nothing between our record and its death.
    fn kill(&mut self, victim: usize) {
        let (owner, program) = &mut self.programs[victim];
        assert!(program.is_running(), "a contender ended by itself");
        program.stop();
        self.recorder.note(owner, 0, "", Event::Killed);
        program.kill();
        self.killed = Some(Instant::now());
    }

    /// Lets the other contenders run until every killed waiter counts as dead. Later requests remove its
    /// queue entry; at the end of the campaign no entry may be left.
    pub(super) fn outlive_the_killed(&self) {
        let until = self.killed.map(|killed| killed + BELIEVED_MOST);
        pass(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())));
    }

    /// Measures for each key how long it takes until a holder has written its register.
    pub(super) fn all_move_again(&self, within: Duration) -> Vec<Reached> {
        let start = Instant::now();
        let writes = || self.plan.keys.iter().map(|key| self.tally_of(key).fenced_writes);
        let before: Vec<u64> = writes().collect();
        let mut after = vec![None; before.len()];
        while after.contains(&None) && start.elapsed() < DEADLINE {
            pass(POLL_INTERVAL);
            for ((now, before), after) in writes().zip(&before).zip(&mut after) {
                if now > *before {
                    after.get_or_insert_with(|| start.elapsed());
                }
            }
        }
        let keys = self.plan.keys.iter().cloned();
        keys.zip(after).map(|(key, after)| Reached { key, after, within }).collect()
    }

    /// Signals the end to all contenders, and waits until they have exited.
    pub(super) fn end(&mut self) {
        std::fs::write(self.path("over"), "").expect("a file");
        for (owner, program) in &mut self.programs {
            assert!(program.wait().success(), "`{owner}` failed");
        }
        assert!(self.probe.iter_mut().all(|probe| probe.wait().success()), "the probe failed");
    }

    /// The sum of all registers: one for each key, and one for each slot.
    pub(super) fn tally(&self) -> Tally {
        let files = std::fs::read_dir(self.path("registers")).expect("a directory");
        let tallies = files.map(|file| tally(&file.expect("a file").path()));
        tallies.fold(Tally::default(), Tally::plus)
    }

    /// The keys of campaigns are valid file names.
    fn tally_of(&self, key: &str) -> Tally {
        tally(&self.path("registers").join(key))
    }
}

fn tally(path: &Path) -> Tally {
    let register = FileRegister::open(path).expect("the register can be opened");
    register.tally().expect("the register can be read")
}
