//! The engines, and the URL schemes of each: the one table of them.
//!
//! In: a URL. Out: which engine it is for, or an error that says what is possible; and the directory of a `file:`
//! URL.

use std::path::PathBuf;

use tenure_core::{Error, file};

/// Which engine a URL is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Memory,
    File,
    /// One server, or the master that Sentinels name.
    Redis,
    Cluster,
    Quorum,
    Etcd,
}

/// One form of URL. A scheme is one of `bases` followed by one of `suffixes`.
struct Form {
    engine: Engine,
    /// How it is written in messages.
    shown: &'static str,
    bases: &'static [&'static str],
    suffixes: &'static [&'static str],
}

const REDIS: &[&str] = &["redis", "rediss", "valkey", "valkeys"];
const ETCD: &[&str] = &["etcd", "etcds"];

const FORMS: [Form; 7] = [
    Form { engine: Engine::Memory, shown: "memory:", bases: &["memory"], suffixes: &[""] },
    Form { engine: Engine::File, shown: "file:DIR", bases: &["file"], suffixes: &[""] },
    Form { engine: Engine::Redis, shown: "redis://HOST", bases: REDIS, suffixes: &["", "+unix"] },
    Form {
        engine: Engine::Redis,
        shown: "redis+sentinel://HOST,HOST/SERVICE",
        bases: REDIS,
        suffixes: &["+sentinel", "-sentinel"],
    },
    Form {
        engine: Engine::Cluster,
        shown: "redis-cluster://HOST,HOST",
        bases: REDIS,
        suffixes: &["-cluster", "+cluster"],
    },
    Form {
        engine: Engine::Quorum,
        shown: "redis+quorum://HOST,HOST,HOST",
        bases: REDIS,
        suffixes: &["+quorum"],
    },
    Form { engine: Engine::Etcd, shown: "etcd://HOST", bases: ETCD, suffixes: &[""] },
];

impl Form {
    fn has(&self, scheme: &str) -> bool {
        let suffixes = self.bases.iter().filter_map(|base| scheme.strip_prefix(base));
        suffixes.into_iter().any(|suffix| self.suffixes.contains(&suffix))
    }
}

/// The Cargo features that select engines.
#[derive(Clone, Copy, Debug)]
struct Features {
    redis: bool,
    etcd: bool,
}

/// The features of this build.
const BUILT: Features = Features { redis: cfg!(feature = "redis"), etcd: cfg!(feature = "etcd") };

impl Engine {
    /// The engine of `url`.
    pub(crate) fn of(url: &str) -> Result<Self, Error> {
        Self::built_with(BUILT, url)
    }

    fn built_with(features: Features, url: &str) -> Result<Self, Error> {
        let Some((scheme, _)) = url.split_once(':') else {
            return Err(Error::invalid(format!(
                "invalid url `{url}`: it names no engine, {}",
                expected()
            )));
        };
        // Errors name the scheme alone: the rest may contain a password.
        let engine = Self::of_scheme(scheme).ok_or_else(|| {
            Error::invalid(format!("unknown engine `{scheme}:` in url, {}", expected()))
        })?;
        match engine.missing_feature(features) {
            Some(feature) => Err(Error::invalid(format!(
                "the engine `{scheme}:` needs the Cargo feature `{feature}` of the crate `tenure`"
            ))),
            None => Ok(engine),
        }
    }

    fn of_scheme(scheme: &str) -> Option<Self> {
        FORMS.iter().find(|form| form.has(scheme)).map(|form| form.engine)
    }

    /// The Cargo feature that the engine needs, if `features` has it not.
    fn missing_feature(self, features: Features) -> Option<&'static str> {
        match self {
            Engine::Memory | Engine::File => None,
            Engine::Redis | Engine::Cluster | Engine::Quorum => {
                (!features.redis).then_some("redis")
            }
            Engine::Etcd => (!features.etcd).then_some("etcd"),
        }
    }
}

/// The forms of URL that [`connect`](crate::connect()) understands in this build, such as `redis://HOST`.
pub fn url_forms() -> impl Iterator<Item = &'static str> {
    let built = FORMS.iter().filter(|form| form.engine.missing_feature(BUILT).is_none());
    built.map(|form| form.shown)
}

