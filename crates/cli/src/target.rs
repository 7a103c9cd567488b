//! Where the locks are stored, and which parts of its URL may be printed.
//!
//! In: flags, else the library's configuration (environment, `tenure.toml`), else the default directory. Out:
//! a [`Target`]. A URL may contain a password, so only [`Target::shown`] and [`Target::scrub`] may be
//! printed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Config, Locker};

use crate::args::GlobalArgs;
use crate::error::CliError;
use crate::output;
use crate::status::Outcome;
use crate::text::{self, shell_word};
use crate::ui::Ui;

/// Variables that may contain our secrets. The last three are for the server of `[redis]` and an etcd
/// cluster.
const PRIVATE: [&str; 7] = [
    "TENURE_URL",
    "TENURE_URL_FILE",
    "TENURE_LOCK_URL",
    "TENURE_LOCK_URL_FILE",
    "TENURE_REDIS_PASSWORD",
    "ETCDCTL_USER",
    "ETCDCTL_PASSWORD",
];
/// A variable that many deployments set already.
const REDIS_URL: &str = "REDIS_URL";
/// The URL parameter with the password for Sentinels, which differs from the server's password.
const SENTINEL_PASSWORD: &str = "sentinel_password=";
/// The engine inside this process.
const MEMORY: &str = "memory:";
/// The pause before checking again for a missing directory.
const MISSING_PAUSE: Duration = Duration::from_millis(100);

/// The engines whose locks end with the process that acquired them. They are listed by name, since asking the
/// engine would create its directory.
const CONFINED: [&str; 2] = ["file:", MEMORY];

/// Where the locks are stored, and their configuration.
#[derive(Clone)]
pub(crate) struct Target {
    url: String,
    source: Source,
    config: Config,
}

/// What chose the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// `--url`: the reader sees it on the command line.
    Flag,
    /// `--url-file`.
    File(PathBuf),
    /// A configuration field or a variable, with its origin.
    Configured(String),
    Nobody,
}

impl Source {
    /// Puts the origin of the URL before the error, because the reader may not know it.
    fn with_origin(&self, trouble: CliError) -> CliError {
        let origin = match self {
            Source::Flag | Source::Nobody => return trouble,
            Source::File(path) => format!("--url-file `{}`", path.display()),
            Source::Configured(field) => field.clone(),
        };
        CliError { chain: format!("{origin}: {}", trouble.chain), ..trouble }
    }
}

impl Target {
    /// Finds the target: from flags, environment and configuration, else the default directory of the user.
    pub(crate) fn find(flags: &GlobalArgs) -> Result<Self, CliError> {
        let config = configuration(flags)?;
        let target = match Self::chosen(flags, &config)? {
            Some(target) => target,
            None => Self::default_place()?,
        };
        Ok(Target { config, ..target })
    }

    fn chosen(flags: &GlobalArgs, config: &Config) -> Result<Option<Self>, CliError> {
        if let Some(target) = Self::named(flags)? {
            return Ok(Some(target));
        }
        let url = config.chosen_url().map_err(|error| CliError::engine(&error))?;
        let by = config.chosen_by().unwrap_or("`[redis]` of the configuration");
        url.map(|url| Self::of(url, Source::Configured(by.into()))).transpose()
    }

    /// The target that a flag names.
    fn named(flags: &GlobalArgs) -> Result<Option<Self>, CliError> {
        match (&flags.url, &flags.url_file) {
            (Some(url), _) => Self::of(url.clone(), Source::Flag).map(Some),
            (None, Some(path)) => Self::of(read(path)?, Source::File(path.clone())).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn of(url: String, source: Source) -> Result<Self, CliError> {
        if url.trim().is_empty() {
            return Err(source.with_origin(CliError::usage("the URL is empty")));
        }
        Ok(Target { url: url.trim().into(), source, config: Config::default() })
    }

    /// The configuration for the locks.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn default_place() -> Result<Self, CliError> {
        let dir = tenure::file::default_dir();
        Self::of(format!("file:{}", dir.display()), Source::Nobody)
    }

    /// The engine, if its locks end with the process that acquired them.
    pub(crate) fn is_local(&self) -> Option<&'static str> {
        CONFINED.into_iter().find(|engine| self.url.starts_with(engine))
    }

