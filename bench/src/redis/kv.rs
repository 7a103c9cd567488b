//! The methods of the key-value client, against the bare commands with the same driver.

use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tenure::redis::{Client, KvExt};

use crate::bench::Run;
use crate::error::Error;
use crate::redis::Site;
use crate::report::Measure;
use crate::rounds::{Lap, interleave, together};

/// The operation of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// One read of a string.
    Get,
    /// One write of a string with a ttl.
    Set,
    /// A hundred increments in one round trip.
    Pipeline,
    /// One read of a cached struct, against `GET` and decoding.
    Remember,
}

/// So long that nothing expires during a run.
const TTL: std::time::Duration = std::time::Duration::from_secs(3600);
const PIPELINED: usize = 100;
const TEXT: &str = "a value of some forty bytes, as most are";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct User {
    id: u64,
    name: String,
    admin: bool,
}

fn user() -> User {
    User { id: 42, name: "Ann Example".into(), admin: false }
}

pub(crate) async fn measure(
    run: &Run<'_>,
    site: &Site,
    tasks: usize,
    verb: Verb,
) -> Result<Measure, Error> {
    let client = site.client().await?;
    prepare(&client, site, tasks, verb).await?;
    let ours = async |lap| ours(&client, tasks, verb, lap).await;
    interleave(run, ours, async |lap| bare(site, tasks, verb, lap).await).await
}

/// Writes the same values for both sides.
async fn prepare(client: &Client, site: &Site, tasks: usize, verb: Verb) -> Result<(), Error> {
    let value = match verb {
        Verb::Remember => serde_json::to_string(&user()).map_err(|_| odd())?,
        Verb::Get | Verb::Set => TEXT.into(),
        Verb::Pipeline => "0".into(),
    };
    for number in 0..tasks {
        client.set(&key(number), &value).await.map_err(failed)?;
        let mut set = redis::cmd("SET");
        set.arg(site.bare_key(number)).arg(&value);
        set.exec_async(&mut site.bare.connection()).await?;
    }
    Ok(())
}

fn key(number: usize) -> String {
    format!("bench:{number}")
}

async fn ours(client: &Client, tasks: usize, verb: Verb, lap: Lap) -> Result<u64, Error> {
    together(tasks, |number| {
        let (client, lap, key) = (client.clone(), lap.clone(), key(number));
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                our_cycle(&client, &key, verb).await?;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

async fn our_cycle(client: &Client, key: &str, verb: Verb) -> Result<(), Error> {
    let good = match verb {
        Verb::Get => client.get::<String>(key).await.map_err(failed)?.is_some(),
        Verb::Set => client.set(key, TEXT).ttl(TTL).await.map(|()| true).map_err(failed)?,
        Verb::Pipeline => {
            let counts =
                client.pipeline(|p| (0..PIPELINED).map(|_| p.incr(key)).collect::<Vec<_>>());
            counts.await.map_err(failed)?.len() == PIPELINED
        }
        Verb::Remember => {
            let load = || async { Err::<User, _>("it is there") };
            client.remember(key, TTL, load).await.map_err(failed)?.id == 42
        }
    };
    if good { Ok(()) } else { Err(odd()) }
}

async fn bare(site: &Site, tasks: usize, verb: Verb, lap: Lap) -> Result<u64, Error> {
    together(tasks, |number| {
        let (mut connection, lap, key) =
            (site.bare.connection(), lap.clone(), site.bare_key(number));
        async move {
            let mut cycles = 0;
            while lap.goes_on() {
                bare_cycle(&mut connection, &key, verb).await?;
                cycles += 1;
            }
            Ok(cycles)
        }
    })
    .await
}

async fn bare_cycle(
    connection: &mut MultiplexedConnection,
    key: &str,
    verb: Verb,
) -> Result<(), Error> {
    let good = match verb {
        Verb::Get => {
            let got: Option<String> = redis::cmd("GET").arg(key).query_async(connection).await?;
            got.is_some()
        }
        Verb::Set => {
            let mut set = redis::cmd("SET");
            set.arg(key).arg(TEXT).arg("PX").arg(TTL.as_millis() as u64);
            set.exec_async(connection).await.map(|()| true)?
        }
        Verb::Pipeline => {
            let mut pipe = redis::pipe();
            for _ in 0..PIPELINED {
                pipe.cmd("INCRBY").arg(key).arg(1);
            }
            pipe.query_async::<Vec<i64>>(connection).await?.len() == PIPELINED
        }
        Verb::Remember => {
            let got: Vec<u8> = redis::cmd("GET").arg(key).query_async(connection).await?;
            serde_json::from_slice::<User>(&got).map_err(|_| odd())?.id == 42
        }
    };
    if good { Ok(()) } else { Err(odd()) }
}

fn failed(error: tenure::redis::kv::Error) -> Error {
    Error::surprise(error.to_string())
}

fn odd() -> Error {
    Error::surprise("another value came back than was kept")
}
