//! The places that settings come from: which files are read, and which variables of the environment are ours.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{ENVIRONMENT, FILE, Settings, VARIABLES};
use crate::error::Error;

/// The configuration directory for all users of this machine.
const SYSTEM_DIR: &str = "/etc/tenure";

/// The variables that `tenure run` sets for its command. Those that do not apply to a run are removed: they would be
/// from a run around it.
pub const SET_BY_RUN: [&str; 8] = [
    "TENURE_KEY",
    "TENURE_FENCE",
    "TENURE_FENCES",
    "TENURE_MODE",
    "TENURE_PERMITS",
    "TENURE_SLOT",
    "TENURE_OWNER",
    "TENURE_TTL_MS",
];
/// Our other variables without a section: two fields of `[lock]`, the shell completion's, and our tests'.
const WITHOUT_SECTION: [&str; 4] =
    ["TENURE_URL", "TENURE_URL_FILE", "TENURE_COMPLETE", "TENURE_SEED"];

/// The files that are read unless others are named, the strongest last: this machine's, this user's, and the one in
/// the working directory. A library and the command `tenure` read the same.
pub fn files() -> Vec<PathBuf> {
    let system = Some(PathBuf::from(SYSTEM_DIR).join(FILE));
    let user = user_dir(|name| std::env::var_os(name)).map(|dir| dir.join("tenure").join(FILE));
    [system, user, Some(FILE.into())].into_iter().flatten().collect()
}

/// The configuration directory of this user. A relative path is ignored, as the XDG convention says.
fn user_dir(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))
}

impl Settings {
    /// Refuses a variable with our prefix that nothing reads: it is most likely misspelt, and would be ignored
    /// silently.
    pub(super) fn must_be_known(&self, name: &str) -> Result<(), Error> {
        let Some(rest) = name.strip_prefix(VARIABLES) else { return Ok(()) };
        let of_another = |section: &&str| {
            let section = section.to_ascii_uppercase();
            rest.strip_prefix(section.as_str()).is_some_and(|rest| rest.starts_with('_'))
        };
        let known = SET_BY_RUN.contains(&name) || WITHOUT_SECTION.contains(&name);
        if known || self.others.iter().any(of_another) {
            return Ok(());
        }
        // A name without its section is nearer than one with another section.
        let tail = format!("_{rest}");
        let far = |like: &String| if like.ends_with(&tail) { 0 } else { distance(name, like) };
        let nearest = self.variables_like(rest).into_iter().min_by_key(far);
        let nearest = nearest.unwrap_or_default();
        Err(Error::invalid(format!(
            "unknown variable `{name}` in {ENVIRONMENT}, did you mean `{nearest}`?"
        )))
    }

    /// The variables that may have been meant: those of this section, and `rest` with another section's name.
    fn variables_like(&self, rest: &str) -> Vec<String> {
        let named = |section: &str, field: &str| {
            format!("{VARIABLES}{section}_{field}").to_ascii_uppercase()
        };
        let own = self.fields.iter().map(|field| named(self.section, field.name));
        let short = self.fields.iter().filter_map(|field| field.variable.map(str::to_owned));
        let (_, field) = rest.split_once('_').unwrap_or(("", rest));
        let others = self.others.iter().map(|section| named(section, field));
        own.chain(short).chain(others).collect()
    }
}

/// How many letters must be added, removed or replaced to get from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The user's directory follows the XDG convention.
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

    /// The file of the working directory is the strongest, the machine's the weakest.
    #[test]
    fn the_strongest_file_is_last() {
        let files = files();
        assert_eq!(files.first(), Some(&"/etc/tenure/tenure.toml".into()));
        assert_eq!(files.last(), Some(&"tenure.toml".into()));
    }

    /// A letter more, less or different counts as one.
    #[test]
    fn distances() {
        for (a, b, far) in [("", "", 0), ("LOK", "LOCK", 1), ("LOCKS", "LOCK", 1), ("AB", "CD", 2)]
        {
            assert_eq!(distance(a, b), far, "{a} {b}");
        }
    }
}
