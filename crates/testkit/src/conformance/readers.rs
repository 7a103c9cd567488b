//! Readers and writers of one key.

use std::time::Duration;

use tenure_core::backend::Loss;
use tenure_core::{Locker, Mode, Owner, ReadGuard, Released, Renew};
use tokio::time::timeout;

use super::support::{
    becomes_free, both, can_be_had, eventually, exported, hold, look, refused, start, waiters_are,
    within,
};
use super::{Fixture, Started};

/// Whether the engine has readers. An engine without them refuses them.
async fn has_readers<F: Fixture>(f: &F) -> bool {
    let has = f.capabilities().await.readers;
    if !has {
        let (locker, key) = (f.locker().await, f.key("refused"));
        assert!(refused(locker.read(&key)).await.is_unsupported());
        assert!(refused(locker.try_read(&key)).await.is_unsupported());
    }
    has
}

async fn reads(locker: &Locker, key: &str) -> ReadGuard {
    within("a reader's turn", locker.read(key).into_future()).await.expect("readers are admitted")
}

/// A writer of another process that waits for `key`.
async fn writer_waits(
    locker: &Locker,
    key: &str,
) -> Started<Result<tenure_core::Guard, tenure_core::Error>> {
    let mut writer = start(locker.write(key)).await;
    writer.until(waiters_are(locker, key, 1)).await;
    writer
}

/// Waits until new readers are kept out. Where the engine shows who waits, they are at once.
async fn readers_are_kept_out(locker: &Locker, key: &str) {
    let kept_out = || async { locker.try_read(key).await.expect("an answer").is_none() };
    let shown = look(locker, key).await.is_some_and(|info| info.waiters.is_some());
    assert!(!shown || kept_out().await, "a writer waits");
    eventually("new readers to be kept out", kept_out).await;
}

/// B2: readers of several processes hold a key together. A writer gets it when the last of them has released.
pub async fn readers_hold_together<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let (one, two) = (reads(&a, &key).await, reads(&b, &key).await);
    assert!(one.is_held() && two.is_held());
    assert!(c.try_read(&key).await.unwrap().is_some(), "nobody waits");
    assert!(!can_be_had(&c, &key).await);
    assert_eq!(one.release().await.unwrap(), Released::Freed);
    assert!(!can_be_had(&c, &key).await, "one of two has released");
    two.release().await.unwrap();
    becomes_free(&c, &key).await;
}

/// B2: a writer keeps out the readers of its own and of other processes.
pub async fn a_writer_is_alone<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let writer = within("a free lock", a.write(&key).into_future()).await.unwrap();
    assert!(a.try_read(&key).await.unwrap().is_none());
    assert!(b.try_read(&key).await.unwrap().is_none());
    assert!(refused(b.read(&key).wait(Duration::from_millis(50))).await.is_timeout());
    writer.release().await.unwrap();
    drop(reads(&b, &key).await);
}

/// B2, G8, t99: a reader does not pass a writer that waits. The writer gets the key, and then the reader.
pub async fn a_waiting_writer_is_not_passed<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let reader = reads(&a, &key).await;
    let mut writer = writer_waits(&b, &key).await;
    writer.until(readers_are_kept_out(&c, &key)).await;
    let mut later = start(c.read(&key)).await;
    later.until(waiters_are(&c, &key, 2)).await;
    reader.release().await.unwrap();
    let writer = within("the writer's turn", writer).await.unwrap();
    assert!(!can_be_had(&a, &key).await);
    let (released, later) = within("the reader's turn", both(writer.release(), later)).await;
    assert!(released.is_ok() && later.unwrap().is_held());
}

/// B2, t100: a reader is served although writers keep coming.
pub async fn a_waiting_reader_is_not_passed<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let first = hold(&a, &key).await;
    let mut reader = start(b.read(&key)).await;
    reader.until(waiters_are(&b, &key, 1)).await;
    let mut second = start(c.write(&key)).await;
    second.until(waiters_are(&c, &key, 2)).await;
    first.release().await.unwrap();
    let read = async {
        let reader = reader.await.unwrap();
        let fence = reader.fence();
        reader.release().await.map(|_| fence).unwrap()
    };
    let write = async {
        let writer = second.await.unwrap();
        let fence = writer.fence();
        writer.release().await.map(|_| fence).unwrap()
    };
    let (read, written) = within("both turns", both(read, write)).await;
    // Without an order the kernel chooses, and both are served.
    assert!(read < written || !f.capabilities().await.fifo);
}

