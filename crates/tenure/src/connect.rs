//! From a URL to a `Locker`: the one place that knows all engines.

use tenure_core::{Error, FileLocks, Locker, LockerBuilder, Memory, blocking};

use crate::configured::Config;

/// A locker on the engine that `url` names.
///
/// | URL | engine |
/// |---|---|
/// | `memory:` | inside this process; `memory:NAME` is a space of its own |
/// | `file:DIR` | across one user's processes on this machine, by the kernel's file locks; a relative `DIR` is taken from the working directory, and `~` is not expanded |
/// | `redis://[user:password@]host[:port][/db]` | across machines, by a Redis server (feature `redis`); `rediss://` is the same with TLS, `redis+unix:///path` goes through a socket, and `valkey` may stand for `redis` in each |
/// | `redis+sentinel://[user:password@]host[:port][,host…]/service[/db]` | the same on the master that Sentinels name, also after a failover; `redis-sentinel://` and `rediss+sentinel://` alike |
/// | `redis-cluster://[user:password@]host[:port][,host…]` | the same on a Redis Cluster, found through any of these nodes; `redis+cluster://` and `rediss-cluster://` alike |
/// | `redis+quorum://[user:password@]host[:port],host[:port],host[:port][/db]` | across machines, by the majority of an odd number of independent Redis servers (feature `redis`); `rediss+quorum://` is the same with TLS, and `?restarted=trusted` counts nodes that have just started |
/// | `etcd://[user:password@]host[:port][,host[:port]…]` | across machines, by an etcd cluster (feature `etcd`); `etcds://` is the same with TLS; what it does not say is taken from the variables that `etcdctl` reads |
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) for a URL that names no engine,
/// [`is_refused`](Error::is_refused) for a directory that is not safe to use, a password that is
/// wrong or a certificate that is not to be trusted, [`is_unavailable`](Error::is_unavailable) for a server that cannot be reached,
/// [`is_unsupported`](Error::is_unsupported) for one that is too old.
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

/// [`tenure::connect`](connect) for code without a runtime. A server is reached when it is first
/// asked for something.
///
/// # Errors
///
/// Those of [`tenure::connect`](connect); what a server has to say comes with the first lock.
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

/// The forms of URL that are understood, for messages.
const EXPECTED: &str = match (cfg!(feature = "redis"), cfg!(feature = "etcd")) {
    (true, true) => {
        "expected `memory:`, `file:DIR`, `redis://HOST`, `redis+sentinel://HOST,HOST/SERVICE`, \
         `redis-cluster://HOST,HOST`, `redis+quorum://HOST,HOST,HOST` or `etcd://HOST`"
    }
    (true, false) => {
        "expected `memory:`, `file:DIR`, `redis://HOST`, `redis+sentinel://HOST,HOST/SERVICE`, \
         `redis-cluster://HOST,HOST` or `redis+quorum://HOST,HOST,HOST`"
    }
    (false, true) => "expected `memory:`, `file:DIR` or `etcd://HOST`",
    (false, false) => "expected `memory:` or `file:DIR`",
};

#[cfg(feature = "etcd")]
pub(crate) fn is_etcd(url: &str) -> bool {
    url.split_once(':').is_some_and(|(scheme, _)| matches!(scheme, "etcd" | "etcds"))
}

#[cfg(feature = "redis")]
pub(crate) fn is_redis(url: &str) -> bool {
    const SCHEMES: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
    const FORMS: [&str; 4] = ["", "+unix", "+sentinel", "-sentinel"];
    let is = |found: &str, scheme: &str, form: &str| found.strip_prefix(scheme) == Some(form);
    let known =
        |found| SCHEMES.iter().any(|scheme| FORMS.iter().any(|form| is(found, scheme, form)));
    url.split_once(':').is_some_and(|(scheme, _)| known(scheme))
}

#[cfg(feature = "redis")]
pub(crate) fn is_cluster(url: &str) -> bool {
    const SCHEMES: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
    const FORMS: [&str; 2] = ["-cluster", "+cluster"];
    let known = |scheme: &str| {
        FORMS.iter().filter_map(|form| scheme.strip_suffix(form)).any(|one| SCHEMES.contains(&one))
    };
    url.split_once(':').is_some_and(|(scheme, _)| known(scheme))
}

