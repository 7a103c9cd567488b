//! The backend by itself, at the level of the contract. Two `FileLocks` on one directory stand for two
//! processes: the kernel distinguishes open files, not processes. Tests that need a dying process start one.

mod processes;
mod readers;
mod refusals;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::files::LockKind;
use super::*;
use crate::backend::Notice;
use crate::claim::ClaimOptions;
use crate::fault::Loss;
use crate::fence::Fence;
use crate::grant::Renewal;
use crate::holder::{Holder, Process};

/// Long enough for a busy machine; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// A separate directory for each test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tenure-file-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Dir(path)
    }

    fn open(&self) -> FileLocks {
        FileLocks::open(&self.0).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of all files in the directory.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn claim(name: &str) -> Arc<Claim> {
    let terms = ClaimOptions::new(Duration::from_secs(30))
        .label(Some("deploy".into()))
        .reason(Some("release 41".into()));
    Arc::new(Claim::new(key(name), Token::random().unwrap(), terms))
}

async fn attempt(locks: &FileLocks, claim: &Arc<Claim>) -> Result<Arc<Lease>, Holder> {
    match locks.try_acquire(claim).await.unwrap() {
        Attempt::Granted(grant) => Ok(Arc::new(Lease::new(claim.clone(), grant, locks.clock()))),
        Attempt::Held(holder) => Err(*holder),
    }
}

async fn hold(locks: &FileLocks, name: &str) -> Arc<Lease> {
    attempt(locks, &claim(name)).await.unwrap()
}

async fn free(locks: &FileLocks, lease: &Arc<Lease>) {
    assert_eq!(locks.release(lease, AfterRelease::Free).await.unwrap(), Release::Freed);
}

async fn take_and_free(locks: &FileLocks, name: &str) {
    let lease = hold(locks, name).await;
    free(locks, &lease).await;
}

/// Waits in a task of its own.
fn wait(locks: &FileLocks, claim: &Arc<Claim>) -> tokio::task::JoinHandle<Result<Grant, Fault>> {
    let (locks, claim) = (locks.clone(), claim.clone());
    tokio::spawn(async move { locks.acquire(&claim).await })
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(DEADLINE, future).await;
    done.unwrap_or_else(|_| panic!("{what} took more than {DEADLINE:?}"))
}

async fn until(what: &str, mut state: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !state().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// The reply to one renewal.
async fn renew(locks: &FileLocks, lease: &Arc<Lease>) -> Option<Renewal> {
    let answered = std::sync::Mutex::new(None);
    let answer = |_, renewal| *answered.lock().unwrap() = Some(renewal);
    locks.renew(std::slice::from_ref(lease), &answer).await;
    answered.into_inner().unwrap()
}

async fn contended(locks: &FileLocks, lease: &Arc<Lease>) -> bool {
    matches!(renew(locks, lease).await, Some(Renewal::Renewed { contended: true, .. }))
}

async fn until_contended(locks: &FileLocks, lease: &Arc<Lease>) {
    until("being seen to wait", async || contended(locks, lease).await).await;
}

/// How many threads serve these locks: each has a weak handle.
fn threads(locks: &FileLocks) -> usize {
    Arc::weak_count(&locks.shared)
}

async fn list(locks: &FileLocks, glob: &str) -> Vec<LockInfo> {
    locks.inspect(&Query::Glob(glob.into())).await.unwrap()
}

fn refused(result: Result<FileLocks, Error>) -> String {
    let error = result.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let message = error.to_string();
    message.strip_prefix("refused by the engine: ").unwrap_or(&message).to_owned()
}

/// A free lock is granted with a fence, is busy for everyone else, and leaves only the fence file behind.
#[tokio::test]
async fn grant_busy_release() {
    let (dir, claim) = (Dir::new(), claim("order:42"));
    let (one, two) = (dir.open(), dir.open());
    let lease = attempt(&one, &claim).await.unwrap();
    assert_eq!(dir.names(), ["fence", "order%3a42.json", "order%3a42.lock"]);
    let holder = hold_fails(&two, "order:42").await;
    assert_eq!(holder.process.as_ref(), Some(Process::this_process()));
    assert_eq!((holder.label.as_deref(), holder.cooling_down), (Some("deploy"), false));
    free(&one, &lease).await;
    assert_eq!(dir.names(), ["fence"]);
    let next = hold(&two, "order:42").await;
    assert!(next.fence() > lease.fence());
    free(&two, &next).await;
    assert_eq!(dir.names(), ["fence"]);
}

async fn hold_fails(locks: &FileLocks, name: &str) -> Holder {
    attempt(locks, &claim(name)).await.unwrap_err()
}

/// Repeated calls are safe: a second acquire returns the same grant, a second release returns `NotHeld`, and
/// a second abandon does nothing.
#[tokio::test]
async fn every_call_can_be_repeated() {
    let (dir, claim) = (Dir::new(), claim("a"));
    let locks = dir.open();
    let lease = attempt(&locks, &claim).await.unwrap();
    let again = locks.acquire(&claim).await.unwrap();
    assert_eq!(Fence::from_server(again.fence), lease.fence());
    let released = locks.release(&lease, AfterRelease::Cooldown(Duration::ZERO)).await.unwrap();
    assert_eq!(released, Release::Freed);
    assert_eq!(locks.release(&lease, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    attempt(&locks, &claim).await.unwrap();
    locks.abandon(&claim).await.unwrap();
    locks.abandon(&claim).await.unwrap();
    assert_eq!(dir.names(), ["fence"]);
}

/// The holder sees a waiter, the waiter sees the holder, and the waiter gets the lock on release.
#[tokio::test]
async fn a_waiter_is_woken() {
    let (dir, waiting) = (Dir::new(), claim("a"));
    let (one, two) = (dir.open(), dir.open());
    let lease = hold(&one, "a").await;
    assert!(!contended(&one, &lease).await);
    let task = wait(&two, &waiting);
    until_contended(&one, &lease).await;
    assert_eq!(waiting.wait_status().holder.unwrap().label.as_deref(), Some("deploy"));
    free(&one, &lease).await;
    let grant = within("the hand-over", task).await.unwrap().unwrap();
    assert!(Fence::from_server(grant.fence) > lease.fence() && !grant.contended);
    let lease = Arc::new(Lease::new(waiting, grant, two.clock()));
    free(&two, &lease).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// A cancelled wait leaves neither a mark nor a lock, and the next claim can acquire it.
#[tokio::test]
async fn a_cancelled_waiter_leaves_nothing() {
    let (dir, cancelled) = (Dir::new(), claim("a"));
    let (one, two) = (dir.open(), dir.open());
    let lease = hold(&one, "a").await;
    let task = wait(&two, &cancelled);
    until_contended(&one, &lease).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    two.abandon(&cancelled).await.unwrap();
    assert!(!contended(&one, &lease).await);
    assert_eq!(dir.names(), ["a.json", "a.lock", "fence"]);
    free(&one, &lease).await;
    let next = hold(&two, "a").await;
    free(&two, &next).await;
    until("the thread's end", async || threads(&two) == 0).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// A wait whose future is dropped continues. The lock that it gets is kept until the claim acquires or
/// abandons it.
#[tokio::test]
async fn a_dropped_future_changes_nothing() {
    let (dir, waiting) = (Dir::new(), claim("a"));
    let (one, two) = (dir.open(), dir.open());
    let lease = hold(&one, "a").await;
    let task = wait(&two, &waiting);
    until_contended(&one, &lease).await;
    task.abort();
    free(&one, &lease).await;
    until("the kernel's grant", async || two.has(waiting.token())).await;
    assert!(hold_fails(&one, "a").await.process.is_none());
    let grant = within("the second ask", two.acquire(&waiting)).await.unwrap();
    assert!(!grant.contended);
    two.abandon(&waiting).await.unwrap();
    assert_eq!(dir.names(), ["fence"]);
}

/// A hundred cancelled waits on one key use one thread, and the next claim uses the same thread.
#[tokio::test]
async fn cancelled_waits_do_not_pile_up() {
    let dir = Dir::new();
    let (one, two) = (dir.open(), dir.open());
    let lease = hold(&one, "a").await;
    for _ in 0..100 {
        let claim = claim("a");
        let wait = tokio::time::timeout(Duration::from_millis(1), two.acquire(&claim));
        assert!(wait.await.is_err());
        two.abandon(&claim).await.unwrap();
    }
    assert_eq!(threads(&two), 1);
    let last = claim("a");
    let task = wait(&two, &last);
    until_contended(&one, &lease).await;
    assert_eq!(threads(&two), 1);
    free(&one, &lease).await;
    within("the hand-over", task).await.unwrap().unwrap();
    two.abandon(&last).await.unwrap();
    until("the thread's end", async || threads(&two) == 0).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// Several claims of one backend on one key are granted in the order in which they came.
#[tokio::test]
async fn claims_of_one_process_queue() {
    let dir = Dir::new();
    let (one, two) = (dir.open(), dir.open());
    let lease = hold(&one, "a").await;
    let claims = [claim("a"), claim("a"), claim("a")];
    let tasks = claims.each_ref().map(|claim| wait(&two, claim));
    until("all in the queue", async || two.shared.state().tickets.len() == 3).await;
    free(&one, &lease).await;
    let mut last = lease.fence();
    for (claim, task) in claims.iter().zip(tasks) {
        let grant = within("the next turn", task).await.unwrap().unwrap();
        assert!(Fence::from_server(grant.fence) > last);
        last = Fence::from_server(grant.fence);
        free(&two, &Arc::new(Lease::new(claim.clone(), grant, two.clock()))).await;
    }
    until("the thread's end", async || threads(&two) == 0).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// A process that releases a lock to waiters gives them time to acquire it before it asks again.
#[tokio::test]
async fn a_hot_process_lets_others_in() {
    let (dir, waiting) = (Dir::new(), claim("a"));
    let (hot, cold) = (dir.open(), dir.open());
    let lease = hold(&hot, "a").await;
    let task = wait(&cold, &waiting);
    until_contended(&hot, &lease).await;
    free(&hot, &lease).await;
    let turns = async {
        for _ in 0..1_000 {
            let claim = claim("a");
            let grant = hot.acquire(&claim).await.unwrap();
            hot.release(&Arc::new(Lease::new(claim, grant, hot.clock())), AfterRelease::Free)
                .await
                .unwrap();
        }
    };
    tokio::select! {
        done = task => done.unwrap().map(drop).unwrap(),
        () = turns => panic!("a thousand turns, and the waiter had none"),
    }
}

/// `min_hold`: the lock stays closed for everyone until its time has passed; then no files are left.
#[tokio::test]
async fn a28_closed_for_a_while() {
    let dir = Dir::new();
    let clock = Clock::manual();
    let locks = FileLocks::with_clock(&dir.0, clock.clone()).unwrap();
    let lease = hold(&locks, "a").await;
    let closed = AfterRelease::Cooldown(Duration::from_secs(10));
    assert_eq!(locks.release(&lease, closed).await.unwrap(), Release::Freed);
    clock.advance(Duration::from_secs(4));
    let holder = hold_fails(&locks, "a").await;
    assert_eq!((holder.cooling_down, holder.lease_left), (true, Some(Duration::from_secs(6))));
    let [info] = &list(&locks, "*").await[..] else { panic!("one lock") };
    assert!(info.holders[0].holder.cooling_down);
    clock.advance(Duration::from_secs(6));
    assert!(list(&locks, "*").await.is_empty());
    assert_eq!(dir.names(), ["fence"]);
}

/// A waiter sleeps through the closed time and gets the lock at its end. A forced release with the right
/// token ends the closed time early.
#[tokio::test]
async fn a28_closed_ends_for_waiters() {
    let (dir, clock) = (Dir::new(), Clock::manual());
    let locks = FileLocks::with_clock(&dir.0, clock.clone()).unwrap();
    let (lease, waiting) = (hold(&locks, "a").await, claim("a"));
    let task = wait(&locks, &waiting);
    until_contended(&locks, &lease).await;
    locks.release(&lease, AfterRelease::Cooldown(Duration::from_secs(10))).await.unwrap();
    until("closed is seen", async || waiting.wait_status().holder.is_some_and(|h| h.cooling_down))
        .await;
    clock.advance(Duration::from_secs(10));
    let grant = within("the opening", task).await.unwrap().unwrap();
    let lease = Arc::new(Lease::new(waiting.clone(), grant, clock));
    locks.release(&lease, AfterRelease::Cooldown(Duration::from_secs(10))).await.unwrap();
    let wrong = Token::random().unwrap();
    let force = |token| locks.shared.force_release(lease.claim().key(), token);
    assert_eq!(force(wrong).await.unwrap(), Release::NotHeld);
    assert_eq!(force(waiting.token()).await.unwrap(), Release::Freed);
    assert_eq!(dir.names(), ["fence"]);
}

/// A claim that gave up while it waited does not open a closed lock when the kernel serves it after all.
#[tokio::test]
async fn a28_a_wait_that_was_given_up_opens_nothing() {
    let dir = Dir::new();
    let (locks, other) = (dir.open(), dir.open());
    let (lease, waiting) = (hold(&locks, "a").await, claim("a"));
    let task = wait(&other, &waiting);
    until_contended(&locks, &lease).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    other.abandon(&waiting).await.unwrap();
    locks.release(&lease, AfterRelease::Cooldown(Duration::from_secs(3600))).await.unwrap();
    until("the wait in the kernel to end", async || other.shared.state().queues.is_empty()).await;
    // The thread releases outside the mutex.
    let files = other.shared.files(waiting.key());
    until("the release", async || files.try_lock(LockKind::Exclusive).unwrap().is_some()).await;
    assert!(hold_fails(&locks, "a").await.cooling_down);
}

/// A closed time that was written before a reboot is over.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn a28_a_reboot_opens() {
    let dir = Dir::new();
    let locks = dir.open();
    let lease = hold(&locks, "a").await;
    locks.release(&lease, AfterRelease::Cooldown(Duration::from_secs(3600))).await.unwrap();
    assert!(hold_fails(&locks, "a").await.cooling_down);
    let text = fs::read_to_string(dir.path("a.json")).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(dir.path("a.json"), text.replace(boot.trim(), "another")).unwrap();
    take_and_free(&locks, "a").await;
    assert_eq!(dir.names(), ["fence"]);
}

/// If the fence file has no number, or one that is out of range, no lock is granted and the file is not
/// changed.
#[tokio::test]
async fn a_corrupt_count_is_refused() {
    let dir = Dir::new();
    let locks = dir.open();
    let path = dir.path("fence");
    for text in ["12x\n", " ", "-1", "18446744073709551615\n", "\0\0\0"] {
        fs::write(&path, text).unwrap();
        let fault = locks.try_acquire(&claim("a")).await.unwrap_err();
        let (shown, file) = (text.escape_debug(), path.display());
        let message = format!("fence file `{file}` holds `{shown}`, which is no fence number");
        assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Refused, message));
        assert_eq!(dir.names(), ["fence"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::write(&path, "007").unwrap();
    take_and_free(&locks, "a").await;
}

/// A record that cannot be read makes the holder unknown, not the lock free. The release works as usual.
#[tokio::test]
async fn a_corrupt_record_is_an_unknown_holder() {
    let dir = Dir::new();
    let locks = dir.open();
    let lease = hold(&locks, "Odd name").await;
    for text in ["", "{", "[]", r#"{"version":0}"#] {
        fs::write(dir.path("%4fdd%20name.json"), text).unwrap();
        assert_eq!(hold_fails(&dir.open(), "Odd name").await, Holder::unknown());
        let infos = list(&locks, "Odd*").await;
        assert_eq!((infos.len(), infos[0].key.as_str()), (1, "Odd name"));
        assert_eq!(infos[0].holders[0].holder, Holder::unknown());
    }
    free(&locks, &lease).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// Inspection shows the holders, by name and by pattern, and creates no files.
#[tokio::test]
async fn inspection() {
    let dir = Dir::new();
    let locks = dir.open();
    let (a, b) = (hold(&locks, "job:a").await, hold(&locks, "job:B").await);
    let names = |infos: Vec<LockInfo>| infos.iter().map(|i| i.key.to_string()).collect::<Vec<_>>();
    assert_eq!(names(list(&locks, "job:*").await), ["job:B", "job:a"]);
    assert_eq!(names(list(&locks, "job:[a-z]").await), ["job:a"]);
    let one = locks.inspect(&Query::Key(key("job:a"))).await.unwrap();
    assert_eq!(one[0].waiters, None);
    assert_eq!(one[0].holders[0].fence, Some(a.fence()));
    assert_eq!(one[0].holders[0].token, Some(a.claim().token()));
    assert!(locks.inspect(&Query::Key(key("job:b"))).await.unwrap().is_empty());
    free(&locks, &a).await;
    free(&locks, &b).await;
    assert!(list(&locks, "*").await.is_empty());
    assert_eq!(dir.names(), ["fence"]);
}

/// A forced release is refused with the process to end; for a token that does not hold the lock it returns
/// `NotHeld`.
#[tokio::test]
async fn a25_force_names_the_process() {
    let dir = Dir::new();
    let locks = dir.open();
    let lease = hold(&locks, "a").await;
    let force = |token| locks.force_release(lease.claim().key(), token, "ann");
    let fault = force(lease.claim().token()).await.unwrap_err();
    let Process { host, pid, program, .. } = Process::this_process();
    let whom = format!("end pid {pid} on `{host}` ({program}, \"deploy\", \"release 41\")");
    let message = format!("a file lock ends with its process: {whom}");
    assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Unsupported, message));
    assert_eq!(force(Token::random().unwrap()).await.unwrap(), Release::NotHeld);
    free(&locks, &lease).await;
    assert_eq!(force(lease.claim().token()).await.unwrap(), Release::NotHeld);
}

/// Claims that kernel locks cannot support are refused before anything is tried.
#[tokio::test]
async fn unsupported_claims() {
    let dir = Dir::new();
    let locks = dir.open();
    let ttl = Duration::from_secs(30);
    let cases = [
        (
            ClaimOptions::new(ttl).mode(Mode::Permits { permits: 1, capacity: 2 }),
            "the kernel does not count file locks: they have no permits",
        ),
        (
            ClaimOptions::new(ttl).shared_owner(Some("run-1".into())),
            "file locks belong to one process: they have no shared owners",
        ),
    ];
    for (terms, message) in cases {
        let claim = Arc::new(Claim::new(key("a"), Token::random().unwrap(), terms));
        for fault in [locks.try_acquire(&claim).await.err(), locks.acquire(&claim).await.err()] {
            let fault = fault.unwrap();
            assert_eq!((fault.kind(), fault.to_string()), (FaultKind::Unsupported, message.into()));
        }
    }
    assert!(dir.names().is_empty());
}

/// The holder of a lock file that was removed gets `Lost`, and does not affect the lock of the next holder.
#[tokio::test]
async fn a_removed_file_is_a_lost_lock() {
    let dir = Dir::new();
    let (one, two) = (dir.open(), dir.open());
    let (renewed, released) = (hold(&one, "a").await, hold(&one, "b").await);
    fs::remove_file(dir.path("a.lock")).unwrap();
    fs::remove_file(dir.path("b.lock")).unwrap();
    let (a, b) = (hold(&two, "a").await, hold(&two, "b").await);
    assert!(a.fence() > renewed.fence());
    let answer = renew(&one, &renewed).await;
    assert!(matches!(answer, Some(Renewal::Lost(Loss::Gone))), "{answer:?}");
    for lost in [&renewed, &released] {
        assert_eq!(one.release(lost, AfterRelease::Free).await.unwrap(), Release::NotHeld);
    }
    assert_eq!(list(&one, "*").await.len(), 2);
    free(&two, &a).await;
    free(&two, &b).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// A directory that a cleaner removed is created again.
#[tokio::test]
async fn a_removed_directory_comes_back() {
    let dir = Dir::new();
    let locks = dir.open();
    fs::remove_dir(&dir.0).unwrap();
    assert!(list(&locks, "*").await.is_empty());
    take_and_free(&locks, "a").await;
    assert_eq!(fs::metadata(&dir.0).unwrap().permissions().mode() & 0o777, 0o700);
}

/// A watched lease gets a notice when another process waits, and only then; afterwards the thread ends.
#[tokio::test]
async fn watching() {
    let (dir, waiting) = (Dir::new(), claim("a"));
    let (one, two) = (dir.open(), dir.open());
    let mut notices = one.shared.notifier.notices();
    let lease = hold(&one, "a").await;
    one.watch_contention(&lease);
    one.watch_contention(&lease);
    assert_eq!(threads(&one), 1);
    let task = wait(&two, &waiting);
    let notice = within("the notice", notices.next()).await;
    let token = lease.claim().token();
    assert_eq!(notice, Some(Notice::Contended { key: key("a"), token }));
    until("the thread's end", async || threads(&one) == 0).await;
    one.watch_contention(&lease);
    free(&one, &lease).await;
    within("the hand-over", task).await.unwrap().unwrap();
    until("the thread's end", async || threads(&one) == 0).await;
}

/// Names that a file system could confuse with each other, or with a path, are different locks.
#[tokio::test]
async fn odd_names_are_different_locks() {
    let dir = Dir::new();
    let locks = dir.open();
    let long = |end: &str| format!("{}{end}", "Ä".repeat(250));
    let mut names = vec![long("1"), long("2")];
    names.extend(
        [
            "a",
            "A",
            "a.lock",
            "fence",
            ".",
            "..",
            "/etc/passwd",
            "a/b",
            "a b",
            "~",
            "%41",
            "🔒",
            "*",
        ]
        .map(String::from),
    );
    let mut leases = Vec::new();
    for name in &names {
        leases.push(hold(&locks, name).await);
    }
    names.sort();
    let listed: Vec<_> = list(&locks, "*").await.iter().map(|i| i.key.to_string()).collect();
    assert_eq!(listed, names);
    for lease in leases {
        free(&locks, &lease).await;
    }
    assert_eq!(dir.names(), ["fence"]);
}