/// B2, t103: the readers behind a writer get the key together.
pub async fn readers_come_together<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, key) = (f.locker().await, f.key("k"));
    let writer = hold(&a, &key).await;
    let mut waiting = Vec::new();
    for count in 1..=4 {
        let locker = f.locker().await;
        let mut reader = start(locker.read(&key)).await;
        reader.until(waiters_are(&a, &key, count)).await;
        waiting.push(reader);
    }
    writer.release().await.unwrap();
    let mut readers = Vec::new();
    for reader in waiting {
        readers.push(within("a reader's turn", reader).await.unwrap());
    }
    assert!(readers.iter().all(|reader| reader.is_held()), "all at the same time");
}

/// t102: a writer that gives up lets in the readers that it held back.
pub async fn a_writer_that_gives_up_holds_nobody_back<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, c, key) = (f.locker().await, f.locker().await, f.locker().await, f.key("k"));
    let reader = reads(&a, &key).await;
    let mut writer = writer_waits(&b, &key).await;
    writer.until(readers_are_kept_out(&c, &key)).await;
    let mut later = start(c.read(&key)).await;
    later.until(waiters_are(&c, &key, 2)).await;
    drop(writer);
    let later = within("the reader that was held back", later).await.unwrap();
    assert!(reader.is_held() && later.is_held());
}

/// B2, t72: the fence of a reader is higher than those of the writers before it, and lower than that of the next.
pub async fn fences_of_readers_and_writers<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let before = hold(&a, &key).await;
    let first = before.fence();
    before.release().await.unwrap();
    let (one, two) = (reads(&a, &key).await, reads(&b, &key).await);
    assert!(one.fence() > first && two.fence() > first);
    let highest = one.fence().max(two.fence());
    one.release().await.unwrap();
    two.release().await.unwrap();
    assert!(hold(&b, &key).await.fence() > highest);
}

/// B2: the readers of one process share one lease: the engine sees one holder.
pub async fn readers_of_a_process_share_a_lease<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (one, two) = (reads(&a, &key).await, reads(&a, &key).await);
    let shown = look(&b, &key).await.unwrap();
    assert_eq!(shown.holders.len(), 1);
    assert_eq!(*shown.mode(), Mode::Read);
    assert_eq!(one.fence(), two.fence());
    let (first, second) = (one.held(), two.held());
    one.release().await.unwrap();
    assert!(!first.is_held() && second.is_held());
    assert_eq!(within("the end of the released view", first.ended()).await, None);
    assert!(!can_be_had(&b, &key).await);
    two.release().await.unwrap();
    becomes_free(&b, &key).await;
}

/// t104: once a writer of another process waits, new readers of a process do not share its lease.
pub async fn no_reader_joins_before_a_writer<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let reader = reads(&a, &key).await;
    let mut writer = writer_waits(&b, &key).await;
    writer.until(within("the notice of the writer", reader.contended())).await;
    writer.until(readers_are_kept_out(&a, &key)).await;
    let mut later = start(a.read(&key)).await;
    later.until(waiters_are(&b, &key, 2)).await;
    reader.release().await.unwrap();
    let writer = within("the writer's turn", writer).await.unwrap();
    let (released, later) = within("the reader's turn", both(writer.release(), later)).await;
    assert!(released.is_ok() && later.unwrap().is_held());
}

/// t104: the second writer that waits is noticed as soon as the first, who gave up. No renewal is due meanwhile.
pub async fn a_second_writer_is_noticed<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let reader = a.read(&key).ttl(Duration::from_secs(120)).await.unwrap();
    let writer = writer_waits(&b, &key).await;
    within("the notice of the first writer", reader.contended()).await;
    drop(writer);
    eventually("a renewal after the first writer", async || {
        reader.renew().await.unwrap();
        timeout(Duration::ZERO, reader.contended()).await.is_err()
    })
    .await;
    let mut writer = writer_waits(&b, &key).await;
    writer.until(within("the notice of the second writer", reader.contended())).await;
    assert!(a.try_read(&key).await.unwrap().is_none(), "the second writer waits");
    reader.release().await.unwrap();
    drop(within("the second writer's turn", writer).await.unwrap());
}

