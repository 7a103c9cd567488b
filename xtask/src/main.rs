//! The project's own commands. `cargo xtask` lists them.

mod packages;
mod shell;
mod tidy;

use std::process::ExitCode;

use shell::{Done, cargo};

const HELP: &str = "\
cargo xtask COMMAND

  test [--times N]   install what the tests need, then every check and every test (N times the tests)
  setup              only install what the tests need
  bench [ARG]...     the figures, against the bare thing in the same run
  model [--large]    every state of the queue protocol and of a quorum, within bounds
  torture [--backend redis|sentinel|cluster|quorum|etcd] [--seed N] [--secs S] [--brisk] [keep|stall|destroy]
                     processes fight for locks under random faults; the judge's figures
";

/// With other lock libraries beside ours, and the command for `etcdctl/lock`: in one build, so that what both
/// stand on is built once.
const BENCH: &[&str] = &[
    "build",
    "--release",
    "-p",
    "tenure-bench",
    "-p",
    "tenure-cli",
    "--features",
    "tenure-bench/peers",
];
const CAMPAIGN: &[&str] =
    &["run", "--release", "-p", "tenure-testkit", "--bin", "campaign", "--", "run"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["test"] => test(1),
        ["test", "--times", times] => {
            times.parse().map_err(|_| format!("`{times}` is no number")).and_then(test)
        }
        ["setup"] => packages::install(),
        ["bench", rest @ ..] => bench(rest),
        ["model", rest @ ..] => {
            cargo(&[&["run", "--release", "-p", "tenure-model", "--"], rest].concat())
        }
        ["torture", rest @ ..] => {
            packages::install().and_then(|()| cargo(&[CAMPAIGN, rest].concat()))
        }
        _ => Err(HELP.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the figures' program and runs it.
fn bench(args: &[&str]) -> Done {
    cargo(BENCH)?;
    let own = std::env::current_exe().map_err(|error| format!("xtask: who are we? {error}"))?;
    // We are in `debug` of the same directory.
    let program = own.with_file_name("../release/tenure-bench");
    shell::run(std::process::Command::new(program).arg("--check").args(args))
}

/// How many tests of a binary run at a time. Most of them wait for a lease to end or a server to answer, so
/// many more than there are processors can.
const TESTS_AT_A_TIME: &str = "3";

/// Every check, cheapest first, then every test.
fn test(times: u32) -> Done {
    packages::install()?;
    tidy::check()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    shell::run(
        shell::cargo_command(&["doc", "--workspace", "--no-deps", "--locked"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    // Binaries that tests start must be there before the first of them runs.
    cargo(&["build", "--workspace", "--all-targets", "--locked"])?;
    for round in 1..=times {
        println!("tests, round {round} of {times}");
        shell::run(
            shell::cargo_command(&["test", "--workspace", "--locked"])
                .env("RUST_TEST_THREADS", TESTS_AT_A_TIME),
        )?;
    }
    Ok(())
}
