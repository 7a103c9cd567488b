//! The command: the check that it can be run, and its start.
//!
//! In: the arguments after `--`, and the variables that the lock adds. Out: a [`Child`] that leads its own
//! process group, is killed when we die, and inherits neither the lock's descriptor (everything that we open
//! is close-on-exec) nor our password.
//!
//! If we are killed, the kernel kills the command itself. It does not kill the command's children, nor a
//! set-user-id program: the kernel drops the request for those.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, Pid, access, getpid, getppid};

use crate::child::{Child, Watch};
use crate::error::CliError;
use crate::status::Outcome;
use crate::terminal::{Terminal, set_foreground};

/// The search path if the environment has no `PATH`.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// The command to run, and the variables to add to its environment and to remove from it.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) words: &'a [OsString],
    pub(crate) added: Vec<(&'static str, String)>,
    pub(crate) removed: Vec<&'static str>,
}

/// Checks that a command can be run, before a lock is acquired for it.
pub(crate) fn check(program: &OsStr) -> Result<(), CliError> {
    let candidates = candidates(program);
    if candidates.iter().any(|path| runnable(path).is_ok()) {
        return Ok(());
    }
    // If a file exists but cannot be run, report this file: the caller most likely meant it.
    let there = candidates.iter().find(|path| path.exists());
    Err(match there.map(|path| runnable(path)) {
        Some(Err(errno)) => trouble(program, &errno.into()),
        _ => trouble(program, &Errno::ENOENT.into()),
    })
}

fn candidates(program: &OsStr) -> Vec<PathBuf> {
    if program.is_empty() {
        return Vec::new();
    }
    if program.as_encoded_bytes().contains(&b'/') {
        return vec![program.into()];
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    std::env::split_paths(&path).map(|dir| dir.join(program)).collect()
}

fn runnable(path: &Path) -> Result<(), Errno> {
    if path.is_dir() {
        return Err(Errno::EISDIR);
    }
    access(path, AccessFlags::X_OK)
}

fn trouble(program: &OsStr, error: &io::Error) -> CliError {
    let shown = program.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => {
            CliError::new(Outcome::NotFound, format!("command `{shown}` not found"))
        }
        _ => {
            CliError::new(Outcome::NotRunnable, format!("command `{shown}` cannot be run: {error}"))
        }
    }
}

/// Starts the command. Must be called on the main thread: the kernel kills the command when the *thread* that
/// started it ends.
pub(crate) fn start(task: &Task<'_>, terminal: Option<&mut Terminal>) -> Result<Child, CliError> {
    let (program, args) = task.words.split_first().ok_or_else(|| CliError::usage("no command"))?;
    let mut command = Command::new(program);
    command.args(args).envs(task.added.iter().map(|(name, value)| (name, value)));
    task.removed.iter().for_each(|name| _ = command.env_remove(name));
    command.process_group(0);
    prepare(&mut command, terminal.and_then(Terminal::for_the_start));
    let watch = Watch::start().map_err(|error| trouble(program, &error))?;
    let process = command.spawn().map_err(|error| trouble(program, &error))?;
    Ok(watch.over(process.id()))
}

#[allow(unsafe_code, reason = "there is no safe way to act between fork and exec")]
fn prepare(command: &mut Command, tty: Option<File>) {
    let parent = getpid();
    let before_exec = move || {
        die_with(parent)?;
        if let Some(tty) = &tty {
            // If this fails, the command is stopped when it first reads, and gets the terminal then.
            let _ = set_foreground(tty, getpid());
        }
        Ok(())
    };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed. It makes
    // five system calls (prctl, getppid, getpid, sigprocmask, ioctl), and all of them are async-signal-safe.
    // It neither allocates nor locks a mutex, and everything that it captures was created before the fork.
    unsafe { command.pre_exec(before_exec) };
}

/// Asks the kernel to kill the command when we die, so that the command does not continue without the lock.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    // If we died before that call, no signal will come.
    if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
}

/// On other systems the command outlives a `tenure` that is killed with SIGKILL.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Commands are found as a shell finds them.
    #[test]
    fn commands_that_can_be_run() {
        assert_eq!(check(OsStr::new("sh")), Ok(()));
        assert_eq!(check(OsStr::new("/bin/sh")), Ok(()));
    }

    /// A missing command is 127, a command that cannot be run is 126. The error names the command.
    #[test]
    fn commands_that_cannot() {
        let missing = check(OsStr::new("no-such-command-here")).unwrap_err();
        assert_eq!(missing.outcome, Outcome::NotFound);
        assert_eq!(missing.chain, "command `no-such-command-here` not found");
        assert_eq!(check(OsStr::new("")).unwrap_err().outcome, Outcome::NotFound);
        let directory = check(OsStr::new("/tmp/")).unwrap_err();
        assert_eq!(directory.outcome, Outcome::NotRunnable);
        assert_eq!(directory.chain, "command `/tmp/` cannot be run: Is a directory (os error 21)");
    }

    /// A file without execute permission is 126.
    #[test]
    fn files_without_rights() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = check(file.path().as_os_str()).unwrap_err();
        assert_eq!(refused.outcome, Outcome::NotRunnable);
        assert!(refused.chain.ends_with("cannot be run: Permission denied (os error 13)"));
    }
}
