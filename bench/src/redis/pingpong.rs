//! Two or more clients of the bare driver in a ring: each notifies the next, and has its own thread like our
//! lockers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Script, Value};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::client_thread::Home;
use crate::error::Error;
use crate::redis::bare;
use crate::rounds::{Lap, together_at};

const BALL: &str = "ball";
/// Sent instead of the ball by the client that stops first. It goes round once.
const END: &str = "end";
/// The time-out of a lap: without it a lost message would block for ever.
const LONGEST: Duration = Duration::from_secs(10);

/// The kind of channels for notifications.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Channels {
    /// Channels of one server.
    Plain,
    /// Channels of a cluster's slots.
    Sharded,
}

impl Channels {
    fn subscribe(self) -> &'static str {
        match self {
            Channels::Plain => "SUBSCRIBE",
            Channels::Sharded => "SSUBSCRIBE",
        }
    }

    fn publish(self) -> &'static str {
        match self {
            Channels::Plain => "PUBLISH",
            Channels::Sharded => "SPUBLISH",
        }
    }
}

/// How one client notifies the next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hop {
    /// By `PUBLISH`.
    Message,
    /// By a script that only publishes, followed by a script without effect: two requests, as every hand-over
    /// needs, but without a lock.
    TwoScripts,
}

pub(crate) struct PingPong {
    players: Vec<Arc<Mutex<Player>>>,
    homes: Vec<Home>,
}

struct Player {
    commands: MultiplexedConnection,
    /// A connection only for subscriptions, as our side has one.
    _inbox: MultiplexedConnection,
    heard: UnboundedReceiver<PushInfo>,
    /// The channel of the next client.
    next: String,
    channels: Channels,
    scripts: Scripts,
}

/// The shortest possible scripts.
struct Scripts {
    publish: Script,
    nothing: Script,
}

impl Scripts {
    fn new() -> Self {
        let publish = Script::new("return redis.call('PUBLISH', ARGV[1], ARGV[2])");
        Scripts { publish, nothing: Script::new("return false") }
    }
}

impl PingPong {
    /// Connects one client for each of these channels, on the server at `url`.
    pub(crate) async fn connect(
        url: &str,
        names: &[String],
        channels: Channels,
    ) -> Result<Self, Error> {
        let (mut players, mut homes) = (Vec::new(), Vec::new());
        for (own, next) in names.iter().zip(names.iter().cycle().skip(1)) {
            let home = Home::new()?;
            let player = Player::connect(url.into(), own.clone(), next.clone(), channels);
            players.push(Arc::new(Mutex::new(home.run(player).await?)));
            homes.push(home);
        }
        Ok(PingPong { players, homes })
    }

    /// Plays until the lap is over. Returns how often the ball arrived.
    pub(crate) async fn play(&self, lap: Lap, hop: Hop) -> Result<u64, Error> {
        let game = together_at(self.homes.iter().map(Home::runtime), |number| {
            let (player, lap) = (self.players[number].clone(), lap.clone());
            async move { player.lock().await.play(number == 0, &lap, hop).await }
        });
        let lost = |_| Error::surprise("a message between bare clients was lost");
        tokio::time::timeout(LONGEST, game).await.map_err(lost)?
    }
}

/// Clients that listen to one channel, and one that publishes there.
pub(crate) struct FanOut(PingPong);

impl FanOut {
    /// Connects `listeners` clients to the first of these channels. The one that publishes listens to the second.
    pub(crate) async fn connect(
        url: &str,
        [all, other]: &[String; 2],
        listeners: usize,
    ) -> Result<Self, Error> {
        let names = [vec![all.clone(); listeners], vec![other.clone()]].concat();
        Ok(FanOut(PingPong::connect(url, &names, Channels::Plain).await?))
    }

    /// Publishes one message. Returns the time until the last client has it.
    pub(crate) async fn publish(&self) -> Result<Duration, Error> {
        let PingPong { players, homes } = &self.0;
        let mut clients: Vec<_> = homes.iter().zip(players.iter().cloned()).collect();
        let Some((home, publisher)) = clients.pop() else { return Ok(Duration::ZERO) };
        let hear = async |player: Arc<Mutex<Player>>| {
            player.lock().await.hear().await?;
            Ok(Instant::now())
        };
        let hearing: Vec<_> =
            clients.into_iter().map(|(home, player)| home.run(hear(player))).collect();
        let published = home.run(async move {
            let began = Instant::now();
            publisher.lock().await.tell(BALL, Hop::Message).await?;
            Ok(began)
        });
        let mut last = published.await?;
        let began = last;
        for heard in hearing {
            last = last.max(heard.await?);
        }
        Ok(last - began)
    }
}

impl Player {
    async fn connect(
        url: String,
        own: String,
        next: String,
        channels: Channels,
    ) -> Result<Self, Error> {
        let (told, heard) = unbounded_channel();
        let (client, config) = (bare::client(&url)?, bare::config());
        let commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        let config = config.set_push_sender(told);
        let mut inbox = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd(channels.subscribe()).arg(own).exec_async(&mut inbox).await?;
        Ok(Player { commands, _inbox: inbox, heard, next, channels, scripts: Scripts::new() })
    }

    async fn play(&mut self, serves: bool, lap: &Lap, hop: Hop) -> Result<u64, Error> {
        let (mut hops, mut stops) = (0, false);
        if serves {
            self.tell(BALL, hop).await?;
        }
        while self.hear().await? == BALL.as_bytes() {
            hops += 1;
            stops = !lap.goes_on();
            self.tell(if stops { END } else { BALL }, hop).await?;
        }
        if !stops {
            self.tell(END, hop).await?;
        }
        Ok(hops)
    }

    async fn tell(&mut self, what: &str, hop: Hop) -> Result<(), Error> {
        match hop {
            Hop::Message => {
                let mut publish = redis::cmd(self.channels.publish());
                publish.arg(&self.next).arg(what).exec_async(&mut self.commands).await?;
            }
            Hop::TwoScripts => {
                let mut publish = self.scripts.publish.arg(&self.next);
                publish.arg(what).invoke_async::<u64>(&mut self.commands).await?;
                self.scripts
                    .nothing
                    .prepare_invoke()
                    .invoke_async::<()>(&mut self.commands)
                    .await?;
            }
        }
        Ok(())
    }

    async fn hear(&mut self) -> Result<Vec<u8>, Error> {
        while let Some(PushInfo { kind, mut data }) = self.heard.recv().await {
            let told = matches!(kind, PushKind::Message | PushKind::SMessage);
            if let (true, Some(Value::BulkString(what))) = (told, data.pop()) {
                return Ok(what);
            }
        }
        Err(Error::surprise("a bare client hears nothing any more"))
    }
}
