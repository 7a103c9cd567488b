//! Settings of one section, from a TOML file and the environment; the environment overrides the file.
//!
//! In: the known fields, a file, the environment. Out: the text of each field that was set; the caller parses
//! it. Values that code sets override both, and are applied afterwards.
//!
//! ```toml
//! [redis]
//! host = "cache.internal"    # TENURE_REDIS_HOST is stronger
//! ```
//!
//! An unknown section, field or variable and an invalid value are errors that name it. No message contains the
//! value of a secret.

mod sources;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use toml::{Table, Value};

use crate::error::Error;

pub use self::sources::{SET_BY_RUN, files};

/// The name of the configuration file.
pub const FILE: &str = "tenure.toml";
/// The prefix of our environment variables: `TENURE_REDIS_HOST`.
const VARIABLES: &str = "TENURE_";
/// The origin of a value that is not from a file.
const ENVIRONMENT: &str = "the environment";

/// A field that may be set.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    name: &'static str,
    aliases: &'static [&'static str],
    secret: bool,
    variable: Option<&'static str>,
}

impl Field {
    /// A field and its aliases.
    pub const fn new(name: &'static str, aliases: &'static [&'static str]) -> Self {
        Field { name, aliases, secret: false, variable: None }
    }

    /// A field whose value is never shown.
    pub const fn secret(name: &'static str) -> Self {
        Field { name, aliases: &[], secret: true, variable: None }
    }

    /// Adds an environment variable outside of the naming scheme that also sets this field: `TENURE_URL`.
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

/// The fields of a section that were set, with their origins.
pub struct Settings {
    section: &'static str,
    /// Sections of the same file that other parts of the program read.
    others: &'static [&'static str],
    fields: &'static [Field],
    given: HashMap<&'static str, Given>,
    /// How many sources have been read.
    places: usize,
}

/// A value and its origin, as shown in messages.
struct Given {
    text: String,
    name: String,
    origin: String,
    rank: usize,
}

/// The source of a field. It decides which passwords may be sent to the server that the field names.
#[derive(Clone, Debug)]
pub struct Origin {
    shown: String,
    rank: usize,
    /// `false` for a file in the working directory: another user may have put it there.
    trusted: bool,
}

impl Origin {
    /// The origin of a value from an environment variable.
    pub fn variable(name: &str) -> Self {
        Origin { shown: format!("`{name}` in {ENVIRONMENT}"), rank: 0, trusted: true }
    }

