//! Defaults, and the relations between options. One place for both.

use std::time::Duration;

use crate::backend::Capabilities;
use crate::error::Error;

/// How long a dead holder keeps others out. Thirty seconds rides out a failover;
/// renewal comes at a third, so two may fail in a row.
pub const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// The shortest ttl: below it the margin and one round trip leave nothing to rely on.
pub const TTL_MIN: Duration = Duration::from_millis(10);
/// The longest ttl. Who wants to hold a lock for more than a year wants something else.
pub const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// What some engines count in.
const SECOND: Duration = Duration::from_secs(1);
/// How often to look again where nobody tells: often enough for people, rare enough for servers.
pub const RETRY_INTERVAL_DEFAULT: Duration = Duration::from_millis(100);
/// How long a dead holder of a `#[lock]` function keeps others out. Shorter than [`TTL_DEFAULT`]:
/// somebody waits for the answer of such a function.
pub const ATTRIBUTE_TTL_DEFAULT: Duration = Duration::from_secs(10);
/// How often a `#[lock]` function looks again where nobody tells. Shorter than
/// [`RETRY_INTERVAL_DEFAULT`], for the same reason.
pub const ATTRIBUTE_RETRY_INTERVAL_DEFAULT: Duration = Duration::from_millis(50);
/// The shortest pause between two looks: a shorter one is a busy loop on somebody else's server.
pub const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The shortest interval of renewals that can be asked for, as of looks: the next one would be due before
/// the last is answered. [`Renew::Auto`] is bounded by [`TTL_MIN`].
pub const RENEW_EVERY_MIN: Duration = Duration::from_millis(10);
/// The shortest time to hold a lock: a shorter one may be over before its holder runs.
pub const MAX_HOLD_MIN: Duration = Duration::from_millis(10);

/// When a held lease is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Renew {
    /// At a third of the ttl.
    #[default]
    Auto,
    /// At this fraction of the ttl, between 0 and 0.5, and at least 10 ms.
    Ratio(f64),
    /// This often, at least 10 ms apart.
    Every(Duration),
    /// Never: the lock ends with its ttl.
    Off,
}

impl Renew {
    /// How long after a grant or renewal of `ttl` the next one is due.
    pub(crate) fn interval(self, ttl: Duration) -> Option<Duration> {
        match self {
            Renew::Auto => Some(ttl / 3),
            Renew::Ratio(ratio) => Some(ttl.mul_f64(ratio)),
            Renew::Every(interval) => Some(interval),
            Renew::Off => None,
        }
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wait {
    #[default]
    Forever,
    For(Duration),
}

/// What to do when another owner of the same process holds the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithinProcess {
    /// Wait one's turn, as with `tokio::sync::Mutex`.
    #[default]
    Queue,
    /// Fail at once with an error that [is already held](Error::is_already_held).
    Fail,
}

/// What happens when an owner asks for what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reentry {
    /// It gets it again, counted.
    #[default]
    Allow,
    /// It is an error that [is already held](Error::is_already_held).
    Refuse,
}

/// The options of a claim; a [`Locker`](crate::Locker) has them as defaults, each call can override them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) attempts: Option<u32>,
    pub(crate) retry_interval: Duration,
    pub(crate) renew: Renew,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) within_process: WithinProcess,
    pub(crate) reentry: Reentry,
    pub(crate) fencing: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: TTL_DEFAULT,
            wait: Wait::Forever,
            attempts: None,
            retry_interval: RETRY_INTERVAL_DEFAULT,
            renew: Renew::Auto,
            max_hold: None,
            at_least: Duration::ZERO,
            within_process: WithinProcess::Queue,
            reentry: Reentry::Allow,
            fencing: true,
        }
    }
}

/// What a [`Locker`](crate::Locker) asks for unless the call says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    /// With `lock(..)` and `try_lock(..)`.
    pub(crate) plain: Options,
    /// With `#[lock]`.
    pub(crate) attribute: Options,
}

impl Default for Defaults {
    fn default() -> Self {
        let plain = Options::default();
        let attribute = Options {
            ttl: ATTRIBUTE_TTL_DEFAULT,
            // The caller of a function is told at once that another is at it.
            wait: Wait::For(Duration::ZERO),
            retry_interval: ATTRIBUTE_RETRY_INTERVAL_DEFAULT,
            ..plain
        };
        Defaults { plain, attribute }
    }
}

impl Defaults {
    /// What the user says of the locker is stronger than either's own default.
    pub(crate) fn set(&mut self, change: impl Fn(&mut Options)) {
        change(&mut self.plain);
        change(&mut self.attribute);
    }

    /// Takes the ttl of the others for `#[lock]` where its own does not go with the rest: a renewal
    /// every eight seconds is fine for thirty seconds, and not for ten.
    pub(crate) fn fit(mut self, engine: &Capabilities) -> Self {
        if self.attribute.validate(engine).is_err() {
            self.attribute.ttl = self.plain.ttl;
        }
        self
    }
}

