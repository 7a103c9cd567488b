//! The complete state at one moment.
//!
//! In: nothing. Out: [`World`], small and comparable. Times are remaining or elapsed ticks, never absolute,
//! and fences are renumbered without gaps. So the number of states is finite without a limit on ticks.

use crate::setup::Setup;

/// The idle counter stops here, above every limit.
const IDLE_MAX: u8 = 9;

/// The identity of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    /// The process that made it.
    pub(crate) process: u8,
    /// Its number in that process, from 1.
    pub(crate) claim: u8,
}

impl Token {
    /// Its bit in a set of tokens.
    pub(crate) fn bit(self) -> u16 {
        1 << (self.process * 4 + self.claim)
    }
}

/// The lock key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Lock {
    /// The claim that holds it.
    pub(crate) token: Token,
    /// Ticks until it expires.
    pub(crate) left: u8,
    /// The flag that others wait.
    pub(crate) waited: bool,
}

/// A waiter in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// The claim that waits.
    pub(crate) token: Token,
    /// Ticks until its heartbeat expires.
    pub(crate) beat: u8,
    /// It polls: it may be granted the lock without a push.
    pub(crate) polled: bool,
}

/// The data of the server, and what the rules need to know about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Server {
    /// The lock key; absent means free.
    pub(crate) lock: Option<Lock>,
    /// Oldest ticket first.
    pub(crate) queue: Vec<Entry>,
    /// The last fence granted.
    pub(crate) fence: u8,
    /// Tokens whose release or abandon has executed.
    pub(crate) ended: u16,
    /// Ended tokens for which a request of a given-up connection executed afterwards.
    pub(crate) revived: u16,
}

/// How a claim asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum How {
    /// Once, without queueing.
    Try,
    /// Queued; notified by a push.
    Pushed,
    /// Queued; polls, because its inbox is not confirmed.
    Polled,
}

/// A request on the command connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Acquires the lock or queues.
    Ask {
        /// The claim.
        token: Token,
        /// Ticks since it was sent.
        age: u8,
        /// How the claim asks.
        how: How,
    },
    /// Releases the lock.
    Release(Token),
    /// Leaves the queue and releases the lock.
    Abandon(Token),
    /// Ends the connections that this process gave up.
    Kill,
}

/// A reply on the command connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    /// The lock was granted.
    Granted {
        /// The claim.
        token: Token,
        /// Ticks since the request was sent.
        age: u8,
        /// The fence of the grant.
        fence: u8,
    },
    /// The claim is in the queue.
    Queued {
        /// The claim.
        token: Token,
        /// Ticks since the request was sent.
        age: u8,
        /// The last fence granted until then.
        stamp: u8,
    },
    /// Another claim holds the lock, and this one is not in the queue.
    Held(Token),
    /// The claim was released or abandoned, or did not hold the lock.
    Ended(Token),
    /// The script failed; its effect is unknown.
    Failed(Token),
}

/// A message on the renewal connection: one request, or one reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Request: extend the lock.
    Renew {
        /// The claim.
        token: Token,
        /// Ticks since it was sent.
        age: u8,
        /// The fence of the push that it confirms; 0 for none.
        confirms: u8,
    },
    /// Request: release a grant that is not needed.
    Release(Token),
    /// Request on the wrong connection: see [`Bug::AbandonOvertakes`](crate::Bug).
    Abandon(Token),
    /// Reply: the lock was extended.
    Renewed {
        /// The claim.
        token: Token,
        /// Ticks since the request was sent.
        age: u8,
        /// As in the request.
        confirms: u8,
    },
    /// Reply: the claim does not hold the lock.
    Gone(Token),
}

/// A message in an inbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Push {
    /// The claim that was granted.
    pub(crate) token: Token,
    /// The fence of the grant.
    pub(crate) fence: u8,
}

/// The phase of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It has no claim.
    #[default]
    Idle,
    /// Its claim waits.
    Asking,
    /// It holds the lock, for this many more ticks by its own clock.
    Holding(u8),
    /// It died.
    Dead,
}

/// The last heartbeat that was answered "queued".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LastReply {
    /// Ticks since it was sent.
    pub(crate) age: u8,
    /// The stamp in the reply.
    pub(crate) stamp: u8,
}