    /// The field and its source: `` `lock.url` in `tenure.toml` ``.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// Checks that `secret` may be sent to the server that the field of this origin names. `from` is the
    /// origin of the secret; `None` if it was set by code. A server named by a file in the working directory
    /// gets only secrets from the same file.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it may not be sent; the message names both origins.
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

/// The origin of each field, for errors that are found after reading.
#[derive(Clone, Debug, Default)]
pub struct Origins(HashMap<&'static str, Origin>);

impl Origins {
    /// The origin of the field.
    pub fn get(&self, field: &str) -> Option<&Origin> {
        self.0.get(field)
    }

    /// Sets the origin of a field whose value was replaced.
    pub fn set(&mut self, field: &'static str, origin: Origin) {
        self.0.insert(field, origin);
    }

    /// Removes the origin of a field whose value was set by code.
    pub fn forget(&mut self, field: &str) {
        self.0.remove(field);
    }

    /// Adds the origins of another section; fields of this section win.
    pub fn beside(mut self, other: &Origins) -> Self {
        for (field, origin) in &other.0 {
            self.0.entry(field).or_insert_with(|| origin.clone());
        }
        self
    }

    /// Prefixes `error` with the origins of the fields that it names, or with `otherwise` if it names none.
    /// Only an error about a value is changed, and only if it names no origin yet.
    pub fn blame(&self, error: Error, otherwise: Option<&Origin>) -> Error {
        let message = error.to_string();
        let says = |origin: &Origin| message.contains(origin.as_str());
        let known = self.0.values().chain(otherwise).any(says);
        if known || !error.is_invalid() || error.fault().is_some() {
            return error;
        }
        // How messages name an option: `ttl (5s) must…`, `invalid prefix …`, `` `username` needs… ``.
        let forms =
            |field: &str| [format!("{field} ("), format!("invalid {field} "), format!("`{field}`")];
        let is_about = |field: &str| forms(field).iter().any(|form| message.contains(form));
        let about = self.0.iter().filter(|(field, _)| is_about(field));
        let mut origins: Vec<_> = about.map(|(_, origin)| origin.as_str()).collect();
        origins.sort_unstable();
        if origins.is_empty() {
            origins.extend(otherwise.map(Origin::as_str));
        }
        match origins.is_empty() {
            true => error,
            false => Error::invalid(format!("{}: {message}", origins.join(", "))),
        }
    }
}

impl Settings {
    /// Settings without values. `others` are the sections of the same file that other code reads: any section
    /// other than these and `[section]` is refused.
    pub fn new(
        section: &'static str,
        others: &'static [&'static str],
        fields: &'static [Field],
    ) -> Self {
        Settings { section, others, fields, given: HashMap::new(), places: 0 }
    }

    /// Adds the fields of a TOML file; they override those added before. A missing file is not an error.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the file cannot be read, is not TOML, or has an unknown section
    /// or field.
    pub fn file(self, path: &Path) -> Result<Self, Error> {
        match std::fs::read_to_string(path) {
            Err(error) if is_missing(path, &error) => Ok(self),
            read => self.read(path, read),
        }
    }

    /// As [`file`](Self::file), for a file that the user has named and that must exist.
    ///
    /// # Errors
    ///
    /// Those of [`file`](Self::file), and [`is_invalid`](Error::is_invalid) for a missing file.
    pub fn named_file(self, path: &Path) -> Result<Self, Error> {
        let read = std::fs::read_to_string(path);
        self.read(path, read)
    }

    fn read(self, path: &Path, read: io::Result<String>) -> Result<Self, Error> {
        let origin = path.display().to_string();
        match read {
            Ok(text) => self.toml(&text, &origin),
            Err(error) => Err(Error::invalid(format!("cannot read `{origin}`: {error}"))),
        }
    }

    /// As [`file`](Self::file), with the text of the file; `origin` is its name in messages.
    ///
    /// # Errors
    ///
    /// Those of [`file`](Self::file).
    pub fn toml(mut self, text: &str, origin: &str) -> Result<Self, Error> {
        let table: Table = toml::from_str(text).map_err(|error| not_toml(origin, text, &error))?;
        self.must_be_in_sections(&table, origin)?;
        self.places += 1;
        let section = match table.get(self.section) {
            None => return Ok(self),
            Some(Value::Table(section)) => section,
            Some(_) => {
                let name = self.section;
                return Err(Error::invalid(format!("`{name}` in `{origin}` must be a section")));
            }
        };
        let mut given = HashMap::new();
        for (key, value) in section {
            let name = format!("{}.{key}", self.section);
            let field = self.fields.iter().find(|field| field.goes_by(key));
            let field = field.ok_or_else(|| self.unknown(&name, origin))?;
            let text = plain(value).ok_or_else(|| {
                Error::invalid(format!("invalid `{name}` in `{origin}`: expected a single value"))
            })?;
            let (text, origin, rank) = (with_unit(key, text), origin.into(), self.places);
            add(&mut given, field, Given { text, name, origin, rank })?;
        }
        self.given.extend(given);
        Ok(self)
    }

    /// Adds the fields from these environment variables; they override those added before. An empty variable
    /// counts as not set.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a variable with our prefix that is unknown or not UTF-8.
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
                    None => {
                        self.must_be_known(name)?;
                        continue;
                    }
                },
            };
            let field = field.ok_or_else(|| self.unknown(name, ENVIRONMENT))?;
            let text = value.into_string().map_err(|_| {
                Error::invalid(format!("invalid `{name}` in the environment: it is not UTF-8"))
            })?;
            if !text.is_empty() {
                let (text, origin) = (with_unit(name, text), ENVIRONMENT.into());
                add(
                    &mut given,
                    field,
                    Given { text, name: name.into(), origin, rank: self.places },
                )?;
            }
        }
        self.given.extend(given);
        Ok(self)
    }

    /// Adds the fields from the environment of this process; see [`variables`](Self::variables).
    ///
    /// # Errors
    ///
    /// Those of [`variables`](Self::variables).
    pub fn environment(self) -> Result<Self, Error> {
        self.variables(std::env::vars_os())
    }

    /// The field `name`, parsed by `read`; `None` if it was not set.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if `read` returns `None`; the message contains `expected`.
    pub fn get<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(Given { text, name: shown, origin, .. }) = self.given.get(name) else {
            return Ok(None);
        };
        let origin = shown_origin(origin);
        let value = match self.fields.iter().any(|field| field.name == name && field.secret) {
            true => "it".into(),
            false => format!("`{}`", text.escape_debug()),
        };
        read(text).map(Some).ok_or_else(|| {
            Error::invalid(format!("invalid `{shown}` in {origin}: {value} is not {expected}"))
        })
    }

    /// Whether no field was set.
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// The precedence of the source that set the field: higher for a source that was added later.
    pub fn rank(&self, name: &str) -> Option<usize> {
        self.given.get(name).map(|given| given.rank)
    }

    /// The field `name` and its source, for messages: `` `lock.url` in `tenure.toml` ``.
    pub fn shown(&self, name: &str) -> Option<String> {
        let given = self.given.get(name)?;
        Some(format!("`{}` in {}", given.name, shown_origin(&given.origin)))
    }

    /// The origin of the field `name`. A file with a relative path counts as one in the working directory.
    pub fn origin(&self, name: &str) -> Option<Origin> {
        let Given { rank, origin, .. } = self.given.get(name)?;
        let trusted = origin == ENVIRONMENT || Path::new(origin).is_absolute();
        Some(Origin { shown: self.shown(name)?, rank: *rank, trusted })
    }

    /// The origin of each field that was set.
    pub fn origins(&self) -> Origins {
        let all = self.given.keys().filter_map(|name| Some((*name, self.origin(name)?)));
        Origins(all.collect())
    }

    /// Refuses an unknown section, and a field before the first section: both would be ignored silently.
    fn must_be_in_sections(&self, table: &Table, origin: &str) -> Result<(), Error> {
        let section = self.section;
        let known = |name: &str| name == section || self.others.contains(&name);
        let Some((name, value)) = table.iter().find(|(name, _)| !known(name)) else {
            return Ok(());
        };
        if self.fields.iter().any(|field| field.goes_by(name)) && !value.is_table() {
            return Err(Error::invalid(format!(
                "`{name}` in `{origin}` stands before `[{section}]`"
            )));
        }
        let what = if value.is_table() {
            format!("section `[{name}]`")
        } else {
            format!("field `{name}`")
        };
        let sections =
            std::iter::once(&section).chain(self.others).map(|name| format!("`[{name}]`"));
        let sections = sections.collect::<Vec<_>>().join(", ");
        Err(Error::invalid(format!(
            "unknown {what} in `{origin}`, expected the sections {sections}"
        )))
    }

    fn unknown(&self, name: &str, origin: &str) -> Error {
        let known: Vec<_> = self.fields.iter().map(|field| format!("`{}`", field.name)).collect();
        let origin = shown_origin(origin);
        Error::invalid(format!("unknown field `{name}` in {origin}, expected {}", known.join(", ")))
    }
}

