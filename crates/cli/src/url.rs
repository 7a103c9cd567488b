//! Where the locks are kept, and what of that may be shown.
//!
//! In: flags, then environment, then `tenure.toml`, then nothing. Out: a [`Place`]. A URL may carry a
//! password, so only [`Place::shown`] and [`Place::scrub`] ever reach a reader.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::config::FILE;
use tenure::{Config, Locker};

use crate::args::Everywhere;
use crate::output;
use crate::status::Outcome;
use crate::talk::Talk;
use crate::text::{self, shell_word};
use crate::trouble::Trouble;

const URL: &str = "TENURE_URL";
const URL_FILE: &str = "TENURE_URL_FILE";
/// The same in the words of the configuration.
const LOCK_URL: &str = "TENURE_LOCK_URL";
/// What may hold a secret of ours: the last three open the server of `[redis]` and an etcd cluster.
const PRIVATE: [&str; 6] =
    [URL, URL_FILE, LOCK_URL, "TENURE_REDIS_PASSWORD", "ETCDCTL_USER", "ETCDCTL_PASSWORD"];
/// What goes for all users of this machine.
const SYSTEM_DIR: &str = "/etc/tenure";
/// What many deployments set already.
const REDIS_URL: &str = "REDIS_URL";
/// What stands before the password for Sentinels in a URL, which is not the server's.
const SENTINEL_PASSWORD: &str = "sentinel_password=";
/// The engine inside this process.
const MEMORY: &str = "memory:";
/// How long to wait before looking again for a directory that is not there.
const MISSING_PAUSE: Duration = Duration::from_millis(100);

/// Those whose locks end with the process that took them. By name, since asking the engine itself
/// would make the directory that it is then not to be used for.
const CONFINED: [&str; 2] = ["file:", MEMORY];

/// Where the locks are kept, and what is configured about them.
#[derive(Clone)]
pub(crate) struct Place {
    url: String,
    source: Source,
    config: Config,
}

/// Who named it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// `--url`: it stands before the reader's eyes.
    Flag,
    /// `--url-file`.
    File(PathBuf),
    Variable(&'static str),
    /// A field of the configuration, and where it stands.
    Configured(String),
    Nobody,
}

impl Source {
    /// What the reader may not have in mind: where the URL came from, before what is wrong with it.
    fn blamed(&self, trouble: Trouble) -> Trouble {
        let origin = match self {
            Source::Flag | Source::Nobody => return trouble,
            Source::File(path) => format!("--url-file `{}`", path.display()),
            Source::Variable(name) => (*name).into(),
            Source::Configured(field) => field.clone(),
        };
        Trouble { chain: format!("{origin}: {}", trouble.chain), ..trouble }
    }
}

impl Place {
    /// The place that flags, environment, configuration or, failing all, the user's id name.
    pub(crate) fn find(flags: &Everywhere) -> Result<Self, Trouble> {
        let config = configuration(flags)?;
        let place = match Self::chosen(flags, &config)? {
            Some(place) => place,
            None => Self::default_place()?,
        };
        Ok(Place { config, ..place })
    }

    fn chosen(flags: &Everywhere, config: &Config) -> Result<Option<Self>, Trouble> {
        if let Some(place) = Self::named(flags, |name| std::env::var_os(name))? {
            return Ok(Some(place));
        }
        let url = config.chosen_url().map_err(|error| Trouble::engine(&error))?;
        let by = config.chosen_by().unwrap_or("the configuration");
        url.map(|url| Self::of(url, Source::Configured(by.into()))).transpose()
    }

    fn named(
        flags: &Everywhere,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, Trouble> {
        let set = |name| env(name).filter(|value| !value.is_empty());
        if let Some(url) = &flags.url {
            return Self::of(url.clone(), Source::Flag).map(Some);
        }
        if let Some(path) = &flags.url_file {
            return Self::of(read(path)?, Source::File(path.clone())).map(Some);
        }
        if let Some(url) = set(URL) {
            return Self::of(unicode(URL, url)?, Source::Variable(URL)).map(Some);
        }
        if let Some(path) = set(URL_FILE) {
            let source = Source::Variable(URL_FILE);
            let url = read(Path::new(&path)).map_err(|trouble| source.blamed(trouble))?;
            return Self::of(url, source).map(Some);
        }
        let Some(url) = set(REDIS_URL) else { return Ok(None) };
        Self::of(unicode(REDIS_URL, url)?, Source::Variable(REDIS_URL)).map(Some)
    }

    fn of(url: String, source: Source) -> Result<Self, Trouble> {
        if url.trim().is_empty() {
            return Err(source.blamed(Trouble::usage("the URL is empty")));
        }
        Ok(Place { url: url.trim().into(), source, config: Config::default() })
    }

    /// What is configured about its locks.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn default_place() -> Result<Self, Trouble> {
        let dir = tenure::file::default_dir();
        Self::of(format!("file:{}", dir.display()), Source::Nobody)
    }

