//! Real servers: started on a free port, with data of their own, gone when dropped; and a proxy that
//! stands in front of one and does to it what networks do.

mod cluster;
mod etcd;
pub mod proxy;
mod reaper;
mod redis;
mod sentinel;

pub use cluster::{RedisCluster, SLOTS};
pub use etcd::{
    Asker, Backup, Ending, EtcdCluster, EtcdServer, EtcdTls, Gone, Look, Metrics, Past,
};
pub use redis::{RedisClient, RedisServer, Reply};
pub use sentinel::{Sentinel, SentinelSet};
