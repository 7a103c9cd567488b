//! A forked child has a copy of its parent's memory, but holds none of its locks.

use std::process::Command;

use tenure_testkit::process::Program;
use tenure_testkit::servers::RedisServer;

/// In a forked child, re-entry, waiting, renewing and releasing fail at once, and nothing is held: the child
/// neither holds its parent's locks, nor waits for a grant that cannot come, nor hands the lock to a task
/// that only the parent has.
#[test]
fn a_forked_child_has_none_of_its_parents_locks() {
    let mut program = Program::spawn(&mut Command::new(env!("CARGO_BIN_EXE_forked")));
    for what in ["re-entry:", "wait:", "renew:"] {
        let said = program.wait_for(what);
        assert_eq!(said, "lock `k` belongs to the process that forked this one", "{what}");
    }
    assert_eq!(program.wait_for("held:"), "false");
    for what in ["release:", "by key:", "write down:"] {
        let said = program.wait_for(what);
        assert!(said.ends_with("belongs to the process that forked this one"), "{what} {said}");
    }
    assert_eq!(program.wait_for("parent holds"), "true");
    assert_eq!(program.wait_for("parent releases"), "true");
    assert!(program.wait().success());
}

/// A forked child cannot use its parent's client: it would receive its parent's grants, find no waiter for
/// them, and release them.
#[test]
fn a_forked_child_cannot_use_its_parents_client() {
    let server = RedisServer::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forked_client"));
    let mut program = Program::spawn(command.arg(server.url()));
    for what in ["try:", "wait:", "list:"] {
        let said = program.wait_for(what);
        let why = "the client was made by the process that forked this one";
        assert!(said.ends_with(why), "{what} {said}");
    }
    assert!(program.wait().success());
}
