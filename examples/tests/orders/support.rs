//! Instances of the service, a minimal HTTP client, and a bank that replies on command.

use std::process::Command;

use tenure_testkit::process::Program;
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::within;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::TTL;

/// A running instance.
pub struct Service {
    program: Program,
    client: Client,
}

impl Service {
    /// An instance that shares a Redis with others.
    pub fn start(redis: &RedisServer, bank: &Bank) -> Self {
        Self::launch(
            Command::new(env!("CARGO_BIN_EXE_orders")).env("TENURE_URL", redis.url()),
            bank,
        )
    }

    /// An instance on `memory:`.
    pub fn start_alone(bank: &Bank) -> Self {
        Self::launch(
            Command::new(env!("CARGO_BIN_EXE_orders"))
                .env_remove("TENURE_URL")
                .env_remove("REDIS_URL"),
            bank,
        )
    }

    fn launch(command: &mut Command, bank: &Bank) -> Self {
        command.env("ORDERS_LISTEN", "127.0.0.1:0").env("ORDERS_BANK", &bank.address);
        command.env("TENURE_LOCK_TTL", format!("{TTL:?}")).env("RUST_LOG", "off");
        let mut program = Program::spawn(command);
        let address = program.wait_for("listening on ");
        Service { program, client: Client { address } }
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.program.terminate();
    }

    /// Waits for the end of the process.
    pub fn ended(&mut self) {
        assert!(self.program.wait().success());
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub async fn place(&self, order: &str, cents: u64) {
        let body = format!(r#"{{"cents":{cents}}}"#);
        let placed = self.client().send("PUT", &format!("/orders/{order}"), &body).await.unwrap();
        assert_eq!(placed.status, 200, "{placed:?}");
    }

    /// The future does not borrow the instance, so that many requests can be in progress.
    pub fn post(&self, path: &str) -> impl Future<Output = Answer> + Send + use<> {
        let (client, path) = (self.client(), path.to_owned());
        async move { client.post(&path).await }
    }

    /// Like `post`, for an instance that may be dead.
    pub fn try_post(&self, path: &str) -> impl Future<Output = std::io::Result<Answer>> + use<> {
        let (client, path) = (self.client(), path.to_owned());
        async move { client.send("POST", &path, "").await }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.client.send("GET", path, "").await.unwrap()
    }
}

/// A client with one connection per request.
#[derive(Clone)]
pub struct Client {
    address: String,
}

impl Client {
    pub async fn post(&self, path: &str) -> Answer {
        self.send("POST", path, "").await.unwrap()
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        let of_body =
            format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{of_body}{body}").as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Answer::parse(&text).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    fn parse(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, head: head.into(), body: body.into() })
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let start = format!("{name}: ");
        let found = self.head.lines().find_map(|line| line.strip_prefix(start.as_str()));
        found.unwrap_or_else(|| panic!("no `{name}` in {self:?}"))
    }
}

/// Receives charges, and replies to each when the test says so.
pub struct Bank {
    charges: Mutex<UnboundedReceiver<Charge>>,
    address: String,
}

/// A charge that waits for its reply.
pub struct Charge {
    stream: TcpStream,
    /// `ORDER CENTS`.
    pub what: String,
    pub fence: u64,
}

impl Bank {
    pub async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, charges) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(listen(stream, sender.clone()));
            }
        });
        Bank { charges: Mutex::new(charges), address }
    }

    /// Waits for the next charge.
    pub async fn charge(&self) -> Charge {
        let mut charges = self.charges.lock().await;
        within("a charge", charges.recv()).await.unwrap()
    }

    /// Whether the test has received every charge.
    pub async fn is_idle(&self) -> bool {
        self.charges.lock().await.is_empty()
    }
}

/// Ignores other input: other programs on this machine may connect to a port that was theirs before.
async fn listen(stream: TcpStream, charges: UnboundedSender<Charge>) -> Option<()> {
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    reader.read_line(&mut line).await.ok()?;
    let (what, fence) = line.trim().strip_prefix("charge ")?.rsplit_once(' ')?;
    let (what, fence) = (what.to_owned(), fence.parse().ok()?);
    charges.send(Charge { stream: reader.into_inner(), what, fence }).ok()
}

impl Charge {
    pub async fn answer(mut self, word: &str) {
        self.stream.write_all(format!("{word}\n").as_bytes()).await.unwrap();
    }
}
