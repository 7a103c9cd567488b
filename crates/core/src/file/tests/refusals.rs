//! Directories and files that cannot be trusted, and the error messages for them.

use std::os::unix::fs::symlink;

use super::*;

/// Links are not followed: neither for the directory nor for the files in it.
#[tokio::test]
async fn links_are_refused() {
    let dir = Dir::new();
    let link = dir.path("link");
    symlink(&dir.0, &link).unwrap();
    let message = format!("lock directory `{}` is a symbolic link", link.display());
    assert_eq!(refused(FileLocks::open(&link)), message);
    assert_eq!(refused(FileLocks::open(format!("{}/", link.display()))), message);
    fs::remove_file(&link).unwrap();

    let (locks, target) = (dir.open(), dir.path("target"));
    symlink(&target, dir.path("a.lock")).unwrap();
    let fault = locks.try_acquire(&claim("a")).await.unwrap_err();
    let path = dir.path("a.lock");
    let message = format!("cannot open lock file `{}`, a symbolic link", path.display());
    assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Refused, message));
    symlink(&target, dir.path("b.json")).unwrap();
    symlink(&target, dir.path("c.tmp")).unwrap();
    take_and_free(&locks, "b").await;
    let fault = locks.try_acquire(&claim("c")).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Refused);
    assert!(!target.exists());
    assert!(attempt(&locks, &claim("c")).await.is_ok(), "the refused draft is gone");
}

/// A directory that others can write to, or that belongs to another user, is refused, and the message says
/// why.
#[test]
fn exposed_directories_are_refused() {
    let dir = Dir::new();
    let shown = dir.0.display();
    for (mode, text) in [(0o777, "0777"), (0o1777, "1777"), (0o720, "0720")] {
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(mode)).unwrap();
        let message = format!("lock directory `{shown}` can be written to by others (mode {text})");
        assert_eq!(refused(FileLocks::open(&dir.0)), message);
    }
    let us = rustix::process::geteuid().as_raw();
    let (foreign, owner) = foreign_directory(&dir, us);
    let shown = foreign.display();
    let message = format!("lock directory `{shown}` belongs to uid {owner}, not to uid {us}");
    assert_eq!(refused(FileLocks::open(&foreign)), message);
}

fn foreign_directory(dir: &Dir, us: u32) -> (PathBuf, u32) {
    if us != 0 {
        return ("/usr".into(), 0);
    }
    std::os::unix::fs::chown(&dir.0, Some(12_345), None).unwrap();
    (dir.0.clone(), 12_345)
}

/// The directory is created, private, but its parents are not; a file is refused.
#[test]
fn directories_are_made() {
    let dir = Dir::new();
    let made = dir.path("locks");
    FileLocks::open(&made).unwrap();
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o7777, 0o700);
    let deep = dir.path("no/locks");
    let message = format!("cannot create lock directory `{}`", deep.display());
    assert_eq!(refused(FileLocks::open(&deep)), message);
    let file = dir.path("file");
    fs::write(&file, "").unwrap();
    let message = format!("lock directory `{}` is not a directory", file.display());
    assert_eq!(refused(FileLocks::open(&file)), message);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(default_dir(), PathBuf::from(format!("/tmp/tenure-{uid}")));
}

/// A29: a lock that a newer version may have left closed is refused, for tries and for waits. Neither
/// inspection nor a failed attempt removes its record.
#[tokio::test]
async fn a29_a_newer_record_closes_the_lock() {
    let dir = Dir::new();
    let locks = dir.open();
    let path = dir.path("k.json");
    let lease = hold(&locks, "k").await;
    locks.release(&lease, AfterRelease::Cooldown(Duration::from_secs(3_600))).await.unwrap();
    let closed = fs::read_to_string(&path).unwrap();
    let newer = closed.replace(r#""version":1"#, r#""version":2"#);
    assert_ne!(closed, newer);
    fs::write(&path, &newer).unwrap();
    let message = format!(
        "the record `{}` is of a newer version of tenure, and may keep the lock closed: update this \
         program, or remove the file if no newer one uses it",
        path.display()
    );
    let asked = claim("k");
    let tried = locks.try_acquire(&asked).await.unwrap_err();
    let waited = locks.acquire(&asked).await.unwrap_err();
    for fault in [tried, waited] {
        assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Refused, message.clone()));
    }
    locks.abandon(&asked).await.unwrap();
    let infos = list(&locks, "*").await;
    assert_eq!(infos[0].holders[0].holder.to_string(), "a newer version of tenure");
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    // A record that cannot be read at the moment does not count as missing.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let fault = locks.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!(fault.to_string(), format!("cannot read `{}`", path.display()));
    fs::remove_dir(&path).unwrap();
    take_and_free(&locks, "k").await;
}
