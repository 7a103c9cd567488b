//! The contenders: programs that are started, stopped, continued, killed, and ended.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Contenders, Counts, Plan};
use crate::dice::Dice;
use crate::history::{Event, Recorder};
use crate::judge::Reached;
use crate::process::Program;
use crate::register::{FileRegister, Tally};
use crate::wait::{DEADLINE, pass};

/// The key that nobody fights for, and how often it is locked, to see whether anybody can.
pub(super) const PROBE: &str = "probe";
const PROBE_EVERY: &str = "10ms";
/// The least that a contender is stopped for.
const STOPPED_LEAST: Duration = Duration::from_millis(10);
/// For longer than this no engine believes a contender to be alive that is not.
pub(super) const BELIEVED_MOST: Duration = Duration::from_secs(6);
/// How often a register is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub(super) struct Field {
    dir: TempDir,
    url: String,
    plan: Plan,
    recorder: Recorder,
    programs: Vec<(String, Program)>,
    /// One that is left alone, for the figures of `pauses.rs`.
    probe: Option<Program>,
    started: u64,
    /// When the last one was killed.
    killed: Option<Instant>,
}

impl Field {
    /// Everybody is ready when it returns.
    pub(super) fn new(url: &str, plan: &Plan, dice: &mut Dice) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for sub in ["history", "registers"] {
            std::fs::create_dir(dir.path().join(sub)).expect("a directory");
        }
        let recorder = Recorder::append_to(&dir.path().join("history/faults.jsonl"));
        let recorder = recorder.expect("the history can be written");
        let (url, plan, programs) = (url.into(), plan.clone(), Vec::new());
        let (probe, started, killed) = (None, 0, None);
        let mut field = Field { dir, url, plan, recorder, programs, probe, started, killed };
        field.probe = Some(field.spawn(PROBE, |command| {
            command.arg(format!("--key={PROBE}")).args(["--tasks=1", "--brisk", "--seed=1"]);
            command.arg(format!("--pause={PROBE_EVERY}"));
        }));
        for _ in 0..field.plan.processes {
            let program = field.start(dice);
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

    fn start(&mut self, dice: &mut Dice) -> (String, Program) {
        let (owner, seed) = (format!("p{}", self.started), dice.roll());
        self.started += 1;
        let program = self.spawn(&owner, |command| {
            command.args(self.plan.keys.iter().map(|key| format!("--key={key}")));
            command.arg(format!("--tasks={}", self.plan.tasks)).arg(format!("--seed={seed}"));
            command.args(self.plan.brisk.then_some("--brisk"));
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

    /// Stops and kills, or only waits, until `end`.
    pub(super) fn strike_until(
        &mut self,
        end: Instant,
        contenders: Contenders,
        dice: &mut Dice,
    ) -> Counts {
        let mut counts = Counts::new();
        while Instant::now() < end {
            pass(self.plan.pause(dice));
            if contenders == Contenders::Struck {
                *counts.entry(self.strike(dice)).or_default() += 1;
            }
        }
        counts
    }

    fn strike(&mut self, dice: &mut Dice) -> &'static str {
        let victim = usize::try_from(dice.below(self.programs.len() as u64)).expect("it fits");
        if dice.one_in(3) {
            self.kill(victim);
            self.programs[victim] = self.start(dice);
            return "client killed";
        }
        self.programs[victim].1.stop();
        // Some for longer than any ttl.
        pass(dice.between(STOPPED_LEAST, self.plan.pace.longest() * 5 / 3));
        self.programs[victim].1.go_on();
        "client stopped"
    }

    /// Stopped first, so that it does nothing between our note and its death.
    fn kill(&mut self, victim: usize) {
        let (owner, program) = &mut self.programs[victim];
        assert!(program.is_running(), "a contender ended by itself");
        program.stop();
        self.recorder.note(owner, 0, "", Event::Killed);
        program.kill();
        self.killed = Some(Instant::now());
    }

    /// Lets the others go on until nobody who was killed is still believed to wait: the next that come take
    /// such a place out of the queue, and at the end there has to be none.
    pub(super) fn outlive_the_killed(&self) {
        let until = self.killed.map(|killed| killed + BELIEVED_MOST);
        pass(until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())));
    }

    /// How long it takes until each key was had by somebody who changed its register.
    pub(super) fn all_move_again(&self, within: Duration) -> Vec<Reached> {
        let start = Instant::now();
        let writes = || self.plan.keys.iter().map(|key| self.tally_of(key).fenced_writes);
        let before: Vec<u64> = writes().collect();
        let mut after = vec![None; before.len()];
        while after.contains(&None) && start.elapsed() < DEADLINE {
            pass(LOOK_EVERY);
            for ((now, before), after) in writes().zip(&before).zip(&mut after) {
                if now > *before {
                    after.get_or_insert_with(|| start.elapsed());
                }
            }
        }
        let keys = self.plan.keys.iter().cloned();
        keys.zip(after).map(|(key, after)| Reached { key, after, within }).collect()
    }

    /// Tells everybody that it is over, and waits until they have left.
    pub(super) fn end(&mut self) {
        std::fs::write(self.path("over"), "").expect("a file");
        for (owner, program) in &mut self.programs {
            assert!(program.wait().success(), "`{owner}` failed");
        }
        assert!(self.probe.iter_mut().all(|probe| probe.wait().success()), "the probe failed");
    }

    /// What became of all updates.
    pub(super) fn tally(&self) -> Tally {
        let tallies = self.plan.keys.iter().map(|key| self.tally_of(key));
        tallies.fold(Tally::default(), Tally::plus)
    }

    fn tally_of(&self, key: &str) -> Tally {
        let path = register(&self.path("registers"), key);
        let register = FileRegister::open(&path).expect("the register can be opened");
        register.tally().expect("the register can be read")
    }
}

/// The file of a key's register: campaigns name their keys simply.
fn register(dir: &Path, key: &str) -> PathBuf {
    dir.join(key)
}
