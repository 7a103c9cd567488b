//! Settings of one section, from a TOML file and the environment, the second stronger.
//!
//! In: which fields there are, a file, the environment. Out: the text of each field that was given,
//! to be read by whoever knows what it means. What code says is stronger than both, and is said after.
//!
//! ```toml
//! [redis]
//! host = "cache.internal"    # TENURE_REDIS_HOST is stronger
//! ```
//!
//! A field that is not known is refused by its name, and so is a value that makes no sense. The value
//! of a secret is in no message.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use toml::{Table, Value};

use crate::error::Error;

/// The file that is read unless another is named.
pub const FILE: &str = "tenure.toml";
/// What the names of our variables start with: `TENURE_REDIS_HOST`.
const VARIABLES: &str = "TENURE_";
/// The place that is no file.
const ENVIRONMENT: &str = "the environment";

/// A field that may be given.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    name: &'static str,
    aliases: &'static [&'static str],
    secret: bool,
    variable: Option<&'static str>,
}

impl Field {
    /// A field, and the other names it goes by.
    pub const fn new(name: &'static str, aliases: &'static [&'static str]) -> Self {
        Field { name, aliases, secret: false, variable: None }
    }

    /// A field whose value is never shown.
    pub const fn secret(name: &'static str) -> Self {
        Field { name, aliases: &[], secret: true, variable: None }
    }

    /// The same, and a variable of another form that gives it too: `TENURE_URL`.
    pub const fn variable(self, variable: &'static str) -> Self {
        Field { variable: Some(variable), ..self }
    }

    fn goes_by(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    fn is_variable(&self, rest: &str) -> bool {
        let names = std::iter::once(&self.name).chain(self.aliases);
        names.into_iter().any(|name| name.eq_ignore_ascii_case(rest))
    }
}

/// The fields of a section that were given.
pub struct Settings {
    section: &'static str,
    fields: &'static [Field],
    given: HashMap<&'static str, Given>,
    /// How many places have been looked at.
    places: usize,
}

/// A value, and where it stands, as a person would look for it.
struct Given {
    text: String,
    name: String,
    place: String,
    rank: usize,
}

/// Where a field was given: what decides which passwords may go to the server that it names.
#[derive(Clone, Debug)]
pub struct Origin {
    shown: String,
    rank: usize,
    /// Not a file in the working directory: that may be a directory of anybody's.
    trusted: bool,
}

impl Origin {
    /// Checks that `secret`, given at `from` or else by code, may be sent to the server that this names: a
    /// file in the working directory gets only its own.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it may not; the message names both places.
    pub fn may_receive(&self, secret: &str, from: Option<&Origin>) -> Result<(), Error> {
        if self.trusted || from.is_some_and(|from| from.rank == self.rank) {
            return Ok(());
        }
        let (secret, server) = (from.map_or(secret, |from| &from.shown), &self.shown);
        Err(Error::invalid(format!(
            "{secret} is not sent to the server that {server} names: a file in the working directory is \
             not trusted with it; name the server where the password is, or in a file outside"
        )))
    }
}

impl Settings {
    /// None given yet, of the section `[section]`.
    pub fn new(section: &'static str, fields: &'static [Field]) -> Self {
        Settings { section, fields, given: HashMap::new(), places: 0 }
    }

    /// Adds what a TOML file says, stronger than what was added before. One that is not there says
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it cannot be read, is no TOML, or has a field that is not
    /// known.
    pub fn file(self, path: &Path) -> Result<Self, Error> {
        match std::fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(self),
            read => self.read(path, read),
        }
    }

    /// The same with a file that must be there: somebody has named it.
    ///
    /// # Errors
    ///
    /// Those of [`file`](Self::file), and one for a file that is not there.
    pub fn named_file(self, path: &Path) -> Result<Self, Error> {
        let read = std::fs::read_to_string(path);
        self.read(path, read)
    }

    fn read(self, path: &Path, read: io::Result<String>) -> Result<Self, Error> {
        let place = path.display().to_string();
        match read {
            Ok(text) => self.toml(&text, &place),
            Err(error) => Err(Error::invalid(format!("cannot read `{place}`: {error}"))),
        }
    }

    /// The same with the text of a file.
    ///
    /// # Errors
    ///
    /// As [`file`](Self::file).
    pub fn toml(mut self, text: &str, place: &str) -> Result<Self, Error> {
        let table: Table = toml::from_str(text).map_err(|error| not_toml(place, text, &error))?;
        self.must_be_in_sections(&table, place)?;
        self.places += 1;
        let section = match table.get(self.section) {
            None => return Ok(self),
            Some(Value::Table(section)) => section,
            Some(_) => {
                let name = self.section;
                return Err(Error::invalid(format!("`{name}` in `{place}` must be a section")));
            }
        };
        let mut given = HashMap::new();
        for (key, value) in section {
            let name = format!("{}.{key}", self.section);
            let field = self.fields.iter().find(|field| field.goes_by(key));
            let field = field.ok_or_else(|| self.unknown(&name, place))?;
            let text = plain(value).ok_or_else(|| {
                Error::invalid(format!("invalid `{name}` in `{place}`: expected a single value"))
            })?;
            let (place, rank) = (place.into(), self.places);
            add(&mut given, field, Given { text, name, place, rank })?;
        }
        self.given.extend(given);
        Ok(self)
    }

    /// Adds what these variables say, stronger than what was added before. An empty one says nothing.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for one with our start that is not known, or is not UTF-8.
    pub fn variables(
        mut self,
        all: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let start = format!("{VARIABLES}{}_", self.section.to_ascii_uppercase());
        self.places += 1;
        let mut given = HashMap::new();
        for (name, value) in all {
            let Some(name) = name.to_str() else { continue };
            let field = match name.strip_prefix(&start) {
                Some(rest) => self.fields.iter().find(|field| field.is_variable(rest)),
                None => match self.fields.iter().find(|field| field.variable == Some(name)) {
                    Some(field) => Some(field),
                    None => continue,
                },
            };
            let field = field.ok_or_else(|| self.unknown(name, ENVIRONMENT))?;
            let text = value.into_string().map_err(|_| {
                Error::invalid(format!("invalid `{name}` in the environment: it is not UTF-8"))
            })?;
            if !text.is_empty() {
                let (name, place) = (name.into(), ENVIRONMENT.into());
                add(&mut given, field, Given { text, name, place, rank: self.places })?;
            }
        }
        self.given.extend(given);
        Ok(self)
    }

    /// What this process's environment says; see [`variables`](Self::variables).
    ///
    /// # Errors
    ///
    /// As [`variables`](Self::variables).
    pub fn environment(self) -> Result<Self, Error> {
        self.variables(std::env::vars_os())
    }

    /// The field `name` as `read` understands it; `None` if it was not given.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `read` does not understand it: then it must be what
    /// `expected` says.
    pub fn get<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(Given { text, name: shown, place, .. }) = self.given.get(name) else {
            return Ok(None);
        };
        let place = place_shown(place);
        let value = match self.fields.iter().any(|field| field.name == name && field.secret) {
            true => "it".into(),
            false => format!("`{}`", text.escape_debug()),
        };
        read(text).map(Some).ok_or_else(|| {
            Error::invalid(format!("invalid `{shown}` in {place}: {value} is not {expected}"))
        })
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// How strong the place is that gave the field: the higher, the later it was added.
    pub fn rank(&self, name: &str) -> Option<usize> {
        self.given.get(name).map(|given| given.rank)
    }

    /// How people know the field `name`, and where it was given: `` `lock.url` in `tenure.toml` ``.
    pub fn shown(&self, name: &str) -> Option<String> {
        let given = self.given.get(name)?;
        Some(format!("`{}` in {}", given.name, place_shown(&given.place)))
    }

    /// Where the field `name` was given. A file of a relative path is one in the working directory.
    pub fn origin(&self, name: &str) -> Option<Origin> {
        let Given { rank, place, .. } = self.given.get(name)?;
        let trusted = place == ENVIRONMENT || Path::new(place).is_absolute();
        Some(Origin { shown: self.shown(name)?, rank: *rank, trusted })
    }

    /// A field of ours before the first section would say nothing, and nobody would notice.
    fn must_be_in_sections(&self, table: &Table, place: &str) -> Result<(), Error> {
        let ours = |name: &str| self.fields.iter().any(|field| field.goes_by(name));
        let stray = table.iter().find(|(name, value)| !value.is_table() && ours(name));
        stray.map_or(Ok(()), |(name, _)| {
            let section = self.section;
            Err(Error::invalid(format!("`{name}` in `{place}` stands before `[{section}]`")))
        })
    }

    fn unknown(&self, name: &str, place: &str) -> Error {
        let known: Vec<_> = self.fields.iter().map(|field| format!("`{}`", field.name)).collect();
        let place = place_shown(place);
        Error::invalid(format!("unknown field `{name}` in {place}, expected {}", known.join(", ")))
    }
}

/// A file in backticks, the environment in plain words.
fn place_shown(place: &str) -> String {
    if place == ENVIRONMENT { place.into() } else { format!("`{place}`") }
}

/// Each field once in each place, whatever names it goes by.
fn add(given: &mut HashMap<&'static str, Given>, field: &Field, value: Given) -> Result<(), Error> {
    let (name, place) = (value.name.clone(), place_shown(&value.place));
    match given.insert(field.name, value) {
        None => Ok(()),
        Some(Given { name: other, .. }) => {
            Err(Error::invalid(format!("`{other}` and `{name}` in {place} are the same field")))
        }
    }
}

/// The text of a single value.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

/// Says what is wrong and where, without repeating the line: it may hold a password.
fn not_toml(place: &str, text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    Error::invalid(format!("invalid `{place}`: it is no TOML, look at line {line}"))
}

/// A time as people write it, `1500ms` or `2s`; a bare number counts milliseconds.
pub fn duration(text: &str) -> Option<Duration> {
    match text.parse() {
        Ok(millis) => Some(Duration::from_millis(millis)),
        Err(_) => humantime::parse_duration(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static FIELDS: [Field; 3] = [
        Field::new("host", &[]),
        Field::new("pool_size", &["poolSize"]),
        Field::secret("password"),
    ];

    fn settings() -> Settings {
        Settings::new("redis", &FIELDS)
    }

    fn refused(toml: &str) -> String {
        settings()
            .toml(toml, "tenure.toml")
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    }

    fn variables(all: &[(&str, &str)]) -> Result<Settings, Error> {
        let toml = "[redis]\nhost = 'file'\npoolSize = 3\n";
        let all = all.iter().map(|(name, value)| (name.into(), value.into()));
        settings().toml(toml, "tenure.toml")?.variables(all)
    }

    fn text(settings: &Settings, name: &str) -> Option<String> {
        settings.get(name, "", |text| Some(text.to_owned())).unwrap()
    }

    /// The environment is stronger than the file, field by field, and an empty variable says nothing.
    #[test]
    fn the_environment_is_stronger() {
        let all =
            [("TENURE_REDIS_HOST", "env"), ("TENURE_REDIS_POOL_SIZE", ""), ("TENURE_URL", "x")];
        let both = variables(&all).unwrap();
        assert_eq!(text(&both, "host").as_deref(), Some("env"));
        assert_eq!(text(&both, "pool_size").as_deref(), Some("3"));
        assert_eq!(text(&both, "password"), None);
        let both = variables(&[("TENURE_REDIS_POOLSIZE", "4")]).unwrap();
        assert_eq!(text(&both, "pool_size").as_deref(), Some("4"));
    }

    /// Unknown, repeated and shapeless fields are refused by name.
    #[test]
    fn refusals_name_the_field() {
        assert_eq!(
            refused("[redis]\nhots = 'h'"),
            "unknown field `redis.hots` in `tenure.toml`, expected `host`, `pool_size`, `password`"
        );
        assert_eq!(
            refused("[redis]\npool_size = 1\npoolSize = 2"),
            "`redis.poolSize` and `redis.pool_size` in `tenure.toml` are the same field"
        );
        assert_eq!(
            refused("[redis]\nhost = ['h']"),
            "invalid `redis.host` in `tenure.toml`: expected a single value"
        );
        assert_eq!(refused("redis = 1"), "`redis` in `tenure.toml` must be a section");
        assert_eq!(refused("[other]\nx = 1"), "");
        assert_eq!(
            variables(&[("TENURE_REDIS_PROT", "1")]).err().unwrap().to_string(),
            "unknown field `TENURE_REDIS_PROT` in the environment, expected `host`, `pool_size`, \
             `password`"
        );
    }

    /// t66: a value is shown where it is wrong, a secret is not, and neither is a broken line.
    #[test]
    fn t66_secrets_are_not_shown() {
        let toml = "[redis]\nhost = 'h'\npassword = 'hunter2'";
        let given = settings().toml(toml, "tenure.toml").unwrap();
        let wrong =
            |name| given.get(name, "what it should be", |_| None::<()>).unwrap_err().to_string();
        assert_eq!(
            wrong("host"),
            "invalid `redis.host` in `tenure.toml`: `h` is not what it should be"
        );
        assert_eq!(
            wrong("password"),
            "invalid `redis.password` in `tenure.toml`: it is not what it should be"
        );
        assert_eq!(
            refused("[redis]\npassword = 'hunter2"),
            "invalid `tenure.toml`: it is no TOML, look at line 2"
        );
    }

    /// A file that is not there says nothing; one that cannot be read is refused.
    #[test]
    fn files() {
        assert!(settings().file(Path::new("/no/such/tenure.toml")).is_ok());
        let error = settings().file(Path::new("/")).err().unwrap().to_string();
        assert!(error.starts_with("cannot read `/`: "), "{error}");
    }

    /// A file that was named must be there.
    #[test]
    fn named_files() {
        let error = settings().named_file(Path::new("/no/such.toml")).err().unwrap().to_string();
        assert_eq!(error, "cannot read `/no/such.toml`: No such file or directory (os error 2)");
    }

    /// A field that stands in no section is not overlooked.
    #[test]
    fn fields_before_their_section() {
        assert_eq!(refused("host = 'h'"), "`host` in `tenure.toml` stands before `[redis]`");
        assert_eq!(refused("title = 'mine'"), "");
    }

    /// A variable of another form gives the same field, and both at once are one too many.
    #[test]
    fn variables_of_another_form() {
        static FIELDS: [Field; 1] = [Field::secret("url").variable("TENURE_URL")];
        let given = |all: &[(&str, &str)]| {
            let all = all.iter().map(|(name, value)| (name.into(), value.into()));
            Settings::new("lock", &FIELDS).variables(all.collect::<Vec<_>>())
        };
        assert_eq!(text(&given(&[("TENURE_URL", "a")]).unwrap(), "url").as_deref(), Some("a"));
        assert_eq!(text(&given(&[("TENURE_LOCK_URL", "b")]).unwrap(), "url").as_deref(), Some("b"));
        assert!(given(&[("TENURE_PATH", "c")]).unwrap().is_empty());
        let both = given(&[("TENURE_URL", "a"), ("TENURE_LOCK_URL", "b")]).err().unwrap();
        assert_eq!(
            both.to_string(),
            "`TENURE_URL` and `TENURE_LOCK_URL` in the environment are the same field"
        );
    }

    /// What was added later is stronger, and says where it came from.
    #[test]
    fn ranks() {
        let both = variables(&[("TENURE_REDIS_HOST", "env")]).unwrap();
        assert!(both.rank("host") > both.rank("pool_size"));
        assert_eq!(both.rank("password"), None);
        let shown = |name| both.shown(name).unwrap();
        assert_eq!(shown("host"), "`TENURE_REDIS_HOST` in the environment");
        assert_eq!(shown("pool_size"), "`redis.poolSize` in `tenure.toml`");
    }

    /// A file in the working directory gets its own password and no other; what stands elsewhere gets any.
    #[test]
    fn passwords_go_to_trusted_places() {
        let given = |place: &str, toml: &str, variables: &[(&str, &str)]| {
            let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
            let given =
                settings().toml(toml, place).unwrap().variables(all.collect::<Vec<_>>()).unwrap();
            let (host, password) = (given.origin("host").unwrap(), given.origin("password"));
            host.may_receive("`password`", password.as_ref()).map_err(|error| error.to_string())
        };
        let (host, both) = ("redis.host = 'h'", "redis = { host = 'h', password = 'p' }");
        let password = ("TENURE_REDIS_PASSWORD", "p");
        assert_eq!(given("tenure.toml", both, &[]), Ok(()));
        assert_eq!(given("/etc/tenure.toml", host, &[password]), Ok(()));
        assert_eq!(given("tenure.toml", host, &[password, ("TENURE_REDIS_HOST", "h")]), Ok(()));
        assert_eq!(given("tenure.toml", both, &[("TENURE_REDIS_HOST", "h")]), Ok(()));
        let why = "is not sent to the server that `redis.host` in `tenure.toml` names: a file in the working \
                   directory is not trusted with it; name the server where the password is, or in a file outside";
        let env = format!("`TENURE_REDIS_PASSWORD` in the environment {why}");
        assert_eq!(given("tenure.toml", host, &[password]), Err(env.clone()));
        assert_eq!(given("tenure.toml", both, &[password]), Err(env));
        assert_eq!(given("tenure.toml", host, &[]), Err(format!("`password` {why}")));
    }

    /// Times with a unit, or in milliseconds.
    #[test]
    fn durations() {
        assert_eq!(duration("1500"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("2s"), Some(Duration::from_secs(2)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!((duration("-1"), duration("soon"), duration("1.5")), (None, None, None));
    }
}
