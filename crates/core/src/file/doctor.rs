//! Checks whether a directory can be used for locks.
//!
//! In: a path. Out: findings about it. Creates nothing except a file to test the kernel's lock, which it
//! removes again.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::{FileLocks, dir, files};
use crate::doctor::{Check, Finding, Verdict, self_test};
use crate::token::Token;

/// Checks the directory of `file:DIR`, even if [`FileLocks::open`] would refuse it. A missing directory is
/// not created.
pub async fn diagnose(dir: impl AsRef<Path>, ttl: Duration) -> Vec<Finding> {
    let mut findings = look(dir.as_ref());
    let sound = Verdict::worst(&findings) < Verdict::Unsafe;
    if sound && dir.as_ref().is_dir() {
        findings.push(match FileLocks::open(dir.as_ref()) {
            Ok(locks) => self_test(&locks, ttl).await,
            Err(error) => directory(dir.as_ref()).critical(error.to_string(), CHOOSE),
        });
    }
    findings
}

/// The advice for a directory that cannot be used.
const CHOOSE: &str = "choose another directory with `file:DIR`";

fn directory(dir: &Path) -> Check {
    Check::new("directory", dir.display(), "look at the directory")
}

/// All checks except the self-test.
pub(super) fn look(dir: &Path) -> Vec<Finding> {
    let path = match dir::absolute(dir) {
        Ok(path) => path,
        Err(fault) => return vec![directory(dir).critical(fault.to_string(), CHOOSE)],
    };
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(&path),
        Err(error) => {
            vec![directory(&path).critical(format!("it cannot be looked at: {error}"), CHOOSE)]
        }
        Ok(data) => {
            let flaw = dir::wrong_kind(&data).or_else(|| dir::exposure(&data));
            let found = match flaw {
                Some(flaw) => directory(&path).critical(format!("it {flaw}"), OWN),
                None => directory(&path).good("it exists, and no other user can write to it"),
            };
            let kernel = data.is_dir().then(|| kernel_locks(&path));
            [found, file_system(&path, &path)].into_iter().chain(kernel).collect()
        }
    }
}

const OWN: &str = "use a directory of your own, not a link: `mkdir -m 700 DIR`, or `chmod 700 DIR`";

/// A missing directory is created with the first lock, if its parent exists.
fn missing(path: &Path) -> Vec<Finding> {
    let parent = path.parent().unwrap_or(path);
    if !parent.is_dir() {
        let seen = format!("neither it nor `{}` is there", parent.display());
        return vec![
            directory(path).critical(
                seen,
                "make the directory above it: only the last part is made by itself",
            ),
        ];
    }
    let found = directory(path).good("it is not there yet: the first lock makes it");
    vec![found, file_system(path, parent)]
}

/// Whether the file system is local, so that the kernel of this machine decides about locks.
fn file_system(place: &Path, dir: &Path) -> Finding {
    let check = Check::new("file-system", place.display(), "ask what kind of file system it is on");
    judge_file_system(check, dir::network(dir))
}

fn judge_file_system(check: Check, network: Option<String>) -> Finding {
    match (network, cfg!(any(target_os = "linux", target_os = "android"))) {
        (Some(flaw), _) => {
            check.critical(format!("it {flaw}"), "use a directory on a disk of this machine")
        }
        (None, true) => check.good("none of the network file systems that are known"),
        (None, false) => check.unknown("this system does not say"),
    }
}

/// Whether a file can be created there, and locked by one process at a time.
fn kernel_locks(dir: &Path) -> Finding {
    let check = Check::new("kernel-locks", dir.display(), "lock a file there twice");
    match excludes(dir) {
        Ok(true) => check.good("the second lock was refused until the first had ended"),
        Ok(false) => {
            check.critical("both locks were granted", "use a directory on a disk of this machine")
        }
        Err(error) => check
            .critical(format!("it could not be done: {error}"), "see that files can be made there"),
    }
}

fn excludes(dir: &Path) -> io::Result<bool> {
    let token = Token::random().map_err(io::Error::other)?;
    // Not the name of a lock's file: those have other suffixes.
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

    /// F5: a network file system is unsafe, by its name. (The test has no such file system to check.)
    #[test]
    fn f5_network_file_systems_are_unsafe() {
        let check = || Check::new("file-system", "/x", "look");
        let flaw = "is on a network file system (NFS), where file locks cannot be relied on";
        let found = judge_file_system(check(), Some(flaw.into()));
        assert_eq!((found.verdict, found.seen), (Verdict::Unsafe, format!("it {flaw}")));
        assert!(judge_file_system(check(), None).verdict < Verdict::Warning);
    }
}