/// The forms of URL, for messages.
pub(crate) fn expected() -> String {
    let forms: Vec<_> = url_forms().map(|form| format!("`{form}`")).collect();
    match forms.split_last() {
        Some((last, rest)) => format!("expected {} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// The directory, as the rest of a URL names it. `file:` alone is the one of the command `tenure`.
pub(crate) fn dir_named(dir: &str) -> Result<PathBuf, Error> {
    // `file:///var/locks` is how URLs are usually written; the host must be empty.
    match (dir, dir.strip_prefix("//").unwrap_or(dir)) {
        ("", _) => Ok(file::default_dir()),
        (_, "") => Err(Error::invalid(
            "invalid url `file://`: it names no directory, expected `file:DIR` or `file:`",
        )),
        (_, dir) => Ok(dir.into()),
    }
}

/// The directory of a `file:` URL; `None` for another URL.
pub(crate) fn dir_of(url: &str) -> Option<Result<PathBuf, Error>> {
    url.strip_prefix("file:").map(dir_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every scheme belongs to one engine, and the form that messages show is one of its schemes.
    #[test]
    fn schemes() {
        for (scheme, engine) in [
            ("memory", Engine::Memory),
            ("file", Engine::File),
            ("redis", Engine::Redis),
            ("valkeys", Engine::Redis),
            ("rediss+unix", Engine::Redis),
            ("valkey-sentinel", Engine::Redis),
            ("redis+cluster", Engine::Cluster),
            ("valkeys-cluster", Engine::Cluster),
            ("rediss+quorum", Engine::Quorum),
            ("etcds", Engine::Etcd),
        ] {
            assert_eq!(Engine::of_scheme(scheme), Some(engine), "{scheme}");
        }
        for scheme in ["", "zookeeper", "redis+", "redis-quorum", "xredis", "etcd+unix"] {
            assert_eq!(Engine::of_scheme(scheme), None, "{scheme}");
        }
        for form in &FORMS {
            let scheme = form.shown.split(':').next().unwrap();
            assert_eq!(FORMS.iter().filter(|form| form.has(scheme)).count(), 1, "{scheme}");
        }
    }

    /// The URL of an engine whose feature is off is refused with that feature's name, for every engine; an engine
    /// whose feature is on is not.
    #[test]
    fn missing_features_are_named() {
        let (neither, both) =
            (Features { redis: false, etcd: false }, Features { redis: true, etcd: true });
        for form in &FORMS {
            let scheme = form.shown.split(':').next().unwrap();
            let feature = if scheme.starts_with("redis") { "redis" } else { "etcd" };
            let refused = Engine::built_with(neither, form.shown);
            match form.engine {
                Engine::Memory | Engine::File => assert_eq!(refused.unwrap(), form.engine),
                _ => assert_eq!(
                    refused.unwrap_err().to_string(),
                    format!(
                        "the engine `{scheme}:` needs the Cargo feature `{feature}` of the crate `tenure`"
                    )
                ),
            }
            assert_eq!(Engine::built_with(both, form.shown).unwrap(), form.engine);
        }
        assert!(Engine::built_with(Features { redis: false, etcd: true }, "etcd://h").is_ok());
        assert!(Engine::built_with(Features { redis: true, etcd: false }, "etcd://h").is_err());
    }

    /// The pages that list the forms of URL list all of them.
    #[test]
    fn the_pages_have_every_form() {
        let pages = [
            include_str!("connect.rs"),
            include_str!("../../../README.md"),
            include_str!("../../../README.zh-CN.md"),
            include_str!("../../../docs/guide/configuration.md"),
            include_str!("../../../docs/guide/choosing.md"),
        ];
        for scheme in FORMS.iter().filter_map(|form| form.shown.split(':').next()) {
            for page in pages {
                assert!(page.contains(&format!("`{scheme}:")), "{scheme}");
            }
        }
    }

    /// `file:` alone is the directory that the command uses; that is asked for, not assumed.
    #[test]
    fn file_alone_is_the_directory_of_the_command() {
        assert_eq!(dir_of("file:").unwrap().unwrap(), file::default_dir());
        assert_eq!(dir_of("file:///a").unwrap().unwrap(), PathBuf::from("/a"));
        assert!(dir_of("memory:").is_none());
    }
}
