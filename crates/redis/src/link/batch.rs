//! Calls in flight: concurrent requests of many tasks go to the driver together.
//!
//! In: commands. Out: the driver's reply to each.
//!
//! A call that finds nothing in flight goes to the driver in the task of its caller. The cost of the driver
//! is per request, not per command: a message to its task, a buffer, a wake-up. So a call that comes while
//! others are in flight puts its command into a queue, and the flusher sends all queued commands together.
//! Commands are sent in the order in which they were queued.
//!
//! The flusher waits for as many commands as the server has yet to answer: while the server works on one half
//! of the requests, the other half is collected. If the server has nothing to do, no command is kept waiting.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind::BrokenPipe};
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tenure_core::backend::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::unconstrained;

/// How many commands are sent together: half of all there are, so that the server works on one half while the
/// other is collected. Never less than 32, if there are so many: below that the cost per command rises. Never
/// more than 64: above that it does not fall further.
const TOGETHER: usize = 32;
const TOGETHER_MAX: usize = 64;

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct BatchSender {
    connection: MultiplexedConnection,
    board: Arc<Queue>,
}

/// The calls in flight, and the queue for the flusher.
#[derive(Default)]
struct Queue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    calls: VecDeque<Call>,
    /// Sent by a caller that has dropped its future since.
    detached: Vec<Sent>,
    /// The flusher, woken when enough calls are queued again.
    carrier: Option<Waker>,
    /// How many calls the server has not answered yet.
    unanswered: usize,
    /// The flusher has ended.
    closed: bool,
}

/// A call in flight.
type Sent = BoxFuture<'static, RedisResult<Value>>;

/// One command, and the receiver of its reply.
struct Call {
    command: Cmd,
    way: SendMode,
    reply: oneshot::Sender<RedisResult<Value>>,
}

/// How a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Without any addition.
    Plain,
    /// So that the client that the command notifies gets its message before we get our reply. Redis flushes
    /// pending clients in reverse order of when they became pending. A leading `PING` makes us pending first,
    /// so the message is flushed before our reply.
    NotifyFirst,
    /// With `ASKING` right before it, and nothing between them: for a cluster node that does not own the slot
    /// yet.
    Asking,
}

impl SendMode {
    /// The command before it. Its reply is ignored: the reply to the command itself tells more.
    fn before(self) -> Option<&'static str> {
        match self {
            SendMode::Plain => None,
            SendMode::NotifyFirst => Some("PING"),
            SendMode::Asking => Some("ASKING"),
        }
    }
}

/// The future reply to a call.
pub(super) enum Reply {
    /// From the flusher.
    Carried(oneshot::Receiver<RedisResult<Value>>),
    /// From the driver itself.
    Alone(DirectCall),
}

/// A call that found nothing in flight.
pub(super) struct DirectCall {
    board: Arc<Queue>,
    /// `None` once it is answered.
    sent: Option<Sent>,
}

impl Future for Reply {
    type Output = RedisResult<Value>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Reply::Alone(alone) => alone.poll(cx),
            Reply::Carried(heard) => {
                let heard = ready!(Pin::new(heard).poll(cx));
                // Without the flusher the result is the same as for a broken connection.
                Poll::Ready(heard.unwrap_or_else(|_| Err(broken())))
            }
        }
    }
}

impl DirectCall {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        let Some(sent) = &mut self.sent else { return Poll::Ready(Err(broken())) };
        let reply = ready!(sent.as_mut().poll(cx));
        self.sent = None;
        let carrier = self.board.left().answered(1);
        carrier.into_iter().for_each(Waker::wake);
        Poll::Ready(reply)
    }
}

/// The caller does not wait any more: the flusher drives the call until it is sent and answered.
impl Drop for DirectCall {
    fn drop(&mut self) {
        let Some(sent) = self.sent.take() else { return };
        let mut left = self.board.left();
        if left.closed {
            // `sent` is dropped outside the mutex.
            return drop(left);
        }
        left.detached.push(sent);
        let carrier = left.carrier.take();
        drop(left);
        carrier.into_iter().for_each(Waker::wake);
    }
}

