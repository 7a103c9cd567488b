//! The project's own commands. `cargo xtask` lists them.

mod features;
mod layers;
mod manifests;
mod packages;
mod rows;
mod shell;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use shell::{Done, cargo};

const HELP: &str = "\
cargo xtask COMMAND

  test [--times N]   install what the tests need, then the checks and every test (N times the tests)
  setup              only install what the tests need
  tidy               only the checks of style, and of the tables in docs/testing
  features           only compile the crates that have features with none, and with each feature alone, and run
                     the facade's unit tests so (other tests need dev-dependencies that enable all features)
  bench [ARG]...     the figures, against the bare thing in the same run
  model [--large]    every state of the queue protocol and of a quorum, within bounds
  torture [--backend redis|sentinel|cluster|quorum|etcd] [--seed N] [--secs S] [--brisk] [--mixed] [keep|stall|destroy]
                     processes fight for locks under random faults; the judge's figures
  shuttle [--iterations N]
                     threads in front of one key, interleaved at random within the gate, N times
";

/// With other lock libraries for comparison, and the command for `etcdctl/lock`. One build for both, so that
/// their common dependencies are built once.
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
        ["tidy"] => tidy::check(),
        ["features"] => features::check(),
        ["bench", rest @ ..] => bench(rest),
        ["model", rest @ ..] => {
            cargo(&[&["run", "--release", "-p", "tenure-model", "--"], rest].concat())
        }
        ["torture", rest @ ..] => {
            packages::install().and_then(|()| cargo(&[CAMPAIGN, rest].concat()))
        }
        ["shuttle"] => shuttle(None),
        ["shuttle", "--iterations", iterations] => shuttle(Some(iterations)),
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

/// Builds the benchmark program and runs it.
fn bench(args: &[&str]) -> Done {
    cargo(BENCH)?;
    let own = std::env::current_exe().map_err(|error| format!("xtask: who are we? {error}"))?;
    // We are in `debug` of the same directory.
    let program = own.with_file_name("../release/tenure-bench");
    shell::run(std::process::Command::new(program).arg("--check").args(args))
}

/// Runs the threads of `crates/core/src/gate/tests/threads.rs`. The flag is part of the build of every crate, so the
/// build has a directory of its own and leaves the others as they are.
fn shuttle(iterations: Option<&str>) -> Done {
    let args = ["test", "-p", "tenure-core", "--lib", "--locked", "--", "gate::tests::threads"];
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " --cfg shuttle";
    let mut command = shell::cargo_command(&args);
    command.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", Path::new(&target).join("shuttle"));
    if let Some(iterations) = iterations {
        let iterations: u32 =
            iterations.parse().map_err(|_| format!("`{iterations}` is no number"))?;
        command.env("TENURE_ITERATIONS", iterations.to_string());
    }
    shell::run(&mut command)
}

/// How many tests of a binary run at the same time. Most of them wait for a lease to expire or a server to
/// reply, so there can be many more than processors.
const TESTS_AT_A_TIME: &str = "8";

/// The crates that others use.
const PUBLISHED: [&str; 10] = [
    "tenure",
    "tenure-axum",
    "tenure-core",
    "tenure-dashboard",
    "tenure-etcd",
    "tenure-kv",
    "tenure-macros",
    "tenure-net",
    "tenure-redis",
    "tenure-tower",
];

/// Runs the checks, the cheapest first, then every test.
fn test(times: u32) -> Done {
    packages::install()?;
    tidy::check()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    shell::run(
        shell::cargo_command(&["doc", "--no-deps", "--locked", "--all-features"])
            .args(PUBLISHED.iter().flat_map(|name| ["-p", name]))
            .env("RUSTDOCFLAGS", "-D warnings"),
    )?;
    tidy::engines_have_pages()?;
    // `cargo test` builds the binaries that tests start before it runs the first test.
    for round in 1..=times {
        println!("tests, round {round} of {times}");
        shell::run(
            shell::cargo_command(&["test", "--workspace", "--locked", "--no-fail-fast"])
                .env("RUST_TEST_THREADS", TESTS_AT_A_TIME),
        )?;
    }
    Ok(())
}
