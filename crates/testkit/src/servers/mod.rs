//! Real servers: each starts on a free port with its own data and ends when dropped. A proxy in front of a
//! server simulates network faults.

mod cluster;
mod etcd;
pub mod proxy;
mod reaper;
mod redis;
mod sentinel;

use std::path::Path;

use tempfile::TempDir;

pub use cluster::{RedisCluster, SLOTS};
pub use etcd::{Backup, EtcdCluster, EtcdServer, EtcdTls, Metrics};
pub use redis::{RedisClient, RedisServer, Reply};
pub use sentinel::{Sentinel, SentinelSet};

/// A directory for the data of a server, in memory where the system has such a place. On a disk that others use too,
/// a server may wait longer for its log than the short time-outs of the tests allow.
fn data_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    dir.expect("a temporary directory")
}
