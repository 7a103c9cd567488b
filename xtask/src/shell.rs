//! Running other programs, and saying which.

use std::process::Command;

/// Nothing, or what went wrong.
pub type Done = Result<(), String>;

/// Runs `cargo` with `args`.
pub fn cargo(args: &[&str]) -> Done {
    run(&mut cargo_command(args))
}

/// The `cargo` that runs us.
pub fn cargo_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// Runs `command`, having said so.
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
