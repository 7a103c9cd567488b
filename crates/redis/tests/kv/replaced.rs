//! Business code depends on the interface, so another implementation can replace the server (D1).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tenure_core::backend::BoxFuture;
use tenure_redis::kv::{Answer, Answers, Batch, Command, Error, ErrorKind, Flights, Verb};
use tenure_redis::{Kv, KvExt};
use tenure_testkit::servers::RedisServer;

use crate::support::{LONG, User, ann, client};

/// Values in memory: all that the business code below needs.
#[derive(Default)]
struct InMemory {
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    flights: Flights,
}

impl InMemory {
    fn answer(&self, command: &Command<'_>) -> Result<Answer, Error> {
        let mut values = self.values.lock().unwrap();
        match &command.verb {
            Verb::Get => {
                Ok(values.get(&*command.key).cloned().map_or(Answer::Nothing, Answer::Bytes))
            }
            Verb::Set { value, .. } => {
                values.insert(command.key.to_vec(), value.clone());
                Ok(Answer::Done)
            }
            Verb::Delete => Ok(Answer::Number(values.remove(&*command.key).map_or(0, |_| 1))),
            _ => Err(Error::new(ErrorKind::Refused, "not in memory")),
        }
    }
}

impl Kv for InMemory {
    fn ask<'a>(&'a self, command: &'a Command<'a>) -> BoxFuture<'a, Result<Answer, Error>> {
        Box::pin(async { self.answer(command) })
    }

    fn ask_all<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Answers, Error>> {
        Box::pin(async { Ok(batch.commands.iter().map(|command| self.answer(command)).collect()) })
    }

    fn flights(&self) -> &Flights {
        &self.flights
    }
}

/// Business code that names no server and no driver.
async fn business(redis: &dyn Kv) -> Result<(), Error> {
    redis.set("user:1", &ann()).ttl(LONG).await?;
    assert_eq!(redis.get::<User>("user:1").await?, Some(ann()));
    let bob = User { id: 2, name: "Bob".into() };
    let load = || async { Ok::<_, Error>(bob.clone()) };
    assert_eq!(redis.remember("user:2", LONG, load).await?, bob);
    assert_eq!(redis.get::<User>("user:2").await?, Some(bob));
    let (one, two) = redis.pipeline(|p| (p.get::<User>("user:1"), p.delete("user:2"))).await?;
    assert_eq!((one, two), (Some(ann()), true));
    redis.set_many([("a", 1), ("b", 2)]).await?;
    assert_eq!(redis.get_many::<u8>(["b", "none", "a"]).await?, [Some(2), None, Some(1)]);
    Ok(())
}

/// D1: the same code runs on a server and in memory.
#[tokio::test]
async fn d1_the_implementation_is_replaceable() {
    let server = RedisServer::start();
    business(&client(&server).await).await.unwrap();
    let other: Arc<dyn Kv> = Arc::new(InMemory::default());
    business(&*other).await.unwrap();
    let error = other.incr("n").await.unwrap_err();
    assert_eq!(error.to_string(), "incr `n`: refused: not in memory");
}

/// D1: the futures of the verbs can be spawned.
#[tokio::test]
async fn d1_verbs_are_send() {
    let redis: Arc<dyn Kv> = Arc::new(InMemory::default());
    let task = tokio::spawn(async move {
        redis.set("k", "v").await?;
        redis.remember("k", LONG, || async { Err::<String, _>("never") }).await
    });
    assert_eq!(task.await.unwrap().unwrap(), "v");
}
