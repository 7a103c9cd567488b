//! Several processes on `file:`, stopped, continued and killed at random, and judged.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_testkit::history::{self, Event, Recorder};
use tenure_testkit::judge::{Judge, Reached};
use tenure_testkit::process::Program;
use tenure_testkit::register::{FileRegister, Tally};
use tenure_testkit::rng::Rng;
use tenure_testkit::wait::{DEADLINE, pass};

const PROCESSES: usize = 5;
const KEYS: [&str; 2] = ["x", "y"];
/// How long faults are injected.
const FAULTS: Duration = Duration::from_secs(4);

struct Run {
    dir: tempfile::TempDir,
    faults: Recorder,
    rng: Rng,
    programs: Vec<(String, Program)>,
    started: u64,
    stopped: Option<usize>,
}

impl Run {
    fn new(rng: Rng) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["locks", "history", "registers"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let faults = Recorder::append_to(&dir.path().join("history/faults.jsonl")).unwrap();
        let mut run = Run { dir, faults, rng, programs: Vec::new(), started: 0, stopped: None };
        for _ in 0..PROCESSES {
            let program = run.start();
            run.programs.push(program);
        }
        run
    }

    fn path(&self, sub: &str) -> PathBuf {
        self.dir.path().join(sub)
    }

    fn start(&mut self) -> (String, Program) {
        let owner = format!("p{}", self.started);
        self.started += 1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_holder"));
        command.arg("hold").arg("--url").arg(format!("file:{}", self.path("locks").display()));
        command.args(KEYS.map(|key| format!("--key={key}"))).arg("--owner").arg(&owner);
        command.arg("--history").arg(self.path("history").join(format!("{owner}.jsonl")));
        command.arg("--registers").arg(self.path("registers"));
        command.args(["--hold-most=15ms", &format!("--seed={}", self.rng.roll())]);
        let mut program = Program::spawn(&mut command);
        program.wait_for("ready");
        (owner, program)
    }

    /// Injects one fault, or ends one.
    fn fault(&mut self) {
        let victim = usize::try_from(self.rng.below(PROCESSES as u64)).unwrap();
        match (self.stopped.take(), self.rng.below(10)) {
            (Some(stopped), 0..8) => self.programs[stopped].1.go_on(),
            (None, 0..7) => {
                self.programs[victim].1.stop();
                self.stopped = Some(victim);
            }
            (stopped, _) => {
                self.kill(stopped.unwrap_or(victim));
                self.programs[stopped.unwrap_or(victim)] = self.start();
            }
        }
    }

    /// Stops the process first, so that it does nothing between our record and its death.
    fn kill(&mut self, victim: usize) {
        let (owner, program) = &mut self.programs[victim];
        program.stop();
        self.faults.note(owner, 0, "", Event::Killed);
        program.kill();
    }

    fn tally(&self) -> Tally {
        let read = |key| FileRegister::open(&self.path("registers").join(key)).unwrap().tally();
        KEYS.map(|key| read(key).unwrap()).into_iter().fold(Tally::default(), Tally::plus)
    }
}

/// Checks that each key can be acquired now that no process is left.
async fn reached(locks: &Path) -> Vec<Reached> {
    let locker = tenure::connect(&format!("file:{}", locks.display())).await.unwrap();
    let mut facts = Vec::new();
    for key in KEYS {
        let start = Instant::now();
        let had = locker.lock(key).wait(DEADLINE).await;
        let after = had.ok().map(|_| start.elapsed());
        facts.push(Reached { key: key.into(), after, within: DEADLINE });
    }
    facts
}

/// A1, A22, t01, t32: under stops and kills, no two holders overlap, fences rise, and no fenced update is lost.
#[test]
fn stopped_and_killed_processes_never_overlap() {
    let (_, rng) = Rng::from_environment();
    let mut run = Run::new(rng);
    let end = Instant::now() + FAULTS;
    while Instant::now() < end {
        let pause = run.rng.between(Duration::from_millis(5), Duration::from_millis(60));
        pass(pause);
        run.fault();
    }
    for (_, program) in &run.programs {
        program.go_on();
    }
    // Every process must make progress again before the end.
    for (_, program) in &mut run.programs {
        program.forget_lines();
        program.wait_for("released");
    }
    (0..PROCESSES).for_each(|victim| run.kill(victim));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let facts = runtime.block_on(reached(&run.path("locks")));
    let history = history::read_dir(&run.path("history")).unwrap();
    let verdict = Judge::new(history).register(run.tally()).reached(facts).verdict();
    println!("{verdict}");
    verdict.assert_clean();
    assert!(verdict.killed > PROCESSES, "faults happened");
}
