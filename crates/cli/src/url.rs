//! Where the locks are kept, and what of that may be shown.
//!
//! In: flags, then environment, then nothing. Out: a [`Place`]. A URL may carry a password, so only
//! [`Place::shown`] and [`Place::scrub`] ever reach a reader.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tenure::Locker;

use crate::args::Everywhere;
use crate::output;
use crate::talk::Talk;
use crate::text;
use crate::trouble::Trouble;

const URL: &str = "TENURE_URL";
const URL_FILE: &str = "TENURE_URL_FILE";
/// What many deployments set already.
const REDIS_URL: &str = "REDIS_URL";

/// Where the locks are kept.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Place {
    url: String,
    source: Source,
}

/// Who named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Flag,
    Variable(&'static str),
    Nobody,
}

impl Place {
    /// The place that flags, environment or, failing both, the user's id name.
    pub(crate) fn find(flags: &Everywhere) -> Result<Self, Trouble> {
        match Self::named(flags, |name| std::env::var_os(name))? {
            Some(place) => Ok(place),
            None => Self::default_place(),
        }
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
            return Self::of(read(path)?, Source::Flag).map(Some);
        }
        if let Some(url) = set(URL) {
            return Self::of(unicode(URL, url)?, Source::Variable(URL)).map(Some);
        }
        if let Some(path) = set(URL_FILE) {
            return Self::of(read(Path::new(&path))?, Source::Variable(URL_FILE)).map(Some);
        }
        let Some(url) = set(REDIS_URL) else { return Ok(None) };
        Self::of(unicode(REDIS_URL, url)?, Source::Variable(REDIS_URL)).map(Some)
    }

    fn of(url: String, source: Source) -> Result<Self, Trouble> {
        if url.trim().is_empty() {
            return Err(Trouble::usage("the URL is empty"));
        }
        Ok(Place { url: url.trim().into(), source })
    }

    fn default_place() -> Result<Self, Trouble> {
        let dir = tenure::file::default_dir();
        Self::of(format!("file:{}", dir.display()), Source::Nobody)
    }

    /// Connects, having said where to if nobody chose it.
    pub(crate) async fn connect(&self, talk: &mut Talk) -> Result<Locker, Trouble> {
        if self.source != Source::Nobody {
            return self.open().await;
        }
        talk.say(&output::using_default(&self.shown()));
        self.open().await.map_err(|trouble| trouble.hint("choose another place with --url"))
    }

    /// Connects and says nothing.
    pub(crate) async fn open(&self) -> Result<Locker, Trouble> {
        tenure::connect(&self.url).await.map_err(|error| self.trouble(&error))
    }

    /// What the engine said, without our password.
    pub(crate) fn trouble(&self, error: &tenure::Error) -> Trouble {
        let trouble = Trouble::engine(error);
        Trouble { chain: self.scrub(&trouble.chain), ..trouble }
    }

    /// The URL with its password left out.
    pub(crate) fn shown(&self) -> String {
        match self.password() {
            Some((start, end)) => format!("{}***{}", &self.url[..start], &self.url[end..]),
            None => self.url.clone(),
        }
    }

    /// Some text about this place with its password left out.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let Some((start, end)) = self.password() else { return text.into() };
        let whole = text.replace(&self.url, &self.shown());
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

    /// The variables that a command must not inherit: ours, and the application's only if we used it.
    pub(crate) fn private_variables(&self) -> Vec<&'static str> {
        let used = (self.source == Source::Variable(REDIS_URL)).then_some(REDIS_URL);
        [URL, URL_FILE].into_iter().chain(used).collect()
    }
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

/// Runs `work` with a locker for `place`, and lets go of it afterwards.
pub(crate) fn with_locker<T>(
    flags: &Everywhere,
    talk: &mut Talk,
    work: impl AsyncFnOnce(&Locker) -> Result<T, tenure::Error>,
) -> Result<T, Trouble> {
    let place = Place::find(flags)?;
    runtime()?.block_on(async {
        let locker = place.connect(talk).await?;
        work(&locker).await.map_err(|error| place.trouble(&error))
    })
}

/// One thread is all we need, and the child must be started by the main one: it is killed when the
/// *thread* that started it ends.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Trouble::new(crate::status::Outcome::Unreachable, format!("cannot start: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::When;

    fn flags(url: Option<&str>) -> Everywhere {
        let url = url.map(Into::into);
        Everywhere { url, url_file: None, color: When::Auto, quiet: false, verbose: 0 }
    }

    fn place(url: &str) -> Place {
        Place { url: url.into(), source: Source::Flag }
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

    /// A password is never shown, wherever it stands.
    #[test]
    fn passwords_are_left_out() {
        let cases = [
            ("redis://:s3cret@host:6379/0", "redis://:***@host:6379/0"),
            ("rediss://me:s3cret@host", "rediss://me:***@host"),
            ("redis://me:p@ss/w:rd@host", "redis://me:***@host"),
            ("redis://host:6379", "redis://host:6379"),
            ("file:/var/lock", "file:/var/lock"),
        ];
        for (url, shown) in cases {
            assert_eq!(place(url).shown(), shown);
        }
        let place = place("redis://me:s3cret@host");
        assert_eq!(place.scrub("at `redis://me:s3cret@host`"), "at `redis://me:***@host`");
        assert_eq!(place.scrub("to me:s3cret@host/1"), "to me:***@host/1");
    }

    /// A command gets the application's URL, unless it was ours.
    #[test]
    fn private_variables_are_ours() {
        assert_eq!(place("memory:").private_variables(), [URL, URL_FILE]);
        let used = Place { source: Source::Variable(REDIS_URL), ..place("redis://h") };
        assert_eq!(used.private_variables(), [URL, URL_FILE, REDIS_URL]);
    }
}