    pub(crate) fn is_memory(&self) -> bool {
        self.url.starts_with(MEMORY)
    }

    /// Connects, after printing what the reader may not expect. If `later`, the connection is made with the
    /// first request, for a caller that waits for the server.
    pub(crate) async fn connect(&self, ui: &mut Ui, later: bool) -> Result<Locker, CliError> {
        self.introduce(ui);
        match later {
            true => self.configured().connect_later().map_err(|error| self.with_origin(&error)),
            false => self.open().await,
        }
    }

    pub(crate) fn introduce(&self, ui: &mut Ui) {
        if self.source == Source::Nobody {
            ui.info(&output::using_default(&self.shown()));
        }
        if self.is_memory() {
            ui.info(&output::memory_excludes_nobody());
        }
    }

    async fn open(&self) -> Result<Locker, CliError> {
        let opened = self.configured().connect().await;
        opened.map_err(|error| self.with_origin(&error))
    }

    /// The connection settings. A URL from the configuration is not set again, so that it keeps its origin: a
    /// password from another origin may not belong to it.
    pub(crate) fn configured(&self) -> Config {
        match self.source {
            Source::Configured(_) => self.config.clone(),
            _ => self.config.clone().url(&self.url),
        }
    }

    /// An error of the engine, with the origin of the URL.
    pub(crate) fn with_origin(&self, error: &tenure::Error) -> CliError {
        let trouble = self.trouble(error);
        match self.source {
            Source::Nobody => trouble.hint("choose another target with --url"),
            // The library's error already names the field.
            Source::Configured(_) if error.is_invalid() && error.fault().is_none() => trouble,
            _ => self.source.with_origin(trouble),
        }
    }

    /// Connects for reading only, and prints nothing. A missing directory is not created: the default
    /// directory counts as empty, and any other missing directory is most likely a typing error.
    pub(crate) async fn look(&self) -> Result<Locker, CliError> {
        let Some(dir) = self.missing() else { return self.open().await };
        if self.source != Source::Nobody {
            let missing = format!("lock directory `{}` does not exist", dir.display());
            return Err(self.source.with_origin(CliError::new(Outcome::Unreachable, missing)));
        }
        // It has no locks, and it checks patterns like any other engine.
        tenure::connect(MEMORY).await.map_err(|error| self.trouble(&error))
    }

    /// Like [`Target::look`], for a watch: waits until the default directory exists, which the first lock
    /// creates.
    pub(crate) async fn look_when_there(&self) -> Result<Locker, CliError> {
        while self.source == Source::Nobody && self.missing().is_some() {
            tokio::time::sleep(MISSING_PAUSE).await;
        }
        self.look().await
    }

    /// The directory of the locks, if the engine needs one and it does not exist.
    fn missing(&self) -> Option<PathBuf> {
        let dir = self.url.strip_prefix("file:")?;
        // Read the path as the engine does. The engine rejects `file://`.
        let dir = match dir {
            "" => tenure::file::default_dir(),
            dir => PathBuf::from(dir.strip_prefix("//").unwrap_or(dir)),
        };
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let missing = !dir.as_os_str().is_empty() && dir.symlink_metadata().is_err_and(gone);
        missing.then_some(dir)
    }

    /// The option with which another `tenure` finds the same locks, quoted for a shell. `None` if the
    /// configuration or the default chose; only `-u …` if the URL has a password.
    pub(crate) fn option(&self) -> Option<String> {
        match &self.source {
            Source::Flag if self.shown() != self.url => Some("-u …".into()),
            Source::Flag => Some(format!("-u {}", shell_word(&self.url))),
            Source::File(path) => {
                Some(format!("--url-file {}", shell_word(&path.to_string_lossy())))
            }
            Source::Configured(_) | Source::Nobody => None,
        }
    }

    /// An error of the engine, without our password.
    pub(crate) fn trouble(&self, error: &tenure::Error) -> CliError {
        let trouble = CliError::engine(error);
        CliError { chain: self.scrub(&trouble.chain), ..trouble }
    }

