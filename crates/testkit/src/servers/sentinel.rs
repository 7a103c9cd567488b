//! Sentinels that watch a master and its replicas: real processes on free ports.
//!
//! In: the number of replicas and Sentinels. Out: a set whose Sentinels know each other and all replicas. The
//! master can be killed, paused or failed over manually.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use super::redis::{RedisClient, RedisServer, Reply, free_port, is_up};
use crate::process::Program;
use crate::wait::eventually_blocking;

/// The name of the master at the Sentinels.
const SERVICE: &str = "locks";
/// The time without a reply after which a Sentinel considers a server down, in milliseconds: short for fast
/// tests, and long enough for a busy machine.
const DOWN_AFTER: u32 = 1_000;
/// How long a failover may take before another one is tried, in milliseconds.
const FAILOVER_TIMEOUT: u32 = 5_000;

/// One `redis-server --sentinel`. It is killed when dropped.
pub struct Sentinel {
    program: Mutex<Program>,
    port: u16,
    tls_port: Option<u16>,
    dir: TempDir,
}

impl Sentinel {
    /// Starts a Sentinel that watches the master on the port `master`.
    fn start(master: u16, quorum: usize, secrets: &Secrets) -> Self {
        let dir = super::data_dir();
        for _ in 0..10 {
            let (port, tls_port) = (free_port(), secrets.tls_port());
            let text = secrets.configure((port, tls_port), master, quorum);
            fs::write(dir.path().join("sentinel.conf"), text).expect("a configuration");
            let mut program = launch(&dir);
            if is_up(&mut program, port) {
                return Sentinel { program: Mutex::new(program), port, tls_port, dir };
            }
        }
        panic!("redis-server --sentinel ended at once, ten times");
    }

    /// The port of the Sentinel.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection for raw commands.
    ///
    /// # Panics
    ///
    /// If the Sentinel does not accept it.
    pub fn client(&self) -> RedisClient {
        RedisClient::connect(self.port).expect("the Sentinel accepts connections")
    }

    /// Pauses the Sentinel (`SIGSTOP`): its state does not change.
    pub fn pause(&self) {
        self.program().stop();
    }

    /// Continues the Sentinel.
    pub fn go_on(&self) {
        self.program().go_on();
    }

    /// Kills the Sentinel.
    pub fn kill(&self) {
        self.program().kill();
    }

    /// Kills the Sentinel and starts it again with its saved configuration.
    ///
    /// # Panics
    ///
    /// If it does not reply in time.
    pub fn restart(&self) {
        let mut program = self.program();
        program.kill();
        eventually_blocking("the Sentinel to be up again", || {
            *program = launch(&self.dir);
            is_up(&mut program, self.port)
        });
    }

    fn program(&self) -> MutexGuard<'_, Program> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn launch(dir: &TempDir) -> Program {
    let mut command = Command::new("redis-server");
    command.arg(dir.path().join("sentinel.conf")).arg("--sentinel");
    Program::spawn(command.arg("--dir").arg(dir.path()))
}

/// The passwords and certificates of a set.
#[derive(Default)]
struct Secrets {
    master: Option<String>,
    sentinel: Option<String>,
    /// The TLS options of the command line.
    tls: Vec<String>,
}

impl Secrets {
    /// A port for TLS, if TLS is configured.
    fn tls_port(&self) -> Option<u16> {
        (!self.tls.is_empty()).then(free_port)
    }

    /// The arguments of a server.
    fn args(&self, tls_port: Option<u16>) -> Vec<String> {
        let password = self.master.iter().flat_map(|password| ["--requirepass", password]);
        // By default a replica waits five seconds for other replicas to connect.
        let common = ["--repl-diskless-sync-delay", "0"].into_iter().chain(password);
        let mut args: Vec<String> = common.map(String::from).collect();
        args.extend(tls_port.iter().flat_map(|port| ["--tls-port".into(), port.to_string()]));
        args.extend(self.tls.iter().cloned());
        args
    }

