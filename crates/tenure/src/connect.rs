//! From a URL to a `Locker`: the only module that knows all engines.

use tenure_core::{Error, Locker, blocking};

use crate::settings::Config;

/// A locker on the engine that `url` names.
///
/// | URL | engine |
/// |---|---|
/// | `memory:`, `memory:NAME` | inside this process; each name is a separate space |
/// | `file:DIR` | across one user's processes on this machine, by the kernel's file locks |
/// | `redis://[user:password@]host[:port][/db]` | across machines, by a Redis server |
/// | `redis+sentinel://[user:password@]host[:port][,host…]/service[/db]` | the master that Sentinels name |
/// | `redis-cluster://[user:password@]host[:port][,host…]` | a Redis Cluster, found through these nodes |
/// | `redis+quorum://[user:password@]host[:port],host[:port],host[:port][/db]` | independent Redis servers |
/// | `etcd://[user:password@]host[:port][,host[:port]…]` | across machines, by an etcd cluster |
///
/// - `file:`: a relative `DIR` is relative to the working directory, and `~` is not expanded. `file:` alone is
///   the directory that the command `tenure` uses by default.
/// - All Redis URLs need the feature `redis`. `rediss://` is the same as `redis://` with TLS,
///   `redis+unix:///path` uses a socket, and `valkey` can replace `redis` in each.
/// - `redis+sentinel://` also follows a failover. `redis-sentinel://` and `rediss+sentinel://` are accepted too.
/// - `redis-cluster://`: `redis+cluster://` and `rediss-cluster://` are accepted too.
/// - `redis+quorum://` needs a majority of an odd number of independent servers. `rediss+quorum://` is the same
///   with TLS, and `?restarted=trusted` also counts nodes that have just started.
/// - `etcd://` needs the feature `etcd`; `etcds://` is the same with TLS. Values that the URL leaves open come
///   from the variables that `etcdctl` reads.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) for a URL that names no engine, [`is_refused`](Error::is_refused) for a
/// directory that is not safe to use, a wrong password or a certificate that cannot be trusted,
/// [`is_unavailable`](Error::is_unavailable) for a server that cannot be reached,
/// [`is_unsupported`](Error::is_unsupported) for a server that is too old.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// let locker = tenure::connect("memory:").await?;
/// let guard = locker.lock("order:42").await?;
/// # drop(guard);
/// let unknown = tenure::connect("zookeeper://localhost").await.unwrap_err();
/// assert!(unknown.is_invalid());
/// # Ok(()) }
/// ```
pub async fn connect(url: &str) -> Result<Locker, Error> {
    Config::default().url(url).connect().await
}

/// [`tenure::connect`](connect) for code without a runtime. It connects to a server at the first request.
///
/// # Errors
///
/// The errors of [`tenure::connect`](connect). Errors of a server come with the first lock.
///
/// ```
/// let locker = tenure::blocking::connect("memory:")?;
/// let guard = locker.lock("order:42").acquire()?;
/// guard.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn connect_blocking(url: &str) -> Result<blocking::Locker, Error> {
    Config::default().url(url).connect_later().map(blocking::Locker::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::expected;

    fn open(url: &str) -> Result<Locker, Error> {
        Config::default().url(url).connect_later()
    }

    fn refused(url: &str) -> String {
        open(url).unwrap_err().to_string()
    }

    /// A URL that names no engine is refused, and a possible password is not repeated.
    #[test]
    fn t66_bad_urls_are_named_without_secrets() {
        assert_eq!(
            refused("zookeeper://:hunter2@h"),
            format!("unknown engine `zookeeper:` in url, {}", expected())
        );
        assert_eq!(
            refused("nothing"),
            format!("invalid url `nothing`: it names no engine, {}", expected())
        );
        assert_eq!(
            refused("file://"),
            "invalid url `file://`: it names no directory, expected `file:DIR` or `file:`"
        );
    }

    /// t66: a Redis URL goes to Redis, and no password is repeated.
    #[cfg(feature = "redis")]
    #[test]
    fn t66_redis_urls_go_to_redis() {
        assert!(open("redis://:hunter2@localhost").is_ok());
        assert!(refused("valkey://:hunter2@h/x").starts_with("invalid redis url: "));
        assert!(open("rediss://:hunter2@localhost#insecure").is_ok());
        assert!(open("redis+sentinel://:hunter2@a,b:1/service/2").is_ok());
        assert!(open("valkeys-sentinel://:hunter2@a/service#insecure").is_ok());
        for url in [
            "rediss://:hunter2@h#x",
            "redis://:hunter2@",
            "redis+unix://:hunter2@",
            "redis+sentinel://:hunter2@a",
            "redis+sentinel://a/s?sentinel_user=hunter2",
        ] {
            assert!(!refused(url).contains("hunter2"), "{url}");
        }
    }

    /// t66: the URL of a Redis Cluster goes to the cluster, and no password is repeated.
    #[cfg(feature = "redis")]
    #[test]
    fn t66_cluster_urls_go_to_the_cluster() {
        assert!(open("redis-cluster://:hunter2@a,b:1").is_ok());
        assert!(open("valkeys+cluster://:hunter2@a#insecure").is_ok());
        let other = refused("redis-cluster://:hunter2@a,b/1");
        assert!(other.contains("a cluster has the database 0 and no other"), "{other}");
        assert!(!other.contains("hunter2"), "{other}");
    }

    /// t66: an etcd URL goes to etcd, and no password is repeated.
    #[cfg(feature = "etcd")]
    #[test]
    fn t66_etcd_urls_go_to_etcd() {
        assert!(open("etcd://u:hunter2@h1,h2:2").is_ok());
        for url in ["etcd://u:hunter2@h/x", "etcds://u:hunter2@h#x", "etcd://hunter2@h"] {
            let refused = refused(url);
            assert!(refused.starts_with("invalid etcd url: "), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    /// t61, t66: the URL of a quorum goes to the quorum, and no password is repeated.
    #[cfg(feature = "redis")]
    #[test]
    fn t61_quorum_urls_go_to_the_quorum() {
        assert!(open("redis+quorum://:hunter2@a,b,c").is_ok());
        let even = refused("redis+quorum://:hunter2@a,b,c,d");
        assert!(even.starts_with("invalid quorum url: it has 4 nodes"), "{even}");
        assert!(!even.contains("hunter2"), "{even}");
    }

    /// The same name is the same space; another name is another space.
    #[tokio::test]
    async fn memory_names_are_spaces() {
        let (a, same, other) =
            (open("memory:a").unwrap(), open("memory:a").unwrap(), open("memory:b").unwrap());
        let _guard = a.lock("k").await.unwrap();
        assert!(same.try_lock("k").await.unwrap().is_none());
        assert!(other.try_lock("k").await.unwrap().is_some());
    }
}
