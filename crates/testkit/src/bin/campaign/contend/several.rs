//! Requests for several keys at once.

use std::future::IntoFuture;

use tenure::{Error, Fence, GuardAll, Mode};
use tenure_testkit::history::Noted;
use tenure_testkit::register::{FileRegister, Reading};

use super::{Contender, PATIENCE, RETRY, stay};

/// A register that was read under one of the keys.
struct Opened<'a> {
    register: FileRegister,
    mode: &'a Mode,
    seen: Reading,
}

impl Opened<'_> {
    /// Reads again, or writes. Also after a loss: the register must reject what is stale.
    fn close(self) {
        let done = match self.mode {
            Mode::Read => self.register.read_again(self.seen),
            _ => self.register.write(self.seen).map(drop),
        };
        done.expect("the register can be used");
    }
}

impl Contender {
    /// All keys but the last, which is elected, or all but one of them; in any order, and some of them to read.
    pub(super) fn some_keys(&mut self) -> Vec<(String, Mode)> {
        let (_, keys) = self.options.keys.split_last().expect("there are keys");
        let (first, mut left, mut asked) = (keys[0].clone(), keys.to_vec(), Vec::new());
        let least = usize::from(self.rng.one_in(2));
        while left.len() > least || asked.len() < 2 {
            let at = usize::try_from(self.rng.below(left.len() as u64)).expect("it fits");
            let key = left.swap_remove(at);
            let reads = self.locker.capabilities().readers && key != first && self.rng.one_in(3);
            asked.push((key, if reads { Mode::Read } else { Mode::Exclusive }));
        }
        asked
    }

    /// Returns whether all keys were granted.
    pub(super) async fn several(
        &mut self,
        asked: Vec<(String, Mode)>,
        notes: &[Noted],
    ) -> Result<bool, Error> {
        let names = |read: bool| {
            let of_mode = asked.iter().filter(move |(_, mode)| (*mode == Mode::Read) == read);
            of_mode.map(|(key, _)| key.as_str())
        };
        let (ttl, label) = (*self.rng.pick(&self.options.ttls), notes[0].label());
        let all = self.locker.lock_all(names(false)).read(names(true)).ttl(ttl);
        let all = all.retry_interval(RETRY).label(label.clone());
        let granted = match self.rng.below(8) {
            0 => {
                let once = self.locker.try_lock_all(names(false)).read(names(true));
                once.ttl(ttl).label(label).await?
            }
            1 => tokio::time::timeout(self.moment(), all.into_future()).await.ok().transpose()?,
            2 => Some(all.attempts(3).await?),
            3..6 => Some(all.wait(PATIENCE).await?),
            // For ever: a dead-lock is seen at the end.
            _ => Some(all.await?),
        };
        let Some(guard) = granted else { return Ok(false) };
        self.work_under_all(guard, &asked, notes).await;
        Ok(true)
    }

    /// Reads the registers of all keys, holds for a while, and writes those that may be written.
    async fn work_under_all(&mut self, guard: GuardAll, asked: &[(String, Mode)], notes: &[Noted]) {
        let opened = notes.iter().zip(asked).filter_map(|(noted, (key, mode))| {
            let fence = self.granted(&guard, noted)?;
            Some(self.open(key, mode, fence))
        });
        let opened: Vec<Opened<'_>> = opened.collect();
        let look = || notes.iter().for_each(|noted| noted.extended(guard.valid_until()));
        if let Some((key, loss)) = stay(guard.lost(), look, self.hold_time()).await {
            let lost = notes.iter().filter(|noted| noted.key() == key.as_str());
            lost.for_each(|noted| noted.lost(&loss));
        }
        opened.into_iter().for_each(Opened::close);
        self.release_all(guard, notes).await;
    }

    /// Records whether the key of this claim is among the keys of the guard.
    fn granted(&self, guard: &GuardAll, noted: &Noted) -> Option<Fence> {
        let fence = guard.fence(noted.key());
        match fence {
            Some(fence) => noted.granted(fence, guard.valid_until()),
            None => noted.gave_up("it is not among the keys of the guard"),
        }
        fence
    }

    fn open<'a>(&self, key: &str, mode: &'a Mode, fence: Fence) -> Opened<'a> {
        let register = self.register(key);
        let seen = match mode {
            Mode::Read => register.read_shared(fence),
            _ => register.read(fence),
        };
        Opened { register, mode, seen: seen.expect("the register can be read") }
    }

    async fn release_all(&mut self, guard: GuardAll, notes: &[Noted]) {
        notes.iter().for_each(|noted| noted.release_called(guard.valid_until()));
        match self.rng.one_in(3) {
            true => drop(guard),
            false => {
                if guard.release().await.is_ok() {
                    notes.iter().for_each(Noted::released);
                }
            }
        }
    }
}