impl Options {
    /// Checks every value and every relation, before anything is sent.
    pub(crate) fn validate(&self, engine: &Capabilities) -> Result<(), Error> {
        self.validate_ttl(engine)?;
        self.validate_renewal()?;
        self.validate_waiting()?;
        self.validate_holding()
    }

    fn validate_ttl(&self, engine: &Capabilities) -> Result<(), Error> {
        let (ttl, name) = (self.ttl, engine.engine);
        let (min, unit) = (engine.ttl_min, engine.ttl_unit);
        let is_fraction = ttl.as_nanos() % unit.as_nanos() != 0;
        if unit == SECOND && ttl <= TTL_MAX && (ttl < min || is_fraction) {
            let nearest = nearest(ttl, unit).max(min);
            return refuse(format!(
                "ttl ({ttl:?}) must be whole seconds, at least {min:?}, on `{name}`: {nearest:?} would do"
            ));
        }
        if !(min..=TTL_MAX).contains(&ttl) {
            return refuse(format!(
                "ttl ({ttl:?}) must be between {min:?} and {TTL_MAX:?} on `{name}`"
            ));
        }
        if is_fraction {
            return refuse(format!("ttl ({ttl:?}) must be a multiple of {unit:?} on `{name}`"));
        }
        Ok(())
    }

    fn validate_renewal(&self) -> Result<(), Error> {
        let ttl = self.ttl;
        if let Renew::Ratio(ratio) = self.renew
            && !(ratio > 0.0 && ratio < 0.5)
        {
            return refuse(format!("renew ratio ({ratio}) must be between 0 and 0.5"));
        }
        match (self.renew, self.renew.interval(ttl)) {
            (Renew::Ratio(ratio), Some(every)) if every < RENEW_EVERY_MIN => refuse(format!(
                "renew ratio ({ratio}) of ttl ({ttl:?}) is {every:?}, and must be at least {RENEW_EVERY_MIN:?}"
            )),
            (Renew::Every(every), _) if every < RENEW_EVERY_MIN => {
                refuse(format!("renew_every ({every:?}) must be at least {RENEW_EVERY_MIN:?}"))
            }
            (_, Some(every)) if every.saturating_mul(2) >= ttl => {
                refuse(format!("renew_every ({every:?}) must be less than half of ttl ({ttl:?})"))
            }
            _ => Ok(()),
        }
    }

    fn validate_waiting(&self) -> Result<(), Error> {
        let interval = self.retry_interval;
        if interval < RETRY_INTERVAL_MIN {
            return refuse(format!(
                "retry_interval ({interval:?}) must be at least {RETRY_INTERVAL_MIN:?}"
            ));
        }
        if interval > TTL_MAX {
            return refuse(format!("retry_interval ({interval:?}) must be at most {TTL_MAX:?}"));
        }
        if self.attempts == Some(0) {
            return refuse("attempts (0) must be at least 1".into());
        }
        Ok(())
    }

    fn validate_holding(&self) -> Result<(), Error> {
        let at_least = self.at_least;
        if at_least > TTL_MAX {
            return refuse(format!("at_least ({at_least:?}) must be at most {TTL_MAX:?}"));
        }
        let Some(max_hold) = self.max_hold else { return Ok(()) };
        if max_hold < MAX_HOLD_MIN {
            return refuse(format!("max_hold ({max_hold:?}) must be at least {MAX_HOLD_MIN:?}"));
        }
        if at_least > max_hold {
            return refuse(format!(
                "at_least ({at_least:?}) must not be more than max_hold ({max_hold:?})"
            ));
        }
        Ok(())
    }
}

/// The multiple of `unit` that is nearest to `ttl`; of two, the longer.
fn nearest(ttl: Duration, unit: Duration) -> Duration {
    let units = (ttl + unit / 2).as_nanos() / unit.as_nanos().max(1);
    unit.saturating_mul(u32::try_from(units).unwrap_or(u32::MAX))
}

