//! Readers and writers of one key, and writers that die or stop while they wait.

use std::sync::mpsc::channel;
use std::time::Instant;

use super::super::files::Files;
use super::super::readers::{ReaderFile, Readers};
use super::super::record::Record;
use super::*;

pub(super) fn reader(name: &str) -> Arc<Claim> {
    let options = ClaimOptions::new(Duration::from_secs(30)).mode(Mode::Read);
    Arc::new(Claim::new(key(name), Token::random().unwrap(), options))
}

async fn read(locks: &FileLocks, name: &str) -> Arc<Lease> {
    attempt(locks, &reader(name)).await.unwrap()
}

/// B2: readers hold a lock together and keep a writer out. All are listed; the last one removes every file.
#[tokio::test]
async fn b2_readers_hold_together() {
    let dir = Dir::new();
    let (one, two, writer) = (dir.open(), dir.open(), dir.open());
    let (first, second) = (read(&one, "a").await, read(&two, "a").await);
    assert!(first.fence() < second.fence());
    hold_fails(&writer, "a").await;
    let [info] = &list(&writer, "*").await[..] else { panic!("one lock") };
    let holders: Vec<_> = info.holders.iter().map(|h| (h.mode.clone(), h.fence)).collect();
    let expected = [first.fence(), second.fence()].map(|fence| (Mode::Read, Some(fence)));
    assert_eq!(holders, expected);
    free(&one, &first).await;
    hold_fails(&writer, "a").await;
    free(&two, &second).await;
    assert_eq!(dir.names(), ["fence"]);
    take_and_free(&writer, "a").await;
}

/// B2: a reader cannot be forced out; the message names its process.
#[tokio::test]
async fn b2_force_names_the_reader() {
    let dir = Dir::new();
    let locks = dir.open();
    let lease = read(&locks, "a").await;
    let force = |token| locks.force_release(lease.claim().key(), token, "ann");
    let message = force(lease.claim().token()).await.unwrap_err().to_string();
    assert!(message.starts_with("a file lock ends with its process: end pid "), "{message}");
    assert_eq!(force(Token::random().unwrap()).await.unwrap(), Release::NotHeld);
    free(&locks, &lease).await;
}

/// A28: a reader that leaves with `min_hold` keeps everybody out for its rest, but not those who read already.
#[tokio::test]
async fn a28_a_reader_leaves_the_lock_closed() {
    let (dir, clock) = (Dir::new(), Clock::manual());
    let locks = FileLocks::with_clock(&dir.0, clock.clone()).unwrap();
    let (leaves, stays) = (read(&locks, "a").await, read(&locks, "a").await);
    locks.release(&leaves, AfterRelease::Cooldown(Duration::from_secs(10))).await.unwrap();
    assert!(attempt(&locks, &reader("a")).await.unwrap_err().cooling_down);
    assert!(matches!(renew(&locks, &stays).await, Some(Renewal::Renewed { .. })));
    free(&locks, &stays).await;
    assert!(hold_fails(&locks, "a").await.cooling_down);
    clock.advance(Duration::from_secs(10));
    take_and_free(&locks, "a").await;
    assert_eq!(dir.names(), ["fence"]);
}

/// C7: an inspection that was stopped while it looked at a new reader's file does not hold up that reader.
#[test]
fn c7_a_stopped_inspection_holds_up_nobody() {
    let dir = Dir::new();
    let files = Files::named(&dir.0, "a");
    let record = Record::of(&reader("a"), Fence::from_server(7));
    let stopped = fs::File::create(dir.path(&format!("a.~{}.0", record.fence.get()))).unwrap();
    stopped.lock_shared().unwrap();
    let (done, published) = channel();
    std::thread::spawn(move || {
        let published = ReaderFile::publish(&files, &record).unwrap();
        done.send((files, published)).unwrap();
    });
    let (files, published) = published.recv_timeout(DEADLINE).expect("no wait for the inspection");
    let alive = || Readers::of(&files).alive.len();
    assert_eq!(alive(), 1);
    published.remove();
    assert_eq!(alive(), 0);
}

