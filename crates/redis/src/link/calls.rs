//! Calls under way: what many tasks ask for at a time goes to the driver together.
//!
//! In: commands. Out: the driver's reply to each.
//!
//! A call that finds nothing under way goes to the driver in the task that asks. The driver's price is
//! by request, not by command: a message to its task, a buffer, a wake-up. So whoever asks while others
//! do leaves the command here, and a carrier takes along all that has been left meanwhile. Commands go
//! out in the order in which they were left.
//!
//! It waits for as many as the server still has to answer: while the server works on one half of what
//! is asked for, the other half comes together. One that has nothing to do is never kept waiting.

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

/// How many commands go out together: half of all there are, so that the server works on one half while the
/// other comes together. Never fewer than share the price well, if they are there, and never more than
/// share it as well as any number.
const TOGETHER: usize = 32;
const TOGETHER_MAX: usize = 64;

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct Calls {
    connection: MultiplexedConnection,
    board: Arc<Board>,
}

/// What is under way, and what was left for the carrier.
#[derive(Default)]
struct Board(Mutex<Left>);

#[derive(Default)]
struct Left {
    calls: VecDeque<Call>,
    /// Sent by whoever asked, who has gone since.
    orphans: Vec<Sent>,
    /// To be woken when there is enough again.
    carrier: Option<Waker>,
    /// How many the server has not answered yet.
    unanswered: usize,
    /// There is no carrier any more.
    closed: bool,
}

/// A call on its way.
type Sent = BoxFuture<'static, RedisResult<Value>>;

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
    /// So that whoever it tells something hears of it before we are answered. A server writes first to
    /// whom it came to have something to say to last, and that is we, unless it had to say something to
    /// us before: the reply to `PING`, right before the command.
    OthersFirst,
    /// With `ASKING` right before it, and nothing between them: to a node of a cluster that does not have
    /// the slot yet.
    Asking,
}

impl Way {
    /// What goes before it. Whatever that is answered, the reply to what follows says more.
    fn before(self) -> Option<&'static str> {
        match self {
            Way::Plain => None,
            Way::OthersFirst => Some("PING"),
            Way::Asking => Some("ASKING"),
        }
    }
}

/// The reply to a call, when it is there.
pub(super) enum Reply {
    /// From the carrier.
    Carried(oneshot::Receiver<RedisResult<Value>>),
    /// From the driver itself.
    Alone(Alone),
}

/// A call that was alone when it was made.
pub(super) struct Alone {
    board: Arc<Board>,
    /// None once it is answered.
    sent: Option<Sent>,
}

impl Future for Reply {
    type Output = RedisResult<Value>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Reply::Alone(alone) => alone.poll(cx),
            Reply::Carried(heard) => {
                let heard = ready!(Pin::new(heard).poll(cx));
                // Without its carrier, it is as if the connection had broken.
                Poll::Ready(heard.unwrap_or_else(|_| Err(broken())))
            }
        }
    }
}

impl Alone {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        let Some(sent) = &mut self.sent else { return Poll::Ready(Err(broken())) };
        let reply = ready!(sent.as_mut().poll(cx));
        self.sent = None;
        let carrier = self.board.left().answered(1);
        carrier.into_iter().for_each(Waker::wake);
        Poll::Ready(reply)
    }
}

/// Nobody waits for it any more: the carrier sees to it that it is sent, and answered in its turn.
impl Drop for Alone {
    fn drop(&mut self) {
        let Some(sent) = self.sent.take() else { return };
        let mut left = self.board.left();
        if left.closed {
            // Dropped outside the mutex.
            return drop(left);
        }
        left.orphans.push(sent);
        let carrier = left.carrier.take();
        drop(left);
        carrier.into_iter().for_each(Waker::wake);
    }
}

