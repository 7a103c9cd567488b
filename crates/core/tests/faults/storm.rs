//! Tasks of several lockers on `memory:` and on `file:`, with all operations at once, judged by their history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::{FileLocks, Guard, Locker, Memory, Owner, Renew};
use tenure_testkit::history::{Claimant, Event, Noted, Recorder};
use tenure_testkit::judge::{Judge, Reached, Verdict};
use tenure_testkit::register::Register;
use tenure_testkit::rng::Rng;
use tenure_testkit::wait::{DEADLINE, lapse, within};

const PROCESSES: u64 = 3;
const TASKS: u64 = 6;
const KEYS: [&str; 2] = ["x", "y"];
/// The duration of a run.
const TIME: Duration = Duration::from_secs(3);

/// The state that all actors share.
#[derive(Clone)]
struct Run {
    store: Arc<dyn Fn() -> Locker + Send + Sync>,
    recorder: Recorder,
    register: Arc<Register>,
    end: Instant,
}

/// One task of one process.
struct Actor {
    run: Run,
    locker: Locker,
    claimant: Claimant,
    owner: Owner,
    rng: Rng,
}

impl Run {
    fn new(store: impl Fn() -> Locker + Send + Sync + 'static) -> Self {
        Run {
            store: Arc::new(store),
            recorder: Recorder::new(),
            register: Arc::new(Register::new()),
            end: Instant::now() + TIME,
        }
    }

    /// Starts all actors, and waits until they end.
    async fn play(&self, mut rng: Rng) {
        let mut actors = tokio::task::JoinSet::new();
        for process in 0..PROCESSES {
            let locker = (self.store)();
            for task in 0..TASKS {
                actors.spawn(self.actor(process, task, &locker, rng.roll()).play());
            }
        }
        // Some ttls are so long that a lock that is left behind would block the other actors.
        while let Some(ended) = within("everybody to end", actors.join_next()).await {
            ended.unwrap();
        }
    }

    /// The last task of each process acts for an owner that all processes share, if the engine supports that.
    fn actor(&self, process: u64, task: u64, locker: &Locker, seed: u64) -> Actor {
        let can_share = locker.capabilities().shared_owners;
        let (name, owner) = match task == TASKS - 1 && can_share {
            true => ("shared".into(), Owner::shared("shared")),
            false => (format!("p{process}/t{task}"), Owner::new()),
        };
        let claimant = self.recorder.claimant(name).numbered(process << 32);
        let rng = Rng::new(seed);
        Actor { run: self.clone(), locker: locker.clone(), claimant, owner, rng }
    }

    async fn verdict(&self) -> Verdict {
        let locker = (self.store)();
        let mut facts = Vec::new();
        for key in KEYS {
            let start = Instant::now();
            let after = locker.lock(key).wait(DEADLINE).await.ok().map(|_| start.elapsed());
            facts.push(Reached { key: key.into(), after, within: DEADLINE });
        }
        let tally = self.register.tally();
        Judge::new(self.recorder.history()).register(tally).reached(facts).verdict()
    }
}

impl Actor {
    async fn play(mut self) {
        while Instant::now() < self.run.end {
            let key = *self.rng.pick(&KEYS);
            match self.rng.below(10) {
                0 => self.give_up(key).await,
                1 => self.try_once(key).await,
                _ => self.lock(key).await,
            }
        }
    }

    /// A wait that is dropped after a while, unless it is granted before.
    async fn give_up(&mut self, key: &str) {
        let patience = Duration::from_micros(self.rng.below(3_000));
        let noted = self.claimant.asks(key);
        let request = self.locker.lock(key).owner(self.owner.clone());
        match tokio::time::timeout(patience, request.into_future()).await {
            Ok(guard) => self.hold(guard.unwrap(), noted, key).await,
            Err(late) => noted.gave_up(late),
        }
    }

    async fn try_once(&mut self, key: &str) {
        let noted = self.claimant.asks(key);
        let request = self.locker.try_lock(key).owner(self.owner.clone());
        match request.await.unwrap() {
            Some(guard) => self.hold(guard, noted, key).await,
            None => noted.gave_up("busy"),
        }
    }

