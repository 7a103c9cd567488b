//! What the tests need from the system, and where it comes from.

use std::process::{Command, Stdio};

use crate::shell::{Done, run};

/// A program that tests start, and the Debian package that has it.
const NEEDED: [(&str, &str); 3] =
    [("faketime", "faketime"), ("redis-server", "redis-server"), ("unshare", "util-linux")];

/// Installs what is missing, and only that.
pub fn install() -> Done {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !is_there("apt-get") {
        return Err(format!(
            "xtask: the tests need {list}, and there is no apt-get to install them with"
        ));
    }
    eprintln!("xtask: installing {list}, which the tests need");
    run(&mut apt(&["update", "-qq"]))?;
    run(&mut apt(&[&["install", "-y", "-qq"], missing.as_slice()].concat()))
}

/// `apt-get`, with `sudo` for those who are not root.
fn apt(args: &[&str]) -> Command {
    let mut command = if is_root() { Command::new("apt-get") } else { Command::new("sudo") };
    if !is_root() {
        command.arg("apt-get");
    }
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

fn is_there(program: &str) -> bool {
    let found = |dir: std::path::PathBuf| dir.join(program).is_file();
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(found))
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
