//! The full text of every message.

use super::*;
use crate::json::samples;

const FIVE: Duration = Duration::from_secs(5);

fn ago(secs: u64) -> Option<UnixMillis> {
    // 300 ms into the second: a test that is up to 700 ms slow still shows the same second.
    Some(UnixMillis(UnixMillis::now().0 - secs * 1_000 - 300))
}

fn holder() -> Holder {
    let client =
        Process { host: "ci-7".into(), pid: 812, user: "deploy".into(), program: "x".into() };
    let mut holder = Holder::unknown();
    holder.process = Some(client);
    holder
}

fn full() -> Holder {
    let mut holder = holder();
    holder.since = ago(252);
    holder.reason = Some("release 41".into());
    holder.lease_left = Some(Duration::from_millis(21_400));
    holder
}

fn closing() -> Holder {
    let mut holder = full();
    holder.cooling_down = true;
    holder
}

fn held_up(key: &str, holder: Holder, position: Option<u64>) -> String {
    let holders = [Holding::new(holder, None, None)];
    waiting(key, Some(&Obstacle::Holders(&holders)), position)
}

/// A waiter sees everything that is known.
#[test]
fn waiting_in_full() {
    assert_eq!(
        held_up("db-migrate", full(), Some(2)),
        "tenure: waiting for db-migrate: held 4m12s by deploy@ci-7 (pid 812, \"release 41\"), \
         21s of lease left, you are 2nd"
    );
}

/// Unknown values are left out.
#[test]
fn waiting_with_less() {
    assert_eq!(waiting("k", None, None), "tenure: waiting for k");
    let server = |left| waiting_for_server("k", "refused", left);
    assert_eq!(server(None), "tenure: waiting for the server of k: refused");
    assert_eq!(
        server(Some(Duration::from_millis(57_400))),
        "tenure: waiting for the server of k: refused; giving up in 57s"
    );
    assert_eq!(waiting("k", None, Some(1)), "tenure: waiting for k: you are 1st");
    assert_eq!(
        held_up("k", holder(), None),
        "tenure: waiting for k: held by deploy@ci-7 (pid 812)"
    );
    assert_eq!(
        held_up("k", Holder::unknown(), None),
        "tenure: waiting for k: held by an unknown holder"
    );
}

/// A lock that is only kept closed is not called held.
#[test]
fn waiting_for_a_closed_lock() {
    assert_eq!(
        held_up("k", closing(), None),
        "tenure: waiting for k: released by deploy@ci-7 (pid 812, \"release 41\"), \
         kept closed for another 21s"
    );
}

/// B2, B3: readers and permits are counted, and the first holder is named; a waiter that is in the way is named with
/// what it wants.
#[test]
fn b2_b3_waiting_for_several() {
    let held = |mode, count: usize| vec![Holding::new(full(), None, None).mode(mode, None); count];
    let behind = |holders: &[Holding]| waiting("k", Some(&Obstacle::Holders(holders)), Some(1));
    let who = "by deploy@ci-7 (pid 812, \"release 41\")";
    let left = "21s of lease left, you are 1st";
    assert_eq!(
        behind(&held(Mode::Read, 3)),
        format!("tenure: waiting for k: read 4m12s {who} and 2 others, {left}")
    );
    let permits = |permits| Mode::Permits { permits, capacity: 4 };
    assert_eq!(
        behind(&held(permits(2), 2)),
        format!(
            "tenure: waiting for k: 4 of 4 permits taken, held 4m12s {who} and 1 other, {left}"
        )
    );
    assert_eq!(
        behind(&held(permits(3), 1)),
        format!("tenure: waiting for k: 3 of 4 permits taken, held 4m12s {who}, {left}")
    );
    for (mode, wants) in [
        (Mode::Exclusive, "it alone"),
        (Mode::Read, "to read it"),
        (permits(1), "1 permit"),
        (permits(3), "3 permits"),
    ] {
        let ahead = Waiting::new(holder(), None).mode(mode);
        assert_eq!(
            waiting("k", Some(&Obstacle::Waiter(&ahead)), Some(2)),
            format!(
                "tenure: waiting for k: behind deploy@ci-7 (pid 812), who wants {wants}, you are 2nd"
            )
        );
    }
}

/// A note from another process cannot control the terminal.
#[test]
fn t58_notes_of_others_are_escaped() {
    let mut holder = holder();
    holder.reason = Some("\u{1b}[2J".into());
    assert_eq!(
        held_up("k", holder, None),
        "tenure: waiting for k: held by deploy@ci-7 (pid 812, \"\\u{1b}[2J\")"
    );
}

fn keys(names: &[&str]) -> Vec<Key> {
    names.iter().map(|name| Key::new(name).unwrap()).collect()
}

