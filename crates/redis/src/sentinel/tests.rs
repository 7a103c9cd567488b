//! Which answer counts when Sentinels disagree.

use tenure_core::time::Clock;
use tenure_net::Timeouts;

use super::query::MasterReport;
use super::{ANEW_AFTER, Sentinels};
use crate::link::Connector;
use crate::url::{Address, Login};

fn three(clock: &Clock) -> Sentinels {
    let connector = Connector::new(Login::default(), None, Timeouts::default());
    let addresses = [1, 2, 3].map(|port| Address::Tcp("h".into(), port));
    Sentinels::new("s", &addresses, connector, clock.clone())
}

fn report(epoch: u64, port: u16) -> MasterReport {
    MasterReport { epoch, address: Address::Tcp("m".into(), port) }
}

fn state(sentinels: &Sentinels) -> (String, u64) {
    (sentinels.shown(), sentinels.moves())
}

/// The highest epoch wins over any number of others, and over later answers.
#[test]
fn t38_the_highest_epoch_is_followed() {
    let sentinels = three(&Clock::manual());
    sentinels.apply(&[report(1, 1), report(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0));
    sentinels.apply(&[report(1, 1), report(2, 2), report(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1));
    sentinels.apply(&[report(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1), "an isolated one is not followed");
    sentinels.apply(&[report(3, 2)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1), "the same master in a new epoch");
    sentinels.apply(&[report(4, 1)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 2));
}

/// Within one epoch, a single different answer does not change the known master; a majority does.
#[test]
fn one_master_in_an_epoch() {
    let sentinels = three(&Clock::manual());
    sentinels.apply(&[report(1, 1)]);
    sentinels.apply(&[report(1, 2), report(1, 1)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0));
    sentinels.apply(&[report(1, 2)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0), "one that was set up wrongly");
    sentinels.apply(&[report(1, 2), report(1, 2)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1));
}

/// Sentinels that were set up anew count from zero: a majority of them is trusted after a while.
#[test]
fn sentinels_that_were_set_up_anew() {
    let clock = Clock::manual();
    let sentinels = three(&clock);
    sentinels.apply(&[report(9, 1)]);
    sentinels.apply(&[report(0, 2), report(0, 2)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0), "not at once");
    clock.advance(ANEW_AFTER);
    sentinels.apply(&[report(0, 2)]);
    assert_eq!(state(&sentinels), ("s at m:1".into(), 0), "one is not most");
    sentinels.apply(&[report(0, 2), report(0, 2)]);
    assert_eq!(state(&sentinels), ("s at m:2".into(), 1));
}
