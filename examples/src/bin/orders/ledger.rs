//! The storage of the orders: in memory, or in the Redis that has the locks. Both reject a stale fence.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure::redis::{Client, KvExt};
use tenure::{Fence, FenceCheck};

use crate::Failure;
use crate::shop::{AppError, Order};

pub enum Ledger {
    Memory(Mutex<Book>),
    Redis(Client),
}

#[derive(Default)]
pub struct Book {
    orders: HashMap<String, Order>,
    check: FenceCheck,
}

impl Ledger {
    /// The ledger that fits locks at `url`: instances that share locks also share the orders.
    pub async fn open(url: &str) -> Result<Self, Failure> {
        match url.split(':').next() {
            Some("memory") => Ok(Ledger::Memory(Mutex::default())),
            Some("file") => Err("orders are kept in memory or in Redis, not in files".into()),
            _ => Ok(Ledger::Redis(Client::connect(url).await?)),
        }
    }

    pub async fn get(&self, order_id: &str) -> Result<Option<Order>, AppError> {
        match self {
            Ledger::Memory(book) => Ok(open(book).orders.get(order_id).cloned()),
            Ledger::Redis(redis) => redis.get(&name(order_id)).await.map_err(refused),
        }
    }

    /// Stores an order, unless a newer fence has been seen.
    pub async fn put(&self, order_id: &str, order: &Order, fence: Fence) -> Result<(), AppError> {
        match self {
            Ledger::Memory(book) => {
                let mut book = open(book);
                book.check.accept(order_id, fence).map_err(refused)?;
                book.orders.insert(order_id.into(), order.clone());
                Ok(())
            }
            Ledger::Redis(redis) => {
                redis.set(&name(order_id), order).fenced(fence).await.map_err(refused)
            }
        }
    }
}

fn open(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(order_id: &str) -> String {
    format!("order:{order_id}")
}

fn refused(error: impl std::error::Error) -> AppError {
    AppError::Ledger(error.to_string())
}
