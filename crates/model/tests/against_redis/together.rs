//! The model of claims with a mode, with leases that expire and processes that die.
//!
//! Each claim has a process: a client with a runtime of its own. A process dies with its runtime, and the server sees
//! its connections closed. A lease expires by a change at the server: the key is deleted, or the end of a member is set
//! to a time in the past. Then the test asks the waiters to ask, as `queue.lua` does, so that it need not wait for
//! their heartbeats.

use std::cell::RefCell;
use std::future::Future;
use std::iter::repeat_n;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Attempt, Backend, Grant, Release, Renewal};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Mode, Token};
use tenure_model::together::{Kind, TogetherEvent as Event, TogetherReplay};
use tenure_redis::Redis;
use tenure_testkit::intercept::renewals;
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::{RedisClient, RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// How many orders of steps are compared, for each list of claims.
const ROUNDS: usize = 8;
/// Longer than any test: leases end only by a step.
const TTL: Duration = Duration::from_secs(600);

const W: Kind = Kind::Writer;
const R: Kind = Kind::Reader;
const O: Kind = Kind::Owner;
const CLAIMS: [&[Kind]; 5] = [
    &[W, W, R, W, R, W, R, R],
    &[R, R, W, R, R, W, permit(1, 2), R],
    &[permit(1, 2), permit(2, 2), permit(1, 2), permit(1, 2), W, permit(2, 2), R, permit(1, 2)],
    &[O, W, O, R, O, permit(1, 2), O, O],
    &[permit(1, 3), permit(2, 3), R, permit(3, 3), W, permit(2, 4), permit(1, 4), permit(1, 4)],
];

const fn permit(weight: u8, capacity: u8) -> Kind {
    Kind::Permit { weight, capacity }
}

/// Sets the end of a claim's members to the past. The key ends with its last member. One script, so that no heartbeat
/// comes in between.
const EXPIRE: &str = "
local set = redis.call('TYPE', KEYS[1]).ok == 'zset' and KEYS[1] or KEYS[2]
for _, member in ipairs(redis.call('ZRANGE', set, 0, -1)) do
  if string.sub(member, 1, 32) == ARGV[1] then redis.call('ZADD', set, 'XX', 1, member) end
end
if #redis.call('ZRANGEBYSCORE', set, '(1', '+inf') == 0 then redis.call('DEL', KEYS[1], KEYS[2]) end";

/// A process, until it dies.
struct Process {
    runtime: Option<Runtime>,
    client: Redis,
}

impl Process {
    async fn start(url: String) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.spawn(async move { Redis::connect(&url).await.unwrap() });
        Process { client: client.await.unwrap(), runtime: Some(runtime) }
    }

    /// Runs what `call` does with the client in this process.
    fn spawn<F>(&self, call: impl FnOnce(Redis) -> F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.as_ref().unwrap().spawn(call(self.client.clone()))
    }

    fn die(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.die();
    }
}

/// What the real process does with its claim.
enum Doing {
    Nothing,
    Waits(JoinHandle<Grant>),
    Holds(Arc<Lease>, Option<u32>),
}

/// One key on the real server, and the model of it.
struct Round<'a> {
    server: RefCell<RedisClient>,
    processes: &'a mut [Process],
    model: TogetherReplay,
    key: Key,
    claims: Vec<Arc<Claim>>,
    doings: Vec<Doing>,
    /// The highest fence that was granted before this step.
    fence: u64,
}