/// Whether the error of reading `path` means that there is no file. A service may run with the `HOME` of another
/// user, so a directory that it may not enter counts as one without our file.
fn is_missing(path: &Path, error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => path.symlink_metadata().is_err(),
        _ => false,
    }
}

/// A file in backticks, the environment without.
fn shown_origin(origin: &str) -> String {
    if origin == ENVIRONMENT { origin.into() } else { format!("`{origin}`") }
}

/// Adds a value. Setting a field twice in one source, also by an alias, is an error.
fn add(given: &mut HashMap<&'static str, Given>, field: &Field, value: Given) -> Result<(), Error> {
    let (name, origin) = (value.name.clone(), shown_origin(&value.origin));
    match given.insert(field.name, value) {
        None => Ok(()),
        Some(Given { name: other, .. }) => {
            Err(Error::invalid(format!("`{other}` and `{name}` in {origin} are the same field")))
        }
    }
}

/// The text of a single value; `None` for a date, an array or a table.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

/// The error for invalid TOML. It names the line but does not show it, because it may contain a password.
fn not_toml(origin: &str, text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    Error::invalid(format!("invalid `{origin}`: it is no TOML, look at line {line}"))
}

/// Adds the unit `ms` to a bare number if the name of the field ends with it: `timeout_ms`.
fn with_unit(name: &str, text: String) -> String {
    let is_bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match is_bare && name.to_ascii_lowercase().ends_with("ms") {
        true => text + "ms",
        false => text,
    }
}

/// Parses a duration with its unit, `1500ms` or `2s`, as on the command line; `None` if it is not one.
pub fn duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok()
}

#[cfg(test)]
mod tests;
