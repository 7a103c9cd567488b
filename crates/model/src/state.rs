//! Everything there is at one moment.
//!
//! In: nothing. Out: [`World`], small and comparable: times are how long is left or how long ago,
//! never dates, and fences are renumbered without gaps. So the states are finite without a last
//! tick.

use crate::setup::Setup;

/// Idle ticks are counted up to here, beyond every bound.
const IDLE_MAX: u8 = 9;

/// The identity of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    /// Whose it is.
    pub(crate) process: u8,
    /// Its number there, from 1.
    pub(crate) claim: u8,
}

impl Token {
    /// Its place in a set of tokens.
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
    /// The flag: somebody waits.
    pub(crate) waited: bool,
}

/// A waiter in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// The claim that waits.
    pub(crate) token: Token,
    /// Ticks for which its heartbeat is still good.
    pub(crate) beat: u8,
    /// It may be granted the lock without being told.
    pub(crate) polled: bool,
}

/// What the server keeps, and what is to be said about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Server {
    /// The lock key; absent means free.
    pub(crate) lock: Option<Lock>,
    /// Oldest ticket first.
    pub(crate) queue: Vec<Entry>,
    /// The last fence given out.
    pub(crate) fence: u8,
    /// Tokens whose release or abandon has executed.
    pub(crate) ended: u16,
    /// Those of them for which a request of a given-up connection executed afterwards.
    pub(crate) revived: u16,
}

/// How a claim asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum How {
    /// Once, without queueing.
    Try,
    /// Told by a push.
    Pushed,
    /// Its inbox is not confirmed.
    Polled,
}

/// What travels to the server on the command connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Acquire or park.
    Ask {
        /// For this claim.
        token: Token,
        /// Sent so many ticks ago.
        age: u8,
        /// In which way.
        how: How,
    },
    /// Give the lock back.
    Release(Token),
    /// Leave the queue, give the lock back.
    Abandon(Token),
    /// End the connections that this process gave up.
    Kill,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    /// It is yours.
    Granted {
        /// The claim's.
        token: Token,
        /// When the question was sent.
        age: u8,
        /// The number of the grant.
        fence: u8,
    },
    /// You are in the queue.
    Queued {
        /// The claim's.
        token: Token,
        /// When the question was sent.
        age: u8,
        /// The last fence given out by then.
        stamp: u8,
    },
    /// Another has it, and you are not in the queue.
    Held(Token),
    /// Released or abandoned, or it was not yours.
    Ended(Token),
    /// The script failed; what it did is unknown.
    Failed(Token),
}

/// What is under way on the renewals' connection: one question, or one answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Side {
    /// To the server: make it last longer.
    Renew {
        /// The claim's.
        token: Token,
        /// Sent so many ticks ago.
        age: u8,
        /// The fence of the push that it is to confirm; 0 for none.
        confirms: u8,
    },
    /// To the server: a grant that nobody wants.
    Release(Token),
    /// To the server, where it does not belong: see [`Bug::AbandonOvertakes`](crate::Bug).
    Abandon(Token),
    /// From the server.
    Renewed {
        /// The claim's.
        token: Token,
        /// When the question was sent.
        age: u8,
        /// As in the question.
        confirms: u8,
    },
    /// From the server.
    Gone(Token),
}

/// A message in an inbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Push {
    /// The claim that was granted.
    pub(crate) token: Token,
    /// The number of the grant.
    pub(crate) fence: u8,
}

/// What a process has to do with the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Nothing at the moment.
    #[default]
    Idle,
    /// Its claim asks.
    Asking,
    /// It was granted the lock; by its own clock for so many ticks more.
    Holding(u8),
    /// It died.
    Dead,
}

/// The last heartbeat that was answered "queued".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Told {
    /// Sent so many ticks ago.
    pub(crate) age: u8,
    /// The stamp in the answer.
    pub(crate) stamp: u8,
}

/// One process: its gate for the key, and its link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    /// What it does.
    pub(crate) phase: Phase,
    /// The number of its claim.
    pub(crate) claim: u8,
    /// How often it may yet pass a claim from one task to the next.
    pub(crate) locals: u8,
    /// The claim is in the registry. Only a bug takes it out before its end.
    pub(crate) known: bool,
    /// What its last answered heartbeat said.
    pub(crate) told: Option<Told>,
    /// The highest fence that anybody had reported when this claim was made.
    pub(crate) floor: u8,
    /// A lease of another process's claim that it carries on, for so many ticks by its clock.
    pub(crate) adopted: Option<(Token, u8)>,
    /// A claim that it let go of. Nothing is done for it any more, and nothing against it.
    pub(crate) let_go: Option<Token>,
    /// An ended claim whose end is not answered yet.
    pub(crate) ending: Option<Token>,
    /// The command connection, to the server, oldest first.
    pub(crate) requests: Vec<Request>,
    /// The command connection, from the server, oldest first.
    pub(crate) replies: Vec<Reply>,
    /// What may still execute from connections that were given up.
    pub(crate) late: Vec<Request>,
    /// The renewals' connection.
    pub(crate) side: Option<Side>,
    /// Messages under way to it, oldest first.
    pub(crate) inbox: Vec<Push>,
    /// The server counts its inbox as heard.
    pub(crate) heard: bool,
    /// It believes that its inbox is subscribed.
    pub(crate) confirmed: bool,
    /// It sent its heartbeat in this tick.
    pub(crate) beaten: bool,
}

