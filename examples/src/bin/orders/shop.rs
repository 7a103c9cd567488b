//! The business logic: an order is paid once, and not while it is being cancelled.
//!
//! In: a customer's request. Out: the updated order, or an error.

use serde::{Deserialize, Serialize};
use tenure::{Fence, Locker};

use crate::bank::Bank;
use crate::ledger::Ledger;

/// An order, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub cents: u64,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Open,
    Paid,
    Cancelled,
}

/// Why a request failed.
#[derive(Debug)]
pub enum AppError {
    Lock(tenure::Error),
    Ledger(String),
    Bank(String),
    NoSuchOrder,
    /// The order is not open any more.
    Is(State),
}

impl From<tenure::Error> for AppError {
    fn from(error: tenure::Error) -> Self {
        AppError::Lock(error)
    }
}

pub struct Shop {
    pub locker: Locker,
    pub ledger: Ledger,
    pub bank: Bank,
}

impl Shop {
    /// Pays an order: one payment at a time, on all instances. If another one is in progress, fails at once.
    #[tenure::lock(key = "order:{order_id}", locker = self.locker, held = held)]
    pub async fn pay(&self, order_id: &str) -> Result<Order, AppError> {
        let order = self.open(order_id).await?;
        self.bank.charge(order_id, order.cents, held.fence()).await?;
        self.settle(order_id, order, State::Paid, held.fence()).await
    }

    /// Cancels an order. Its route acquires the lock (see `web.rs`) and passes the fence.
    pub async fn cancel(&self, order_id: &str, fence: Fence) -> Result<Order, AppError> {
        let order = self.open(order_id).await?;
        self.settle(order_id, order, State::Cancelled, fence).await
    }

    /// Places an order, unless it exists.
    #[tenure::lock(key = "order:{order_id}", locker = self.locker, wait = "2s", held = held)]
    pub async fn place(&self, order_id: &str, cents: u64) -> Result<Order, AppError> {
        match self.find(order_id).await {
            Err(AppError::NoSuchOrder) => {
                let order = Order { cents, state: State::Open };
                self.settle(order_id, order, State::Open, held.fence()).await
            }
            found => found,
        }
    }

    pub async fn find(&self, order_id: &str) -> Result<Order, AppError> {
        self.ledger.get(order_id).await?.ok_or(AppError::NoSuchOrder)
    }

    async fn open(&self, order_id: &str) -> Result<Order, AppError> {
        let order = self.find(order_id).await?;
        if order.state == State::Open { Ok(order) } else { Err(AppError::Is(order.state)) }
    }

    /// Writes with the fence: if the lock was lost unnoticed, the ledger rejects the write.
    async fn settle(
        &self,
        order_id: &str,
        order: Order,
        state: State,
        fence: Fence,
    ) -> Result<Order, AppError> {
        let order = Order { state, ..order };
        self.ledger.put(order_id, &order, fence).await?;
        Ok(order)
    }
}