impl Round<'_> {
    /// Takes one step on both, and returns when both agree.
    async fn step(&mut self, event: Event) {
        let held = self.model.holders();
        self.model.step(event);
        match event {
            Event::Ask(claim) => self.ask(claim).await,
            Event::Cancel(claim) => self.cancel(claim).await,
            Event::Release(claim) => self.release(claim, held.contains(&claim)).await,
            Event::Renew(claim) => self.renew(claim, held.contains(&claim)).await,
            Event::Expire(claim) => self.expire(claim),
            Event::Die(claim) => self.die(claim).await,
        }
        assert_eq!(self.model.broken(), None, "{event:?} breaks a rule of the model");
        self.agree(event).await;
        self.take_grants().await;
    }

    async fn ask(&mut self, number: u8) {
        let at = usize::from(number);
        let claim = self.claims[at].clone();
        if at + 1 < self.claims.len() {
            let waiting = |client: Redis| async move { client.acquire(&claim).await.unwrap() };
            self.doings[at] = Doing::Waits(self.processes[at].spawn(waiting));
            return;
        }
        let trying = |client: Redis| async move { client.try_acquire(&claim).await.unwrap() };
        if let Attempt::Granted(grant) = self.processes[at].spawn(trying).await.unwrap() {
            self.granted(at, grant);
        }
        let held = matches!(self.doings[at], Doing::Holds(..));
        assert_eq!(held, self.model.believes(number), "the answer to a try");
    }

    async fn cancel(&mut self, number: u8) {
        let at = usize::from(number);
        let Doing::Waits(waiting) = self.take(at) else { panic!("it does not wait") };
        waiting.abort();
        let claim = self.claims[at].clone();
        let abandon = |client: Redis| async move { client.abandon(&claim).await.unwrap() };
        self.processes[at].spawn(abandon).await.unwrap();
    }

    async fn release(&mut self, number: u8, held: bool) {
        let at = usize::from(number);
        let Doing::Holds(lease, _) = self.take(at) else { panic!("it does not hold") };
        let release = |client: Redis| async move {
            client.release(&lease, AfterRelease::Free).await.unwrap()
        };
        let released = self.processes[at].spawn(release).await.unwrap();
        assert_eq!(released != Release::NotHeld, held, "{released:?}");
    }

    async fn renew(&mut self, number: u8, held: bool) {
        let at = usize::from(number);
        let Doing::Holds(lease, _) = &self.doings[at] else { panic!("it does not hold") };
        let leases = [lease.clone()];
        let renew = |client: Redis| async move { renewals(&client, &leases).await };
        let answers = self.processes[at].spawn(renew).await.unwrap();
        let renewed = matches!(answers[..], [Some(Renewal::Renewed { .. })]);
        assert_eq!(renewed, held, "{answers:?}");
    }

    /// The lease of the claim ends at the server, and the waiters ask.
    fn expire(&self, number: u8) {
        let (lock, holders) = (self.lock(), format!("tenure:holders:{}", self.key));
        self.tell(&["EVAL", EXPIRE, "2", &lock, &holders, &self.token(number)]);
        self.make_waiters_ask();
    }

    async fn die(&mut self, number: u8) {
        let at = usize::from(number);
        let token = self.token(number);
        let entry = self.entries().into_iter().find(|entry| entry.starts_with(&token));
        drop(self.take(at));
        self.processes[at].die();
        if let Some(entry) = entry {
            eventually("an inbox of nobody", || async { !self.listens(&entry) }).await;
            // Time stands still: its last heartbeat does not expire.
            self.tell(&["HSET", &self.heartbeats(), &token, "9999999999999 push"]);
        }
        self.make_waiters_ask();
    }

    fn make_waiters_ask(&self) {
        for entry in self.entries() {
            let (inbox, ask) = (inbox(&entry), format!("ask:{}:{}", &entry[..32], self.lock()));
            self.tell(&["PUBLISH", &inbox, &ask]);
        }
    }

    fn take(&mut self, at: usize) -> Doing {
        std::mem::replace(&mut self.doings[at], Doing::Nothing)
    }

    /// Waits until the server has the model's holders, and the model's queue in its order, and can notify all
    /// waiters. Where the script has been answered, there is nothing to wait for: no heartbeat may be needed. The
    /// exception are claims of a shared owner: if the owner holds the key, each is granted it by its own request.
    async fn agree(&self, event: Event) {
        let model = (self.model.holders(), self.model.queue());
        let what = format!("{model:?} after {event:?}, as in the model");
        let answered = matches!(event, Event::Cancel(_) | Event::Release(_) | Event::Renew(_));
        if self.is_shared() {
            self.make_waiters_ask();
        } else if answered {
            assert_eq!(self.at_server(), model, "after {event:?}");
        }
        eventually(&what, || async { self.at_server() == model && self.can_notify() }).await;
    }

    /// Whether some of the claims belong to a shared owner.
    fn is_shared(&self) -> bool {
        self.claims.iter().any(|claim| claim.shared_owner().is_some())
    }

    /// The holders and the waiters.
    fn at_server(&self) -> (Vec<u8>, Vec<u8>) {
        let mut holders: Vec<u8> = match self.holder() {
            Some(holder) if !holder.starts_with('=') => vec![self.number(&holder)],
            _ => self.members().iter().map(|member| self.number(&member[..32])).collect(),
        };
        holders.sort_unstable();
        (holders, self.entries().iter().map(|entry| self.number(&entry[..32])).collect())
    }

    /// Whether every living waiter has subscribed to its inbox, and the server knows that it does not poll.
    fn can_notify(&self) -> bool {
        self.entries().into_iter().all(|entry| {
            let beat = self.tell(&["HGET", &self.heartbeats(), &entry[..32]]);
            let polls = matches!(beat, Reply::Text(beat) if beat.ends_with("poll"));
            !self.model.lives(self.number(&entry[..32])) || !polls && self.listens(&entry)
        })
    }

    fn listens(&self, entry: &str) -> bool {
        let subscribed = self.tell(&["PUBSUB", "NUMSUB", &inbox(entry)]);
        matches!(subscribed, Reply::Many(count) if count[1] != Reply::Int(0))
    }

    /// The processes that hold the key in the model have it, and the others wait.
    async fn take_grants(&mut self) {
        let mut highest = self.fence;
        for at in 0..self.doings.len() {
            let Doing::Waits(waiting) = &self.doings[at] else { continue };
            if !self.model.believes(at as u8) {
                assert!(!waiting.is_finished(), "claim {at} waits in the model");
                continue;
            }
            let Doing::Waits(waiting) = self.take(at) else { continue };
            let grant = within("the grant of the model", waiting).await.unwrap();
            highest = highest.max(grant.fence);
            self.granted(at, grant);
        }
        self.fence = highest;
    }

    fn granted(&mut self, at: usize, grant: Grant) {
        assert!(grant.fence > self.fence, "{} after {}", grant.fence, self.fence);
        let (claim, clock) = (self.claims[at].clone(), self.processes[at].client.clock());
        let slot = grant.slot;
        self.doings[at] = Doing::Holds(Arc::new(Lease::new(claim, grant, clock)), slot);
        self.slots_differ();
    }

    /// The slots of the permits that are held differ, and are below the capacity.
    fn slots_differ(&self) {
        let mut taken = Vec::new();
        for claim in self.model.holders() {
            let Doing::Holds(lease, Some(slot)) = &self.doings[usize::from(claim)] else {
                continue;
            };
            let Mode::Permits { capacity, .. } = lease.claim().mode() else { panic!("no permit") };
            assert!(slot < capacity && !taken.contains(&slot), "{slot} beside {taken:?}");
            taken.push(slot);
        }
    }

    /// The holder in the value of a key that is held alone: a token, or `=` and a shared owner.
    fn holder(&self) -> Option<String> {
        match self.tell(&["GET", &self.lock()]) {
            Reply::Text(value) => value.split(':').nth(2).map(Into::into),
            _ => None,
        }
    }

    /// The members whose lease has not ended, of the key itself or of the second one for a shared owner. The scripts
    /// remove the others later.
    fn members(&self) -> Vec<String> {
        let set = match self.holder() {
            Some(_) => format!("tenure:holders:{}", self.key),
            None => self.lock(),
        };
        texts(self.tell(&["ZRANGEBYSCORE", &set, "(1", "+inf"]))
    }

    fn entries(&self) -> Vec<String> {
        texts(self.tell(&["ZRANGE", &format!("tenure:queue:{}", self.key), "0", "-1"]))
    }

    fn heartbeats(&self) -> String {
        format!("tenure:beat:{}", self.key)
    }

    fn lock(&self) -> String {
        format!("tenure:lock:{}", self.key)
    }

    fn token(&self, number: u8) -> String {
        self.claims[usize::from(number)].token().expose().to_string()
    }

    fn number(&self, token: &str) -> u8 {
        let mut numbers = 0..self.claims.len() as u8;
        numbers.find(|number| self.token(*number) == token).unwrap()
    }

    fn tell(&self, words: &[&str]) -> Reply {
        self.server.borrow_mut().command(words)
    }
}