/// A28: a reader that joins does not open a lock that another reader has just left closed.
#[test]
fn a28_a_reader_that_joins_opens_nothing() {
    let (dir, clock) = (Dir::new(), Clock::manual());
    let files = Files::named(&dir.0, "a");
    let mut fence = 0;
    let mut record = || {
        fence += 1;
        Record::of(&reader("a"), Fence::from_server(fence))
    };
    for round in 0..400 {
        let (mut leaves, mut joins) = (
            files.try_lock(LockKind::Shared).unwrap().unwrap(),
            files.try_lock(LockKind::Shared).unwrap().unwrap(),
        );
        let (left, joined) = (record(), record());
        leaves.describe(&left).unwrap();
        let begins = dir.path(&format!("a.~{}.0", joined.fence.get()));
        let closed = left.closed_for(Duration::from_secs(600), &clock);
        std::thread::scope(|scope| {
            scope.spawn(|| joins.describe(&joined).unwrap());
            // At another moment of its beginning in each round: some are between its two steps.
            while !begins.exists() {}
            let (begun, pause) = (Instant::now(), Duration::from_nanos(round * 100));
            while begun.elapsed() < pause {}
            leaves.close(&closed).unwrap();
        });
        assert!(Record::find(&files).unwrap().record().is_some_and(|record| record.is_closed()));
        leaves.unlock();
        joins.give_back();
        fs::remove_file(&files.record).unwrap();
    }
}

/// t99: a reader that comes while a writer waits does not pass it, and is served after it.
#[tokio::test]
async fn t99_a_waiting_writer_is_not_passed() {
    let dir = Dir::new();
    let locks = dir.open();
    let (inside, writer, late) = (read(&locks, "a").await, claim("a"), reader("a"));
    let write = wait(&locks, &writer);
    until_contended(&locks, &inside).await;
    until("the writer's mark", async || dir.names().contains(&"a.want".into())).await;
    assert!(attempt(&locks, &reader("a")).await.is_err(), "a try passes no writer");
    let read = wait(&locks, &late);
    until("the reader's wait", async || late.wait_status().holder.is_some()).await;
    free(&locks, &inside).await;
    let grant = within("the writer's turn", write).await.unwrap().unwrap();
    assert!(!read.is_finished());
    free(&locks, &Arc::new(Lease::new(writer, grant, locks.clock()))).await;
    let after = within("the reader's turn", read).await.unwrap().unwrap();
    assert!(grant.fence < after.fence);
    free(&locks, &Arc::new(Lease::new(late, after, locks.clock()))).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// t100: a reader waits for one writer, not for those that come later: writers that keep coming do not starve it.
#[tokio::test]
async fn t100_a_reader_is_next_after_one_writer() {
    let dir = Dir::new();
    let locks = dir.open();
    let (mut lease, late) = (hold(&locks, "a").await, reader("a"));
    let mut writer = claim("a");
    let mut write = wait(&locks, &writer);
    until("the writer's mark", async || dir.names().contains(&"a.want".into())).await;
    let read = wait(&locks, &late);
    until("the reader's wait", async || late.wait_status().holder.is_some()).await;
    // One writer is served while another waits. After that the reader waits in the kernel, beside the writers.
    for round in 0..200 {
        let next = claim("a");
        let next_write = wait(&locks, &next);
        until("the next writer", async || locks.shared.state().tickets.contains_key(&next.token()))
            .await;
        free(&locks, &lease).await;
        if read.is_finished() {
            break;
        }
        assert!(round < 199, "the reader starves");
        tokio::select! {
            grant = &mut write => {
                lease = Arc::new(Lease::new(writer, grant.unwrap().unwrap(), locks.clock()));
            }
            () = until("the reader's turn", async || read.is_finished()) => break,
        }
        (writer, write) = (next, next_write);
    }
    within("the reader's turn", read).await.unwrap().unwrap();
}

/// Starts the child of `test`, which waits to write `a`, beside a reader of ours.
#[cfg(target_os = "linux")]
async fn beside_a_waiting_child(
    test: &str,
    dir: &Dir,
) -> (FileLocks, Arc<Lease>, std::process::Child) {
    let locks = dir.open();
    let inside = read(&locks, "a").await;
    let child = processes::child_of(&format!("readers::{test}"), dir);
    until("the child's mark", async || dir.names().contains(&"a.want".into())).await;
    (locks, inside, child)
}

#[cfg(target_os = "linux")]
async fn stop(child: &std::process::Child) {
    use rustix::process::{Pid, Signal, kill_process};
    kill_process(Pid::from_child(child), Signal::STOP).unwrap();
    until("the child to stop", async || processes::is_stopped(child.id())).await;
}

/// t112: a writer that is stopped while it waits holds readers back for at most two seconds.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn t112_a_stopped_writer_holds_readers_back_briefly() {
    processes::hold_if_child().await;
    let dir = Dir::new();
    let name = "t112_a_stopped_writer_holds_readers_back_briefly";
    let (locks, inside, mut child) = beside_a_waiting_child(name, &dir).await;
    stop(&child).await;
    let stopped = Instant::now();
    let late = reader("a");
    within("the reader's turn", locks.acquire(&late)).await.unwrap();
    // Its last update may be up to a refresh old; the bound has room for a busy machine.
    assert!(stopped.elapsed() < Duration::from_secs(4), "{:?}", stopped.elapsed());
    assert!(attempt(&locks, &reader("a")).await.is_ok(), "and nobody after that");
    child.kill().unwrap();
    child.wait().unwrap();
    free(&locks, &inside).await;
}