/// t115: an owner reads again while a writer waits, and reads while it writes. If it asks to write while it reads, it
/// gets an error at once.
pub async fn an_owner_reads_again<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key, owner) = (f.locker().await, f.locker().await, f.key("k"), Owner::new());
    let ours =
        |request: tenure_core::LockRequest<tenure_core::Shared>| request.owner(owner.clone());
    let outer = ours(a.read(&key)).await.unwrap();
    let mut writer = writer_waits(&b, &key).await;
    writer.until(within("the notice of the writer", outer.contended())).await;
    let inner = within("a nested read", ours(a.read(&key)).into_future()).await.unwrap();
    assert_eq!((outer.depth(), inner.depth()), (1, 2));
    let error = refused(a.write(&key).owner(owner.clone())).await;
    assert!(error.is_already_held() && error.to_string().contains("held as shared"), "{error}");
    assert_eq!(inner.release().await.unwrap(), Released::StillHeld(1));
    outer.release().await.unwrap();
    within("the writer's turn", writer).await.unwrap().release().await.unwrap();

    let writes = a.write(&key).owner(owner.clone()).await.unwrap();
    let inside = within("a read inside a write", ours(a.read(&key)).into_future()).await.unwrap();
    assert_eq!(inside.depth(), 2);
    assert!(b.try_read(&key).await.unwrap().is_none(), "the key is still held alone");
    drop((inside, writes));
}

/// t116: the reader that is forced out loses the key, and no other does.
pub async fn one_reader_is_forced_out<F: Fixture>(f: &F) {
    if !has_readers(f).await || !f.capabilities().await.force_release {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (one, also) = (reads(&a, &key).await, reads(&a, &key).await);
    let token = look(&b, &key).await.unwrap().holders[0].token.unwrap();
    let other = reads(&b, &key).await;
    b.force_release(&key, token, "test").await.unwrap();
    for reader in [&one, &also] {
        let loss = within("the loss", reader.lost()).await;
        assert!(matches!(loss, Loss::Forced(_)), "{loss:?}");
    }
    assert!(!one.is_held() && !also.is_held() && other.is_held());
    assert!(one.release().await.is_err_and(|error| error.is_lost()));
}

/// A11: a reader that is dropped while it waits leaves nothing.
pub async fn a_dropped_reader_leaves_nothing<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let writer = hold(&a, &key).await;
    let mut reader = start(b.read(&key)).await;
    reader.until(waiters_are(&a, &key, 1)).await;
    drop(reader);
    waiters_are(&a, &key, 0).await;
    writer.release().await.unwrap();
    drop(reads(&b, &key).await);
    becomes_free(&a, &key).await;
}

/// B2: `run` reads, and its body re-enters.
pub async fn a_body_reads<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let ran = a.read(&key).run(async |held| {
        let again = a.read(&key).await?;
        assert!(held.is_held() && again.depth() == 2);
        assert!(b.try_read(&key).await?.is_some());
        Ok::<_, tenure_core::Error>(())
    });
    within("the body", ran).await.unwrap().unwrap();
    eventually("the key to be free", || can_be_had(&b, &key)).await;
}

/// B2, A15: readers that do not renew are notified when their leases end, and a writer of another process gets the key.
pub async fn readers_without_renewal_expire<F: Fixture>(f: &F) {
    // A lease that does not expire is not lost in this way.
    if !has_readers(f).await || !f.capabilities().await.expires {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let ask = || a.read(&key).ttl(f.short_ttl()).renew(Renew::Off);
    let (one, two) = (ask().await.unwrap(), ask().await.unwrap());
    let writer = writer_waits(&b, &key).await;
    let losses = both(one.lost(), two.lost());
    let (writer, losses) = within("the losses, and the writer's turn", both(writer, losses)).await;
    assert_eq!(losses, (Loss::Expired, Loss::Expired));
    assert!(writer.unwrap().is_held() && !one.is_held() && !two.is_held());
    for reader in [one, two] {
        assert!(refused(reader.release()).await.is_lost());
    }
}

/// B2, A26: a shutdown ends the readers of its process, and no others.
pub async fn a_shutdown_ends_the_readers_of_a_process<F: Fixture>(f: &F) {
    if !has_readers(f).await {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let (one, two, other) = (reads(&a, &key).await, reads(&a, &key).await, reads(&b, &key).await);
    within("the shutdown", a.shutdown(Duration::ZERO)).await;
    for reader in [&one, &two] {
        assert_eq!(within("the loss", reader.lost()).await, Loss::Shutdown);
    }
    assert!(other.is_held() && !can_be_had(&b, &key).await);
    other.release().await.unwrap();
    becomes_free(&b, &key).await;
}

/// A27, B2: the token of a reader makes no lock.
pub async fn a_reader_is_not_adopted<F: Fixture>(f: &F) {
    if !has_readers(f).await || !f.capabilities().await.adoptable {
        return;
    }
    let (a, b, key) = (f.locker().await, f.locker().await, f.key("k"));
    let reader = reads(&a, &key).await;
    let token = exported(&b, &key).await;
    assert!(refused(b.adopt(&token)).await.is_lost());
    assert!(reader.is_held() && b.try_read(&key).await.unwrap().is_some());
    reader.release().await.unwrap();
    becomes_free(&b, &key).await;
}
