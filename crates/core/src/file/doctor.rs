//! Whether a directory can keep locks.
//!
//! In: a path. Out: what was found out about it. Nothing is created but a file to try the kernel's lock
//! on, which is removed again.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::{FileLocks, dir, files};
use crate::claim::Token;
use crate::doctor::{Check, Finding, Verdict, trial};

/// Looks at the directory of `file:DIR`, also where [`FileLocks::open`] would refuse it. One that does not
/// exist is not made.
pub async fn examine(dir: impl AsRef<Path>, ttl: Duration) -> Vec<Finding> {
    let mut findings = look(dir.as_ref());
    let sound = Verdict::worst(&findings) < Verdict::Unsafe;
    if sound && dir.as_ref().is_dir() {
        findings.push(match FileLocks::open(dir.as_ref()) {
            Ok(locks) => trial(&locks, ttl).await,
            Err(error) => directory(dir.as_ref()).danger(error.to_string(), CHOOSE),
        });
    }
    findings
}

/// What to do where a directory will not do.
const CHOOSE: &str = "choose another directory with `file:DIR`";

fn directory(dir: &Path) -> Check {
    Check::new("directory", dir.display(), "look at the directory")
}

/// All but the trial.
pub(super) fn look(dir: &Path) -> Vec<Finding> {
    let path = match dir::absolute(dir) {
        Ok(path) => path,
        Err(fault) => return vec![directory(dir).danger(fault.to_string(), CHOOSE)],
    };
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(&path),
        Err(error) => {
            vec![directory(&path).danger(format!("it cannot be looked at: {error}"), CHOOSE)]
        }
        Ok(data) => {
            let flaw = dir::wrong_kind(&data).or_else(|| dir::exposure(&data));
            let found = match flaw {
                Some(flaw) => directory(&path).danger(format!("it {flaw}"), OWN),
                None => directory(&path).good("it is there, and nobody else can write to it"),
            };
            let kernel = data.is_dir().then(|| kernel_locks(&path));
            [found, file_system(&path, &path)].into_iter().chain(kernel).collect()
        }
    }
}

const OWN: &str = "use a directory of your own, not a link: `mkdir -m 700 DIR`, or `chmod 700 DIR`";

/// It comes with the first lock, if it can.
fn missing(path: &Path) -> Vec<Finding> {
    let parent = path.parent().unwrap_or(path);
    if !parent.is_dir() {
        let seen = format!("neither it nor `{}` is there", parent.display());
        return vec![
            directory(path)
                .danger(seen, "make the directory above it: only the last part is made by itself"),
        ];
    }
    let found = directory(path).good("it is not there yet: the first lock makes it");
    vec![found, file_system(path, parent)]
}

/// Whether the kernel of this machine has the last word about files there.
fn file_system(place: &Path, dir: &Path) -> Finding {
    let check = Check::new("file-system", place.display(), "ask what kind of file system it is on");
    judge_file_system(check, dir::network(dir))
}

fn judge_file_system(check: Check, network: Option<String>) -> Finding {
    match (network, cfg!(any(target_os = "linux", target_os = "android"))) {
        (Some(flaw), _) => {
            check.danger(format!("it {flaw}"), "use a directory on a disk of this machine")
        }
        (None, true) => check.good("none of the network file systems that are known"),
        (None, false) => check.unknown("this system does not say"),
    }
}

/// Whether a file there can be made, and locked by one at a time.
fn kernel_locks(dir: &Path) -> Finding {
    let check = Check::new("kernel-locks", dir.display(), "lock a file there twice");
    match excludes(dir) {
        Ok(true) => check.good("the second lock was refused until the first had ended"),
        Ok(false) => {
            check.danger("both locks were granted", "use a directory on a disk of this machine")
        }
        Err(error) => check
            .danger(format!("it could not be done: {error}"), "see that files can be made there"),
    }
}

fn excludes(dir: &Path) -> io::Result<bool> {
    let token = Token::random().map_err(io::Error::other)?;
    // No name of a lock's file: those end differently.
    let path = dir.join(format!("doctor-{}", &token.digits()[..16]));
    let tried = lock_twice(&path);
    let removed = fs::remove_file(&path);
    tried.and_then(|excludes| removed.map(|()| excludes))
}

fn lock_twice(path: &Path) -> io::Result<bool> {
    let (first, second) = (files::open_or_create(path)?, files::open_or_create(path)?);
    if !locked(&first)? || locked(&second)? {
        return Ok(false);
    }
    first.unlock()?;
    locked(&second)
}

fn locked(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F5: a network file system is unsafe, by its name. (There is none here to look at.)
    #[test]
    fn f5_network_file_systems_are_unsafe() {
        let check = || Check::new("file-system", "/x", "look");
        let flaw = "is on a network file system (NFS), where file locks cannot be relied on";
        let found = judge_file_system(check(), Some(flaw.into()));
        assert_eq!((found.verdict, found.seen), (Verdict::Unsafe, format!("it {flaw}")));
        assert!(judge_file_system(check(), None).verdict < Verdict::Warning);
    }
}
