//! The model of exclusive locks: processes that make several claims one after the other. Nothing expires.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{AfterRelease, Attempt, Backend, Grant, Release, Renewal};
use tenure_core::{Claim, ClaimOptions, Key, Lease, Token};
use tenure_model::replay::{Claim as Number, Replay, UserStep};
use tenure_redis::Redis;
use tenure_testkit::intercept::renewals;
use tenure_testkit::rng::Rng;
use tenure_testkit::servers::{RedisServer, Reply};
use tenure_testkit::wait::{eventually, within};
use tokio::task::JoinHandle;

/// How many orders of steps are compared; each has about 30 steps.
const ROUNDS: u64 = 40;
/// Longer than any test: nothing expires.
const TTL: Duration = Duration::from_secs(600);

/// What a real process does with its present claim.
enum Doing {
    Nothing,
    Waits(Arc<Claim>, JoinHandle<Grant>),
    Holds(Arc<Lease>),
}

/// One key on the real server, and the model of it.
struct Round<'a> {
    server: &'a RedisServer,
    clients: &'a [Redis],
    model: Replay,
    key: Key,
    processes: Vec<Doing>,
    numbers: HashMap<String, Number>,
    last_fence: u64,
}

impl Round<'_> {
    /// Takes one step on both, and returns when both agree.
    async fn step(&mut self, step: UserStep) {
        let fences = self.model.fences();
        let number = self.model.step(step);
        match step {
            UserStep::Lock(process) => self.lock(process, number).await,
            UserStep::Cancel(process) => self.cancel(process).await,
            UserStep::Release(process) => self.release(process).await,
            UserStep::Renew(process) => self.renew(process).await,
        }
        assert!(!self.model.is_broken(), "{step:?} breaks a rule of the model");
        self.agree(step).await;
        self.take_grants(self.model.fences() > fences).await;
    }

    async fn lock(&mut self, process: u8, number: Number) {
        let (at, client) = (usize::from(process), self.clients[usize::from(process)].clone());
        let options = ClaimOptions::new(TTL).retry_interval(Duration::from_millis(10));
        let claim = Arc::new(Claim::new(self.key.clone(), Token::random().unwrap(), options));
        self.numbers.insert(claim.token().expose().to_string(), number);
        if !Replay::only_tries(process) {
            let waits = claim.clone();
            let waiting = tokio::spawn(async move { client.acquire(&waits).await.unwrap() });
            self.processes[at] = Doing::Waits(claim, waiting);
            return;
        }
        match client.try_acquire(&claim).await.unwrap() {
            Attempt::Granted(grant) => self.granted(at, claim, grant),
            Attempt::Held(_) => {}
        }
        assert_eq!(self.is_holding(at), self.model.holds(process), "the answer to a try");
    }

    async fn cancel(&mut self, process: u8) {
        let doing = self.take(process);
        let Doing::Waits(claim, waiting) = doing else { panic!("it does not wait") };
        waiting.abort();
        self.clients[usize::from(process)].abandon(&claim).await.unwrap();
    }

    async fn release(&mut self, process: u8) {
        let Doing::Holds(lease) = self.take(process) else { panic!("it does not hold") };
        let client = &self.clients[usize::from(process)];
        let released = client.release(&lease, AfterRelease::Free).await.unwrap();
        assert_eq!(released, Release::Freed);
    }

    async fn renew(&mut self, process: u8) {
        let at = usize::from(process);
        let Doing::Holds(lease) = &self.processes[at] else { panic!("it does not hold") };
        let renewed = renewals(&self.clients[at], std::slice::from_ref(lease)).await;
        assert!(matches!(renewed[..], [Some(Renewal::Renewed { .. })]), "{renewed:?}");
    }

    fn take(&mut self, process: u8) -> Doing {
        std::mem::replace(&mut self.processes[usize::from(process)], Doing::Nothing)
    }

    /// Waits until the server has the model's holder, and the model's queue in its order.
    async fn agree(&self, step: UserStep) {
        let model = (self.model.holder(), self.model.queue());
        let what = format!("{model:?} after {step:?}, as in the model");
        eventually(&what, || async { (self.holder(), self.queue()) == model }).await;
    }

    fn holder(&self) -> Option<Number> {
        let value = self.server.client().text(&["GET", &format!("tenure:lock:{}", self.key)])?;
        let ours = self.numbers.iter().find(|(token, _)| value.contains(token.as_str()));
        Some(*ours.unwrap().1)
    }

    fn queue(&self) -> Vec<Number> {
        let queue = format!("tenure:queue:{}", self.key);
        let Reply::Many(entries) = self.server.client().command(&["ZRANGE", &queue, "0", "-1"])
        else {
            panic!("no queue")
        };
        let number = |entry| match entry {
            Reply::Text(entry) => self.numbers[&entry[..32]],
            other => panic!("{other:?}"),
        };
        entries.into_iter().map(number).collect()
    }

    /// The processes that hold the lock in the model have it, and the others wait.
    async fn take_grants(&mut self, is_new: bool) {
        for process in 0..Replay::PROCESSES {
            let at = usize::from(process);
            if !matches!(self.processes[at], Doing::Waits(..)) {
                continue;
            }
            if !self.model.holds(process) {
                let Doing::Waits(_, waiting) = &self.processes[at] else { continue };
                assert!(!waiting.is_finished(), "process {process} waits in the model");
                continue;
            }
            assert!(is_new, "the model granted nothing");
            let Doing::Waits(claim, waiting) = self.take(process) else { continue };
            let grant = within("the grant of the model", waiting).await.unwrap();
            self.granted(at, claim, grant);
        }
    }

    fn granted(&mut self, at: usize, claim: Arc<Claim>, grant: Grant) {
        assert!(grant.fence > self.last_fence, "{} after {}", grant.fence, self.last_fence);
        self.last_fence = grant.fence;
        self.processes[at] =
            Doing::Holds(Arc::new(Lease::new(claim, grant, self.clients[at].clock())));
    }

    fn is_holding(&self, at: usize) -> bool {
        matches!(self.processes[at], Doing::Holds(_))
    }
}

/// A5, A7, A19, A24: random steps of users end in the same state in the model and on a real server: the same holder,
/// the same waiters in the same order, the same answers, and fences that rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_do_what_the_model_does() {
    let (server, (first, _)) = (RedisServer::start(), Rng::from_environment());
    let mut clients = Vec::new();
    for _ in 0..Replay::PROCESSES {
        clients.push(Redis::connect(&server.url()).await.unwrap());
    }
    let mut taken = 0;
    for seed in first..first + ROUNDS {
        let mut rng = Rng::new(seed);
        let mut round = Round {
            server: &server,
            clients: &clients,
            model: Replay::new(),
            key: Key::new(&format!("k{seed}")).unwrap(),
            processes: clients.iter().map(|_| Doing::Nothing).collect(),
            numbers: HashMap::new(),
            last_fence: 0,
        };
        // Renewals change nothing, so a few are enough.
        while let Some(step) = next_step(&round.model, &mut rng) {
            round.step(step).await;
            taken += 1;
        }
        assert_eq!((round.holder(), round.queue()), (None, vec![]), "TENURE_SEED={seed}");
    }
    assert!(taken > ROUNDS * 15, "only {taken} steps");
}

/// A random step; `None` when every claim has been made and ended.
fn next_step(model: &Replay, rng: &mut Rng) -> Option<UserStep> {
    let steps = model.steps();
    let ends = steps.iter().all(|step| matches!(step, UserStep::Renew(_)));
    (!ends).then(|| *rng.pick(&steps))
}
