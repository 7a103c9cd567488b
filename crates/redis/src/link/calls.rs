//! Calls under way: what many tasks ask for at a time goes to the driver together.
//!
//! In: commands. Out: the driver's reply to each.
//!
//! The driver's price is by request, not by command: a message to its task, a buffer, a wake-up. So
//! whoever asks leaves the command here, and a carrier takes along all that has been left meanwhile.
//! Commands go out in the order in which they were left.
//!
//! It waits for as many as the server still has to answer: while the server works on one half of what
//! is asked for, the other half comes together. One that has nothing to do is never kept waiting.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind::BrokenPipe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tenure_core::backend::BoxFuture;
use tokio::sync::oneshot;

/// How many commands go out together: enough to share the price.
const TOGETHER_MAX: usize = 32;

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct Calls(Arc<Mutex<Left>>);

/// What was left for the carrier.
#[derive(Default)]
struct Left {
    calls: VecDeque<Call>,
    /// To be woken when there is enough again.
    carrier: Option<Waker>,
    /// How many are enough.
    enough: usize,
    /// There is no carrier any more.
    closed: bool,
}

/// One command, and who waits for its reply.
struct Call {
    command: Cmd,
    way: Way,
    reply: oneshot::Sender<RedisResult<Value>>,
}

/// How a command is brought to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As it is.
    Plain,
    /// With `ASKING` right before it, and nothing between them: to a node of a cluster that does not have
    /// the slot yet.
    Asking,
}

/// The reply to a call, when it is there.
pub(super) struct Reply(oneshot::Receiver<RedisResult<Value>>);

impl Future for Reply {
    type Output = RedisResult<Value>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let heard = ready!(Pin::new(&mut self.0).poll(cx));
        // Without its carrier, it is as if the connection had broken.
        Poll::Ready(heard.unwrap_or_else(|_| Err(io::Error::from(BrokenPipe).into())))
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Calls {
    /// With their carrier, which is to run where the connection lives.
    pub(super) fn new(connection: MultiplexedConnection) -> (Self, Carrier) {
        let calls = Calls(Arc::default());
        let (under_way, unanswered) = Default::default();
        let carrier = Carrier { calls: calls.clone(), connection, under_way, unanswered };
        (calls, carrier)
    }

    /// Leaves `command` to be sent, whether or not its reply is waited for.
    pub(super) fn call(&self, command: Cmd, way: Way) -> Reply {
        let (reply, heard) = oneshot::channel();
        let carrier = self.left().add(Call { command, way, reply });
        if let Some(carrier) = carrier {
            carrier.wake();
        }
        Reply(heard)
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Left {
    /// Who is to be woken for it.
    fn add(&mut self, call: Call) -> Option<Waker> {
        if !self.closed {
            self.calls.push_back(call);
        }
        if self.calls.len() < self.enough { None } else { self.carrier.take() }
    }

    /// The next to go out together, if there are `enough`; or none, and then `carrier` is woken when
    /// there are.
    fn take(&mut self, enough: usize, carrier: &Waker) -> Vec<Call> {
        if self.calls.len() < enough {
            (self.carrier, self.enough) = (Some(carrier.clone()), enough);
            return Vec::new();
        }
        let many = self.calls.len().min(TOGETHER_MAX);
        self.calls.drain(..many).collect()
    }
}

/// Takes calls to the driver, and brings the replies.
pub(super) struct Carrier {
    calls: Calls,
    connection: MultiplexedConnection,
    /// Answered in this order.
    under_way: VecDeque<Together>,
    /// How many calls those are.
    unanswered: usize,
}

/// Calls that went out together, and how many.
struct Together {
    sent: BoxFuture<'static, ()>,
    many: usize,
}

impl Future for Carrier {
    type Output = ();

    /// Never ends by itself.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.bring(cx);
        while self.take_along(cx) {}
        Poll::Pending
    }
}

impl Carrier {
    fn bring(&mut self, cx: &mut Context<'_>) {
        while let Some(first) = self.under_way.front_mut() {
            if first.sent.as_mut().poll(cx).is_pending() {
                return;
            }
            self.unanswered -= first.many;
            self.under_way.pop_front();
        }
    }

    /// Whether there was enough to take.
    fn take_along(&mut self, cx: &mut Context<'_>) -> bool {
        let enough = self.unanswered.clamp(1, TOGETHER_MAX);
        let calls = self.calls.left().take(enough, cx.waker());
        if calls.is_empty() {
            return false;
        }
        let many = calls.len();
        let mut sent: BoxFuture<'static, ()> = Box::pin(send(self.connection.clone(), calls));
        // Polled once, it stands in the driver's queue.
        if sent.as_mut().poll(cx).is_pending() {
            self.under_way.push_back(Together { sent, many });
            self.unanswered += many;
        }
        true
    }
}

/// With the runtime it ran on, or with its connection.
impl Drop for Carrier {
    fn drop(&mut self) {
        let mut left = self.calls.left();
        left.closed = true;
        left.calls.clear();
    }
}

/// Sends them, and hands out the replies. Whoever does not wait any more is none the wiser.
async fn send(mut connection: MultiplexedConnection, mut calls: Vec<Call>) {
    if calls.len() == 1
        && let Some(Call { command, reply, .. }) = calls.pop_if(|call| call.way == Way::Plain)
    {
        let _ = reply.send(connection.send_packed_command(&command).await);
        return;
    }
    let mut commands = Pipeline::with_capacity(calls.len());
    let add = |Call { command, way, reply }| {
        if way == Way::Asking {
            commands.cmd("ASKING");
        }
        commands.add_command(command);
        (way, reply)
    };
    let replies: Vec<_> = calls.into_iter().map(add).collect();
    let values = connection.send_packed_commands(&commands, 0, commands.len()).await;
    hand_out(replies, values);
}

type Replies = Vec<(Way, oneshot::Sender<RedisResult<Value>>)>;

fn hand_out(replies: Replies, values: RedisResult<Vec<Value>>) {
    let mut values = values.map(Vec::into_iter);
    for (way, reply) in replies {
        let mut next = || match &mut values {
            Ok(values) => values.next().map(Ok),
            Err(error) => Some(Err(error.clone())),
        };
        if way == Way::Asking {
            // Whatever it says, the reply to what follows it says more.
            next();
        }
        if let Some(value) = next() {
            let _ = reply.send(value);
        }
    }
}
