//! Runs other programs, and prints their command lines.

use std::process::Command;

/// The result of a command: nothing, or an error message.
pub type Done = Result<(), String>;

/// Runs `cargo` with `args`.
pub fn cargo(args: &[&str]) -> Done {
    run(&mut cargo_command(args))
}

/// The `cargo` that runs us.
pub fn cargo_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    // Whatever runs this as `CI` builds once, in a clean clone: a cache for the next build only costs time.
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Prints `command` and runs it.
pub fn run(command: &mut Command) -> Done {
    let shown = show(command);
    eprintln!("xtask: {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("xtask: `{shown}` failed: {status}")),
        Err(error) => Err(format!("xtask: `{shown}` cannot be run: {error}")),
    }
}

fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
