//! The loop: lock, note, hold, update the registers, release, note.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tenure::{Guard, Locker, Owner};
use tenure_testkit::dice::Dice;
use tenure_testkit::history::{Claimant, Noted, Recorder};
use tenure_testkit::register::FileRegister;

use crate::Target;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// Where to append the history; a file of this process's own.
    #[arg(long)]
    history: PathBuf,
    /// The name under which it is noted.
    #[arg(long)]
    owner: String,
    /// Lock as this owner, which other processes share.
    #[arg(long)]
    share: Option<String>,
    /// Where the registers are, one file per key.
    #[arg(long)]
    registers: PathBuf,
    /// End after so many rounds; without it, go on until killed.
    #[arg(long)]
    rounds: Option<u64>,
    /// End after so much time.
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
    /// What chance follows from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) async fn run(options: Options) {
    let locker = tenure::connect(&options.target.url).await.expect("the engine can be used");
    let recorder = Recorder::append_to(&options.history).expect("the history can be written");
    let claimant = recorder.claimant(format!("{}/0", options.owner));
    let mut dice = Dice::new(options.seed);
    println!("ready {}", std::process::id());
    let (mut round, start) = (0, Instant::now());
    let goes_on = |round| {
        let rounds_left = options.rounds.is_none_or(|rounds| round < rounds);
        rounds_left && options.time.is_none_or(|time| start.elapsed() < time)
    };
    while goes_on(round) {
        one_round(&options, &locker, &claimant, &mut dice).await;
        round += 1;
    }
    locker.shutdown(Duration::from_secs(5)).await;
    println!("done {round}");
}

async fn one_round(options: &Options, locker: &Locker, claimant: &Claimant, dice: &mut Dice) {
    let key = dice.pick(&options.target.keys);
    let register = FileRegister::open(&options.registers.join(file_name(key)));
    let register = register.expect("the register can be opened");
    let noted = claimant.asks(key);
    let mut request = locker.lock(key).ttl(options.ttl).retry_interval(Duration::from_millis(10));
    if let Some(share) = &options.share {
        request = request.owner(Owner::shared(share.as_str()));
    }
    let guard = match request.await {
        Ok(guard) => guard,
        Err(error) => return noted.gave_up(error),
    };
    noted.granted(guard.fence(), guard.valid_until());
    println!("held {}", guard.fence());
    let seen = register.read(guard.fence()).expect("the register can be read");
    hold(&guard, &noted, dice.between(options.hold_least, options.hold_most)).await;
    // Also after a loss: it is the register that must refuse the stale write.
    register.write(seen).expect("the register can be written");
    release(guard, &noted).await;
}

/// Holds on for `time`, or until the lock is lost; notes how far the lease was extended.
async fn hold(guard: &Guard, noted: &Noted, time: Duration) {
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

async fn release(guard: Guard, noted: &Noted) {
    noted.release_called(guard.valid_until());
    match guard.release().await {
        Ok(_) => {
            noted.released();
            println!("released");
        }
        Err(error) => println!("not released: {error}"),
    }
}

/// A file for a key: tests name their keys simply.
fn file_name(key: &str) -> String {
    key.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}
