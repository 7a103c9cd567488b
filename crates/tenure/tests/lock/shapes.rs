//! Every shape of function. Each returns the key that was locked while its body ran.

use std::fmt::Display;
use std::sync::Arc;

use tenure::{Error, Locker};

use crate::support::{AppError, alone, only_key};

/// A plain function, with the locker as a parameter.
#[tenure::lock(key = "plain:{id}", locker = locker)]
async fn plain(locker: &Locker, id: u64) -> Result<Option<String>, Error> {
    Ok(only_key(locker).await)
}

/// Generic, with bounds, a where clause, a lifetime, and an `impl Trait`.
#[tenure::lock(key = "{kind}:{a}:{b}", locker = locker)]
async fn generic<'a, A: Display, B>(
    locker: &Locker,
    kind: impl Display,
    a: A,
    b: &'a B,
) -> Result<(&'a B, Option<String>), Error>
where
    B: Display + ?Sized,
{
    drop((kind, a)); // the key is made before the body may move them
    Ok((b, only_key(locker).await))
}

/// `impl Trait` as a return type, which a closure cannot have.
#[tenure::lock(key = "opaque:{id}", locker = locker)]
async fn opaque(locker: Locker, id: &str) -> Result<impl Display + use<>, AppError> {
    id.parse::<u64>()?;
    Ok(only_key(&locker).await.unwrap())
}

/// An alias that hides the `Result`.
type Answer = anyhow::Result<Option<String>>;

#[tenure::lock(key = "alias:{id}", locker = locker)]
async fn alias(locker: Arc<Locker>, id: u64) -> Answer {
    anyhow::ensure!(id > 0, "no order");
    if id == 7 {
        return Ok(None);
    }
    Ok(only_key(&locker).await)
}

/// Effects of the return type: coercions in the tail and in `return`, boxed errors.
#[tenure::lock(key = "coerced:{id}", locker = locker)]
async fn coerced(
    locker: &Locker,
    id: u64,
) -> Result<Box<dyn Display>, Box<dyn std::error::Error + Send + Sync>> {
    match id {
        0 => return Err("no order".into()),
        1 => return Ok(Box::new("one")),
        2 => Err(std::io::Error::other("two"))?,
        3 => drop("x".parse::<u64>()?),
        _ => {}
    }
    Ok(Box::new(id))
}

#[rustfmt::skip]
#[tenure::lock(key = "inferred", locker = locker)]
async fn inferred(locker: &Locker) -> Result<Vec<u64>, AppError> { "1 2".split(' ').map(|n| Ok(n.parse()?)).collect() }

struct Order {
    id: u64,
    lines: (String, u32),
}

/// Patterns as in handlers, attributes on parameters, and names that are keywords.
#[tenure::lock(key = "{type}:{order.id}:{order.lines.0}:{a}:{b}", locker = state.locker)]
async fn patterns(
    Wrapped(state): Wrapped<State>,
    (a, [b, _]): (u8, [u8; 2]),
    #[allow(unused_mut)] mut order: Order,
    r#type: &str,
) -> Result<Option<String>, Error> {
    order.lines.1 += 1;
    drop(order);
    Ok(only_key(&state.locker).await)
}

struct Wrapped<T>(T);

struct State {
    locker: Locker,
}

struct Shop {
    tenant: String,
    locker: Locker,
    sold: u32,
}

impl Shop {
    #[tenure::lock(key = "{self.tenant}:{id}", locker = self.locker)]
    async fn by_ref(&self, id: u64) -> Result<Option<String>, Error> {
        Ok(only_key(&self.locker).await)
    }

    /// Counts the calls.
    #[must_use]
    #[tenure::lock(key = "{self.tenant}:{id}", locker = self.locker)]
    pub(crate) async fn by_mut(&mut self, id: u64) -> Result<u32, Error> {
        self.sold += 1;
        Ok(self.sold)
    }

    #[tenure::lock(key = "{self.tenant}:{id}", locker = self.locker)]
    async fn by_arc(self: Arc<Self>, id: u64) -> Result<Option<String>, Error> {
        Ok(only_key(&self.locker).await)
    }

    #[tenure::lock(key = "{self.tenant}", locker = self.locker())]
    async fn by_value(self) -> Result<Self, Error> {
        Ok(self)
    }

    fn locker(&self) -> &Locker {
        &self.locker
    }
}

/// An `async fn` of a trait.
trait Pay {
    async fn pay(&self, id: u64) -> Result<Option<String>, Error>;
}

impl Pay for Shop {
    #[tenure::lock(key = "pay:{id}", locker = self.locker)]
    async fn pay(&self, id: u64) -> Result<Option<String>, Error> {
        Ok(only_key(&self.locker).await)
    }
}

#[async_trait::async_trait]
trait Refund: Sync {
    async fn refund(&self, id: u64, why: &str) -> Result<Option<String>, AppError>;

    #[tenure::lock(key = "audit:{id}", locker = self.locker_of())]
    async fn audit(&self, id: u64) -> Result<Option<String>, AppError> {
        Ok(only_key(self.locker_of()).await)
    }

    async fn replace(&mut self, _: u8, pair: (u64, u64), why: String) -> Answer;

    fn locker_of(&self) -> &Locker;
}

#[async_trait::async_trait]
impl Refund for Shop {
    #[tenure::lock(key = "{self.tenant}:{id}:{why}", locker = self.locker)]
    async fn refund(&self, id: u64, why: &str) -> Result<Option<String>, AppError> {
        if why.is_empty() {
            return Err(AppError::Declined);
        }
        id.to_string().parse::<u64>()?;
        Ok(only_key(&self.locker).await)
    }

    #[tenure::lock(key = "{a}:{b}:{why}", locker = self.locker)]
    async fn replace(&mut self, _: u8, (a, b): (u64, u64), mut why: String) -> Answer {
        why.push('!');
        self.sold += 1;
        Ok(only_key(&self.locker).await)
    }

    fn locker_of(&self) -> &Locker {
        &self.locker
    }
}

/// E1: functions: plain, generic, opaque, by alias, with patterns.
#[tokio::test]
async fn e1_functions() {
    let (_, locker) = alone();
    assert_eq!(plain(&locker, 7).await.unwrap().unwrap(), "plain:7");
    let (b, key) = generic(&locker, "order", 1, "x").await.unwrap();
    assert_eq!((b, key.unwrap().as_str()), ("x", "order:1:x"));
    assert_eq!(opaque(locker.clone(), "5").await.unwrap().to_string(), "opaque:5");
    assert!(matches!(opaque(locker.clone(), "x").await, Err(AppError::Declined)));
    let shared = Arc::new(locker.clone());
    assert_eq!(alias(shared.clone(), 1).await.unwrap().unwrap(), "alias:1");
    assert_eq!(alias(shared.clone(), 7).await.unwrap(), None);
    assert_eq!(alias(shared, 0).await.unwrap_err().to_string(), "no order");
    let order = Order { id: 3, lines: ("tea".into(), 1) };
    let state = Wrapped(State { locker: locker.clone() });
    let key = patterns(state, (1, [2, 3]), order, "order").await.unwrap();
    assert_eq!(key.unwrap(), "order:3:tea:1:2");
    assert_eq!(only_key(&locker).await, None);
}

/// E1: the body knows the return type of the function, as it does without the attribute.
#[tokio::test]
async fn e1_bodies_know_what_they_return() {
    let (_, locker) = alone();
    let shown = async |id| match coerced(&locker, id).await {
        Ok(value) => value.to_string(),
        Err(error) => error.to_string(),
    };
    let expected = ["no order", "one", "two", "invalid digit found in string", "4"];
    for (id, expected) in (0..).zip(expected) {
        assert_eq!(shown(id).await, expected);
    }
    assert_eq!(inferred(&locker).await.unwrap(), [1, 2]);
}

/// E1: methods with every receiver, of types and of traits.
#[tokio::test]
async fn e1_methods() {
    let (_, locker) = alone();
    let mut shop = Shop { tenant: "shop".into(), locker: locker.clone(), sold: 0 };
    assert_eq!(shop.by_ref(1).await.unwrap().unwrap(), "shop:1");
    assert_eq!((shop.by_mut(1).await.unwrap(), shop.by_mut(1).await.unwrap()), (1, 2));
    assert_eq!(shop.pay(2).await.unwrap().unwrap(), "pay:2");
    assert_eq!(shop.refund(3, "late").await.unwrap().unwrap(), "shop:3:late");
    assert!(matches!(shop.refund(3, "").await, Err(AppError::Declined)));
    assert_eq!(shop.audit(4).await.unwrap().unwrap(), "audit:4");
    assert_eq!(shop.replace(0, (1, 2), "x".into()).await.unwrap().unwrap(), "1:2:x");
    let shop = Arc::new(shop.by_value().await.unwrap());
    assert_eq!(shop.by_arc(5).await.unwrap().unwrap(), "shop:5");
    assert_eq!(only_key(&locker).await, None);
}

/// The future is `Send` if the body is.
#[tokio::test]
async fn e1_futures_can_be_spawned() {
    let (_, locker) = alone();
    let shop = Arc::new(Shop { tenant: "shop".into(), locker: locker.clone(), sold: 0 });
    let tasks = [
        tokio::spawn(async move { plain(&locker, 1).await }),
        tokio::spawn(shop.clone().by_arc(2)),
        tokio::spawn(async move { shop.by_ref(3).await }),
    ];
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

/// A body that is not `Send` is accepted.
#[tokio::test]
async fn e1_bodies_need_not_be_send() {
    #[tenure::lock(key = "local:{id}", locker = locker)]
    async fn local(locker: &Locker, id: std::rc::Rc<u64>) -> Result<u64, Error> {
        tokio::task::yield_now().await;
        Ok(*id)
    }
    let (_, locker) = alone();
    assert_eq!(local(&locker, std::rc::Rc::new(7)).await.unwrap(), 7);
}
