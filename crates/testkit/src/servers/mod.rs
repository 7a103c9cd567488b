//! Real servers: started on a free port, with data of their own, gone when dropped.

mod redis;

pub use redis::{RedisClient, RedisServer, Reply};