/// t112: of two writers that wait one is stopped. New readers still wait, and the other one is served.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn t112_a_stopped_writer_starves_no_other() {
    processes::hold_if_child().await;
    let dir = Dir::new();
    let (locks, inside, mut child) =
        beside_a_waiting_child("t112_a_stopped_writer_starves_no_other", &dir).await;
    let writer = claim("a");
    let write = wait(&dir.open(), &writer);
    stop(&child).await;
    // Longer than the mark of the stopped writer counts.
    let late = reader("a");
    let held_back = tokio::time::timeout(Duration::from_secs(3), locks.acquire(&late)).await;
    assert!(held_back.is_err(), "the other writer still waits");
    locks.abandon(&late).await.unwrap();
    free(&locks, &inside).await;
    within("the other writer's turn", write).await.unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

/// t101: a writer that is killed while it waits holds back nobody, and leaves no files.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn t101_a_killed_writer_holds_nobody_back() {
    processes::hold_if_child().await;
    let dir = Dir::new();
    let (locks, inside, mut child) =
        beside_a_waiting_child("t101_a_killed_writer_holds_nobody_back", &dir).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let next = read(&locks, "a").await;
    free(&locks, &inside).await;
    free(&locks, &next).await;
    assert_eq!(dir.names(), ["fence"]);
}

/// C7: the share of a killed reader ends at once. The next holder or the next inspection removes its files.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn c7_a_killed_reader_leaves_a_free_lock() {
    if let Some(dir) = std::env::var_os(processes::CHILD_DIR) {
        let locks = FileLocks::open(dir).unwrap();
        locks.acquire(&reader("a")).await.unwrap();
        std::future::pending::<()>().await;
    }
    let dir = Dir::new();
    let locks = dir.open();
    let mut child = processes::child_of("readers::c7_a_killed_reader_leaves_a_free_lock", &dir);
    until("the child's share", async || {
        list(&locks, "a").await.iter().any(|info| *info.mode() == Mode::Read)
    })
    .await;
    let inside = read(&locks, "a").await;
    child.kill().unwrap();
    child.wait().unwrap();
    let [info] = &list(&locks, "*").await[..] else { panic!("one lock") };
    assert_eq!(info.holders.len(), 1, "the dead reader is not listed");
    free(&locks, &inside).await;
    take_and_free(&locks, "a").await;
    assert_eq!(dir.names(), ["fence"]);
}

/// C7: the only reader is killed. An inspection removes its files and knows how its claim ended, also after a writer.
#[tokio::test]
#[cfg(target_os = "linux")]
async fn c7_the_only_reader_is_killed() {
    if let Some(dir) = std::env::var_os(processes::CHILD_DIR) {
        let locks = FileLocks::open(dir).unwrap();
        locks.acquire(&reader("a")).await.unwrap();
        std::future::pending::<()>().await;
    }
    let dir = Dir::new();
    let locks = dir.open();
    for writes in [false, true] {
        let mut child = processes::child_of("readers::c7_the_only_reader_is_killed", &dir);
        let mut token = None;
        until("the child's share", async || {
            let infos = list(&locks, "a").await;
            token = infos.first().and_then(|info| info.holders.first()).and_then(|h| h.token);
            token.is_some()
        })
        .await;
        child.kill().unwrap();
        child.wait().unwrap();
        if writes {
            take_and_free(&locks, "a").await;
        }
        assert!(list(&locks, "*").await.is_empty());
        let ends = locks.end_reasons(&[(key("a"), token.unwrap())]).await.unwrap();
        assert_eq!(ends, [Some(Loss::Session.into())]);
        assert_eq!(dir.names(), ["fence"]);
    }
}
