//! The options of a request: their defaults, and the rules that they must keep.

use std::time::Duration;

use crate::claim::RETRY_INTERVAL_DEFAULT;
use crate::error::Error;
use crate::grant::Capabilities;
use crate::holder::WaitStatus;
use crate::time::Time;

/// The default ttl: how long a dead holder keeps others out. Thirty seconds outlast a failover. A renewal is
/// due at a third of the ttl, so two in a row may fail.
pub const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// The longest ttl: one year.
pub const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The unit of ttls on some engines.
const SECOND: Duration = Duration::from_secs(1);
/// The default ttl of a `#[lock]` function. Shorter than [`TTL_DEFAULT`], because a caller waits for the
/// result of such a function.
pub const ATTRIBUTE_TTL_DEFAULT: Duration = Duration::from_secs(10);
/// The default pause between two attempts of a `#[lock]` function. Shorter than [`RETRY_INTERVAL_DEFAULT`],
/// because a caller waits for the result of such a function.
pub const ATTRIBUTE_RETRY_INTERVAL_DEFAULT: Duration = Duration::from_millis(50);
/// The shortest pause between two attempts: a shorter one would be a busy loop on a shared server.
pub const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// How long the drop of the last locker blocks for releases that are under way: long enough for a server in
/// another region, short enough for a program that ends while its server is down.
pub const FLUSH_TIMEOUT_DEFAULT: Duration = Duration::from_millis(500);
/// A wait without a limit ends if the server could not be reached for this many retry intervals and the
/// [time](Capabilities::reachable_within) that connecting may take.
const RETRIES_WHILE_UNREACHABLE: u32 = 5;
/// The shortest interval between renewals that can be set: with a shorter one, the next renewal would be due
/// before the last one is answered. [`Renew::Auto`] is limited by [`TTL_MIN`](crate::TTL_MIN) instead.
pub const RENEW_EVERY_MIN: Duration = Duration::from_millis(10);
/// The shortest `max_hold`: a shorter one may end before the holder runs.
pub const MAX_HOLD_MIN: Duration = Duration::from_millis(10);

/// When the lease of a held lock is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Renew {
    /// At a third of the ttl.
    #[default]
    Auto,
    /// At this fraction of the ttl: more than 0, less than 0.5, and at least 10 ms.
    Ratio(f64),
    /// At this interval: at least 10 ms, and less than half of the ttl.
    Every(Duration),
    /// Never: the lock ends with its ttl.
    Off,
}

impl Renew {
    /// The time from a grant or renewal of `ttl` to the next renewal.
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
    /// Not set: no limit while another holds the lock, but a limit for a server that cannot be reached.
    #[default]
    Unset,
    Forever,
    For(Duration),
}

/// What a request does if another owner in the same process holds the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithinProcess {
    /// Waits in the queue, as with `tokio::sync::Mutex`.
    #[default]
    Queue,
    /// Fails at once with an error that [is already held](Error::is_already_held).
    Fail,
}

/// What a request does if its own owner holds the lock already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reentry {
    /// Acquires it again; the lock is released with the last guard.
    #[default]
    Allow,
    /// Fails with an error that [is already held](Error::is_already_held).
    Refuse,
}

/// The options of a request. A [`Locker`](crate::Locker) has default values; each request can override them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) unavailable_after: Option<Duration>,
    pub(crate) attempts: Option<u32>,
    pub(crate) retry_interval: Duration,
    pub(crate) renew: Renew,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) within_process: WithinProcess,
    pub(crate) reentry: Reentry,
    pub(crate) fencing: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: TTL_DEFAULT,
            wait: Wait::Unset,
            unavailable_after: None,
            attempts: None,
            retry_interval: RETRY_INTERVAL_DEFAULT,
            renew: Renew::Auto,
            max_hold: None,
            min_hold: Duration::ZERO,
            within_process: WithinProcess::Queue,
            reentry: Reentry::Allow,
            fencing: true,
        }
    }
}

/// The options of a [`Locker`](crate::Locker) for requests that do not set them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    /// For `lock(..)` and `try_lock(..)`.
    pub(crate) plain: Options,
    /// For `#[lock]`.
    pub(crate) attribute: Options,
    /// How long the drop of the last locker blocks for releases that are under way.
    pub(crate) flush_timeout: Duration,
}

impl Default for Defaults {
    fn default() -> Self {
        let plain = Options::default();
        let attribute = Options {
            ttl: ATTRIBUTE_TTL_DEFAULT,
            // A `#[lock]` function fails at once if another holds the lock.
            wait: Wait::For(Duration::ZERO),
            retry_interval: ATTRIBUTE_RETRY_INTERVAL_DEFAULT,
            ..plain
        };
        Defaults { plain, attribute, flush_timeout: FLUSH_TIMEOUT_DEFAULT }
    }
}

