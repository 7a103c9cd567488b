//! The runs: those of the test suite, those on demand, and the run that finds each bug.
//!
//! In: nothing. Out: bounds. Their sizes are in `docs/design/0004-model.md`.

use super::judge::{
    BACKED, BATCH, COMPATIBLE, ENDED, FENCES, FITS, ONCE, ORPHAN, PHASE, PLACE, REASON, SERVED,
    SLOTS, TURN,
};
use super::{Kind, Together, TogetherBug as Bug};
use crate::setup::Fault;

const W: Kind = Kind::Writer;
const R: Kind = Kind::Reader;
const O: Kind = Kind::Owner;
const P12: Kind = permit(1, 2);
const P22: Kind = permit(2, 2);

const fn permit(weight: u8, capacity: u8) -> Kind {
    Kind::Permit { weight, capacity }
}

/// Every fault but a restart without data.
const EVERY: &[Fault] = &[Fault::GiveUp, Fault::Inbox, Fault::Push, Fault::Crash, Fault::Half];
/// The faults that decide which waiters can be notified.
const NOTICE: &[Fault] = &[Fault::Inbox, Fault::Push, Fault::Crash];

/// Readers and a writer, no faults; every message arrives within its tick.
const READERS: Together = Together {
    name: "together: readers and a writer",
    claims: &[R, R, W],
    tries: false,
    ttl: 2,
    beat: 2,
    cancels: 1,
    faults: 0,
    kinds: &[],
    kill: true,
    slow: 0,
    counted: true,
    looks: 8,
    batch: 8,
    bug: None,
};

/// The same with one fault.
const fn one(name: &'static str, claims: &'static [Kind], kinds: &'static [Fault]) -> Together {
    Together { name, claims, faults: 1, kinds, ..READERS }
}

/// The same without faults, the first claims with any delay.
const fn slow(name: &'static str, claims: &'static [Kind], slow: usize) -> Together {
    Together { name, claims, slow, ..READERS }
}

const SLOW_READERS: Together =
    Together { cancels: 0, ..slow("together: two readers with any delay", &[R, R, W], 2) };
const SLOW_HEAVY: Together = slow("together: heavy permit with any delay", &[P22, P12, P12], 1);
const LIGHT: Together = one("together: three permits", &[P12, P12, P12], EVERY);
const DYING: Together =
    Together { cancels: 0, ..one("together: a holder dies", &[P12, P12, P12], &[Fault::Crash]) };
const OWNERS: Together = one("together: a shared owner", &[O, W, O], NOTICE);
const TRIES: Together =
    Together { tries: true, ..one("together: one only tries", &[R, W, R], NOTICE) };
const CAPACITIES: Together =
    one("together: several capacities", &[permit(1, 1), P12, permit(2, 3)], NOTICE);
const UNCOUNTED: Together =
    Together { counted: false, ..one("together: subscribers not counted", &[R, R, W], NOTICE) };
const BATCH_OF_ONE: Together =
    Together { batch: 1, ..one("together: one grant a script", &[W, R, R], NOTICE) };

/// The runs of the test suite.
pub const SUITE: &[Together] = &[
    READERS,
    slow("together: any delay, reader and writer", &[R, W], 2),
    slow("together: any delay, permits", &[P22, P12], 2),
    slow("together: writer with any delay", &[W, R, R], 1),
    SLOW_READERS,
    SLOW_HEAVY,
    one("together: permits, every fault", &[P12, P12, P22], EVERY),
    Together {
        kill: false,
        cancels: 0,
        ..one("together: all kinds, no KILL", &[P12, R, W], EVERY)
    },
    OWNERS,
    TRIES,
    CAPACITIES,
    UNCOUNTED,
    BATCH_OF_ONE,
    Together { looks: 1, ..one("together: one looked at", &[W, R, R], NOTICE) },
    Together { cancels: 0, ..slow("together: four claims, readers", &[W, R, W, R], 0) },
    Together { cancels: 0, ..slow("together: four claims, all kinds", &[P12, R, W, P22], 0) },
];

/// Additional runs on demand.
pub const LARGE: &[Together] = &[
    slow("together: reader and writer with any delay", &[W, R, R], 2),
    Together { slow: 2, kill: false, ..one("together: any delay, every fault", &[R, W], EVERY) },
    Together { ttl: 3, ..one("together: ttl of three ticks", &[R, R, W], EVERY) },
    Together { faults: 2, kill: false, ..one("together: two faults", &[P12, P12, P22], EVERY) },
    Together {
        cancels: 0,
        ..one("together: four claims, inbox lost", &[W, R, W, R], &[Fault::Inbox])
    },
];

/// The run that finds a bug, and the rules that the bug should break.
pub fn trap(bug: Bug) -> (Together, &'static [&'static str]) {
    const LONG: Together =
        Together { ttl: 3, ..one("together: inbox lost", &[W, R, R], &[Fault::Inbox]) };
    const FOUR: Together = slow("together: four claims", &[W, R, W, R], 0);
    let (together, rules): (Together, &[&str]) = match bug {
        Bug::Counter => (slow("together: heavy permits", &[P22, P22, P12], 0), &[COMPATIBLE]),
        Bug::KindOfExtra => (slow("together: all kinds", &[P22, R, W], 0), &[FITS]),
        Bug::NotPurged => (LIGHT, &[BATCH, REASON]),
        Bug::RenewRevives => (SLOW_READERS, &[ENDED]),
        Bug::RenewsFirst => (SLOW_HEAVY, &[BACKED]),
        Bug::RenewsAll => (DYING, &[SERVED]),
        Bug::HeavyPassed => (SLOW_HEAVY, &[TURN]),
        Bug::ReaderJoins | Bug::UnfitPassed => (READERS, &[PHASE]),
        Bug::TryPasses => (TRIES, &[PHASE]),
        Bug::AbandonServesNobody => (READERS, &[BATCH]),
        Bug::UnheardBlocks => (TRIES, &[BATCH, REASON]),
        Bug::UnheardCallerBlocks => (TRIES, &[BATCH]),
        Bug::UnheardDropped => (TRIES, &[PLACE]),
        Bug::OneReaderOnly => (LONG, &[BATCH]),
        Bug::BatchPastWriter => (FOUR, &[PHASE]),
        Bug::UnseatForgotten => (UNCOUNTED, &[ONCE]),
        Bug::ReleasersCapacity => (CAPACITIES, &[BATCH, FITS]),
        Bug::SlotByCount | Bug::SlotAboveHighest => (LIGHT, &[SLOTS]),
        Bug::FlagForgotten => (FOUR, &[BATCH]),
        Bug::SameOwnerQueued => (OWNERS, &[REASON]),
        Bug::GrantedTwice | Bug::CountedTwice => (LIGHT, &[ONCE]),
        Bug::DeadHoldBack => (TRIES, &[REASON]),
        Bug::NextNotAsked => (BATCH_OF_ONE, &[BATCH]),
        Bug::ExpiryShortened | Bug::PolledCallerShort => (LONG, &[BACKED]),
        Bug::ReleaseStays => (LIGHT, &[ORPHAN]),
        Bug::FenceKept => (LONG, &[FENCES]),
    };
    (Together { bug: Some(bug), ..together }, rules)
}