/// The messages at the end of a successful wait.
#[test]
fn acquired_in_full() {
    let waited = Duration::from_millis(38_212);
    assert_eq!(
        acquired(&keys(&["db-migrate"]), waited, |_| Fence::from_raw(27_431)),
        "tenure: acquired db-migrate after 38.2s (fence 27431)"
    );
    let none = |_: &Key| Fence::NONE;
    assert_eq!(acquired(&keys(&["k"]), waited, none), "tenure: acquired k after 38.2s");
    assert_eq!(acquired(&keys(&["a", "b"]), waited, none), "tenure: acquired a, b after 38.2s");
}

fn in_mode(mode: Mode) -> Holder {
    let mut holder = holder();
    holder.mode = Some(mode);
    holder
}

/// The messages at the end of a wait without success.
#[test]
fn not_acquired_in_full() {
    let mut holder = holder();
    holder.since = ago(282);
    let cases = [
        (
            not_acquired("db-migrate", Some(&holder), Some(Duration::from_secs(30))),
            "tenure: not acquired: db-migrate is held by deploy@ci-7 for 4m42s (gave up after 30s)",
        ),
        (
            not_acquired("k", Some(&holder), None),
            "tenure: not acquired: k is held by deploy@ci-7 for 4m42s",
        ),
        (
            not_acquired("k", Some(&Holder::unknown()), None),
            "tenure: not acquired: k is held by an unknown holder",
        ),
        (not_acquired("k", None, None), "tenure: not acquired: k is held"),
        (
            not_acquired("k", Some(&in_mode(Mode::Read)), None),
            "tenure: not acquired: k is read by deploy@ci-7",
        ),
        (
            not_acquired("k", Some(&in_mode(Mode::Permits { permits: 1, capacity: 4 })), None),
            "tenure: not acquired: k is held by deploy@ci-7 with 1 of 4 permits",
        ),
        (
            not_acquired("k", Some(&closing()), None),
            "tenure: not acquired: k was released by deploy@ci-7 and is kept closed for another 21s",
        ),
    ];
    for (line, text) in cases {
        assert_eq!(line, text);
    }
}

/// A hint is a command that can be pasted.
#[test]
fn hints() {
    assert_eq!(hint_show("db-migrate", None), "hint: tenure show db-migrate");
    assert_eq!(hint_show("a b", None), "hint: tenure show 'a b'");
    assert_eq!(hint_show("-x", None), "hint: tenure show -- -x");
    assert_eq!(
        hint_show("-x", Some("-u file:/var/lock")),
        "hint: tenure show -u file:/var/lock -- -x"
    );
    assert_eq!(hint("try 5m"), "hint: try 5m");
}

/// The messages about a lock of `tenure acquire`.
#[test]
fn scripted_locks() {
    let until = UnixMillis(1_800_000_000_123);
    let cases = [
        (
            not_renewed("k", Duration::from_secs(600), until),
            "tenure: k has a ttl of 10m00s and is not renewed: rely on it until \
             2027-01-15T08:00:00Z",
        ),
        (released("k"), "tenure: released k"),
        (
            not_ours("k", None),
            "tenure: not released: k is not held with this token, or no longer; it is free",
        ),
        (
            not_ours("k", Some(&samples::busy("k"))),
            "tenure: not released: k is not held with this token, or no longer; it is held by \
             deploy@ci-7 for 4m12s",
        ),
        (paste("release", Some("--token TOKEN"), "-x"), "tenure release --token TOKEN -- -x"),
    ];
    for (line, text) in cases {
        assert_eq!(line, text);
    }
}

/// The messages about a forced release.
#[test]
fn forced_locks() {
    let mut tool = full();
    tool.process.as_mut().unwrap().program = "tenure".into();
    let full_name = "deploy@ci-7 (pid 812, \"release 41\")";
    let held_by = format!("tenure: k is held 4m12s by {full_name}, 21s of lease left");
    let cases = [
        (held("k", &full(), None), held_by.clone()),
        (
            held("k", &full(), Some(Life::Runs)),
            format!("{held_by}, its process runs on this machine"),
        ),
        (held("k", &full(), Some(Life::Ended)), format!("{held_by}, its process has ended")),
        (
            held("k", &tool, Some(Life::Ended)),
            format!("{held_by}, its process has ended, as that of `tenure acquire` always has"),
        ),
        (
            held("k", &closing(), None),
            format!("tenure: k was released by {full_name}, kept closed for another 21s"),
        ),
        (
            forced("k", &full(), None),
            format!(
                "tenure: released k by force: {full_name} will see it at its next renewal, and \
                 may continue until then"
            ),
        ),
        (forced("k", &closing(), None), "tenure: opened k".into()),
        (
            forced("k", &full(), Some(Life::Ended)),
            "tenure: released k by force: a script that has its token will see it when it releases"
                .into(),
        ),
        (type_again(), "type the key again to take it away: ".into()),
        (renewed("k"), "tenure: k was renewed just now: its holder is alive".into()),
        (not_typed("k"), "tenure: not released: k was not typed".into()),
        (
            has_left("k", &holder()),
            "tenure: nothing to release: deploy@ci-7 (pid 812) does not hold k any more".into(),
        ),
        (nothing_to_release("k"), "tenure: nothing to release: k is free".into()),
        (
            changed_hands("k", &full()),
            "tenure: not released: k has changed hands meanwhile; it is held by deploy@ci-7 \
             for 4m12s"
                .into(),
        ),
    ];
    for (line, text) in cases {
        assert_eq!(line, text);
    }
}

