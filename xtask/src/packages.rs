//! The system packages that the tests need, and their installation.

use std::process::{Command, Stdio};

use crate::shell::{Done, run};

/// The programs that tests start, each with its Debian package.
const NEEDED: [(&str, &str); 7] = [
    ("chromedriver", "chromium-driver"),
    ("chromium", "chromium"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("faketime", "faketime"),
    ("redis-server", "redis-server"),
    ("unshare", "util-linux"),
];
/// The packages that start a service by themselves. Tests start their own servers, on free ports.
const SERVICES: [(&str, &str); 2] = [("etcd-server", "etcd"), ("redis-server", "redis-server")];

/// Installs the missing packages.
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
    run(&mut apt(&[&["install", "-y", "-qq"], missing.as_slice()].concat()))?;
    let is_new = |package: &str| missing.contains(&package);
    SERVICES.iter().filter(|(package, _)| is_new(package)).try_for_each(|(_, name)| stop(name))
}

/// Stops a service that we have just installed, and disables it for the next boot.
fn stop(service: &str) -> Done {
    // The same check as `systemctl`: without this directory systemd does not run.
    match std::path::Path::new("/run/systemd/system").is_dir() {
        true => run(as_root("systemctl").args(["disable", "--quiet", "--now", service])),
        false => Ok(()),
    }
}

fn apt(args: &[&str]) -> Command {
    let mut command = as_root("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command
}

/// Uses `sudo` unless we are root.
fn as_root(program: &str) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.arg(program);
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