    fn configure(
        &self,
        (port, tls_port): (u16, Option<u16>),
        master: u16,
        quorum: usize,
    ) -> String {
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\nloglevel warning\n\
             sentinel monitor {SERVICE} 127.0.0.1 {master} {quorum}\n\
             sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\n\
             sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT}\n\
             sentinel parallel-syncs {SERVICE} 2\n"
        );
        if let Some(password) = &self.master {
            text += &format!("sentinel auth-pass {SERVICE} {password}\n");
        }
        if let Some(password) = &self.sentinel {
            text += &format!("requirepass {password}\nsentinel sentinel-pass {password}\n");
        }
        if let Some(port) = tls_port {
            text += &format!("tls-port {port}\ntls-replication yes\n");
            let pairs = self.tls.chunks(2);
            pairs.for_each(|pair| text += &format!("{}\n", pair.join(" ").trim_start_matches('-')));
        }
        text
    }
}

/// A master, its replicas, and the Sentinels that watch them. All are killed when dropped.
pub struct SentinelSet {
    /// Dropped before the servers, so that the Sentinels do not report their failure.
    sentinels: Vec<Sentinel>,
    nodes: Vec<RedisServer>,
    secrets: Secrets,
}

impl SentinelSet {
    /// Starts three Sentinels, a master and two replicas, which all know each other.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub fn start() -> Self {
        Self::start_as(2, 3, Secrets::default())
    }

    /// Starts one Sentinel and a master without replicas: no failover, but a fast start.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_small() -> Self {
        Self::start_as(0, 1, Secrets::default())
    }

    /// [`start_small`](Self::start_small) with a password for the master, and another one for the Sentinel.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_secret(master: &str, sentinel: &str) -> Self {
        let (master, sentinel) = (Some(master.into()), Some(sentinel.into()));
        Self::start_as(0, 1, Secrets { master, sentinel, ..Secrets::default() })
    }

    /// [`start_small`](Self::start_small) with a TLS port for each process; `papers` as on a server's command
    /// line: `["--tls-cert-file", …]`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_tls(papers: &[&str]) -> Self {
        let tls = papers.iter().map(|word| (*word).into()).collect();
        Self::start_as(0, 1, Secrets { tls, ..Secrets::default() })
    }

    fn start_as(replicas: usize, sentinels: usize, secrets: Secrets) -> Self {
        let tls_port = secrets.tls_port();
        let args = secrets.args(tls_port);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let master = RedisServer::start_with(&args);
        let port = master.port().to_string();
        let of_master = [args.as_slice(), &["--replicaof", "127.0.0.1", &port]].concat();
        let mut nodes = vec![master];
        nodes.extend((0..replicas).map(|_| RedisServer::start_with(&of_master)));
        let quorum = sentinels / 2 + 1;
        let master = tls_port.unwrap_or(nodes[0].port());
        let watch = |_| Sentinel::start(master, quorum, &secrets);
        let sentinels = (0..sentinels).map(watch).collect();
        if replicas > 0 {
            nodes[0].wait_for_replicas("probe");
        }
        let set = SentinelSet { sentinels, nodes, secrets };
        set.wait_until_whole();
        set
    }

    /// Makes a Sentinel poll the other processes every second instead of every ten (version 7 and later).
    /// Otherwise tests would mostly wait for these polls.
    fn hurry(&self, sentinel: &Sentinel) {
        self.ask(sentinel, &["SENTINEL", "DEBUG", "info-period", "1000"]);
    }

    /// Waits until every Sentinel, also a restarted one, sees the master, all replicas and all Sentinels
    /// healthy.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub fn wait_until_whole(&self) {
        let (replicas, others) = (self.nodes.len() - 1, self.sentinels.len() - 1);
        for sentinel in &self.sentinels {
            self.hurry(sentinel);
            eventually_blocking("a Sentinel to know everybody", || {
                let field = |name: &str| self.field(sentinel, name);
                field("flags").as_deref() == Some("master")
                    && field("num-slaves") == Some(replicas.to_string())
                    && field("num-other-sentinels") == Some(others.to_string())
                    && self.healthy_replicas(sentinel) == replicas
            });
        }
    }

    fn healthy_replicas(&self, sentinel: &Sentinel) -> usize {
        let Reply::Many(replicas) = self.ask(sentinel, &["SENTINEL", "REPLICAS", SERVICE]) else {
            return 0;
        };
        let healthy = |replica: &&Reply| {
            let said = |name, value| find(replica, name).as_deref() == Some(value);
            said("flags", "slave") && said("master-link-status", "ok")
        };
        replicas.iter().filter(healthy).count()
    }

    /// The URL for clients: `redis+sentinel://host,host,host/service`, or `rediss+sentinel://…` with TLS.
    pub fn url(&self) -> String {
        let port = |one: &Sentinel| one.tls_port.unwrap_or(one.port);
        let hosts: Vec<_> =
            self.sentinels.iter().map(|one| format!("127.0.0.1:{}", port(one))).collect();
        let scheme = if self.secrets.tls.is_empty() { "redis" } else { "rediss" };
        format!("{scheme}+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// The servers; one of them is the master.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The server at `port`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn node(&self, port: u16) -> &RedisServer {
        self.nodes.iter().find(|node| node.port() == port).expect("a server of this set")
    }

    /// The port of the master that `sentinel` names.
    ///
    /// # Panics
    ///
    /// If it names none.
    pub fn master_of(&self, sentinel: &Sentinel) -> u16 {
        match self.ask(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]) {
            Reply::Many(parts) => match parts.as_slice() {
                [_, Reply::Text(port)] => port.parse().expect("a port"),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// The master that the first Sentinel names.
    ///
    /// # Panics
    ///
    /// If it names none.
    pub fn master(&self) -> &RedisServer {
        self.node(self.master_of(&self.sentinels[0]))
    }

    /// Makes the first Sentinel start a failover of the healthy master, and returns when it has begun.
    ///
    /// # Panics
    ///
    /// If the Sentinel refuses.
    pub fn begin_failover(&self) {
        eventually_blocking("a failover to begin", || {
            let said = self.ask(&self.sentinels[0], &["SENTINEL", "FAILOVER", SERVICE]);
            said == Reply::Text("OK".into())
        });
    }

    /// Starts a failover and waits until all Sentinels name another master. Returns the new master.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub fn fail_over(&self) -> &RedisServer {
        let before = self.master().port();
        self.begin_failover();
        self.wait_for_another(before)
    }

    /// Waits until all Sentinels name another master than the one at `before`. Returns the new master.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub fn wait_for_another(&self, before: u16) -> &RedisServer {
        eventually_blocking("another master", || {
            self.sentinels.iter().all(|sentinel| self.master_of(sentinel) != before)
        });
        self.master()
    }

    fn field(&self, sentinel: &Sentinel, name: &str) -> Option<String> {
        find(&self.ask(sentinel, &["SENTINEL", "MASTER", SERVICE]), name)
    }

    /// Sends a command on a new connection, with the Sentinel's password if it has one.
    fn ask(&self, sentinel: &Sentinel, words: &[&str]) -> Reply {
        let mut client = sentinel.client();
        if let Some(password) = &self.secrets.sentinel {
            client.command(&["AUTH", password]);
        }
        client.command(words)
    }
}

/// The value after `name` in a flat list of pairs.
fn find(reply: &Reply, name: &str) -> Option<String> {
    let Reply::Many(words) = reply else { return None };
    let at = words.iter().step_by(2).position(|word| *word == Reply::Text(name.into()))?;
    match words.get(2 * at + 1)? {
        Reply::Text(value) => Some(value.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set is complete after its start, and has another master after a failover; the former master follows
    /// it.
    #[test]
    fn a_failover_by_hand() {
        let set = SentinelSet::start();
        let before = set.master().port();
        set.master().client().command(&["SET", "a", "1"]);
        let after = set.fail_over();
        assert_ne!(after.port(), before);
        assert_eq!(after.client().text(&["GET", "a"]).as_deref(), Some("1"));
        eventually_blocking("the former master to follow", || {
            // The server closes its connections when its role changes.
            let role = set.node(before).client().try_command(&["ROLE"]);
            matches!(role, Ok(Reply::Many(role)) if role[0] == Reply::Text("slave".into()))
        });
    }
}
