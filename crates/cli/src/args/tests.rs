//! The command line: what is read, and the text of each refusal.

use super::*;

fn run(line: &str) -> Result<RunArgs, String> {
    let words = line.split_whitespace();
    match read(words).map_err(|error| error.to_string())?.command {
        Command::Run(args) => Ok(*args),
        other => Err(format!("{other:?}")),
    }
}

/// clap finds no contradiction in our definitions.
#[test]
fn definitions_are_sound() {
    Cli::command().debug_assert();
}

/// Everything after `--` belongs to the command, also arguments that look like our options.
#[test]
fn the_command_is_taken_literally() {
    let args = run("tenure run -n db -- ls -n --wait -- x").unwrap();
    assert!(args.asking.no_wait && args.asking.wait.is_none());
    assert_eq!(args.command, ["ls", "-n", "--wait", "--", "x"]);
}

/// Durations are accepted as people write them. An error shows the value and an example.
#[test]
fn durations() {
    assert_eq!(run("tenure run -w 1h30m k -- x").unwrap().asking.wait.unwrap().as_secs(), 5_400);
    assert_eq!(run("tenure run --grace 5s k -- x").unwrap().grace.unwrap().as_secs(), 5);
    let refused = run("tenure run -w soon k -- x").unwrap_err();
    assert!(refused.contains("invalid value 'soon' for '--wait <DUR>'"), "{refused}");
    assert!(refused.contains("write it like 500ms, 10s, 5m or 1h30m"), "{refused}");
    let refused = run("tenure run --max-hold 0s k -- x").unwrap_err();
    assert!(refused.contains("it must be more than zero"), "{refused}");
}

/// If `--` is missing, the error suggests it; other mistakes do not get this tip. The full text is
/// compared.
#[test]
fn missing_dashes() {
    assert_eq!(
        run("tenure run a echo hi").unwrap_err(),
        "error: the following required arguments were not provided:\n  <COMMAND>...\n\n  \
         tip: put `--` before the command\n\nUsage: tenure run <KEY>... -- <COMMAND>...\n\n\
         For more information, try '--help'.\n"
    );
    for line in ["run --nope a", "run", "run a --", "show a b", "ls a b"] {
        let refused = run(&format!("tenure {line}")).unwrap_err();
        assert!(!refused.contains("put `--`"), "{refused}");
    }
}

/// The help of `run` explains when TERM comes and with which status; the other commands print their end
/// text.
#[test]
fn help_says_when_and_how() {
    let help = |name: &str| {
        let mut cli = Cli::command();
        cli.find_subcommand_mut(name).unwrap().render_long_help().to_string()
    };
    let run = help("run").split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "Hold the lock no longer than this: TERM comes --grace before, KILL at the end, status 79",
        "With --max-hold 10s TERM comes after 8.5s and KILL after 9.5s",
        "at most a third of the ttl and half of --max-hold [default: 5s]",
        "The default takes at most a tenth of --max-hold",
        "Without --url, services with a /tmp of their own (PrivateTmp, containers) do not exclude",
        "neither our URL nor our passwords",
    ] {
        assert!(run.contains(text), "{text}: {run}");
    }
    let ends = [
        ("ls", INSPECT_AFTER_HELP),
        ("show", INSPECT_AFTER_HELP),
        ("elect", election::ELECT_AFTER_HELP),
        ("leader", election::LEADER_AFTER_HELP),
        ("acquire", ACQUIRE_AFTER_HELP),
        ("release", RELEASE_AFTER_HELP),
        ("doctor", DOCTOR_AFTER_HELP),
        ("bench", BENCH_AFTER_HELP),
        ("completions", COMPLETIONS_AFTER_HELP),
    ];
    for (name, end) in ends {
        assert!(help(name).contains(end), "{name}");
    }
}

/// B2, B3, B4: the options say how the keys are asked for.
#[test]
fn modes() {
    let mode = |line: &str| run(line).unwrap().mode();
    assert_eq!(mode("tenure run k -- x"), Mode::Exclusive);
    assert_eq!(mode("tenure run -s a b -- x"), Mode::Read);
    let permits = |permits, capacity| Mode::Permits { permits, capacity };
    assert_eq!(mode("tenure run -N 4 k -- x"), permits(1, 4));
    assert_eq!(mode("tenure run k --slots 4 --take 3 -- x"), permits(3, 4));
    assert_eq!(run("tenure run a b a -- x").unwrap().keys, ["a", "b", "a"]);
}

/// Modes that contradict each other are rejected; the full text of each.
#[test]
fn contradicting_modes() {
    let usage = "\n\nUsage: tenure run [OPTIONS] <KEY>... -- <COMMAND>...\n\n\
                 For more information, try '--help'.\n";
    let cases = [
        ("-N 4 a b", "the argument '--slots <N>' cannot be used with several keys"),
        ("-N 4 --take 5 a", "invalid value '5' for '--take <M>': there are 4 permits (--slots)"),
    ];
    for (words, flaw) in cases {
        let refused = run(&format!("tenure run {words} -- x")).unwrap_err();
        assert_eq!(refused, format!("error: {flaw}{usage}"));
    }
    let cases = [
        ("-s -N 4", "the argument '--shared' cannot be used with '--slots <N>'"),
        ("-N 4 --take 0", "invalid value '0' for '--take <M>': 0 is not in 1..=100"),
        ("-N 400 --take 101", "invalid value '101' for '--take <M>': 101 is not in 1..=100"),
        ("-N 0", "invalid value '0' for '--slots <N>': 0 is not in 1.."),
    ];
    for (words, flaw) in cases {
        let refused = run(&format!("tenure run {words} k -- x")).unwrap_err();
        assert!(refused.starts_with(&format!("error: {flaw}")), "{refused}");
    }
    let refused = run("tenure run --take 2 k -- x").unwrap_err();
    let text = "error: the following required arguments were not provided:\n  --slots <N>\n";
    assert!(refused.starts_with(text), "{refused}");
}

/// Options that contradict each other are rejected.
#[test]
fn contradictions() {
    assert!(run("tenure run -n -w 1s k -- x").is_err());
    assert!(run("tenure run -u memory: --url-file f k -- x").is_err());
    assert!(run("tenure run k").is_err());
    assert!(run("tenure run k x").is_err());
    assert!(run("tenure run -E 256 k -- x").is_err());
}
