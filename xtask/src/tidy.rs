//! Style that a compiler does not see, as a failing check.

use std::path::Path;
use std::process::Command;

use crate::shell::Done;

/// Files longer than this want to be two.
const LINES_MAX: usize = 600;
/// Longer than this, nobody reads it.
const README_MAX: usize = 200;

/// Looks at every file that git knows.
pub fn check() -> Done {
    let flaws: Vec<String> = files()?.iter().flat_map(|path| flaws(path)).collect();
    match flaws.is_empty() {
        true => Ok(()),
        false => Err(format!("xtask: not tidy:\n  {}", flaws.join("\n  "))),
    }
}

fn files() -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output();
    let output = output.map_err(|error| format!("xtask: `git ls-files` cannot be run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(Into::into).collect())
}

fn flaws(path: &str) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let mut flaws = Vec::new();
    let lines = text.lines().count();
    if path.starts_with("README") && lines > README_MAX {
        flaws.push(format!("{path}: {lines} lines, at most {README_MAX}"));
    }
    if Path::new(path).extension().is_some_and(|ending| ending == "rs") {
        flaws.extend(rust_flaws(path, &text, lines));
    }
    flaws
}

fn rust_flaws(path: &str, text: &str, lines: usize) -> Vec<String> {
    let mut flaws = Vec::new();
    if lines > LINES_MAX {
        flaws.push(format!("{path}: {lines} lines, at most {LINES_MAX}"));
    }
    if !text.starts_with("//!") {
        flaws.push(format!("{path}: no header that says what comes in and what goes out"));
    }
    // Spelled apart, so that this file does not find itself.
    let banned = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[", "ignore"),
        concat!("FIX", "ME"),
    ];
    for (number, line) in text.lines().enumerate() {
        for word in banned.iter().filter(|word| line.contains(**word)) {
            flaws.push(format!("{path}:{}: `{word}`", number + 1));
        }
    }
    flaws
}