/// A rule that a single step can break. What a state shows by itself is in `rules.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    /// A reported fence was not above those before it.
    Fence,
    /// A reachable waiter was in the queue, and the lock went elsewhere.
    PassedOver,
    /// A process undid the lock that it holds.
    OwnLock,
}

/// Everything there is at one moment.
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
    /// The server has lost its data.
    pub(crate) restarted: bool,
    /// The highest fence that was reported.
    pub(crate) top: u8,
    /// Ticks in a row that ended with somebody waiting and nobody holding.
    pub(crate) idle: u8,
    /// The first rule that a step broke.
    pub(crate) broken: Option<Broken>,
}

impl Server {
    /// Whether the lock is held under this token.
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock.token == token)
    }

    /// Whether this token waits.
    pub(crate) fn queues(&self, token: Token) -> bool {
        self.queue.iter().any(|entry| entry.token == token)
    }

    /// Takes a token out of the queue.
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
    /// Under which claims this process believes to hold the lock: its own, and an adopted one.
    pub(crate) fn beliefs(&self, number: u8) -> impl Iterator<Item = Token> {
        let own = matches!(self.phase, Phase::Holding(left) if left > 0);
        let own = own.then_some(Token { process: number, claim: self.claim });
        let adopted = self.adopted.filter(|(_, left)| *left > 0).map(|(token, _)| token);
        own.into_iter().chain(adopted)
    }

    /// Whether a question of its claim is unanswered on the connection in use.
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
        self.told = self.told.map(|told| Told { age: told.age + 1, ..told });
        self.told.take_if(|told| told.age >= ttl);
        self.beaten = false;
        // Beyond the ttl all ages are the same.
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
    /// The claim whose question this answers.
    fn asked(&self) -> Option<Token> {
        match self {
            Reply::Granted { token, .. } | Reply::Queued { token, .. } => Some(*token),
            Reply::Held(token) => Some(*token),
            Reply::Ended(_) | Reply::Failed(_) => None,
        }
    }
}

impl World {
    /// Nothing has happened yet.
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

    /// A process.
    pub(crate) fn at(&mut self, process: u8) -> &mut Process {
        &mut self.processes[usize::from(process)]
    }

    /// The token of a process's claim.
    pub(crate) fn token(&self, process: u8) -> Token {
        Token { process, claim: self.processes[usize::from(process)].claim }
    }

    /// Whether the claim is the one its process speaks for, asking or holding.
    pub(crate) fn is_current(&self, token: Token) -> bool {
        let process = &self.processes[usize::from(token.process)];
        process.claim == token.claim && matches!(process.phase, Phase::Asking | Phase::Holding(_))
    }

    /// Every claim under which somebody believes to hold the lock.
    pub(crate) fn beliefs(&self) -> impl Iterator<Item = Token> {
        (0..).zip(&self.processes).flat_map(|(number, process)| process.beliefs(number))
    }

    /// One tick passes, for everybody alike.
    pub(crate) fn tick(&mut self, setup: &Setup) {
        let waits = self.processes.iter().any(|process| process.phase == Phase::Asking);
        let used = self.beliefs().next().is_some();
        // Without promptness, waiting for ever means nothing.
        self.idle = if setup.prompt && waits && !used { (self.idle + 1).min(IDLE_MAX) } else { 0 };
        self.server.tick();
        self.processes.iter_mut().for_each(|process| process.tick(setup.ttl));
    }

    /// Notes the first rule that a step broke.
    pub(crate) fn breaks(&mut self, rule: Broken) {
        self.broken = self.broken.or(Some(rule));
    }

    /// Forgets what can make no difference any more, so that states that differ in nothing else
    /// are one.
    pub(crate) fn simplify(&mut self) {
        for process in &mut self.processes {
            let speaks = matches!(process.phase, Phase::Asking | Phase::Holding(_));
            let current = |token: Token| speaks && token.claim == process.claim;
            process.replies.retain(|reply| reply.asked().is_none_or(current));
            let (requests, late) = (&process.requests, &process.late);
            // An unwanted grant is given back; there is none to give if the lock can never be
            // this token's.
            process.inbox.retain(|&Push { token, .. }| {
                current(token)
                    || self.server.holds(token)
                    || self.server.queues(token)
                    || requests.iter().chain(late).any(|request| request.asks(token))
            });
        }
        self.renumber();
    }

    /// Numbers the fences that are under way without gaps, and takes all others (stamps, the
    /// counter, what was reported) down to the next of these: every comparison that can still be
    /// made comes out the same.
    fn renumber(&mut self) {
        let mut flying = 1_u64;
        self.flying(|fence| flying |= 1 << *fence);
        let rank = |fence: u8| (flying & ((2 << fence) - 1)).count_ones() as u8 - 1;
        self.flying(|fence| *fence = rank(*fence));
        self.references(|fence| *fence = rank(*fence));
    }

    /// The fences of grants whose news is under way.
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

    /// The numbers that those are compared with.
    fn references(&mut self, mut each: impl FnMut(&mut u8)) {
        each(&mut self.server.fence);
        each(&mut self.top);
        for process in &mut self.processes {
            each(&mut process.floor);
            process.told.iter_mut().for_each(|told| each(&mut told.stamp));
            for reply in &mut process.replies {
                if let Reply::Queued { stamp, .. } = reply {
                    each(stamp);
                }
            }
        }
    }
}