/// A lock that ends while the command runs: the cause and the measure.
#[test]
fn losing_in_full() {
    let cause = Some("connection refused".into());
    let silent = Danger::NoRenewal { since: Duration::from_secs(20), cause };
    let term = Measure::Term { pid: 9911, kill_in: FIVE };
    let kill = Measure::Kill { pid: 9911 };
    let cases = [
        (
            losing("db-migrate", &silent, term),
            "tenure: losing db-migrate: no renewal confirmed for 20s (connection refused); \
             sent TERM to 9911, KILL in 5s",
        ),
        (
            losing("k", &Danger::MaxHold(Duration::from_secs(90)), term),
            "tenure: losing k: --max-hold 1m30s is nearly over; sent TERM to 9911, KILL in 5s",
        ),
        (
            losing("k", &Danger::Lost(Loss::MaxHold), kill),
            "tenure: losing k: --max-hold is over; sent KILL to 9911",
        ),
        (
            losing("k", &Danger::Lost(Loss::Gone), kill),
            "tenure: losing k: the engine no longer knows it as ours; sent KILL to 9911",
        ),
        (
            losing("k", &Danger::Lost(Loss::Expired), Measure::Nothing),
            "tenure: losing k: no renewal was confirmed in time; the command continues",
        ),
        (lost("db-migrate"), "tenure: lost db-migrate"),
    ];
    for (line, text) in cases {
        assert_eq!(line, text);
    }
}

/// The remaining lines.
#[test]
fn other_lines() {
    let cases = [
        (
            using_default("file:/tmp/tenure-1000"),
            "tenure: no --url given, using file:/tmp/tenure-1000",
        ),
        (
            ttl_without_effect("file"),
            "tenure: --ttl has no effect on file: locks, they end with their process",
        ),
        (
            memory_excludes_nobody(),
            "tenure: memory: is not shared with other processes and excludes none of them",
        ),
        (
            not_released("k", "engine unavailable: connection refused"),
            "tenure: could not release k: engine unavailable: connection refused",
        ),
        (error("a: b: c"), "tenure: error: a: b: c"),
        (no_locks("*"), "tenure: no locks"),
        (no_locks("order:*"), "tenure: no locks match 'order:*'"),
        (free("db-migrate"), "db-migrate is free"),
    ];
    for (line, text) in cases {
        assert_eq!(line, text);
    }
}

/// The text of every event.
#[test]
fn events_in_full() {
    let who = "deploy@ci-7 (pid 812, \"release 41\")";
    let cases = [
        (EventKind::Acquired, format!("acquired by {who}, 2 waiting")),
        (EventKind::Released, format!("released by {who} after 4m12s, 2 waiting")),
        (EventKind::Lost, format!("lost by {who} after 4m12s, 2 waiting")),
        (
            EventKind::Forced("ann: \u{1b}stuck".into()),
            format!("forced from {who} after 4m12s by ann: \\u{{1b}}stuck, 2 waiting"),
        ),
        (
            EventKind::Ended,
            format!(
                "ended: released or lost by {who} after 4m12s, it is not known which, 2 waiting"
            ),
        ),
    ];
    for (what, text) in cases {
        let (word, rest) = event(&samples::event(what));
        assert_eq!(format!("{word}{rest}"), text);
    }
    let mut handed = samples::event(EventKind::HandedOver);
    (handed.from, handed.waiters) = (handed.holder.replace(samples::holder("ann", 99)), Some(0));
    let (word, rest) = event(&handed);
    assert_eq!(
        format!("{word}{rest}"),
        format!("handed over to ann@ci-7 (pid 99) by {who} after 4m12s")
    );
    assert_eq!(watching(0), "tenure: watching, 0 locks are held now");
    assert_eq!(watching(1), "tenure: watching, 1 lock is held now");
    assert_eq!(
        cannot_see("connection refused"),
        "tenure: cannot see the locks, trying again: connection refused"
    );
}
