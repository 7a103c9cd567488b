//! Whose word counts, when Sentinels disagree.

use std::time::Duration;

use tenure_core::time::Clock;

use super::ask::Word;
use super::{ANEW_AFTER, Sentinels};
use crate::link::{Dial, Login};
use crate::url::Address;

const TIMEOUT: Duration = Duration::from_secs(2);

fn three(clock: &Clock) -> Sentinels {
    let dial = Dial::new(Login::default(), None, TIMEOUT, TIMEOUT);
    let addresses = [1, 2, 3].map(|port| Address::Tcp("h".into(), port));
    Sentinels::new("s", &addresses, dial, clock.clone())
}

fn word(epoch: u64, port: u16) -> Word {
    Word { epoch, address: Address::Tcp("m".into(), port) }
}

fn state(sentinels: &Sentinels) -> (String, u64) {
    (sentinels.shown(), sentinels.moves())
}

/// The highest epoch wins over any number of others, and over what comes later.
#[test]
fn t38_the_highest_epoch_is_followed() {
    let sentinels = three(&Clock::manual());
    sentinels.learn(&[word(1, 1), word(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0));
    sentinels.learn(&[word(1, 1), word(2, 2), word(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1));
    sentinels.learn(&[word(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1), "an isolated one is not followed");
    sentinels.learn(&[word(3, 2)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1), "the same master in a new epoch");
    sentinels.learn(&[word(4, 1)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 2));
}

/// In one epoch, what is known is not given up for what another still says.
#[test]
fn one_master_in_an_epoch() {
    let sentinels = three(&Clock::manual());
    sentinels.learn(&[word(1, 1)]);
    sentinels.learn(&[word(1, 2), word(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0));
    sentinels.learn(&[word(1, 2)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0), "one that was set up wrongly");
    sentinels.learn(&[word(1, 2), word(1, 2)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1));
}

/// Sentinels that were set up anew count from the start: most of them are believed after a while.
#[test]
fn sentinels_that_were_set_up_anew() {
    let clock = Clock::manual();
    let sentinels = three(&clock);
    sentinels.learn(&[word(9, 1)]);
    sentinels.learn(&[word(0, 2), word(0, 2)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0), "not at once");
    clock.advance(ANEW_AFTER);
    sentinels.learn(&[word(0, 2)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0), "one is not most");
    sentinels.learn(&[word(0, 2), word(0, 2)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1));
}