fn broken() -> RedisError {
    io::Error::from(BrokenPipe).into()
}

impl fmt::Debug for BatchSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl BatchSender {
    /// Also returns the flusher, which must run on the runtime of the connection.
    pub(super) fn new(connection: MultiplexedConnection) -> (Self, Flusher) {
        let board = Arc::<Queue>::default();
        let carrier = Flusher {
            board: board.clone(),
            connection: connection.clone(),
            under_way: VecDeque::new(),
        };
        (BatchSender { connection, board }, carrier)
    }

    /// Queues or sends `command`, whether or not the caller awaits the reply.
    pub(super) fn call(&self, command: Cmd, way: SendMode) -> Reply {
        let mut left = self.board.left();
        if left.is_idle() {
            left.unanswered = 1;
            let sent = send_now(self.connection.clone(), command, way);
            return Reply::Alone(DirectCall { board: self.board.clone(), sent: Some(sent) });
        }
        let (reply, heard) = oneshot::channel();
        let carrier = left.add(Call { command, way, reply });
        drop(left);
        carrier.into_iter().for_each(Waker::wake);
        Reply::Carried(heard)
    }
}

impl Queue {
    fn left(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the flusher has to do next.
enum Next {
    Nothing,
    See(Vec<Sent>),
    Send(Vec<Call>),
}

impl QueueState {
    /// Whether a call would find nothing in flight.
    fn is_idle(&self) -> bool {
        !self.closed && self.unanswered == 0 && self.calls.is_empty()
    }

    /// How many queued calls are enough to send now.
    fn enough(&self) -> usize {
        self.unanswered.clamp(1, self.most())
    }

    /// The most calls that are sent together now.
    fn most(&self) -> usize {
        ((self.unanswered + self.calls.len()) / 2).clamp(TOGETHER, TOGETHER_MAX)
    }

    /// Queues a call. Returns the flusher's waker if it must be woken.
    fn add(&mut self, call: Call) -> Option<Waker> {
        if !self.closed {
            self.calls.push_back(call);
        }
        if self.calls.len() < self.enough() { None } else { self.carrier.take() }
    }

    /// So many calls were answered. Returns the flusher's waker if the queued calls are enough now.
    fn answered(&mut self, many: usize) -> Option<Waker> {
        self.unanswered = self.unanswered.saturating_sub(many);
        if self.calls.len() < self.enough() { None } else { self.carrier.take() }
    }

    /// What is to be done; if nothing, the flusher is woken later.
    fn next(&mut self, carrier: &Waker) -> Next {
        // Detached calls come first: they were made before the queued ones.
        if !self.detached.is_empty() {
            return Next::See(mem::take(&mut self.detached));
        }
        if self.calls.len() < self.enough() {
            self.carrier = Some(carrier.clone());
            return Next::Nothing;
        }
        let many = self.calls.len().min(self.most());
        self.unanswered += many;
        Next::Send(self.calls.drain(..many).collect())
    }
}

/// Sends the queued calls to the driver, and distributes the replies.
pub(super) struct Flusher {
    board: Arc<Queue>,
    connection: MultiplexedConnection,
    /// Answered in this order.
    under_way: VecDeque<InFlight>,
}

/// Calls that were sent together, and their number.
struct InFlight {
    sent: BoxFuture<'static, ()>,
    many: usize,
}

impl Future for Flusher {
    type Output = ();

    /// Never ends by itself.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.poll_replies(cx);
            if !self.poll_queue(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl Flusher {
    fn poll_replies(&mut self, cx: &mut Context<'_>) {
        while let Some(first) = self.under_way.front_mut() {
            if first.sent.as_mut().poll(cx).is_pending() {
                return;
            }
            // The returned waker is our own: `poll_queue` runs next anyway.
            self.board.left().answered(first.many);
            self.under_way.pop_front();
        }
    }

    /// Whether there was anything to do.
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> bool {
        let next = self.board.left().next(cx.waker());
        match next {
            Next::Nothing => return false,
            // A detached call was sent before everything in flight.
            Next::See(orphans) => orphans.into_iter().for_each(|sent| {
                let sent = Box::pin(async move { drop(sent.await) });
                self.under_way.push_front(InFlight { sent, many: 1 });
            }),
            Next::Send(calls) => {
                let many = calls.len();
                let sent = Box::pin(unconstrained(send(self.connection.clone(), calls)));
                self.under_way.push_back(InFlight { sent, many });
                // Once polled, it is in the driver's queue.
                if let Some(InFlight { sent, .. }) = self.under_way.back_mut()
                    && sent.as_mut().poll(cx).is_ready()
                {
                    self.under_way.pop_back();
                    self.board.left().answered(many);
                }
            }
        }
        true
    }
}

/// The flusher ends with its runtime, or with its connection.
impl Drop for Flusher {
    fn drop(&mut self) {
        let mut left = self.board.left();
        left.closed = true;
        let gone = (mem::take(&mut left.calls), mem::take(&mut left.detached));
        drop(left);
        drop(gone);
    }
}

/// Sends one command, which is in the driver's queue when this returns, whatever budget the calling task has
/// used up: a command that stayed behind could be overtaken by the command that undoes it.
fn send_now(connection: MultiplexedConnection, command: Cmd, way: SendMode) -> Sent {
    let mut sent: Sent = Box::pin(unconstrained(send_alone(connection, command, way)));
    match sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Box::pin(std::future::ready(reply)),
        Poll::Pending => sent,
    }
}

/// Sends one command, with the command that goes before it.
async fn send_alone(
    mut connection: MultiplexedConnection,
    command: Cmd,
    way: SendMode,
) -> RedisResult<Value> {
    let Some(before) = way.before() else {
        return connection.send_packed_command(&command).await;
    };
    let mut both = Pipeline::with_capacity(2);
    both.cmd(before).add_command(command);
    let replies = connection.send_packed_commands(&both, 1, 1).await?;
    replies.into_iter().next().ok_or_else(broken)
}

/// Sends the calls, and distributes the replies. A reply whose caller does not wait any more is dropped.
async fn send(mut connection: MultiplexedConnection, mut calls: Vec<Call>) {
    if calls.len() == 1
        && let Some(Call { command, way, reply }) = calls.pop()
    {
        let _ = reply.send(send_alone(connection, command, way).await);
        return;
    }
    let mut commands = Pipeline::with_capacity(calls.len());
    let add = |Call { command, way, reply }| {
        if let Some(before) = way.before() {
            commands.cmd(before);
        }
        commands.add_command(command);
        (way, reply)
    };
    let replies: Vec<_> = calls.into_iter().map(add).collect();
    let values = connection.send_packed_commands(&commands, 0, commands.len()).await;
    hand_out(replies, values);
}

type Replies = Vec<(SendMode, oneshot::Sender<RedisResult<Value>>)>;

fn hand_out(replies: Replies, values: RedisResult<Vec<Value>>) {
    let mut values = values.map(Vec::into_iter);
    for (way, reply) in replies {
        let mut next = || match &mut values {
            Ok(values) => values.next().map(Ok),
            Err(error) => Some(Err(error.clone())),
        };
        if way.before().is_some() {
            next();
        }
        if let Some(value) = next() {
            let _ = reply.send(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(calls: usize, unanswered: usize) -> QueueState {
        let call = || Call {
            command: redis::cmd("PING"),
            way: SendMode::Plain,
            reply: oneshot::channel().0,
        };
        let calls = (0..calls).map(|_| call()).collect();
        QueueState { calls, unanswered, ..QueueState::default() }
    }

    /// One half is collected while the server works on the other; an idle server is not kept waiting.
    #[test]
    fn half_of_them_go_out_at_a_time() {
        assert_eq!(left(0, 0).enough(), 1);
        assert_eq!(left(3, 5).enough(), 5);
        assert_eq!((left(64, 0).most(), left(0, 64).enough()), (32, 32));
        assert_eq!((left(50, 50).most(), left(500, 12).most()), (50, 64));
        let Next::Send(calls) = left(500, 12).next(Waker::noop()) else { panic!("they go out") };
        assert_eq!(calls.len(), 64);
    }
}