    /// The engine whose locks end with the process that took them, if it is one of those.
    pub(crate) fn confined(&self) -> Option<&'static str> {
        CONFINED.into_iter().find(|engine| self.url.starts_with(engine))
    }

    /// Connects, having said what the reader may not expect of this place.
    pub(crate) async fn connect(&self, talk: &mut Talk) -> Result<Locker, Trouble> {
        self.introduce(talk);
        self.open().await
    }

    pub(crate) fn introduce(&self, talk: &mut Talk) {
        if self.source == Source::Nobody {
            talk.say(&output::using_default(&self.shown()));
        }
        if self.url.starts_with(MEMORY) {
            talk.say(&output::memory_excludes_nobody());
        }
    }

    async fn open(&self) -> Result<Locker, Trouble> {
        let opened = self.configured().connect().await;
        opened.map_err(|error| self.blamed(&error))
    }

    /// Everything that says how to connect. What a file has chosen stays its choice: a password of another
    /// place may not be for it.
    pub(crate) fn configured(&self) -> Config {
        match self.source {
            Source::Configured(_) => self.config.clone(),
            _ => self.config.clone().url(&self.url),
        }
    }

    /// What the engine said of this place, and who named it.
    pub(crate) fn blamed(&self, error: &tenure::Error) -> Trouble {
        let trouble = self.trouble(error);
        match self.source {
            Source::Nobody => trouble.hint("choose another place with --url"),
            _ => self.source.blamed(trouble),
        }
    }

    /// Connects to look only, and says nothing. A directory that is not there stays so: the one that
    /// nobody chose is as good as empty, and another is more often a typing error.
    pub(crate) async fn look(&self) -> Result<Locker, Trouble> {
        let Some(dir) = self.missing() else { return self.open().await };
        if self.source != Source::Nobody {
            let missing = format!("lock directory `{}` does not exist", dir.display());
            return Err(self.source.blamed(Trouble::new(Outcome::Unreachable, missing)));
        }
        // Nothing of ours is in there, and it judges patterns like any other.
        tenure::connect(MEMORY).await.map_err(|error| self.trouble(&error))
    }

    /// The same for whoever stays: where nobody chose a place and there is none yet, it will come with
    /// the first lock.
    pub(crate) async fn look_when_there(&self) -> Result<Locker, Trouble> {
        while self.source == Source::Nobody && self.missing().is_some() {
            tokio::time::sleep(MISSING_PAUSE).await;
        }
        self.look().await
    }

    /// The directory of the locks, if there is to be one and there is none.
    fn missing(&self) -> Option<&Path> {
        let dir = self.url.strip_prefix("file:")?;
        // As the engine reads it. One that is not named is for the engine to refuse.
        let dir = Path::new(dir.strip_prefix("//").unwrap_or(dir));
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        let missing = !dir.as_os_str().is_empty() && dir.symlink_metadata().is_err_and(gone);
        missing.then_some(dir)
    }

    /// The option that leads another `tenure` here, for a shell: none where the environment or
    /// nothing at all does, and no more than a sign of one where a password would have to be shown.
    pub(crate) fn option(&self) -> Option<String> {
        match &self.source {
            Source::Flag if self.shown() != self.url => Some("-u …".into()),
            Source::Flag => Some(format!("-u {}", shell_word(&self.url))),
            Source::File(path) => {
                Some(format!("--url-file {}", shell_word(&path.to_string_lossy())))
            }
            Source::Variable(_) | Source::Configured(_) | Source::Nobody => None,
        }
    }

    /// What the engine said, without our password.
    pub(crate) fn trouble(&self, error: &tenure::Error) -> Trouble {
        let trouble = Trouble::engine(error);
        Trouble { chain: self.scrub(&trouble.chain), ..trouble }
    }

    /// The URL with its passwords left out.
    pub(crate) fn shown(&self) -> String {
        let mut hidden: Vec<_> =
            [self.password(), self.sentinel_password()].into_iter().flatten().collect();
        // They overlap where one has an `@` that its author did not encode.
        if let [(start, middle), (from, end)] = hidden[..]
            && middle > from
        {
            hidden = vec![(start.min(from), middle.max(end))];
        }
        let mut shown = self.url.clone();
        // The last first: what stands before it stays where it was.
        for (start, end) in hidden.into_iter().rev() {
            shown.replace_range(start..end, "***");
        }
        shown
    }

    /// Where in the URL the password for Sentinels is.
    fn sentinel_password(&self) -> Option<(usize, usize)> {
        let start = self.url.rfind(SENTINEL_PASSWORD)? + SENTINEL_PASSWORD.len();
        let end = self.url[start..].find(['&', '#']).map_or(self.url.len(), |at| start + at);
        (start < end).then_some((start, end))
    }

    /// Some text about this place with its password left out.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let whole = text.replace(&self.url, &self.shown());
        let Some((start, end)) = self.password() else { return whole };
        whole.replace(&format!(":{}@", &self.url[start..end]), ":***@")
    }

    /// Where in the URL the password is: between the first `:` after `//` and the last `@` before
    /// the path. A password may itself contain `@`, if its author did not encode it.
    fn password(&self) -> Option<(usize, usize)> {
        let authority = self.url.find("//")? + 2;
        let rest = &self.url[authority..];
        let end = rest.rfind('@')?;
        let start = rest[..end].find(':')? + 1;
        (start < end).then_some((authority + start, authority + end))
    }

    /// The variables that a command must not inherit: our secrets, and the application's URL if we used it.
    pub(crate) fn private_variables(&self) -> Vec<&'static str> {
        let used = (self.source == Source::Variable(REDIS_URL)).then_some(REDIS_URL);
        PRIVATE.into_iter().chain(used).collect()
    }
}