/// One process: its gate for the key, and its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    /// Its phase.
    pub(crate) phase: Phase,
    /// The number of its claim.
    pub(crate) claim: u8,
    /// How often it may still pass a claim from one task to the next.
    pub(crate) locals: u8,
    /// Whether the claim is in the registry. Only a bug removes it before its end.
    pub(crate) known: bool,
    /// Its last answered heartbeat.
    pub(crate) last_reply: Option<LastReply>,
    /// The highest fence that any process had reported when this claim was made.
    pub(crate) floor: u8,
    /// A lease that it adopted from another process, and its remaining ticks by the clock of this process.
    pub(crate) adopted: Option<(Token, u8)>,
    /// A claim that it relinquished. It neither extends nor ends that claim any more.
    pub(crate) relinquished: Option<Token>,
    /// An ended claim whose end is not answered yet.
    pub(crate) ending: Option<Token>,
    /// The command connection, to the server, oldest first.
    pub(crate) requests: Vec<Request>,
    /// The command connection, from the server, oldest first.
    pub(crate) replies: Vec<Reply>,
    /// Requests of given-up connections that may still execute.
    pub(crate) late: Vec<Request>,
    /// The renewal connection.
    pub(crate) side: Option<Side>,
    /// Messages under way to it, oldest first.
    pub(crate) inbox: Vec<Push>,
    /// Whether the server counts its inbox as subscribed.
    pub(crate) heard: bool,
    /// Whether it believes that its inbox is subscribed.
    pub(crate) confirmed: bool,
    /// Whether it sent its heartbeat in this tick.
    pub(crate) beaten: bool,
}

/// A rule that a single step can break. Rules that a state shows by itself are in `rules.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    /// A reported fence was not higher than the earlier ones.
    Fence,
    /// A reachable waiter was in the queue, and the lock was granted to another claim.
    PassedOver,
    /// A release or abandon executed while a process still believes to hold the lock under that token.
    OwnLock,
}

/// The complete state at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct World {
    /// The server.
    pub(crate) server: Server,
    /// The processes.
    pub(crate) processes: Vec<Process>,
    /// Faults left.
    pub(crate) faults: u8,
    /// Adoptions left.
    pub(crate) adoptions: u8,
    /// Cancelled waits left.
    pub(crate) cancels: u8,
    /// Whether the server has lost its data.
    pub(crate) restarted: bool,
    /// The highest reported fence.
    pub(crate) top: u8,
    /// Consecutive ticks at whose end a process waited and no process held the lock.
    pub(crate) idle: u8,
    /// The first rule that a step broke.
    pub(crate) broken: Option<Broken>,
}

impl Server {
    /// Whether this token holds the lock.
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.token == token)
    }

    /// Whether this token is in the queue.
    pub(crate) fn queues(&self, token: Token) -> bool {
        self.queue.iter().any(|entry| entry.token == token)
    }

    /// Removes a token from the queue.
    pub(crate) fn leave(&mut self, token: Token) {
        self.queue.retain(|entry| entry.token != token);
    }

    fn tick(&mut self) {
        for entry in &mut self.queue {
            entry.beat = entry.beat.saturating_sub(1);
        }
        if let Some(lock) = &mut self.lock {
            lock.left -= 1;
        }
        self.lock.take_if(|lock| lock.left == 0);
    }
}

impl Process {
    /// The claims under which this process believes to hold the lock: its own, and an adopted one.
    pub(crate) fn beliefs(&self, number: u8) -> impl Iterator<Item = Token> {
        let own = matches!(self.phase, Phase::Holding(left) if left > 0);
        let own = own.then_some(Token { process: number, claim: self.claim });
        let adopted = self.adopted.filter(|(_, left)| *left > 0).map(|(token, _)| token);
        own.into_iter().chain(adopted)
    }

    /// Whether a request of its claim is unanswered on the connection in use.
    pub(crate) fn asks(&self, token: Token) -> bool {
        self.requests.iter().any(|request| request.asks(token))
            || self.replies.iter().any(|reply| reply.asked() == Some(token))
    }

    fn tick(&mut self, ttl: u8) {
        if let Phase::Holding(left) = &mut self.phase {
            *left = left.saturating_sub(1);
        }
        if let Some((_, left)) = &mut self.adopted {
            *left = left.saturating_sub(1);
        }
        self.last_reply =
            self.last_reply.map(|last_reply| LastReply { age: last_reply.age + 1, ..last_reply });
        self.last_reply.take_if(|last_reply| last_reply.age >= ttl);
        self.beaten = false;
        // All ages beyond the ttl are equivalent.
        self.ages(|age| *age = (*age + 1).min(ttl));
    }
}

impl Process {
    fn ages(&mut self, mut each: impl FnMut(&mut u8)) {
        for request in self.requests.iter_mut().chain(&mut self.late) {
            if let Request::Ask { age, .. } = request {
                each(age);
            }
        }
        for reply in &mut self.replies {
            if let Reply::Granted { age, .. } | Reply::Queued { age, .. } = reply {
                each(age);
            }
        }
        if let Some(Side::Renew { age, .. } | Side::Renewed { age, .. }) = &mut self.side {
            each(age);
        }
    }
}

