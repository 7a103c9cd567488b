//! From a URL to a `Locker`: the one place that knows all engines.

use tenure_core::{Error, FileLocks, Locker, Memory, blocking};

/// A locker on the engine that `url` names.
///
/// | URL | engine |
/// |---|---|
/// | `memory:` | inside this process; `memory:NAME` is a space of its own |
/// | `file:DIR` | across one user's processes on this machine, by the kernel's file locks; a relative `DIR` is taken from the working directory, and `~` is not expanded |
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) for a URL that names no engine,
/// [`is_refused`](Error::is_refused) for a directory that is not safe to use.
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
    open(url)
}

/// [`tenure::connect`](connect) for code without a runtime.
///
/// # Errors
///
/// Those of [`tenure::connect`](connect).
///
/// ```
/// let locker = tenure::blocking::connect("memory:")?;
/// let guard = locker.lock("order:42").acquire()?;
/// guard.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn connect_blocking(url: &str) -> Result<blocking::Locker, Error> {
    open(url).map(blocking::Locker::new)
}

fn open(url: &str) -> Result<Locker, Error> {
    match url.split_once(':') {
        Some(("memory", name)) => Ok(Locker::new(Memory::space(name))),
        Some(("file", dir)) => open_dir(dir),
        Some((scheme, _)) => Err(unknown(scheme)),
        None => Err(Error::invalid(format!(
            "invalid url `{url}`: it names no engine, expected `memory:` or `file:DIR`"
        ))),
    }
}

fn open_dir(dir: &str) -> Result<Locker, Error> {
    // `file:///var/locks` is how URLs are usually written; the host must be empty.
    let dir = dir.strip_prefix("//").unwrap_or(dir);
    if dir.is_empty() {
        return Err(Error::invalid(
            "invalid url `file:`: it names no directory, expected `file:DIR`",
        ));
    }
    FileLocks::open(dir).map(Locker::new)
}

/// Names the scheme only: the rest may hold a password.
fn unknown(scheme: &str) -> Error {
    Error::invalid(format!("unknown engine `{scheme}:` in url, expected `memory:` or `file:DIR`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        open(url).unwrap_err().to_string()
    }

    /// A URL that names no engine is refused, and what may be a password is not repeated.
    #[test]
    fn t66_bad_urls_are_named_without_secrets() {
        assert_eq!(
            refused("redis://:hunter2@h"),
            "unknown engine `redis:` in url, expected `memory:` or `file:DIR`"
        );
        assert_eq!(
            refused("nothing"),
            "invalid url `nothing`: it names no engine, expected `memory:` or `file:DIR`"
        );
        assert_eq!(
            refused("file:"),
            "invalid url `file:`: it names no directory, expected `file:DIR`"
        );
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
