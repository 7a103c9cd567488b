//! Many contenders, processes that die or stop, and a full disk.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, AtomicU64};

use super::super::acquire::FileAttempt;
use super::*;

/// Passes the directory to a process that a test starts.
pub(super) const CHILD_DIR: &str = "TENURE_FILE_TEST_DIR";

/// Four contenders acquire, read, try, cancel, inspect and release one lock as fast as they can. A writer is always
/// alone, the fence always rises, and no files are left. This tests the argument in `files.rs`.
#[test]
fn exclusion_under_churn() {
    let dir = Dir::new();
    let (inside, last, grants) = (AtomicI32::new(0), AtomicU64::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for contender in 0..4 {
            let (dir, inside, last, grants) = (&dir, &inside, &last, &grants);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
                runtime.unwrap().block_on(churn(dir.open(), contender, inside, last, grants));
            });
        }
    });
    assert!(grants.load(Ordering::Relaxed) > 1_000, "{grants:?} grants");
    // Threads that a cancelled wait left in the kernel clean up when they get the lock.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(until("a clean directory", async || dir.names() == ["fence"]));
}

async fn churn(
    locks: FileLocks,
    contender: u32,
    inside: &AtomicI32,
    last: &AtomicU64,
    grants: &AtomicU32,
) {
    for round in 0..1_500_u32 {
        let reads = (round / 3 + contender).is_multiple_of(4);
        let claim = if reads { readers::reader("hot") } else { claim("hot") };
        // A third tries, a third waits, a third gives up soon.
        let patience = match (round + contender) % 3 {
            0 => Duration::ZERO,
            1 => DEADLINE,
            _ => Duration::from_micros(u64::from(round % 7) * 300),
        };
        let grant = match patience.is_zero() {
            true => match locks.step(&claim).await.unwrap() {
                FileAttempt::Granted(grant) => Some(grant),
                _ => None,
            },
            false => {
                tokio::time::timeout(patience, locks.acquire(&claim)).await.ok().map(Result::unwrap)
            }
        };
        if let Some(grant) = grant {
            // Minus one for a writer. Fences of readers are compared with those of the writers.
            let before = inside.fetch_add(if reads { 1 } else { -1 }, Ordering::SeqCst);
            assert!(if reads { before >= 0 } else { before == 0 }, "a writer is not alone");
            let highest = match reads {
                true => last.load(Ordering::SeqCst),
                false => last.swap(grant.fence, Ordering::SeqCst),
            };
            assert!(highest < grant.fence, "the fence fell");
            grants.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
            inside.fetch_sub(if reads { 1 } else { -1 }, Ordering::SeqCst);
        }
        locks.abandon(&claim).await.unwrap();
        if round % 8 == contender {
            list(&locks, "*").await;
        }
    }
    until("the threads' end", async || threads(&locks) == 0).await;
}

/// Starts `test` again in another process, which plays the other part.
fn child(test: &str, dir: &Dir) -> Child {
    child_of(&format!("processes::{test}"), dir)
}

/// The same for a test in any module of these tests.
pub(super) fn child_of(test: &str, dir: &Dir) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("file::tests::{test}"), "--nocapture"]);
    command.env(CHILD_DIR, &dir.0).stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// The other part of the tests below: acquires the lock `a`, no matter how long that takes, and keeps it.
pub(super) async fn hold_if_child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let locks = FileLocks::open(dir).unwrap();
    locks.acquire(&claim("a")).await.unwrap();
    std::future::pending::<()>().await;
}

/// The lock of a killed process is free at once. The next holder or the next inspection removes its
/// leftovers.
#[tokio::test]
async fn c7_a_killed_holder_leaves_a_free_lock() {
    hold_if_child().await;
    let dir = Dir::new();
    let locks = dir.open();
    for clear_by_look in [true, false] {
        let mut child = child("c7_a_killed_holder_leaves_a_free_lock", &dir);
        until("the child's lock", async || !list(&locks, "a").await.is_empty()).await;
        until("its record", async || {
            hold_fails(&locks, "a").await.process.is_some_and(|client| client.pid == child.id())
        })
        .await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(dir.names(), ["a.json", "a.lock", "fence"]);
        match clear_by_look {
            true => assert!(list(&locks, "*").await.is_empty()),
            false => take_and_free(&locks, "a").await,
        }
        assert_eq!(dir.names(), ["fence"]);
    }
}