/// What the files and the environment say about locks: this machine's file, this user's, the one of
/// the working directory, each stronger than the one before.
fn configuration(flags: &Everywhere) -> Result<Config, Trouble> {
    let system = Some(PathBuf::from(SYSTEM_DIR).join(FILE));
    let user = user_dir(|name| std::env::var_os(name)).map(|dir| dir.join("tenure").join(FILE));
    let files: Vec<_> = [system, user, Some(FILE.into())].into_iter().flatten().collect();
    let config = Config::read_files(&files).map_err(|error| Trouble::engine(&error))?;
    Ok(match &flags.prefix {
        Some(prefix) => config.prefix(prefix),
        None => config,
    })
}

/// Where this user's configuration is. A relative path is none, as the convention has it.
fn user_dir(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))
}

fn read(path: &Path) -> Result<String, Trouble> {
    fs::read_to_string(path).map_err(|error| {
        let (shown, cause) = (path.display(), text::chain(&error));
        Trouble::usage(format!("cannot read the URL from `{shown}`: {cause}"))
    })
}

fn unicode(name: &str, value: OsString) -> Result<String, Trouble> {
    value.into_string().map_err(|_| Trouble::usage(format!("`{name}` is not valid UTF-8")))
}

/// Looks at the locks with `work`, and lets go of the locker afterwards.
pub(crate) fn look_at<T>(
    flags: &Everywhere,
    talk: &mut Talk,
    work: impl AsyncFnOnce(&Locker) -> Result<T, tenure::Error>,
) -> Result<T, Trouble> {
    let place = Place::find(flags)?;
    runtime()?.block_on(async {
        place.introduce(talk);
        let locker = place.look().await?;
        work(&locker).await.map_err(|error| place.trouble(&error))
    })
}

