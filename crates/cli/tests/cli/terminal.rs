//! The tool on a terminal: Ctrl-C, Ctrl-Z and `fg` under a shell with job control, the live line.

use crate::common::{Space, bare, is_alive, pid_in, state, wait_for};
use crate::screen::Screen;
use std::process::Command;
use std::time::Duration;

const READER: &str = "'echo $$ > pid; read line; echo got=$line'";

/// Ctrl-Z stops the command and us, `fg` continues both, and the command has the keyboard again.
#[test]
fn t69_ctrl_z_and_fg() {
    let space = Space::new();
    let mut screen = Screen::shell(&space);
    screen.type_in(&format!("$T run k -- sh -c {READER}; echo code=$?\n"));
    let pid = pid_in(&space.path("pid"));
    screen.type_in("\x1a");
    screen.expect("Stopped");
    wait_for("the command to stop", || state(pid) == "T");
    assert!(!space.is_free("k"));
    screen.type_in("fg\n");
    wait_for("the command to go on", || state(pid) != "T");
    screen.type_in("hello\n");
    screen.expect("got=hello");
    screen.type_in("echo back=$?\n");
    screen.expect("back=0");
    assert!(space.is_free("k"));
}

/// After `fg`, a lock that ended meanwhile is noticed first: the command does not continue.
#[test]
fn t69_fg_after_the_lease_kills() {
    let space = Space::new();
    let mut screen = Screen::shell(&space);
    screen.type_in(&format!("$T run -u memory: --ttl 1s k -- sh -c {READER}\n"));
    let pid = pid_in(&space.path("pid"));
    screen.type_in("\x1a");
    screen.expect("Stopped");
    // Only time can show that the lease of a stopped process has ended.
    std::thread::sleep(Duration::from_millis(1_200));
    screen.type_in("fg; echo code=$?\n");
    screen.expect("code=79");
    screen.expect("tenure: lost k");
    assert!(!is_alive(pid));
}

/// Ctrl-C ends the command, and the lock is free.
#[test]
fn t69_ctrl_c_releases() {
    let space = Space::new();
    let mut screen = Screen::shell(&space);
    screen.type_in("$T run k -- sh -c 'echo $$ > pid; exec sleep 60'\n");
    pid_in(&space.path("pid"));
    screen.type_in("\x03");
    screen.type_in("echo code=$?\n");
    screen.expect("code=130");
    assert!(space.is_free("k"));
}

/// Alone on a terminal, the command has the keyboard from the start, not only after its first stop.
#[test]
fn the_keyboard_from_the_start() {
    let space = Space::new();
    let mut screen = Screen::shell(&space);
    let reader = READER.replacen("'", "'trap \"\" TTIN TTOU; ", 1);
    screen.type_in(&format!("$T run k -- sh -c {reader}\n"));
    pid_in(&space.path("pid"));
    screen.type_in("hello\n");
    screen.expect("got=hello");
}

/// After the command, a script without job control has its keyboard back.
#[test]
fn the_keyboard_afterwards() {
    let space = Space::new();
    let mut script = Command::new("sh");
    script.args(["-c", "$T run k -- true; touch pid; read line; echo after=$line"]);
    script.env("T", assert_cmd::cargo::cargo_bin!("tenure")).env("TENURE_URL", space.url());
    let mut screen = Screen::start(script.current_dir(space.path("")));
    wait_for("the run to end", || space.path("pid").exists());
    screen.type_in("hello\n");
    screen.expect("after=hello");
}

/// In a pipeline the command gets the keyboard when it first reads.
#[test]
fn the_keyboard_in_a_pipeline() {
    let space = Space::new();
    let mut screen = Screen::shell(&space);
    screen.type_in(&format!("$T run k -- sh -c {READER} | cat\n"));
    pid_in(&space.path("pid"));
    screen.type_in("hello\n");
    screen.expect("got=hello");
    screen.type_in("echo back=$?\n");
    screen.expect("back=0");
}

/// In the background, a command that wants the keyboard stops with us until `fg`.
#[test]
fn the_keyboard_in_the_background() {
    let space = Space::new();
    let mut screen = Screen::shell(&space);
    screen.type_in(&format!("$T run k -- sh -c {READER} &\n"));
    let pid = pid_in(&space.path("pid"));
    wait_for("the command to stop", || state(pid) == "T");
    // We stop shortly after the command, and a shell reports it only when asked.
    wait_for("the job to stop", || {
        screen.type_in("jobs\n");
        std::thread::sleep(Duration::from_millis(50));
        screen.shown().contains("Stopped")
    });
    screen.type_in("fg\n");
    wait_for("the command to go on", || state(pid) != "T");
    screen.type_in("hello\n");
    screen.expect("got=hello");
}

/// On a terminal, a wait has one line, which is rewritten in place and erased at the end.
#[test]
fn the_live_line() {
    let space = Space::new();
    let holder = space.hold("run k");
    let mut waiter = bare(["run", "k", "--", "echo", "ran"]);
    waiter.env("TENURE_URL", space.url()).env("TERM", "xterm");
    let screen = Screen::start(&waiter);
    let live = "\r\x1b[?7ltenure: waiting for k: held ";
    wait_for("the line to be rewritten", || screen.shown().matches(live).count() >= 2);
    assert!(!screen.shown().contains('\n'), "{:?}", screen.shown());
    space.let_go();
    screen.expect("\x1b[K\x1b[?7h\r\x1b[Ktenure: acquired k after ");
    screen.expect("ran");
    assert_eq!(holder.finish().code, Some(0));
}

/// The log is coloured on a terminal, unless `NO_COLOR` or `--color never` is set.
#[test]
fn the_log() {
    let space = Space::new();
    let log = |color: &str, no_color: &str| {
        let mut run = bare(["-v", "--color", color, "run", "k", "--", "echo", "ran"]);
        run.env("TENURE_URL", space.url()).env("NO_COLOR", no_color);
        let screen = Screen::start(&run);
        screen.expect("ran");
        // A separate thread writes the log, so it may come after the command's output.
        screen.expect("lock acquired");
        screen.shown().contains('\x1b')
    };
    assert!(log("auto", ""));
    assert!(!log("auto", "1"));
    assert!(!log("never", ""));
    assert!(log("always", "1"));
}
