//! Without a server: directories and `memory:`.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::common::{Space, assert_matches, bare, done};

use super::{doctor, doctor_with, printed};

/// A private directory is good, as text and as JSON, and only the fence is left in it.
#[test]
fn a_directory_that_will_do() {
    let space = Space::new();
    let run = printed(&space.url());
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_matches(
        &run.out,
        "good  directory     \\S+/locks  look at the directory: it exists, and no other user can write to it\n\
         good  file-system   \\S+/locks  ask what kind of file system it is on: [^\n]+\n\
         good  kernel-locks  \\S+/locks  lock a file there twice: the second lock was refused until the first had ended\n\
         good  lock          file +acquire a lock of our own, ask for it again, renew and release it: \
         granted with fence \\d+, renewed and released in [^\n]+\n",
    );
    assert_eq!(run.err, "tenure: 4 checks: 4 good\n");
    doctor(&space.url()).all_are("good");
    let left: Vec<_> = std::fs::read_dir(space.path("locks")).unwrap().flatten().collect();
    assert!(left.iter().all(|file| file.file_name() == "fence"), "{left:?}");
}

/// A missing directory is not created: whether the first lock can create it depends on its parent.
#[test]
fn a_directory_that_is_not_there() {
    let space = Space::untouched();
    let found = doctor(&space.url());
    found.has("directory", "good", "it is not there yet: the first lock makes it");
    found.ends_with(0);
    assert!(!space.path("locks").exists());
    let found = doctor("file:/no/such/place/locks");
    found.has("directory", "unsafe", "neither it nor `/no/such/place` is there");
    found.ends_with(2);
}

/// A directory that others can write to, a link and a file are unsafe, each with its reason.
#[test]
fn directories_that_will_not_do() {
    let space = Space::new();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(space.path("locks"), open).unwrap();
    let found = doctor(&space.url());
    let flaw = found.has("directory", "unsafe", r"it can be written to by others \(mode 0777\)");
    assert!(flaw["advice"].as_str().unwrap().contains("chmod 700"), "{flaw}");
    found.ends_with(2);
    symlink(space.path("locks"), space.path("link")).unwrap();
    let found = doctor(&format!("file:{}", space.path("link").display()));
    found.has("directory", "unsafe", "it is a symbolic link");
    std::fs::write(space.path("file"), "").unwrap();
    let found = doctor(&format!("file:{}", space.path("file").display()));
    found.has("directory", "unsafe", "it is not a directory");
    found.ends_with(2);
    // A file cannot be created there, not even by root.
    let found = doctor("file:/proc/self/task");
    found.has("kernel-locks", "unsafe", "it could not be done: .+");
    found.ends_with(2);
}

/// `memory:` excludes no other process.
#[test]
fn memory_is_shared_with_nobody() {
    let found = doctor("memory:");
    found.has("scope", "warning", "only the tasks of this process: no other process is excluded");
    found.has("lock", "good", "granted with fence .+");
    found.ends_with(1);
}

/// An invalid URL is not a finding: 64, and no output.
#[test]
fn usage() {
    for args in
        [&["doctor", "-u", "zoo://h"][..], &["doctor", "-u", "redis://h:x"], &["doctor", "--nope"]]
    {
        let run = done(bare(args));
        assert_eq!((run.code, run.out.as_str()), (Some(64), ""), "{run:?}");
    }
    let space = Space::new();
    let found = doctor_with(&space.url(), &["--ttl", "10s"]);
    found.ends_with(0);
}