/// A waiter that is stopped, and then killed, does not keep others from the lock.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_stopped_waiter_costs_others_nothing() {
    hold_if_child().await;
    use rustix::process::{Pid, Signal, kill_process};
    let dir = Dir::new();
    let (one, two) = (dir.open(), dir.open());
    let lease = hold(&one, "a").await;
    let mut child = child("a_stopped_waiter_costs_others_nothing", &dir);
    until_contended(&one, &lease).await;
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    // The signal has only been sent. Until it arrives, the child can still get the lock and be stopped as its
    // holder.
    until("the child to stop", async || is_stopped(child.id())).await;
    let waiting = claim("a");
    let task = wait(&two, &waiting);
    until("our own place", async || two.shared.state().tickets.len() == 1).await;
    free(&one, &lease).await;
    within("the hand-over", task).await.unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    two.abandon(&waiting).await.unwrap();
    assert_eq!(dir.names(), ["fence"]);
}

/// Whether all threads of the process are stopped.
#[cfg(target_os = "linux")]
pub(super) fn is_stopped(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let state = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap();
    tasks.map(|task| state(task.unwrap())).all(|status| status.contains("State:\tT"))
}

/// On a full disk a claim is refused with the name of the file that did not fit, and leaves no files. A held
/// lock can still be released. A lock that cannot be closed stays held.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_full_disk_is_refused() {
    if let Some(path) = std::env::var_os(CHILD_DIR) {
        return on_a_full_disk(path.into()).await;
    }
    on_a_disk_of_its_own("size=16k,mode=700", "a_full_disk_is_refused");
}

/// In a read-only directory a claim is refused with the name of the file, and leaves no files.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_read_only_directory_is_refused() {
    let Some(path) = std::env::var_os(CHILD_DIR) else {
        return on_a_disk_of_its_own("ro,mode=700", "a_read_only_directory_is_refused");
    };
    let dir = std::mem::ManuallyDrop::new(Dir(path.into()));
    let fault = dir.open().try_acquire(&claim("a")).await.unwrap_err();
    let message = format!("cannot open lock file `{}`", dir.path("a.lock").display());
    assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Refused, message));
    let source = std::error::Error::source(&fault).unwrap().to_string();
    assert!(source.contains("Read-only file system"), "{source}");
    assert!(dir.names().is_empty());
}

/// Starts `test` again with its directory on a small private file system; needs no root.
#[cfg(target_os = "linux")]
fn on_a_disk_of_its_own(options: &str, test: &str) {
    let dir = Dir::new();
    let script = format!(r#"mount -t tmpfs -o {options} tmpfs "$0" && exec "$@""#);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    command.arg(&dir.0).arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("file::tests::processes::{test}"), "--nocapture"]);
    let output = command.env(CHILD_DIR, &dir.0).output().expect("`unshare` from util-linux");
    let shown = String::from_utf8_lossy(&output.stderr);
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "a private tmpfs is needed: {shown}");
}

/// The part of `a_full_disk_is_refused` that runs on the small disk.
#[cfg(target_os = "linux")]
async fn on_a_full_disk(path: PathBuf) {
    let dir = std::mem::ManuallyDrop::new(Dir(path));
    let locks = dir.open();
    let full = async |name: &str, file: &str| {
        let fault = locks.try_acquire(&claim(name)).await.unwrap_err();
        let message = format!("cannot write `{}`", dir.path(file).display());
        assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Refused, message));
        let source = std::error::Error::source(&fault).unwrap().to_string();
        assert!(source.contains("No space left on device"), "{source}");
    };
    let fill = || fs::write(dir.path("filler"), [0; 64 * 1024]).unwrap_err();
    fill();
    full("a", "fence").await;
    assert_eq!(dir.names(), ["fence", "filler"]);
    fs::remove_file(dir.path("filler")).unwrap();
    let held = hold(&locks, "held").await;
    fill();
    full("a", "a.json").await;
    assert_eq!(dir.names(), ["fence", "filler", "held.json", "held.lock"]);
    let fault = locks.release(&held, AfterRelease::Cooldown(DEADLINE)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Refused);
    assert!(hold_fails(&locks, "held").await.process.is_some());
    free(&locks, &held).await;
    assert_eq!(dir.names(), ["fence", "filler"]);
}