fn inbox(entry: &str) -> String {
    format!("tenure:inbox:{}", &entry[33..49])
}

/// The strings of a reply; none if it is an error, as for a key of another type.
fn texts(reply: Reply) -> Vec<String> {
    let Reply::Many(parts) = reply else { return Vec::new() };
    let text = |part| if let Reply::Text(text) = part { text } else { panic!("{part:?}") };
    parts.into_iter().map(text).collect()
}

/// A claim of this kind. A single permit has a number.
fn claim(key: &Key, kind: Kind) -> Arc<Claim> {
    let mode = match kind {
        Kind::Writer => Mode::Exclusive,
        Kind::Owner => Mode::SharedOwner("us".into()),
        Kind::Reader => Mode::Read,
        Kind::Permit { weight, capacity } => {
            Mode::Permits { permits: weight.into(), capacity: capacity.into() }
        }
    };
    let numbered = mode.permits() == 1;
    let options = ClaimOptions::new(TTL).retry_interval(Duration::from_millis(10));
    let options = options.mode(mode).numbered(numbered);
    Arc::new(Claim::new(key.clone(), Token::random().unwrap(), options))
}

/// A random step; `None` when every claim has ended. A wait or a hold ends by itself more often than by a fault.
fn next_event(model: &TogetherReplay, rng: &mut Rng) -> Option<Event> {
    let events = model.events();
    if events.iter().all(|event| matches!(event, Event::Renew(_))) {
        return None;
    }
    let rare = |event| matches!(event, Event::Cancel(_) | Event::Expire(_) | Event::Die(_));
    let event = *rng.pick(&events);
    Some(if rare(event) { *rng.pick(&events) } else { event })
}