    async fn lock(&mut self, key: &str) {
        let noted = self.claimant.asks(key);
        let mut request = self.locker.lock(key).owner(self.owner.clone());
        request = request.retry_interval(Duration::from_millis(10));
        request = request.ttl(Duration::from_millis([200, 300, 600_000][self.pick(3)]));
        match self.rng.below(8) {
            0 => request = request.renew(Renew::Off).ttl(Duration::from_millis(20)),
            1 => request = request.max_hold(Duration::from_millis(10)),
            2 => request = request.wait(Duration::from_millis(1)),
            3 => request = request.min_hold(Duration::from_millis(2)),
            _ => {}
        }
        match request.await {
            Ok(guard) => self.hold(guard, noted, key).await,
            Err(error) => noted.gave_up(error),
        }
    }

    fn pick(&mut self, below: u64) -> usize {
        usize::try_from(self.rng.below(below)).unwrap()
    }

    /// Works under the lock: reads, lets time pass, writes, and ends in one of many ways.
    async fn hold(&mut self, guard: Guard, noted: Noted, key: &str) {
        noted.granted(guard.fence(), guard.valid_until());
        let seen = self.run.register.read(key, guard.fence());
        let time = Duration::from_micros(self.rng.below(1_500));
        let lost = tokio::time::timeout(time, guard.lost()).await;
        if self.rng.one_in(10) {
            self.reenter(key).await;
        }
        self.run.register.write(key, seen);
        match lost {
            Ok(loss) => noted.lost(loss),
            Err(_) => self.part(guard, &noted, key).await,
        }
    }

    /// A second guard inside the first.
    async fn reenter(&mut self, key: &str) {
        let noted = self.claimant.asks(key);
        let request = self.locker.try_lock(key).owner(self.owner.clone());
        match request.await {
            Ok(Some(inner)) => {
                noted.granted(inner.fence(), inner.valid_until());
                noted.release_called(inner.valid_until());
                drop(inner);
            }
            Ok(None) => noted.gave_up("lost meanwhile, and another's now"),
            Err(error) => noted.gave_up(error),
        }
    }

    async fn part(&mut self, guard: Guard, noted: &Noted, key: &str) {
        noted.release_called(guard.valid_until());
        match self.rng.below(4) {
            0 => drop(guard),
            1 => {
                drop(guard.detach());
                // Another task of the same owner may have released it first: a detached lock belongs to the
                // owner's process.
                let _ = self.locker.release(key).await;
            }
            _ => drop(guard.release().await),
        }
    }
}

async fn is_clean(run: Run) {
    let (_, rng) = Rng::from_environment();
    run.play(rng).await;
    let verdict = run.verdict().await;
    println!("{verdict}");
    verdict.assert_clean();
    assert!(verdict.grants > 100, "{verdict}");
}

/// A1, A10, A16, A17, A22: whatever tasks do, no two holders overlap, fences rise, and no fenced update is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_memory_is_clean() {
    is_clean(Run::new(|| Locker::new(Memory::space("storm")))).await;
}

/// The same on `file:`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_on_file_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    is_clean(Run::new(move || Locker::new(FileLocks::open(&path).unwrap()))).await;
}

/// t09: a server that loses its locks lets two holders overlap for a while; fences still rise, and no fenced
/// update is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t09_a_forgetful_server_is_ordered() {
    let (_, mut rng) = Rng::from_environment();
    let memory = Memory::space("forgetful");
    let server = memory.clone();
    let run = Run::new(move || Locker::new(server.clone()));
    let (faults, seed) = (run.clone(), rng.roll());
    let forgetting = tokio::spawn(async move {
        let mut rng = Rng::new(seed);
        while Instant::now() < faults.end {
            let pause = rng.between(Duration::from_millis(1), Duration::from_millis(20));
            lapse(pause).await;
            let key = *rng.pick(&KEYS);
            faults.recorder.note("fault", 0, key, Event::TakenAway);
            match rng.one_in(2) {
                true => memory.revoke(key).unwrap(),
                false => memory.expire(key).unwrap(),
            };
        }
    });
    run.play(rng).await;
    forgetting.await.unwrap();
    let verdict = run.verdict().await;
    println!("{verdict}");
    verdict.assert_ordered();
    assert!(verdict.grants > 100, "{verdict}");
}