    /// The URL without its passwords.
    pub(crate) fn shown(&self) -> String {
        let mut hidden: Vec<_> =
            [self.password(), self.sentinel_password()].into_iter().flatten().collect();
        // The two overlap if a password has an `@` that was not percent-encoded.
        if let [(start, middle), (from, end)] = hidden[..]
            && middle > from
        {
            hidden = vec![(start.min(from), middle.max(end))];
        }
        let mut shown = self.url.clone();
        // The last first, so that the earlier offsets stay valid.
        for (start, end) in hidden.into_iter().rev() {
            shown.replace_range(start..end, "***");
        }
        shown
    }

    /// The byte range of the Sentinel password in the URL.
    fn sentinel_password(&self) -> Option<(usize, usize)> {
        let start = self.url.rfind(SENTINEL_PASSWORD)? + SENTINEL_PASSWORD.len();
        let end = self.url[start..].find(['&', '#']).map_or(self.url.len(), |at| start + at);
        (start < end).then_some((start, end))
    }

    /// A text about this target, without its passwords.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let whole = text.replace(&self.url, &self.shown());
        let Some((start, end)) = self.password() else { return whole };
        whole.replace(&format!(":{}@", &self.url[start..end]), ":***@")
    }

    /// The byte range of the password in the URL: between the first `:` after `//` and the last `@`. A
    /// password may contain `@` itself, if it was not percent-encoded.
    fn password(&self) -> Option<(usize, usize)> {
        let authority = self.url.find("//")? + 2;
        let rest = &self.url[authority..];
        let end = rest.rfind('@')?;
        let start = rest[..end].find(':')? + 1;
        (start < end).then_some((authority + start, authority + end))
    }

    /// The variables that a command must not inherit: our secrets, and the application's URL if we used it.
    pub(crate) fn private_variables(&self) -> Vec<&'static str> {
        let is_used = matches!(&self.source, Source::Configured(by) if by.contains(REDIS_URL));
        PRIVATE.into_iter().chain(is_used.then_some(REDIS_URL)).collect()
    }
}

/// Reads the configuration as the library does.
fn configuration(flags: &GlobalArgs) -> Result<Config, CliError> {
    let config = Config::read().map_err(|error| CliError::engine(&error))?;
    Ok(match &flags.prefix {
        Some(prefix) => config.prefix(prefix),
        None => config,
    })
}

fn read(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|error| {
        let (shown, cause) = (path.display(), text::chain(&error));
        CliError::usage(format!("cannot read the URL from `{shown}`: {cause}"))
    })
}

/// Connects, runs `work` with the locker, and drops the locker.
pub(crate) fn look_at<T>(
    flags: &GlobalArgs,
    ui: &mut Ui,
    work: impl AsyncFnOnce(&Locker) -> Result<T, tenure::Error>,
) -> Result<T, CliError> {
    let target = Target::find(flags)?;
    runtime()?.block_on(async {
        target.introduce(ui);
        let locker = target.look().await?;
        work(&locker).await.map_err(|error| target.trouble(&error))
    })
}

