//! One contender: its tasks lock, read or take permits, hold, use the registers and release in many ways, and
//! record what they see. `lead.rs` has its candidates and its observer, `several.rs` requests for several keys.

mod lead;
mod several;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenure::etcd::Etcd;
use tenure::redis::{Cluster, Quorum, Redis};
use tenure::{
    Error, Guard, HeldMode, LockRequest, Locker, Mode, Permit, ReadGuard, TryLockRequest,
};
use tenure_testkit::history::{Claimant, Noted, Recorder};
use tenure_testkit::register::FileRegister;
use tenure_testkit::rng::Rng;

/// Shorter than the longest ttls, so that a dead connection is replaced before they expire.
const TIMEOUT: Duration = Duration::from_millis(400);
/// The shortest interval that is allowed, for many hand-overs.
const RETRY: Duration = Duration::from_millis(10);
/// The longest wait, so that a task notices the end of the campaign.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a holder records the current end of its lease.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The capacities that permits are asked for with, and the most permits of a request.
const CAPACITIES: [u32; 2] = [3, 4];
const PERMITS: u64 = 3;
/// One claim of so many is for several keys.
const SEVERAL: u64 = 5;

#[derive(Args)]
pub(crate) struct Options {
    /// The URL of the engine.
    #[arg(long)]
    url: String,
    /// The keys to compete for.
    #[arg(long = "key", required = true)]
    keys: Vec<String>,
    /// The ttls to pick from; the first is the default of the locker.
    #[arg(long = "ttl", required = true, value_parser = humantime::parse_duration)]
    ttls: Vec<Duration>,
    /// The name of this process in the history.
    #[arg(long)]
    owner: String,
    /// The file to append the history to; only this process writes it.
    #[arg(long)]
    history: PathBuf,
    /// The directory of the registers, one file per key.
    #[arg(long)]
    registers: PathBuf,
    /// End when this file exists.
    #[arg(long)]
    until: PathBuf,
    /// The number of tasks that compete.
    #[arg(long)]
    tasks: u64,
    /// The seed of all random choices.
    #[arg(long)]
    seed: u64,
    /// How long each task pauses between two claims.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0s")]
    pause: Duration,
    /// Mostly wait for the lock and release it at once, for as many hand-overs as possible.
    #[arg(long)]
    brisk: bool,
    /// Also read and take permits, if the engine has them, on all keys but the first; lock several keys with one
    /// request; and only campaign on the last key.
    #[arg(long)]
    mixed: bool,
    /// Also observe who leads for this key.
    #[arg(long)]
    observe: Option<String>,
}

/// One competing task.
struct Contender {
    options: Arc<Options>,
    locker: Locker,
    claimant: Claimant,
    rng: Rng,
}

pub(crate) fn run(options: Options) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(fight(Arc::new(options)));
}