impl Defaults {
    /// Changes both sets of defaults: a value that the user sets on the locker also applies to `#[lock]`.
    pub(crate) fn set(&mut self, change: impl Fn(&mut Options)) {
        change(&mut self.plain);
        change(&mut self.attribute);
    }

    /// Gives `#[lock]` the ttl of the other requests, if its own does not fit the other options: a renewal
    /// every eight seconds fits a ttl of thirty seconds, but not one of ten.
    pub(crate) fn fit(mut self, engine: &Capabilities) -> Self {
        if self.attribute.validate(engine).is_err() {
            self.attribute.ttl = self.plain.ttl;
        }
        self
    }
}

/// Time-outs with a sum up to this value fit every ttl.
const CALL_TIME_FREE: Duration = Duration::from_secs(8);

impl Options {
    /// Whether a wait continues after an error of the engine.
    pub(crate) fn rides_out(&self) -> bool {
        self.wait != Wait::Unset || self.unavailable_after.is_some()
    }

    /// How long a request may be unanswered before the wait ends; `None` if the wait ends by reports of the backend
    /// only.
    pub(crate) fn longest_silence(&self) -> Option<Duration> {
        self.unavailable_after.filter(|longest| !longest.is_zero())
    }

    /// Whether a wait ends `now` because of the errors that its claim has reported.
    pub(crate) fn give_up(&self, sight: &WaitStatus, engine: &Capabilities, now: Time) -> bool {
        let (since, longest) = match (self.unavailable_after, self.wait) {
            (Some(longest), _) => (sight.unanswered_since, longest),
            (None, Wait::Forever | Wait::For(_)) => return false,
            (None, Wait::Unset) => {
                let retries = self.retry_interval.saturating_mul(RETRIES_WHILE_UNREACHABLE);
                (sight.unreachable_since, engine.reachable_within.saturating_add(retries))
            }
        };
        since.is_some_and(|since| now >= since.after(longest))
    }