/// One thread is all we need, and the child must be started by the main one: it is killed when the
/// *thread* that started it ends.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Trouble::new(Outcome::Unreachable, format!("cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::When;

    fn flags(url: Option<&str>) -> Everywhere {
        let url = url.map(Into::into);
        let (url_file, prefix) = (None, None);
        Everywhere { url, url_file, prefix, color: When::Auto, quiet: false, verbose: 0 }
    }

    fn place(url: &str) -> Place {
        Place { url: url.into(), source: Source::Flag, config: Config::default() }
    }

    fn named(flags: &Everywhere, env: &[(&str, &str)]) -> Option<(String, Source)> {
        let look = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        Place::named(flags, look).unwrap().map(|place| (place.url, place.source))
    }

    /// Flags come before our variables, ours before the application's.
    #[test]
    fn sources_in_order() {
        let env = [(URL, "memory:a"), (REDIS_URL, "redis://b")];
        assert_eq!(named(&flags(Some("file:x")), &env), Some(("file:x".into(), Source::Flag)));
        assert_eq!(named(&flags(None), &env), Some(("memory:a".into(), Source::Variable(URL))));
        let redis = Some(("redis://b".into(), Source::Variable(REDIS_URL)));
        assert_eq!(named(&flags(None), &env[1..]), redis);
        assert_eq!(named(&flags(None), &[(URL, "")]), None);
    }

    fn refused(flags: &Everywhere, env: &[(&str, &str)]) -> String {
        let look = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        let place = Place::named(flags, look).map(Option::unwrap);
        let opened = place.and_then(|place| runtime()?.block_on(place.open()));
        opened.unwrap_err().chain
    }

    /// Whoever did not type the URL is told where it came from.
    #[test]
    fn errors_name_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("url");
        let shown = path.to_str().unwrap();
        let file = Everywhere { url_file: Some(path.clone()), ..flags(None) };
        let unknown = "unknown engine `zookeeper:` in url, expected `memory:`, `file:DIR`, \
                       `redis://HOST`, `redis+sentinel://HOST,HOST/SERVICE`, \
                       `redis-cluster://HOST,HOST`, `redis+quorum://HOST,HOST,HOST` or \
                       `etcd://HOST`";
        let zookeeper = "zookeeper://:s3cret@h";
        fs::write(&path, zookeeper).unwrap();
        assert_eq!(refused(&flags(Some(zookeeper)), &[]), unknown);
        assert_eq!(
            refused(&flags(None), &[(REDIS_URL, zookeeper)]),
            format!("REDIS_URL: {unknown}")
        );
        assert_eq!(refused(&flags(None), &[(URL, zookeeper)]), format!("TENURE_URL: {unknown}"));
        assert_eq!(
            refused(&flags(None), &[(URL_FILE, shown)]),
            format!("TENURE_URL_FILE: {unknown}")
        );
        assert_eq!(refused(&file, &[]), format!("--url-file `{shown}`: {unknown}"));
        fs::write(&path, "\n").unwrap();
        assert_eq!(refused(&file, &[]), format!("--url-file `{shown}`: the URL is empty"));
        assert_eq!(
            refused(&flags(None), &[(URL_FILE, "/no/such")]),
            "TENURE_URL_FILE: cannot read the URL from `/no/such`: No such file or directory \
             (os error 2)"
        );
    }

    /// A look creates no directory. The one that nobody chose is taken for empty.
    #[test]
    fn looks_create_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locks");
        for slashes in ["", "//"] {
            let chosen = place(&format!("file:{slashes}{}", path.display()));
            let default = Place { source: Source::Nobody, ..chosen.clone() };
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

    /// A hint leads to the same place, and shows no password on the way.
    #[test]
    fn options_lead_here() {
        assert_eq!(place("file:/var/lock").option().unwrap(), "-u file:/var/lock");
        assert_eq!(place("file:/a b").option().unwrap(), "-u 'file:/a b'");
        assert_eq!(place("redis://:s3cret@h").option().unwrap(), "-u …");
        assert_eq!(place("redis+sentinel://a/s?sentinel_password=x").option().unwrap(), "-u …");
        let file = Place { source: Source::File("a b".into()), ..place("redis://:s3cret@h") };
        assert_eq!(file.option().unwrap(), "--url-file 'a b'");
        assert_eq!(Place { source: Source::Variable(URL), ..place("file:x") }.option(), None);
    }

    /// A password is never shown, wherever it stands.
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
            assert_eq!(place(url).shown(), shown);
        }
        let place = place("redis://me:s3cret@host");
        assert_eq!(place.scrub("at `redis://me:s3cret@host`"), "at `redis://me:***@host`");
        assert_eq!(place.scrub("to me:s3cret@host/1"), "to me:***@host/1");
        let sentinels = self::place("redis+sentinel://a/s?sentinel_password=s3cret");
        let scrubbed = sentinels.scrub("at `redis+sentinel://a/s?sentinel_password=s3cret`");
        assert_eq!(scrubbed, "at `redis+sentinel://a/s?sentinel_password=***`");
    }

    /// A command gets the application's URL, unless it was ours.
    #[test]
    fn private_variables_are_ours() {
        assert_eq!(place("memory:").private_variables(), PRIVATE);
        let used = Place { source: Source::Variable(REDIS_URL), ..place("redis://h") };
        assert_eq!(used.private_variables().last(), Some(&REDIS_URL));
    }

    /// A user's configuration is where other programs keep theirs.
    #[test]
    fn directories_of_users() {
        let dir = |all: &[(&str, &str)]| {
            user_dir(|name| all.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
        };
        let both = [("XDG_CONFIG_HOME", "/x"), ("HOME", "/home/ann")];
        assert_eq!(dir(&both), Some("/x".into()));
        assert_eq!(dir(&both[1..]), Some("/home/ann/.config".into()));
        assert_eq!(dir(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/a")]), Some("/a/.config".into()));
        assert_eq!(dir(&[]), None);
    }
}