/// Any of them.
#[cfg(feature = "redis")]
pub(crate) fn is_any_redis(url: &str) -> bool {
    is_redis(url) || is_cluster(url) || is_quorum(url)
}

#[cfg(feature = "redis")]
pub(crate) fn is_quorum(url: &str) -> bool {
    const SCHEMES: [&str; 4] = ["redis+quorum", "rediss+quorum", "valkey+quorum", "valkeys+quorum"];
    url.split_once(':').is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// Those inside this program.
pub(crate) fn embedded(url: &str) -> Result<LockerBuilder, Error> {
    match url.split_once(':') {
        Some(("memory", name)) => Ok(Locker::builder(Memory::space(name))),
        Some(("file", dir)) => open_dir(dir),
        Some((scheme, _)) => Err(unknown(scheme)),
        None => Err(Error::invalid(format!("invalid url `{url}`: it names no engine, {EXPECTED}"))),
    }
}

fn open_dir(dir: &str) -> Result<LockerBuilder, Error> {
    FileLocks::open(named(dir)?).map(Locker::builder)
}

/// The directory, as the rest of a URL names it.
fn named(dir: &str) -> Result<&str, Error> {
    // `file:///var/locks` is how URLs are usually written; the host must be empty.
    let dir = dir.strip_prefix("//").unwrap_or(dir);
    match dir.is_empty() {
        true => {
            Err(Error::invalid("invalid url `file:`: it names no directory, expected `file:DIR`"))
        }
        false => Ok(dir),
    }
}

/// The directory of a `file:` URL.
pub(crate) fn dir_of(url: &str) -> Option<Result<&str, Error>> {
    url.strip_prefix("file:").map(named)
}

/// Names the scheme only: the rest may hold a password.
fn unknown(scheme: &str) -> Error {
    Error::invalid(format!("unknown engine `{scheme}:` in url, {EXPECTED}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(url: &str) -> Result<Locker, Error> {
        Config::default().url(url).connect_later()
    }

    fn refused(url: &str) -> String {
        open(url).unwrap_err().to_string()
    }

    /// A URL that names no engine is refused, and what may be a password is not repeated.
    #[test]
    fn t66_bad_urls_are_named_without_secrets() {
        assert_eq!(
            refused("zookeeper://:hunter2@h"),
            format!("unknown engine `zookeeper:` in url, {EXPECTED}")
        );
        assert_eq!(
            refused("nothing"),
            format!("invalid url `nothing`: it names no engine, {EXPECTED}")
        );
        assert_eq!(
            refused("file:"),
            "invalid url `file:`: it names no directory, expected `file:DIR`"
        );
    }

    /// t66: a URL of an engine that is known is taken to it, and no password is repeated.
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

    /// t66: so is the URL of a Redis Cluster.
    #[cfg(feature = "redis")]
    #[test]
    fn t66_cluster_urls_go_to_the_cluster() {
        assert!(open("redis-cluster://:hunter2@a,b:1").is_ok());
        assert!(open("valkeys+cluster://:hunter2@a#insecure").is_ok());
        let other = refused("redis-cluster://:hunter2@a,b/1");
        assert!(other.contains("a cluster has the database 0 and no other"), "{other}");
        assert!(!other.contains("hunter2"), "{other}");
    }

    /// t66: the same for a cluster of etcd.
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

    /// t61, t66: so is the URL of a quorum.
    #[cfg(feature = "redis")]
    #[test]
    fn t61_quorum_urls_go_to_the_quorum() {
        assert!(open("redis+quorum://:hunter2@a,b,c").is_ok());
        let even = refused("redis+quorum://:hunter2@a,b,c,d");
        assert!(even.starts_with("invalid quorum url: it has 4 nodes"), "{even}");
        assert!(!even.contains("hunter2"), "{even}");
    }

    /// The same name is the same space, another name another.
    #[tokio::test]
    async fn memory_names_are_spaces() {
        let (a, same, other) =
            (open("memory:a").unwrap(), open("memory:a").unwrap(), open("memory:b").unwrap());
        let _guard = a.lock("k").await.unwrap();
        assert!(same.try_lock("k").await.unwrap().is_none());
        assert!(other.try_lock("k").await.unwrap().is_some());
    }
}