fn broken() -> RedisError {
    io::Error::from(BrokenPipe).into()
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Calls {
    /// With their carrier, which is to run where the connection lives.
    pub(super) fn new(connection: MultiplexedConnection) -> (Self, Carrier) {
        let board = Arc::<Board>::default();
        let carrier = Carrier {
            board: board.clone(),
            connection: connection.clone(),
            under_way: VecDeque::new(),
        };
        (Calls { connection, board }, carrier)
    }

    /// Leaves `command` to be sent, whether or not its reply is waited for.
    pub(super) fn call(&self, command: Cmd, way: Way) -> Reply {
        let mut left = self.board.left();
        if left.is_idle() {
            left.unanswered = 1;
            let sent = send_now(self.connection.clone(), command, way);
            return Reply::Alone(Alone { board: self.board.clone(), sent: Some(sent) });
        }
        let (reply, heard) = oneshot::channel();
        let carrier = left.add(Call { command, way, reply });
        drop(left);
        carrier.into_iter().for_each(Waker::wake);
        Reply::Carried(heard)
    }
}

impl Board {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the carrier has to do next.
enum Next {
    Nothing,
    See(Vec<Sent>),
    Send(Vec<Call>),
}

impl Left {
    /// Whether a call would be alone.
    fn is_idle(&self) -> bool {
        !self.closed && self.unanswered == 0 && self.calls.is_empty()
    }

    /// How many go out together now.
    fn enough(&self) -> usize {
        self.unanswered.clamp(1, self.most())
    }

    /// And how many at the most.
    fn most(&self) -> usize {
        ((self.unanswered + self.calls.len()) / 2).clamp(TOGETHER, TOGETHER_MAX)
    }

    /// Who is to be woken for it.
    fn add(&mut self, call: Call) -> Option<Waker> {
        if !self.closed {
            self.calls.push_back(call);
        }
        if self.calls.len() < self.enough() { None } else { self.carrier.take() }
    }

    /// Who is to be woken because so many are answered: those that are left may be enough now.
    fn answered(&mut self, many: usize) -> Option<Waker> {
        self.unanswered = self.unanswered.saturating_sub(many);
        if self.calls.len() < self.enough() { None } else { self.carrier.take() }
    }

    /// What is to be done; if nothing, `carrier` is woken when there is something.
    fn next(&mut self, carrier: &Waker) -> Next {
        // Before others go out: it was to be sent before them.
        if !self.orphans.is_empty() {
            return Next::See(mem::take(&mut self.orphans));
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

/// Takes calls to the driver, and brings the replies.
pub(super) struct Carrier {
    board: Arc<Board>,
    connection: MultiplexedConnection,
    /// Answered in this order.
    under_way: VecDeque<Together>,
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
        loop {
            self.bring(cx);
            if !self.take_along(cx) {
                return Poll::Pending;
            }
        }
    }
}

impl Carrier {
    fn bring(&mut self, cx: &mut Context<'_>) {
        while let Some(first) = self.under_way.front_mut() {
            if first.sent.as_mut().poll(cx).is_pending() {
                return;
            }
            // Nobody to wake: this one looks next.
            self.board.left().answered(first.many);
            self.under_way.pop_front();
        }
    }

    /// Whether there was anything to do.
    fn take_along(&mut self, cx: &mut Context<'_>) -> bool {
        let next = self.board.left().next(cx.waker());
        match next {
            Next::Nothing => return false,
            // Whoever was alone was sent before all that is under way.
            Next::See(orphans) => orphans.into_iter().for_each(|sent| {
                let sent = Box::pin(async move { drop(sent.await) });
                self.under_way.push_front(Together { sent, many: 1 });
            }),
            Next::Send(calls) => {
                let many = calls.len();
                let sent = Box::pin(unconstrained(send(self.connection.clone(), calls)));
                self.under_way.push_back(Together { sent, many });
                // Polled once, it stands in the driver's queue.
                if let Some(Together { sent, .. }) = self.under_way.back_mut()
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

/// With the runtime it ran on, or with its connection.
impl Drop for Carrier {
    fn drop(&mut self) {
        let mut left = self.board.left();
        left.closed = true;
        let gone = (mem::take(&mut left.calls), mem::take(&mut left.orphans));
        drop(left);
        drop(gone);
    }
}

/// Sends one command, which stands in the driver's queue when this returns, whatever else the calling task
/// has done in its turn: one that stayed behind could be overtaken by what undoes it.
fn send_now(connection: MultiplexedConnection, command: Cmd, way: Way) -> Sent {
    let mut sent: Sent = Box::pin(unconstrained(send_alone(connection, command, way)));
    match sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Box::pin(std::future::ready(reply)),
        Poll::Pending => sent,
    }
}

/// Sends one command, with what goes before it.
async fn send_alone(
    mut connection: MultiplexedConnection,
    command: Cmd,
    way: Way,
) -> RedisResult<Value> {
    let Some(before) = way.before() else {
        return connection.send_packed_command(&command).await;
    };
    let mut both = Pipeline::with_capacity(2);
    both.cmd(before).add_command(command);
    let replies = connection.send_packed_commands(&both, 1, 1).await?;
    replies.into_iter().next().ok_or_else(broken)
}

/// Sends them, and hands out the replies. Whoever does not wait any more is none the wiser.
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

type Replies = Vec<(Way, oneshot::Sender<RedisResult<Value>>)>;

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

    fn left(calls: usize, unanswered: usize) -> Left {
        let call =
            || Call { command: redis::cmd("PING"), way: Way::Plain, reply: oneshot::channel().0 };
        let calls = (0..calls).map(|_| call()).collect();
        Left { calls, unanswered, ..Left::default() }
    }

    /// One half comes together while the server has the other; nobody waits for nothing.
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
