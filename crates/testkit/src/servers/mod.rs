//! Real servers: started on a free port, with data of their own, gone when dropped; and a proxy that
//! stands in front of one and does to it what networks do.

pub mod proxy;
mod redis;

pub use redis::{RedisClient, RedisServer, Reply};