/// A runtime on the current thread. One thread is enough, and the main thread must start the child: the
/// kernel kills the child when the *thread* that started it ends.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::new(Outcome::Unreachable, format!("cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::When;

    fn flags(url: Option<&str>) -> GlobalArgs {
        let url = url.map(Into::into);
        let (url_file, prefix) = (None, None);
        GlobalArgs { url, url_file, prefix, color: When::Auto, quiet: false, verbose: 0 }
    }

    fn target(url: &str) -> Target {
        Target { url: url.into(), source: Source::Flag, config: Config::default() }
    }

    fn refused(flags: &GlobalArgs) -> String {
        let target = Target::named(flags).map(Option::unwrap);
        let opened = target.and_then(|target| runtime()?.block_on(target.open()));
        opened.unwrap_err().chain
    }

    /// An error about a URL from a file names the file.
    #[test]
    fn errors_name_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("url");
        let shown = path.to_str().unwrap();
        let file = GlobalArgs { url_file: Some(path.clone()), ..flags(None) };
        let unknown = "unknown engine `zookeeper:` in url, expected `memory:`, `file:DIR`, \
                       `redis://HOST`, `redis+sentinel://HOST,HOST/SERVICE`, \
                       `redis-cluster://HOST,HOST`, `redis+quorum://HOST,HOST,HOST` or \
                       `etcd://HOST`";
        let zookeeper = "zookeeper://:s3cret@h";
        fs::write(&path, zookeeper).unwrap();
        assert_eq!(refused(&flags(Some(zookeeper))), unknown);
        assert_eq!(refused(&file), format!("--url-file `{shown}`: {unknown}"));
        fs::write(&path, "\n").unwrap();
        assert_eq!(refused(&file), format!("--url-file `{shown}`: the URL is empty"));
    }

    /// Reading creates no directory. A missing default directory counts as empty.
    #[test]
    fn inspecting_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        for slashes in ["", "//"] {
            let chosen = target(&format!("file:{slashes}{}", path.display()));
            let default = Target { source: Source::Nobody, ..chosen.clone() };
            runtime().unwrap().block_on(async {
                let trouble = chosen.look().await.unwrap_err();
                assert_eq!(trouble.outcome, Outcome::Unreachable);
                let text = format!("lock directory `{}` does not exist", path.display());
                assert_eq!(trouble.chain, text);
                let locker = default.look().await.unwrap();
                assert!(locker.list("*").await.unwrap().is_empty());
                assert!(locker.inspect("k").await.unwrap().is_none());
            });
        }
        assert!(!path.exists());
    }

    /// A hint leads to the same locks, and shows no password.
    #[test]
    fn options_lead_here() {
        assert_eq!(target("file:/var/lock").option().unwrap(), "-u file:/var/lock");
        assert_eq!(target("file:/a b").option().unwrap(), "-u 'file:/a b'");
        assert_eq!(target("redis://:s3cret@h").option().unwrap(), "-u …");
        assert_eq!(target("redis+sentinel://a/s?sentinel_password=x").option().unwrap(), "-u …");
        let file = Target { source: Source::File("a b".into()), ..target("redis://:s3cret@h") };
        assert_eq!(file.option().unwrap(), "--url-file 'a b'");
        let configured = Source::Configured("`TENURE_URL` in the environment".into());
        assert_eq!(Target { source: configured, ..target("file:x") }.option(), None);
    }

    /// A password is never shown, wherever it is in the URL.
    #[test]
    fn passwords_are_left_out() {
        let cases = [
            ("redis://:s3cret@host:6379/0", "redis://:***@host:6379/0"),
            ("rediss://me:s3cret@host", "rediss://me:***@host"),
            ("redis://me:p@ss/w:rd@host", "redis://me:***@host"),
            ("redis://host:6379", "redis://host:6379"),
            (
                "redis+sentinel://a,b/s?sentinel_password=s3cret",
                "redis+sentinel://a,b/s?sentinel_password=***",
            ),
            ("redis+sentinel://a:1/s?sentinel_password=s3@cret", "redis+sentinel://a:***"),
            (
                "redis+sentinel://:pw@a/s?sentinel_password=s3cret&replicas=1",
                "redis+sentinel://:***@a/s?sentinel_password=***&replicas=1",
            ),
            ("file:/var/lock", "file:/var/lock"),
        ];
        for (url, shown) in cases {
            assert_eq!(target(url).shown(), shown);
        }
        let target = target("redis://me:s3cret@host");
        assert_eq!(target.scrub("at `redis://me:s3cret@host`"), "at `redis://me:***@host`");
        assert_eq!(target.scrub("to me:s3cret@host/1"), "to me:***@host/1");
        let sentinels = self::target("redis+sentinel://a/s?sentinel_password=s3cret");
        let scrubbed = sentinels.scrub("at `redis+sentinel://a/s?sentinel_password=s3cret`");
        assert_eq!(scrubbed, "at `redis+sentinel://a/s?sentinel_password=***`");
    }

    /// A command inherits the application's URL, unless we used it.
    #[test]
    fn private_variables_are_ours() {
        assert_eq!(target("memory:").private_variables(), PRIVATE);
        let source = Source::Configured("`REDIS_URL` in the environment".into());
        let used = Target { source, ..target("redis://h") };
        assert_eq!(used.private_variables().last(), Some(&REDIS_URL));
    }
}