impl Request {
    fn asks(&self, token: Token) -> bool {
        matches!(self, Request::Ask { token: of, .. } if *of == token)
    }
}

impl Reply {
    /// The claim whose request this answers.
    fn asked(&self) -> Option<Token> {
        match self {
            Reply::Granted { token, .. } | Reply::Queued { token, .. } => Some(*token),
            Reply::Held(token) => Some(*token),
            Reply::Ended(_) | Reply::Failed(_) => None,
        }
    }
}

impl World {
    /// The initial state.
    pub(crate) fn new(setup: &Setup) -> Self {
        let process =
            Process { locals: setup.locals, heard: true, confirmed: true, ..Process::default() };
        World {
            server: Server::default(),
            processes: vec![process; setup.processes.into()],
            faults: setup.faults,
            adoptions: setup.adoptions,
            cancels: setup.cancels,
            restarted: false,
            top: 0,
            idle: 0,
            broken: None,
        }
    }

    /// The process with this number.
    pub(crate) fn at(&mut self, process: u8) -> &mut Process {
        &mut self.processes[usize::from(process)]
    }

    /// The token of a process's current claim.
    pub(crate) fn token(&self, process: u8) -> Token {
        Token { process, claim: self.processes[usize::from(process)].claim }
    }

    /// Whether this is the current claim of its process, waiting or holding.
    pub(crate) fn is_current(&self, token: Token) -> bool {
        let process = &self.processes[usize::from(token.process)];
        process.claim == token.claim && matches!(process.phase, Phase::Asking | Phase::Holding(_))
    }

    /// Every claim under which a process believes to hold the lock.
    pub(crate) fn beliefs(&self) -> impl Iterator<Item = Token> {
        (0..).zip(&self.processes).flat_map(|(number, process)| process.beliefs(number))
    }

    /// One tick passes, for the server and all processes.
    pub(crate) fn tick(&mut self, setup: &Setup) {
        let waits = self.processes.iter().any(|process| process.phase == Phase::Asking);
        let used = self.beliefs().next().is_some();
        // Without `prompt`, delays are unlimited, so idle ticks prove nothing.
        self.idle = if setup.prompt && waits && !used { (self.idle + 1).min(IDLE_MAX) } else { 0 };
        self.server.tick();
        self.processes.iter_mut().for_each(|process| process.tick(setup.ttl));
    }

    /// Records the first rule that a step broke.
    pub(crate) fn breaks(&mut self, rule: Broken) {
        self.broken = self.broken.or(Some(rule));
    }

    /// Removes data that can have no effect any more, so that states that differ only in it become equal.
    pub(crate) fn simplify(&mut self) {
        for process in &mut self.processes {
            let speaks = matches!(process.phase, Phase::Asking | Phase::Holding(_));
            let current = |token: Token| speaks && token.claim == process.claim;
            process.replies.retain(|reply| reply.asked().is_none_or(current));
            let (requests, late) = (&process.requests, &process.late);
            // A process releases an unwanted grant. If its token can never hold the lock, the push has no
            // effect.
            process.inbox.retain(|&Push { token, .. }| {
                current(token)
                    || self.server.holds(token)
                    || self.server.queues(token)
                    || requests.iter().chain(late).any(|request| request.asks(token))
            });
        }
        self.renumber();
    }

    /// Renumbers the fences under way without gaps, and rounds all others (stamps, the counter, the reported
    /// fence) down to the next of these. Every comparison that can still happen has the same result.
    fn renumber(&mut self) {
        let mut flying = 1_u64;
        self.flying(|fence| flying |= 1 << *fence);
        let rank = |fence: u8| (flying & ((2 << fence) - 1)).count_ones() as u8 - 1;
        self.flying(|fence| *fence = rank(*fence));
        self.references(|fence| *fence = rank(*fence));
    }

    /// The fences of grants in messages under way.
    fn flying(&mut self, mut each: impl FnMut(&mut u8)) {
        for process in &mut self.processes {
            process.inbox.iter_mut().for_each(|push| each(&mut push.fence));
            for reply in &mut process.replies {
                if let Reply::Granted { fence, .. } = reply {
                    each(fence);
                }
            }
            if let Some(Side::Renew { confirms, .. } | Side::Renewed { confirms, .. }) =
                &mut process.side
            {
                each(confirms);
            }
        }
    }

    /// The numbers that fences under way are compared with.
    fn references(&mut self, mut each: impl FnMut(&mut u8)) {
        each(&mut self.server.fence);
        each(&mut self.top);
        for process in &mut self.processes {
            each(&mut process.floor);
            process.last_reply.iter_mut().for_each(|last_reply| each(&mut last_reply.stamp));
            for reply in &mut process.replies {
                if let Reply::Queued { stamp, .. } = reply {
                    each(stamp);
                }
            }
        }
    }
}
