//! The runs: those of the test suite, those on demand, and the run that finds each bug.
//!
//! In: nothing. Out: setups. Their sizes are in `docs/design/0004-model.md`.

use crate::rules;
use crate::setup::{Bug, Fault, Setup};

/// Every fault after which the server still has its data.
const KEEPING: &[Fault] = &[Fault::GiveUp, Fault::Inbox, Fault::Push, Fault::Crash, Fault::Half];
/// The faults of an inbox.
const INBOX: &[Fault] = &[Fault::Inbox, Fault::Push];
const GIVE_UP: &[Fault] = &[Fault::GiveUp];
const RESTART: &[Fault] = &[Fault::Restart];

/// Two processes, any delay.
const PLAIN: Setup = Setup {
    name: "any delay",
    ttl: 2,
    beat: 2,
    processes: 2,
    claims: 1,
    locals: 0,
    adoptions: 0,
    cancels: 0,
    faults: 0,
    kinds: &[],
    kill: true,
    prompt: false,
    fenced: true,
    tries: false,
    short_polled: true,
    walk: 8,
    bug: None,
};

/// One fault, any delay.
const fn one(name: &'static str, kinds: &'static [Fault]) -> Setup {
    Setup { name, faults: 1, kinds, ..PLAIN }
}

/// No delay beyond the tick: these runs show that waiters are served in time.
const PROMPT: Setup = Setup { name: "prompt", prompt: true, ..PLAIN };

const CANCEL: Setup =
    Setup { name: "cancelled, handed on locally", cancels: 1, locals: 1, ..PLAIN };
const ADOPTED: Setup = Setup { name: "relinquished and adopted", adoptions: 1, ..PLAIN };
const THREE: Setup = Setup { name: "prompt, three processes", processes: 3, ..PROMPT };
const RESTARTED: Setup = one("restart without data", RESTART);
const HALF: Setup = one("process dies, script stops half-way", &[Fault::Crash, Fault::Half]);
const ABANDON: Setup = Setup { name: "abandoned", cancels: 1, ..PLAIN };

/// The runs of the test suite.
pub const SUITE: [Setup; 13] = [
    PLAIN,
    Setup { name: "unfenced", fenced: false, ..PLAIN },
    Setup { name: "one only tries", tries: true, ..PLAIN },
    CANCEL,
    ADOPTED,
    one("connection given up", GIVE_UP),
    Setup { kill: false, ..one("connection given up, no KILL", GIVE_UP) },
    one("inbox or push lost", INBOX),
    HALF,
    THREE,
    Setup {
        name: "prompt, two faults, no KILL",
        faults: 2,
        kinds: KEEPING,
        kill: false,
        cancels: 1,
        locals: 1,
        ..PROMPT
    },
    Setup { name: "prompt, restart", claims: 2, ..Setup { prompt: true, ..RESTARTED } },
    Setup { name: "prompt, one looked at", walk: 1, faults: 1, kinds: INBOX, ..THREE },
];

/// Additional runs on demand.
pub const LARGE: [Setup; 11] = [
    Setup { name: "two claims each", claims: 2, ..PLAIN },
    Setup { name: "abandoned, connection given up", cancels: 1, ..one("", GIVE_UP) },
    Setup { name: "adopted, connection given up", adoptions: 1, ..one("", GIVE_UP) },
    RESTARTED,
    Setup { name: "ttl of three ticks", ttl: 3, ..PLAIN },
    Setup { name: "polled get the whole ttl", short_polled: false, ..one("", INBOX) },
    Setup {
        name: "prompt, two claims, every fault",
        claims: 2,
        faults: 1,
        kinds: KEEPING,
        ..PROMPT
    },
    Setup {
        name: "prompt, three, every fault, no KILL",
        faults: 1,
        kinds: KEEPING,
        kill: false,
        cancels: 1,
        ..THREE
    },
    Setup { name: "prompt, three, one tries", tries: true, faults: 1, kinds: KEEPING, ..THREE },
    Setup { name: "two faults of any kind", faults: 2, kinds: KEEPING, ..PLAIN },
    Setup {
        name: "ttl of three, cancelled, every fault, no KILL",
        ttl: 3,
        faults: 1,
        kinds: KEEPING,
        kill: false,
        ..CANCEL
    },
];

/// The run that finds a bug, and the rules that the bug should break.
pub fn trap(bug: Bug) -> (Setup, &'static [&'static str]) {
    const HOLDS: &[&str] = &[rules::EXCLUSION, rules::BACKED];
    let (setup, rules): (Setup, &[&str]) = match bug {
        Bug::PushWithoutStamp | Bug::StampAtSend | Bug::ValidFromReply => (PLAIN, HOLDS),
        Bug::ConfirmByRenew => (PLAIN, &[rules::FENCES]),
        Bug::StalePushDropped => (THREE, &[rules::SERVED]),
        Bug::AbandonOvertakes => (ABANDON, &[rules::ORPHAN]),
        Bug::AbandonHitsNext => (CANCEL, &[rules::EXCLUSION, rules::BACKED, rules::OWN]),
        Bug::RegistryDropped => (CANCEL, &[rules::PLACE, rules::BACKED, rules::OWN]),
        Bug::UnheardDropped => (one("inbox lost", &[Fault::Inbox]), &[rules::PLACE]),
        Bug::FlagLost => (one("inbox lost", &[Fault::Inbox]), &[rules::TURN]),
        Bug::QueueJumped => (PLAIN, &[rules::TURN]),
        Bug::ReleaseStays => (PLAIN, &[rules::ORPHAN]),
        Bug::RenewRecreates => (PLAIN, &[rules::ORPHAN]),
        Bug::ReleaseLeavesLate => (one("connection given up", GIVE_UP), &[rules::ORPHAN]),
        Bug::RelinquishForgotten => (ADOPTED, HOLDS),
        Bug::RelinquishUnanswered => (ADOPTED, &[rules::ORPHAN]),
        Bug::PublishFirst => (HALF, HOLDS),
        Bug::BareCounter => (RESTARTED, &[rules::FENCES]),
    };
    (Setup { bug: Some(bug), ..setup }, rules)
}
