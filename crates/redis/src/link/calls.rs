//! Calls under way, and the room that they take.
//!
//! In: a connection and a command. Out: the driver's reply.
//!
//! The driver's future for one call is larger than what the system's allocator keeps for each thread;
//! made and freed for every request, all threads would queue for it. So the room of a call that is done
//! is kept for the next one. A call that is dropped before takes its room with it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio_util::sync::ReusableBoxFuture;

/// How many rooms are kept: as many as the driver takes requests at once, about a megabyte.
const KEPT_MAX: usize = 1_024;

type Room = ReusableBoxFuture<'static, RedisResult<Value>>;

#[derive(Default)]
pub(super) struct Calls {
    free: Mutex<Vec<Room>>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Calls {
    /// Sends `command` when it is first polled.
    pub(super) fn call(&self, connection: MultiplexedConnection, command: Arc<Cmd>) -> Call<'_> {
        let asked = ask(connection, command);
        let kept = self.free().pop();
        let room = match kept {
            Some(mut room) => {
                room.set(asked);
                room
            }
            None => Room::new(asked),
        };
        Call { calls: self, room: Some(room) }
    }

    fn keep(&self, room: Room) {
        let mut free = self.free();
        if free.len() < KEPT_MAX {
            free.push(room);
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<Room>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(mut connection: MultiplexedConnection, command: Arc<Cmd>) -> RedisResult<Value> {
    connection.send_packed_command(&command).await
}

/// A call under way.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    /// Until it is done.
    room: Option<Room>,
}

impl Future for Call<'_> {
    type Output = RedisResult<Value>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(room) = &mut self.room else { return Poll::Pending };
        let reply = std::task::ready!(room.poll(cx));
        if let Some(room) = self.room.take() {
            self.calls.keep(room);
        }
        Poll::Ready(reply)
    }
}