    /// Checks every value and the relations between them, before anything is sent.
    pub(crate) fn validate(&self, engine: &Capabilities) -> Result<(), Error> {
        self.validate_ttl(engine)?;
        self.validate_call_time(engine)?;
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

    /// A renewal is due at a third of the ttl. If its reply is lost, that is known only after the time-outs;
    /// then a sixth of the ttl must remain for the next renewal.
    fn validate_call_time(&self, engine: &Capabilities) -> Result<(), Error> {
        let (ttl, call, name) = (self.ttl, engine.call_time, engine.engine);
        if call > CALL_TIME_FREE && ttl < call * 2 {
            return refuse(format!(
                "ttl ({ttl:?}) must be at least twice the time-outs of `{name}`, connect_timeout plus \
                 response_timeout ({call:?})"
            ));
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
        let min_hold = self.min_hold;
        if min_hold > TTL_MAX {
            return refuse(format!("min_hold ({min_hold:?}) must be at most {TTL_MAX:?}"));
        }
        let Some(max_hold) = self.max_hold else { return Ok(()) };
        if max_hold < MAX_HOLD_MIN {
            return refuse(format!("max_hold ({max_hold:?}) must be at least {MAX_HOLD_MIN:?}"));
        }
        if min_hold > max_hold {
            return refuse(format!(
                "min_hold ({min_hold:?}) must not be more than max_hold ({max_hold:?})"
            ));
        }
        Ok(())
    }
}

/// The multiple of `unit` that is nearest to `ttl`; the longer one if two are equally near.
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
    use crate::fault::{Fault, FaultKind};
    use crate::grant::TTL_MIN;

    fn check(change: impl FnOnce(&mut Options)) -> Result<(), String> {
        let mut options = Options::default();
        change(&mut options);
        options.validate(&Capabilities::full("memory")).map_err(|error| error.to_string())
    }

    fn refused(change: impl FnOnce(&mut Options)) -> String {
        check(change).unwrap_err()
    }

    /// A ttl out of range is refused; the message names the option and its value.
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

    /// Long time-outs need a ttl that outlasts a lost reply; short ones fit every ttl.
    #[test]
    fn t57_time_outs_and_the_ttl() {
        let mut engine = Capabilities::full("redis");
        let check = |ttl: u64, engine: &Capabilities| {
            let options = Options { ttl: Duration::from_secs(ttl), ..Options::default() };
            options.validate(engine).map_err(|error| error.to_string())
        };
        engine.call_time = Duration::from_secs(8);
        assert_eq!(check(1, &engine), Ok(()));
        engine.call_time = Duration::from_secs(15);
        assert_eq!(check(30, &engine), Ok(()));
        assert_eq!(
            check(29, &engine).unwrap_err(),
            "ttl (29s) must be at least twice the time-outs of `redis`, connect_timeout plus \
             response_timeout (15s)"
        );
        let defaults = Defaults::default().fit(&engine);
        assert_eq!(defaults.attribute.ttl, defaults.plain.ttl, "`#[lock]` takes the longer ttl");
    }

    /// A renewal interval that leaves no time for a second attempt is refused.
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

    /// A renewal interval that is shorter than a round trip is refused.
    #[test]
    fn t57_renewal_too_often() {
        let often = refused(|o| o.renew = Renew::Every(Duration::from_millis(9)));
        assert_eq!(often, "renew_every (9ms) must be at least 10ms");
        let ratio = refused(|o| o.renew = Renew::Ratio(1e-6));
        assert_eq!(ratio, "renew ratio (0.000001) of ttl (30s) is 30µs, and must be at least 10ms");
        assert_eq!(check(|o| o.renew = Renew::Every(Duration::from_millis(10))), Ok(()));
        assert_eq!(check(|o| o.ttl = TTL_MIN), Ok(()));
    }

    /// The other rules; each message names the values.
    #[test]
    fn other_values_are_checked() {
        let fast = refused(|o| o.retry_interval = Duration::from_millis(9));
        assert_eq!(fast, "retry_interval (9ms) must be at least 10ms");
        let year = Duration::from_secs(366 * 24 * 3600);
        let slow = refused(|o| o.retry_interval = year);
        assert_eq!(slow, "retry_interval (31622400s) must be at most 31536000s");
        let long = refused(|o| o.min_hold = year);
        assert_eq!(long, "min_hold (31622400s) must be at most 31536000s");
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
            o.min_hold = Duration::from_secs(2);
        });
        assert_eq!(odd, "min_hold (2s) must not be more than max_hold (1s)");
    }

    /// E1: `#[lock]` has its own defaults, and values set on the locker override them.
    #[test]
    fn e1_defaults_of_the_attribute() {
        let mut defaults = Defaults::default();
        let shown = |o: Options| (o.ttl.as_secs(), o.wait, o.retry_interval.as_millis());
        assert_eq!(shown(defaults.attribute), (10, Wait::For(Duration::ZERO), 50));
        assert_eq!(shown(defaults.plain), (30, Wait::Unset, 100));
        defaults.set(|o| o.ttl = Duration::from_secs(20));
        defaults.set(|o| o.wait = Wait::Forever);
        assert_eq!(shown(defaults.attribute), (20, Wait::Forever, 50));
    }

    /// A limit that the caller sets is kept: an unreachable server ends such a wait early only with
    /// `unavailable_after`. A wait without a limit ends soon if no server can be reached.
    #[test]
    fn waits_for_an_unreachable_server() {
        let fault = || Fault::new(FaultKind::Unavailable, "connection refused");
        let (began, mut engine) = (Time::from_nanos(1), Capabilities::full("redis"));
        engine.reachable_within = Duration::from_secs(2);
        let unreachable = WaitStatus::unreachable(fault(), began);
        let unanswered = WaitStatus::unanswered(fault(), began);
        let (bounded, minute) =
            (Wait::For(Duration::from_secs(600)), Some(Duration::from_secs(60)));
        let year = TTL_MAX.as_millis() as u64;
        // When each wait ends, in milliseconds: server unreachable, server not answering.
        let cases = [
            (Wait::Unset, None, 2_500, year),
            (bounded, None, year, year),
            (Wait::Forever, None, year, year),
            (Wait::Unset, minute, 60_000, 60_000),
            (bounded, minute, 60_000, 60_000),
            (bounded, Some(Duration::ZERO), 0, 0),
        ];
        for (wait, unavailable_after, first, second) in cases {
            let options = Options { wait, unavailable_after, ..Options::default() };
            for (sight, after) in [(&unreachable, first), (&unanswered, second)] {
                let ends = |millis| {
                    options.give_up(sight, &engine, began.after(Duration::from_millis(millis)))
                };
                assert_eq!(ends(after), after < year, "{wait:?} {unavailable_after:?} {after}");
                assert!(after == 0 || !ends(after - 1), "{wait:?} {unavailable_after:?} {after}");
            }
        }
    }

    /// The default ttl of `#[lock]` is replaced if it does not fit an option that the user set.
    #[test]
    fn e1_the_attributes_ttl_gives_way() {
        let mut defaults = Defaults::default();
        defaults.set(|o| o.renew = Renew::Every(Duration::from_secs(8)));
        let fitted = defaults.fit(&Capabilities::full("memory"));
        assert_eq!(fitted.attribute.ttl, TTL_DEFAULT);
        let fitted = Defaults::default().fit(&Capabilities::full("memory"));
        assert_eq!(fitted.attribute.ttl, ATTRIBUTE_TTL_DEFAULT);
    }

    /// An engine with ttls in whole seconds names the nearest valid ttl.
    #[test]
    fn t55_the_nearest_valid_ttl_is_named() {
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
