//! A fork with a live guard: the child has a copy of everything, and must not free any of the parent's locks.
//!
//! The child drops its copy of one guard, tries to release another and to lock, and then lives on until the
//! parent closes the pipe. This tests a lock that the kernel ties to an open file: after the parent's
//! release, the child's copy of the file must not keep it.

use std::io::{Read, Write};
use std::time::Duration;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use tenure::{Guard, Locker};
use tenure_testkit::wait::outcome;

use crate::Target;

/// The state that parent and child share.
struct Scene {
    locker: Locker,
    dropped: Guard,
    released: Guard,
}

pub(crate) fn run(target: &Target) {
    let runtime = crate::runtime();
    let scene = runtime.block_on(set(target));
    println!("held {}", scene.dropped.fence());
    // The child reports its results on one pipe, and ends when the other one closes.
    let (mut from_child, to_parent) = std::io::pipe().expect("a pipe");
    let (from_parent, to_child) = std::io::pipe().expect("a pipe");
    match split() {
        ForkResult::Child => {
            drop((from_child, to_child));
            child(scene, to_parent, from_parent)
        }
        ForkResult::Parent { child } => {
            drop((to_parent, from_parent));
            let mut said = String::new();
            from_child.read_to_string(&mut said).expect("the child speaks");
            println!("child {said}");
            runtime.block_on(parent(target, scene));
            drop(to_child);
            println!("child ended {}", ended_well(child));
        }
    }
}

async fn set(target: &Target) -> Scene {
    let locker = tenure::connect(&target.url).await.expect("the engine can be used");
    let [dropped, released] = [":dropped", ":released"].map(|end| target.keys[0].clone() + end);
    let ttl = Duration::from_secs(3);
    let dropped = locker.lock(dropped).ttl(ttl).await.expect("free");
    let released = locker.lock(released).ttl(ttl).await.expect("free");
    Scene { locker, dropped, released }
}

#[allow(unsafe_code, reason = "fork is what this test is about")]
fn split() -> ForkResult {
    // SAFETY: the other threads of this process do not exist in the child, so it must not wait for a mutex
    // that one of them held. The engine's thread is idle at this point (both locks are held, the next renewal
    // is a second away). The child allocates, which glibc makes safe, writes to a pipe, and calls the guards'
    // code. That this code does not lock a mutex here is under test.
    unsafe { fork() }.expect("fork")
}

/// Tries everything that could free the parent's locks.
fn child(scene: Scene, mut to_parent: impl Write, mut from_parent: impl Read) -> ! {
    let Scene { locker, dropped, released } = scene;
    drop(dropped);
    let release = outcome(released.release());
    let lock = outcome(locker.try_lock("anything").into_future());
    // The locker is not dropped, so this process keeps its copies of the parent's open files.
    write!(to_parent, "release: {release}; lock: {lock}").expect("the parent listens");
    drop(to_parent);
    let _ = from_parent.read(&mut [0]);
    std::process::exit(0)
}

/// The parent still holds both locks after their ttl, and can release them although the child lives: one to a
/// rival that waits already, the other to a rival that asks later.
async fn parent(target: &Target, scene: Scene) {
    let Scene { locker, dropped, released } = scene;
    let rival = tenure::connect(&target.url).await.expect("the engine can be used");
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    for (guard, wait) in [(dropped, Duration::from_secs(20)), (released, Duration::ZERO)] {
        let key = guard.key().clone();
        let busy = rival.try_lock(key.as_str()).await.expect("an answer").is_none();
        println!("parent holds {}", guard.is_held() && busy);
        let request = rival.lock(key.as_str()).wait(wait);
        let next = match wait {
            Duration::ZERO => release_then(guard, request.into_future()).await,
            _ => {
                let waiting = tokio::spawn(request.into_future());
                tokio::time::sleep(Duration::from_millis(300)).await;
                release_then(guard, async { waiting.await.expect("no panic") }).await
            }
        };
        println!("free after release {}", next.is_ok());
    }
    drop(locker);
}

async fn release_then<T>(guard: Guard, then: impl Future<Output = T>) -> T {
    guard.release().await.expect("it was held");
    then.await
}

fn ended_well(child: Pid) -> bool {
    matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0)))
}
