//! Tasks of several lockers that mix all kinds of claims on one key.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_core::{
    Fence, Guard, Held, HeldMode, LockRequest, Locker, Mode, PERMITS_MAX, Renew, admits,
};
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::EtcdServer;
use tenure_testkit::wait::within;

use crate::support::{claims_are, locker, permits};

/// The holders at this moment, as a judge of all processes sees them.
#[derive(Default)]
struct Register(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    holders: Vec<(Mode, Option<u32>, Held)>,
    /// The highest fence of an exclusive holder, and of the holders of each slot.
    last: Option<Fence>,
    slots: [Option<Fence>; 8],
    /// The most permits that were held at one time.
    most: u32,
}

impl Register {
    /// Enters a holder that the others must admit. Its fence is higher than that of every exclusive holder before it,
    /// and of every holder of its slot.
    fn enter<M: HeldMode>(&self, mode: &Mode, slot: Option<u32>, guard: &Guard<M>) {
        let mut state = self.0.lock().unwrap();
        let (Seen { holders, last, slots, most }, fence) = (&mut *state, Some(guard.fence()));
        holders.retain(|(.., held)| held.is_held());
        let held: Vec<Mode> = holders.iter().map(|(mode, ..)| mode.clone()).collect();
        let capacity = |mode: &Mode| match mode {
            Mode::Permits { capacity, .. } => *capacity,
            _ => 0,
        };
        // Holders come here in another order than they were granted: the largest capacity counts.
        let largest = held.iter().chain([mode]).map(capacity).max().unwrap_or_default();
        let counted = match mode {
            Mode::Permits { permits, .. } => Mode::Permits { permits: *permits, capacity: largest },
            other => other.clone(),
        };
        if guard.is_held() {
            assert!(admits(&held, &counted), "{mode} beside {held:?}");
            assert!(fence > *last, "a fence that does not rise");
        }
        if let Some(slot) = slot {
            assert!(slot < capacity(mode), "slot {slot} of {mode}");
            assert!(holders.iter().all(|(_, other, _)| *other != Some(slot)), "a slot twice");
            let before = &mut slots[slot as usize];
            assert!(fence > *before, "a fence of slot {slot} that does not rise");
            *before = fence;
        }
        if *mode == Mode::Exclusive {
            *last = fence;
        }
        *most = (*most).max(held.iter().chain([mode]).map(Mode::permits).sum());
        holders.push((mode.clone(), slot, guard.held()));
    }
}

/// Locks in one mode, holds for a moment, and releases in some way. Returns whether it held the lock.
async fn use_once<M: HeldMode>(
    request: LockRequest<M>,
    mode: Mode,
    slot: impl Fn(&Guard<M>) -> Option<u32>,
    register: &Register,
    rng: &mut Rng,
) -> bool {
    let request = match rng.below(4) {
        0 => request.wait(Duration::ZERO),
        1 => request.wait(Duration::from_millis(rng.below(20))),
        _ => request.renew(Renew::Auto),
    };
    let guard = match request.await {
        Ok(guard) => guard,
        Err(error) => {
            // A short wait may end before the server has answered.
            assert!(error.is_busy() || error.is_unknown(), "{error:?}");
            return false;
        }
    };
    register.enter(&mode, slot(&guard), &guard);
    tokio::time::sleep(Duration::from_micros(rng.below(3_000))).await;
    match rng.one_in(3) {
        true => drop(guard),
        false => drop(guard.release().await.unwrap()),
    }
    true
}

async fn contender(
    locker: Locker,
    capacities: &'static [u32],
    register: Arc<Register>,
    seed: u64,
    until: Instant,
) -> u32 {
    let (mut rng, mut held) = (Rng::new(seed), 0);
    while Instant::now() < until {
        let kind = if capacities.len() > 1 { 3 } else { rng.below(6) };
        let got = match kind {
            0 => use_once(locker.write("k"), Mode::Exclusive, |_| None, &register, &mut rng).await,
            1 | 2 => use_once(locker.read("k"), Mode::Read, |_| None, &register, &mut rng).await,
            _ => {
                let (taken, capacity) = (if rng.one_in(3) { 2 } else { 1 }, *rng.pick(capacities));
                let request = locker.semaphore("k", capacity).acquire_many(taken);
                let request = if taken == 1 { request.numbered() } else { request };
                let mode = permits(taken, capacity);
                use_once(request, mode, |guard| guard.slot(), &register, &mut rng).await
            }
        };
        held += u32::from(got);
    }
    held
}

/// Lets tasks of four lockers compete for a while. Returns the most permits that were held at one time.
async fn storm(capacities: &'static [u32]) -> u32 {
    let server = EtcdServer::start();
    let (register, mut rng) = (Arc::<Register>::default(), Rng::from_environment().1);
    let until = Instant::now() + Duration::from_secs(5);
    let (mut tasks, mut lockers) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let locker = locker(&server.url()).await;
        for _ in 0..4 {
            let (register, seed) = (register.clone(), rng.below(u64::MAX));
            tasks.push(tokio::spawn(contender(locker.clone(), capacities, register, seed, until)));
        }
        lockers.push(locker);
    }
    let mut all = 0;
    for task in tasks {
        let held = within("a contender", task).await.unwrap();
        assert!(held > 0, "a contender that was never served");
        all += held;
    }
    assert!(all > 100, "{all} holds");
    claims_are(&server, "k", 0).await;
    let most = register.0.lock().unwrap().most;
    assert!(most <= PERMITS_MAX);
    most
}

/// t81, J1, J3: tasks of four lockers mix all kinds on one key, and give up at random. Only claims that fit hold it
/// together, no slot is taken twice and its fences rise, everybody is served, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn t81_all_kinds_on_one_key() {
    assert!(storm(&[3]).await <= 3);
}

/// t80: two capacities in one fleet: never more than the larger, every slot is below its claim's own capacity, and
/// everybody is served.
#[tokio::test(flavor = "multi_thread")]
async fn t80_two_capacities_in_a_storm() {
    assert!(storm(&[4, 6]).await <= 6);
}
