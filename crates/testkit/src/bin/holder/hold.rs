//! The loop of `holder hold`: lock, record, hold, update the registers, release, record.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tenure::{Guard, HeldMode, LockRequest, Locker, Mode, Owner};
use tenure_testkit::history::{Claimant, Noted, Recorder};
use tenure_testkit::register::FileRegister;
use tenure_testkit::rng::Rng;

use crate::Target;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// The file to append the history to; only this process writes it.
    #[arg(long)]
    history: PathBuf,
    /// The owner name in the history.
    #[arg(long)]
    owner: String,
    /// Lock as this owner, which other processes share.
    #[arg(long)]
    share: Option<String>,
    /// Hold the key alone, as a reader, or by one of two numbered permits.
    #[arg(long, value_enum, default_value = "alone")]
    mode: How,
    /// The directory of the registers, one file per key, and one more for each slot of permits.
    #[arg(long)]
    registers: PathBuf,
    /// End after this number of rounds; by default run until killed.
    #[arg(long)]
    rounds: Option<u64>,
    /// End after this time.
    #[arg(long = "for", value_parser = crate::duration)]
    time: Option<Duration>,
    /// The ttl of each lock.
    #[arg(long, value_parser = crate::duration, default_value = "2s")]
    ttl: Duration,
    /// Hold for at least this long.
    #[arg(long, value_parser = crate::duration, default_value = "0ms")]
    hold_least: Duration,
    /// Hold for at most this long.
    #[arg(long, value_parser = crate::duration, default_value = "20ms")]
    hold_most: Duration,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum How {
    Alone,
    Read,
    Permit,
}

pub(crate) async fn run(options: Options) {
    let locker = tenure::connect(&options.target.url).await.expect("the engine can be used");
    let recorder = Recorder::append_to(&options.history).expect("the history can be written");
    let claimant = recorder.claimant(format!("{}/0", options.owner));
    let mut rng = Rng::new(options.seed);
    println!("ready {}", std::process::id());
    let (mut round, start) = (0, Instant::now());
    let goes_on = |round| {
        let rounds_left = options.rounds.is_none_or(|rounds| round < rounds);
        rounds_left && options.time.is_none_or(|time| start.elapsed() < time)
    };
    while goes_on(round) {
        one_round(&options, &locker, &claimant, &mut rng).await;
        round += 1;
    }
    locker.shutdown(Duration::from_secs(5)).await;
    println!("done {round}");
}

async fn one_round(options: &Options, locker: &Locker, claimant: &Claimant, rng: &mut Rng) {
    let (key, time) =
        (rng.pick(&options.target.keys), rng.between(options.hold_least, options.hold_most));
    match options.mode {
        How::Alone => {
            let request = match &options.share {
                Some(share) => locker.lock(key).owner(Owner::shared(share.as_str())),
                None => locker.lock(key),
            };
            let noted = claimant.asks(key);
            let Some(guard) = acquired(request, &noted, options).await else { return };
            update(guard, &noted, &register(options, key), time).await;
        }
        How::Read => {
            let noted = claimant.asks_for(key, Mode::Read);
            let Some(guard) = acquired(locker.read(key), &noted, options).await else { return };
            let register = register(options, key);
            read(&register, &guard);
            hold(&guard, &noted, time).await;
            read(&register, &guard);
            release(guard, &noted).await;
        }
        How::Permit => {
            let noted = claimant.asks_for(key, Mode::Permits { permits: 1, capacity: 2 });
            let request = locker.semaphore(key, 2).acquire().numbered();
            let Some(guard) = acquired(request, &noted, options).await else { return };
            let slot = guard.slot().expect("a numbered permit");
            update(guard, &noted, &register(options, &format!("{key}/{slot}")), time).await;
        }
    }
}

async fn acquired<M: HeldMode>(
    request: LockRequest<M>,
    noted: &Noted,
    options: &Options,
) -> Option<Guard<M>> {
    match request.ttl(options.ttl).retry_interval(Duration::from_millis(10)).await {
        Ok(guard) => {
            noted.granted(guard.fence(), guard.valid_until());
            println!("held {}", guard.fence());
            Some(guard)
        }
        Err(error) => {
            noted.gave_up(error);
            None
        }
    }
}

fn register(options: &Options, name: &str) -> FileRegister {
    let register = FileRegister::open(&options.registers.join(file_name(name)));
    register.expect("the register can be opened")
}

/// Reads, holds and writes.
async fn update<M: HeldMode>(
    guard: Guard<M>,
    noted: &Noted,
    register: &FileRegister,
    time: Duration,
) {
    let seen = register.read(guard.fence()).expect("the register can be read");
    hold(&guard, noted, time).await;
    // Write also after a loss: the register must reject the stale write.
    register.write(seen).expect("the register can be written");
    release(guard, noted).await;
}

/// Reads, also after a loss: the register must reject a stale read.
fn read<M: HeldMode>(register: &FileRegister, guard: &Guard<M>) {
    let seen = register.read_shared(guard.fence()).expect("the register can be read");
    println!("read {}", seen.was_accepted());
}

/// Holds for `time`, or until the lock is lost, and records how far the lease is extended.
async fn hold<M: HeldMode>(guard: &Guard<M>, noted: &Noted, time: Duration) {
    let looks = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            noted.extended(guard.valid_until());
        }
    };
    tokio::select! {
        loss = guard.lost() => {
            noted.lost(&loss);
            println!("lost {loss}");
        }
        () = tokio::time::sleep(time) => {}
        () = looks => {}
    }
}

async fn release<M: HeldMode>(guard: Guard<M>, noted: &Noted) {
    noted.release_called(guard.valid_until());
    match guard.release().await {
        Ok(_) => {
            noted.released();
            println!("released");
        }
        Err(error) => println!("not released: {error}"),
    }
}

/// The file name for a key; the keys of tests have simple names.
fn file_name(key: &str) -> String {
    key.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}