/// A5, A7, A24, B2, B3, t77, t78, t101, t106: random steps of writers, readers, permits and a shared owner, whose
/// leases expire and whose processes die, end in the same state in the model and on a real server: the same holders,
/// the same waiters in the same order, the same answers to renewals and releases, fences that rise, and slots that
/// differ.
#[tokio::test]
async fn the_scripts_do_what_the_model_of_modes_does() {
    let (server, (first, _)) = (RedisServer::start(), Rng::from_environment());
    let mut processes: Vec<Process> = Vec::new();
    let (mut expired, mut died) = (0, 0);
    let lists = CLAIMS.into_iter().flat_map(|kinds| repeat_n(kinds, ROUNDS));
    for (seed, kinds) in (first..).zip(lists) {
        processes.retain(|process| process.runtime.is_some());
        while processes.len() < kinds.len() {
            processes.push(Process::start(server.url()).await);
        }
        let (mut rng, key) = (Rng::new(seed), Key::new(&format!("k{seed}")).unwrap());
        let mut round = Round {
            server: RefCell::new(server.client()),
            processes: &mut processes,
            model: TogetherReplay::new(kinds),
            claims: kinds.iter().map(|kind| claim(&key, *kind)).collect(),
            doings: kinds.iter().map(|_| Doing::Nothing).collect(),
            key,
            fence: 0,
        };
        while let Some(event) = next_event(&round.model, &mut rng) {
            let waits = !round.model.queue().is_empty();
            round.step(event).await;
            expired += usize::from(waits && matches!(event, Event::Expire(_)));
            died += usize::from(waits && matches!(event, Event::Die(_)));
        }
        assert!(round.at_server().0.is_empty(), "TENURE_SEED={seed}");
    }
    let enough = ROUNDS * CLAIMS.len() / 2;
    assert!(expired > enough && died > enough, "only {expired} expired and {died} died");
}
