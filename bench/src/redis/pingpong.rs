//! Two clients of the bare driver that tell each other their turn, each at home as one of ours is.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, PushInfo, PushKind, Value};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::error::Error;
use crate::home::Home;
use crate::redis::{Site, bare};
use crate::rounds::{Lap, together_at};

const BALL: &str = "ball";
/// Said instead by the one who stops first.
const END: &str = "end";
/// A message that is lost would be waited for for ever.
const LONGEST: Duration = Duration::from_secs(10);

pub(crate) struct PingPong {
    players: [Arc<Mutex<Player>>; 2],
    homes: [Home; 2],
}

struct Player {
    commands: MultiplexedConnection,
    /// Only to be listened to, as ours has one.
    _inbox: MultiplexedConnection,
    heard: UnboundedReceiver<PushInfo>,
    /// The channel that the other listens to.
    other: String,
}

impl PingPong {
    pub(crate) async fn connect(site: &Site) -> Result<Self, Error> {
        let (first, second) = (site.bare_key(0), site.bare_key(1));
        let homes = [Home::new()?, Home::new()?];
        let players = [
            homes[0].run(Player::connect(site.url.clone(), first.clone(), second.clone())).await?,
            homes[1].run(Player::connect(site.url.clone(), second, first)).await?,
        ];
        Ok(PingPong { players: players.map(|player| Arc::new(Mutex::new(player))), homes })
    }

    /// Plays until the lap is over. How often the ball has arrived.
    pub(crate) async fn play(&self, lap: Lap) -> Result<u64, Error> {
        let game = together_at(self.homes.iter().map(Home::runtime), |number| {
            let (player, lap) = (self.players[number].clone(), lap.clone());
            async move { player.lock().await.play(number == 0, &lap).await }
        });
        let lost = |_| Error::surprise("a message between bare clients was lost");
        tokio::time::timeout(LONGEST, game).await.map_err(lost)?
    }
}

impl Player {
    async fn connect(url: String, own: String, other: String) -> Result<Self, Error> {
        let (told, heard) = unbounded_channel();
        let (client, config) = (bare::client(&url)?, bare::config());
        let commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        let config = config.set_push_sender(told);
        let mut inbox = client.get_multiplexed_async_connection_with_config(&config).await?;
        inbox.subscribe(own).await?;
        Ok(Player { commands, _inbox: inbox, heard, other })
    }

    async fn play(&mut self, serves: bool, lap: &Lap) -> Result<u64, Error> {
        let mut hops = 0;
        if serves {
            self.tell(BALL).await?;
        }
        while self.hear().await? == BALL.as_bytes() {
            hops += 1;
            if !lap.goes_on() {
                self.tell(END).await?;
                break;
            }
            self.tell(BALL).await?;
        }
        Ok(hops)
    }

    async fn tell(&mut self, what: &str) -> Result<(), Error> {
        Ok(self.commands.publish::<_, _, ()>(&self.other, what).await?)
    }

    async fn hear(&mut self) -> Result<Vec<u8>, Error> {
        while let Some(PushInfo { kind, mut data }) = self.heard.recv().await {
            if let (PushKind::Message, Some(Value::BulkString(what))) = (kind, data.pop()) {
                return Ok(what);
            }
        }
        Err(Error::surprise("a bare client hears nothing any more"))
    }
}
