//! Repeatable random numbers: they depend only on a seed, which is printed.

use std::time::Duration;

/// The environment variable that repeats a run: `TENURE_SEED=42 cargo test …`.
pub const SEED_VARIABLE: &str = "TENURE_SEED";

/// A random number generator that depends only on its seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Takes the seed from [`SEED_VARIABLE`], or a new one, and prints it, so that a failure can be repeated.
    #[allow(clippy::print_stderr, reason = "a test's output is where the seed is looked for")]
    pub fn from_environment() -> (u64, Self) {
        let given = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| tenure_core::time::UnixMillis::now().0);
        eprintln!("{SEED_VARIABLE}={seed} repeats the choices of this run, not its timing");
        (seed, Rng::new(seed))
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(items.len() as u64)).expect("an index fits");
        &items[index]
    }

    /// True with a probability of one in `one_in`.
    pub fn one_in(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// A random duration from `least` to `most`.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_nanos()).unwrap_or(u64::MAX - 1);
        least + Duration::from_nanos(self.below(span + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same seed yields the same numbers, and another seed yields others.
    #[test]
    fn a_seed_repeats() {
        let rolls = |seed| {
            let mut rng = Rng::new(seed);
            [rng.roll(), rng.roll(), rng.roll()]
        };
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
    }

    /// `between` stays within its bounds.
    #[test]
    fn between_keeps_its_bounds() {
        let (least, most) = (Duration::from_millis(5), Duration::from_millis(9));
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            assert!((least..=most).contains(&rng.between(least, most)));
        }
        assert_eq!(rng.between(most, most), most);
    }
}