fn refuse(message: String) -> Result<(), Error> {
    Err(Error::invalid(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Options)) -> Result<(), String> {
        let mut options = Options::default();
        change(&mut options);
        options.validate(&Capabilities::full("memory")).map_err(|error| error.to_string())
    }

    fn refused(change: impl FnOnce(&mut Options)) -> String {
        check(change).unwrap_err()
    }

    /// A ttl that no server could keep is refused by name and value.
    #[test]
    fn t55_ttl_out_of_range() {
        let bad = [
            (Duration::ZERO, "0ns"),
            (Duration::from_nanos(1), "1ns"),
            (Duration::from_millis(9), "9ms"),
            (Duration::from_millis(u64::MAX), "18446744073709551.615s"),
        ];
        for (ttl, shown) in bad {
            let message = format!("ttl ({shown}) must be between 10ms and 31536000s on `memory`");
            assert_eq!(refused(|o| o.ttl = ttl), message);
        }
        let fraction = refused(|o| o.ttl = Duration::from_micros(10_500));
        assert_eq!(fraction, "ttl (10.5ms) must be a multiple of 1ms on `memory`");
    }

    /// A renewal that leaves no room for a second try is refused.
    #[test]
    fn t57_renewal_too_late() {
        let late = refused(|o| o.renew = Renew::Every(Duration::from_secs(20)));
        assert_eq!(late, "renew_every (20s) must be less than half of ttl (30s)");
        let half = refused(|o| o.renew = Renew::Every(Duration::from_secs(15)));
        assert_eq!(half, "renew_every (15s) must be less than half of ttl (30s)");
        assert_eq!(
            refused(|o| o.renew = Renew::Ratio(0.5)),
            "renew ratio (0.5) must be between 0 and 0.5"
        );
        assert_eq!(
            refused(|o| o.renew = Renew::Ratio(f64::NAN)),
            "renew ratio (NaN) must be between 0 and 0.5"
        );
        assert_eq!(
            refused(|o| o.renew = Renew::Every(Duration::ZERO)),
            "renew_every (0ns) must be at least 10ms"
        );
        assert_eq!(check(|o| o.renew = Renew::Every(Duration::from_secs(14))), Ok(()));
    }

    /// A renewal that would come again before it is answered is refused.
    #[test]
    fn t57_renewal_too_often() {
        let often = refused(|o| o.renew = Renew::Every(Duration::from_millis(9)));
        assert_eq!(often, "renew_every (9ms) must be at least 10ms");
        let ratio = refused(|o| o.renew = Renew::Ratio(1e-6));
        assert_eq!(ratio, "renew ratio (0.000001) of ttl (30s) is 30µs, and must be at least 10ms");
        assert_eq!(check(|o| o.renew = Renew::Every(Duration::from_millis(10))), Ok(()));
        assert_eq!(check(|o| o.ttl = TTL_MIN), Ok(()));
    }

    /// The other relations, each naming its values.
    #[test]
    fn other_values_are_checked() {
        let fast = refused(|o| o.retry_interval = Duration::from_millis(9));
        assert_eq!(fast, "retry_interval (9ms) must be at least 10ms");
        let year = Duration::from_secs(366 * 24 * 3600);
        let slow = refused(|o| o.retry_interval = year);
        assert_eq!(slow, "retry_interval (31622400s) must be at most 31536000s");
        let long = refused(|o| o.at_least = year);
        assert_eq!(long, "at_least (31622400s) must be at most 31536000s");
        let every = Renew::Every(Duration::MAX);
        assert!(refused(|o| o.renew = every).ends_with("must be less than half of ttl (30s)"));
        assert_eq!(refused(|o| o.attempts = Some(0)), "attempts (0) must be at least 1");
        assert_eq!(
            refused(|o| o.max_hold = Some(Duration::ZERO)),
            "max_hold (0ns) must be at least 10ms"
        );
        let brief = refused(|o| o.max_hold = Some(Duration::from_micros(1)));
        assert_eq!(brief, "max_hold (1µs) must be at least 10ms");
        let odd = refused(|o| {
            o.max_hold = Some(Duration::from_secs(1));
            o.at_least = Duration::from_secs(2);
        });
        assert_eq!(odd, "at_least (2s) must not be more than max_hold (1s)");
    }

    /// E1: `#[lock]` has defaults of its own, and what the user says of the locker is stronger.
    #[test]
    fn e1_defaults_of_the_attribute() {
        let mut defaults = Defaults::default();
        let shown = |o: Options| (o.ttl.as_secs(), o.wait, o.retry_interval.as_millis());
        assert_eq!(shown(defaults.attribute), (10, Wait::For(Duration::ZERO), 50));
        assert_eq!(shown(defaults.plain), (30, Wait::Forever, 100));
        defaults.set(|o| o.ttl = Duration::from_secs(20));
        defaults.set(|o| o.wait = Wait::Forever);
        assert_eq!(shown(defaults.attribute), (20, Wait::Forever, 50));
    }

    /// A ttl that nobody chose gives way to what somebody did.
    #[test]
    fn e1_the_attributes_ttl_gives_way() {
        let mut defaults = Defaults::default();
        defaults.set(|o| o.renew = Renew::Every(Duration::from_secs(8)));
        let fitted = defaults.fit(&Capabilities::full("memory"));
        assert_eq!(fitted.attribute.ttl, TTL_DEFAULT);
        let fitted = Defaults::default().fit(&Capabilities::full("memory"));
        assert_eq!(fitted.attribute.ttl, ATTRIBUTE_TTL_DEFAULT);
    }

    /// An engine that counts in seconds says so.
    #[test]
    fn t55_the_engine_has_a_say() {
        let mut engine = Capabilities::full("etcd");
        (engine.ttl_unit, engine.ttl_min) = (Duration::from_secs(1), Duration::from_secs(2));
        let with =
            |ttl| Options { ttl, ..Options::default() }.validate(&engine).unwrap_err().to_string();
        let cases = [(500, "2s"), (1_000, "2s"), (2_001, "2s"), (2_499, "2s"), (2_500, "3s")];
        for (ttl, nearest) in cases {
            let ttl = Duration::from_millis(ttl);
            let message = format!(
                "ttl ({ttl:?}) must be whole seconds, at least 2s, on `etcd`: {nearest} would do"
            );
            assert_eq!(with(ttl), message);
        }
    }
}
