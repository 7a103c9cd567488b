//! One contender: tasks that lock, hold, update the registers and let go, in many ways, and write
//! down what they see.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenure::etcd::Etcd;
use tenure::redis::{Cluster, Quorum, Redis};
use tenure::{Error, Guard, Locker};
use tenure_testkit::dice::Dice;
use tenure_testkit::history::{Claimant, Noted, Recorder};
use tenure_testkit::register::FileRegister;

/// Below the longest ttls, so that a dead connection is replaced before they run out.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The shortest that is allowed: hand-overs are what this is about.
const RETRY: Duration = Duration::from_millis(10);
/// How long a wait may last, so that the end of the campaign is seen.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a holder notes how far its lease was extended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Args)]
pub(crate) struct Options {
    /// The engine.
    #[arg(long)]
    url: String,
    /// What to fight for.
    #[arg(long = "key", required = true)]
    keys: Vec<String>,
    /// The ttls to pick from, the first by default.
    #[arg(long = "ttl", required = true, value_parser = humantime::parse_duration)]
    ttls: Vec<Duration>,
    /// The name of this process in the history.
    #[arg(long)]
    owner: String,
    /// Where to append the history; a file of this process's own.
    #[arg(long)]
    history: PathBuf,
    /// Where the registers are, one file per key.
    #[arg(long)]
    registers: PathBuf,
    /// End when this file is there.
    #[arg(long)]
    until: PathBuf,
    /// How many tasks fight.
    #[arg(long)]
    tasks: u64,
    /// What chance follows from.
    #[arg(long)]
    seed: u64,
    /// How long each task pauses between two claims.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0s")]
    pause: Duration,
    /// Mostly wait and let go at once: as many hand-overs as can be.
    #[arg(long)]
    brisk: bool,
}

/// One task.
struct Contender {
    options: Arc<Options>,
    locker: Locker,
    claimant: Claimant,
    dice: Dice,
}

pub(crate) fn run(options: Options) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(fight(Arc::new(options)));
}

async fn fight(options: Arc<Options>) {
    let locker = connect(&options.url, &options.ttls).await;
    let recorder = Recorder::append_to(&options.history).expect("the history can be written");
    let mut dice = Dice::new(options.seed);
    let mut tasks = tokio::task::JoinSet::new();
    println!("ready");
    for task in 0..options.tasks {
        let claimant = recorder.claimant(format!("{}/t{task}", options.owner));
        let (options, locker, dice) = (options.clone(), locker.clone(), Dice::new(dice.roll()));
        tasks.spawn(Contender { options, locker, claimant, dice }.fight());
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    locker.shutdown(PATIENCE).await;
}

/// Through whatever faults there are already.
async fn connect(url: &str, ttls: &[Duration]) -> Locker {
    if url.starts_with("etcd") {
        let builder = Etcd::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
        let etcd = builder.connect_later().expect("a sound address");
        return Locker::builder(etcd).ttl(ttls[0]).build().expect("a sound ttl");
    }
    if url.starts_with("redis+quorum") {
        let builder = Quorum::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
        let quorum = builder.quarantine(longest(ttls)).quorum_later();
        return Locker::new(quorum.expect("a sound address"));
    }
    if url.starts_with("redis-cluster") {
        let builder = Cluster::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
        return Locker::new(builder.cluster_later().expect("a sound address"));
    }
    if url.starts_with("redis") {
        let builder = Redis::builder(url).connect_timeout(TIMEOUT).response_timeout(TIMEOUT);
        return Locker::new(builder.connect_later().expect("a sound address"));
    }
    loop {
        match tenure::connect(url).await {
            Ok(locker) => return locker,
            Err(error) if error.is_unavailable() => tokio::time::sleep(RETRY).await,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Contender {
    async fn fight(mut self) {
        while !self.options.until.exists() {
            let options = self.options.clone();
            let key = self.dice.pick(&options.keys);
            let noted = self.claimant.asks(key);
            match self.ask(key, &noted).await {
                Ok(Some(guard)) => self.hold(key, guard, &noted).await,
                Ok(None) => noted.gave_up("busy, or given up"),
                Err(error) => noted.gave_up(error),
            }
            if !options.pause.is_zero() {
                tokio::time::sleep(options.pause).await;
            }
        }
    }

    /// Once, with patience, or dropped at some moment.
    async fn ask(&mut self, key: &str, noted: &Noted) -> Result<Option<Guard>, Error> {
        let (ttl, label) = (*self.dice.pick(&self.options.ttls), noted.label());
        let lock = self.locker.lock(key).ttl(ttl).retry_interval(RETRY).label(label.clone());
        match self.dice.below(if self.options.brisk { 100 } else { 8 }) {
            0 => self.locker.try_lock(key).ttl(ttl).label(label).await,
            1 => {
                let moment = Duration::from_micros(self.dice.below(5_000));
                tokio::time::timeout(moment, lock.into_future()).await.ok().transpose()
            }
            _ => lock.wait(PATIENCE).await.map(Some),
        }
    }

    /// Reads, lets time pass, writes, and gives the lock back.
    async fn hold(&mut self, key: &str, guard: Guard, noted: &Noted) {
        noted.granted(guard.fence(), guard.valid_until());
        let register = FileRegister::open(&self.options.registers.join(key));
        let register = register.expect("the register can be opened");
        let seen = register.read(guard.fence()).expect("the register can be read");
        let lost = stay(&guard, noted, self.hold_time()).await;
        // Also after a loss: it is the register that must refuse the stale write.
        register.write(seen).expect("the register can be written");
        if !lost {
            noted.release_called(guard.valid_until());
        }
        match self.dice.one_in(3) {
            true => drop(guard),
            false => {
                if guard.release().await.is_ok() {
                    noted.released();
                }
            }
        }
    }

    /// Mostly short; some long enough to need renewals.
    fn hold_time(&mut self) -> Duration {
        if self.options.brisk && !self.dice.one_in(2_000) {
            return Duration::ZERO;
        }
        let longest = longest(&self.options.ttls) * 2 / 3;
        let most = if self.dice.one_in(25) { longest } else { Duration::from_millis(4) };
        self.dice.between(Duration::ZERO, most)
    }
}

fn longest(ttls: &[Duration]) -> Duration {
    ttls.iter().max().copied().unwrap_or_default()
}

/// Stays for `time`, noting how far the lease is extended; whether it was lost first.
async fn stay(guard: &Guard, noted: &Noted, time: Duration) -> bool {
    if time.is_zero() {
        return false;
    }
    let looks = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            noted.extended(guard.valid_until());
        }
    };
    tokio::select! {
        loss = guard.lost() => {
            noted.lost(loss);
            true
        }
        () = tokio::time::sleep(time) => false,
        () = looks => false,
    }
}