async fn fight(options: Arc<Options>) {
    let locker = connect(&options.url, &options.ttls).await;
    let recorder = Recorder::append_to(&options.history).expect("the history can be written");
    let mut rng = Rng::new(options.seed);
    let mut tasks = tokio::task::JoinSet::new();
    println!("ready");
    for task in 0..options.tasks {
        let claimant = recorder.claimant(format!("{}/t{task}", options.owner));
        let (options, locker, rng) = (options.clone(), locker.clone(), Rng::new(rng.roll()));
        tasks.spawn(Contender { options, locker, claimant, rng }.fight());
    }
    if let Some(key) = options.observe.clone() {
        let claimant = recorder.claimant(format!("{}/o", options.owner));
        tasks.spawn(lead::observe(locker.clone(), claimant, key, options.until.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    locker.shutdown(PATIENCE).await;
}

/// Connects, and tolerates faults that are already active.
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
            let key = self.rng.pick(&options.keys);
            let (granted, notes) = self.attempt(key).await;
            give_up(granted, &notes);
            if !options.pause.is_zero() {
                tokio::time::sleep(options.pause).await;
            }
        }
    }

    /// Campaigns for the last key, and asks for any other one alone or for several. Returns whether it was granted, and
    /// the claims.
    async fn attempt(&mut self, key: &str) -> (Result<bool, Error>, Vec<Noted>) {
        let mixed = self.options.mixed;
        if mixed && self.options.keys.last().is_some_and(|last| last == key) {
            let noted = self.claimant.asks(key);
            return (self.lead(key, &noted).await, vec![noted]);
        }
        if mixed && self.rng.one_in(SEVERAL) {
            let asked = self.some_keys();
            let notes = self.claimant.asks_for_all(&asked);
            return (self.several(asked, &notes).await, notes);
        }
        let mode = self.mode(key);
        let noted = self.claimant.asks_for(key, mode.clone());
        (self.claim(key, mode, &noted).await, vec![noted])
    }

    /// How to ask for `key`: on the first key, and for what the engine has not, for a lock. On the others locks are
    /// few: each ends the time in which readers or permits hold the key together.
    fn mode(&mut self, key: &str) -> Mode {
        let can = self.locker.capabilities();
        if !self.options.mixed || key == self.options.keys[0] {
            return Mode::Exclusive;
        }
        match self.rng.below(10) {
            0..3 if can.readers => Mode::Read,
            3..9 if can.permits => {
                let permits = 1 + u32::try_from(self.rng.below(PERMITS)).expect("it fits");
                Mode::Permits { permits, capacity: *self.rng.pick(&CAPACITIES) }
            }
            _ => Mode::Exclusive,
        }
    }

    /// Returns whether the claim was granted.
    async fn claim(&mut self, key: &str, mode: Mode, noted: &Noted) -> Result<bool, Error> {
        let locker = self.locker.clone();
        match mode {
            Mode::Read => {
                let asked = self.ask(locker.read(key), locker.try_read(key), noted).await?;
                let Some(guard) = asked else { return Ok(false) };
                self.read(key, guard, noted).await;
            }
            Mode::Permits { permits, capacity } => {
                let semaphore = locker.semaphore(key, capacity);
                let all = semaphore.acquire_many(permits);
                let once = semaphore.try_acquire_many(permits);
                let asked = match permits == 1 && self.rng.one_in(2) {
                    true => self.ask(all.numbered(), once.numbered(), noted).await?,
                    false => self.ask(all, once, noted).await?,
                };
                let Some(permit) = asked else { return Ok(false) };
                self.work(key, permit, noted).await;
            }
            _ => {
                let asked = self.ask(locker.lock(key), locker.try_lock(key), noted).await?;
                let Some(guard) = asked else { return Ok(false) };
                noted.granted(guard.fence(), guard.valid_until());
                self.write(key, guard, noted).await;
            }
        }
        Ok(true)
    }

    /// Tries once, waits with a limit, or drops the request after a random time.
    async fn ask<M: HeldMode>(
        &mut self,
        lock: LockRequest<M>,
        once: TryLockRequest<M>,
        noted: &Noted,
    ) -> Result<Option<Guard<M>>, Error> {
        let (ttl, label) = (*self.rng.pick(&self.options.ttls), noted.label());
        let lock = lock.ttl(ttl).retry_interval(RETRY).label(label.clone());
        match self.rng.below(if self.options.brisk { 100 } else { 8 }) {
            0 => once.ttl(ttl).label(label).await,
            1 => tokio::time::timeout(self.moment(), lock.into_future()).await.ok().transpose(),
            _ => lock.wait(PATIENCE).await.map(Some),
        }
    }

    /// Updates the register, and releases the lock.
    async fn write<M: HeldMode>(&mut self, register: &str, guard: Guard<M>, noted: &Noted) {
        let lost = self.update(register, &guard, noted).await;
        self.release(guard, lost, noted).await;
    }

    /// Reads the register, holds for a while, and writes the register. Returns whether the lock was lost meanwhile.
    async fn update<M: HeldMode>(&mut self, name: &str, guard: &Guard<M>, noted: &Noted) -> bool {
        let register = self.register(name);
        let seen = register.read(guard.fence()).expect("the register can be read");
        let lost = stay_under(guard, noted, self.hold_time()).await;
        // Write also after a loss: the register must reject the stale write.
        register.write(seen).expect("the register can be written");
        lost
    }

    /// Reads the register before and after the time of the hold.
    async fn read(&mut self, key: &str, guard: ReadGuard, noted: &Noted) {
        noted.granted(guard.fence(), guard.valid_until());
        let register = self.register(key);
        let seen = register.read_shared(guard.fence()).expect("the register can be read");
        let lost = stay_under(&guard, noted, self.hold_time()).await;
        register.read_again(seen).expect("the register can be read");
        self.release(guard, lost, noted).await;
    }

    /// Writes the register of the slot. Permits without a number share nothing.
    async fn work(&mut self, key: &str, permit: Permit, noted: &Noted) {
        noted.granted_slot(permit.slot(), permit.fence(), permit.valid_until());
        if let Some(slot) = permit.slot() {
            return self.write(&format!("{key}.{slot}"), permit, noted).await;
        }
        let lost = stay_under(&permit, noted, self.hold_time()).await;
        self.release(permit, lost, noted).await;
    }

    fn register(&self, name: &str) -> FileRegister {
        let register = FileRegister::open(&self.options.registers.join(name));
        register.expect("the register can be opened")
    }

    async fn release<M: HeldMode>(&mut self, guard: Guard<M>, lost: bool, noted: &Noted) {
        if !lost {
            noted.release_called(guard.valid_until());
        }
        match self.rng.one_in(3) {
            true => drop(guard),
            false => {
                if guard.release().await.is_ok() {
                    noted.released();
                }
            }
        }
    }

    /// After how long a request is dropped.
    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.rng.below(5_000))
    }

    /// Mostly short; sometimes long enough to need renewals.
    fn hold_time(&mut self) -> Duration {
        if self.options.brisk && !self.rng.one_in(2_000) {
            return Duration::ZERO;
        }
        let longest = longest(&self.options.ttls) * 2 / 3;
        let most = if self.rng.one_in(25) { longest } else { Duration::from_millis(4) };
        self.rng.between(Duration::ZERO, most)
    }
}

/// Records the end of claims that were not granted.
fn give_up(granted: Result<bool, Error>, notes: &[Noted]) {
    let reason = match granted {
        Ok(true) => return,
        Ok(false) => "busy, or given up".to_owned(),
        Err(error) => error.to_string(),
    };
    notes.iter().for_each(|noted| noted.gave_up(&reason));
}

fn longest(ttls: &[Duration]) -> Duration {
    ttls.iter().max().copied().unwrap_or_default()
}

/// Holds for `time` and records how far the lease is extended. Returns whether the lock was lost meanwhile.
async fn stay_under<M: HeldMode>(guard: &Guard<M>, noted: &Noted, time: Duration) -> bool {
    let loss = stay(guard.lost(), || noted.extended(guard.valid_until()), time).await;
    loss.inspect(|loss| noted.lost(loss)).is_some()
}

/// Holds for `time`, and looks at the lease meanwhile. Returns the loss if there was one.
async fn stay<L>(lost: impl Future<Output = L>, look: impl Fn(), time: Duration) -> Option<L> {
    if time.is_zero() {
        return None;
    }
    let looks = async {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            look();
        }
    };
    tokio::select! {
        loss = lost => Some(loss),
        () = tokio::time::sleep(time) => None,
        () = looks => None,
    }
}
