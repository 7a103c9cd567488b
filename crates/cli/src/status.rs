//! How a run went: outcomes, exit statuses, the status file.
//!
//! In: a [`Report`] that `run.rs` filled in. Out: a number for the shell, a JSON object for scripts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};
use serde::Serialize;
use tenure::Token;
use tenure::backend::Loss;

use crate::child::End;
use crate::trouble::Trouble;

/// What we were asked makes no sense (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The backend could not be reached, or refused (`EX_UNAVAILABLE`).
const UNREACHABLE: u8 = 69;
/// Another holds the lock (`EX_TEMPFAIL`: trying again may help). `-E` changes it.
const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while it was needed: just past sysexits, and used by no shell.
const LOST: u8 = 79;
/// As shells say it: found, but cannot be run.
const NOT_RUNNABLE: u8 = 126;
/// As shells say it: not found.
const NOT_FOUND: u8 = 127;
/// As shells say it: ended by signal N.
const SIGNALLED: i32 = 128;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The command ended by itself.
    Exited,
    /// A signal ended the command.
    Signalled,
    /// The lock was lost while the command ran.
    Lost,
    /// Another holds the lock.
    NotAcquired,
    /// It was not taken from its holder: another has it by now, or the operator thought again.
    NotForced,
    /// A signal ended the wait.
    Interrupted(i32),
    /// The backend could not be reached, or refused.
    Unreachable,
    /// The command is there, and cannot be run.
    NotRunnable,
    /// There is no such command.
    NotFound,
    /// What was asked makes no sense.
    Usage,
}

/// Everything that a script may want to know.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: u32,
    pub(crate) key: String,
    pub(crate) outcome: Outcome,
    /// Why the lock was lost, if it was.
    #[serde(serialize_with = "loss")]
    pub(crate) loss: Option<Loss>,
    pub(crate) waited_ms: u64,
    pub(crate) held_ms: Option<u64>,
    /// A string: as a number it would not survive a reader that uses doubles.
    pub(crate) fence: Option<String>,
    #[serde(serialize_with = "child")]
    pub(crate) child: Option<End>,
}

impl Report {
    /// A run of which nothing is known yet.
    pub(crate) fn new(key: &str) -> Self {
        Report {
            schema: 1,
            key: key.into(),
            outcome: Outcome::Usage,
            loss: None,
            waited_ms: 0,
            held_ms: None,
            fence: None,
            child: None,
        }
    }

    /// The status to exit with.
    pub(crate) fn code(&self, not_acquired: Option<u8>) -> u8 {
        match (self.outcome, self.child) {
            (Outcome::Exited | Outcome::Signalled, Some(end)) => end.code(),
            (Outcome::NotAcquired, _) => not_acquired.unwrap_or(NOT_ACQUIRED),
            (outcome, _) => outcome.code(),
        }
    }
}

impl End {
    /// What a shell would say.
    pub(crate) fn code(self) -> u8 {
        match self {
            End::Exited(status) => u8::try_from(status).unwrap_or(u8::MAX),
            End::Signalled(signal) => by_signal(signal),
        }
    }
}

fn by_signal(signal: i32) -> u8 {
    u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
}

/// Milliseconds for a report.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Outcome {
    /// The status it has by itself.
    pub(crate) fn code(self) -> u8 {
        match self {
            Outcome::Exited | Outcome::Signalled => 0,
            Outcome::Lost => LOST,
            Outcome::NotAcquired | Outcome::NotForced => NOT_ACQUIRED,
            Outcome::Interrupted(signal) => by_signal(signal),
            Outcome::Unreachable => UNREACHABLE,
            Outcome::NotRunnable => NOT_RUNNABLE,
            Outcome::NotFound => NOT_FOUND,
            Outcome::Usage => USAGE,
        }
    }

    /// The one word for it in a report.
    fn word(self) -> &'static str {
        match self {
            Outcome::Exited => "exited",
            Outcome::Signalled => "signalled",
            Outcome::Lost => "lost",
            Outcome::NotAcquired => "not_acquired",
            Outcome::NotForced => "not_forced",
            Outcome::Interrupted(_) => "interrupted",
            Outcome::Unreachable => "unreachable",
            Outcome::NotRunnable => "not_runnable",
            Outcome::NotFound => "not_found",
            Outcome::Usage => "usage",
        }
    }
}

impl Serialize for Outcome {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

/// One word: who forced it, and why, is said to people.
fn loss<S: serde::Serializer>(loss: &Option<Loss>, to: S) -> Result<S::Ok, S::Error> {
    let word = loss.as_ref().map(|loss| match loss {
        Loss::Expired => "expired",
        Loss::Gone => "gone",
        Loss::Forced(_) => "forced",
        Loss::MaxHold => "max_hold",
        Loss::Session => "session",
        Loss::Shutdown => "shutdown",
        _ => "other",
    });
    word.serialize(to)
}

fn child<S: serde::Serializer>(end: &Option<End>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Child {
        status: Option<i32>,
        signal: Option<i32>,
    }
    let child = end.map(|end| match end {
        End::Exited(status) => Child { status: Some(status), signal: None },
        End::Signalled(signal) => Child { status: None, signal: Some(signal) },
    });
    child.serialize(to)
}

/// Where the report goes.
#[derive(Debug)]
pub(crate) struct StatusFile {
    path: PathBuf,
    /// Whether it can be replaced as a whole. A pipe or a device is written through:
    /// replacing `/dev/stderr` would be a bad surprise.
    plain: bool,
}

impl StatusFile {
    /// Finds out whether the report will be writable, before anything else happens.
    pub(crate) fn probe(path: &Path) -> Result<Self, Trouble> {
        // A link is followed, so that the file it names is replaced and not the link.
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let file = StatusFile { plain: is_plain(path, &real), path: real };
        file.try_out().map_err(|error| {
            let shown = path.display();
            Trouble::usage(format!("cannot write the status file `{shown}`: {error}"))
        })?;
        Ok(file)
    }

    fn try_out(&self) -> io::Result<()> {
        match self.plain {
            true => self.draft().and_then(|(_, draft)| fs::remove_file(draft)),
            // Not opened: the reader of a pipe would take that for its end.
            false => Ok(access(&self.path, AccessFlags::W_OK)?),
        }
    }

    /// A new file beside it. Its name cannot be guessed, and one that is there already is not opened: in a
    /// directory that others can write to it could be a link to somewhere else.
    fn draft(&self) -> io::Result<(File, PathBuf)> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let number = Token::random().map_err(io::Error::other)?.expose();
        let draft = self.path.with_file_name(format!(".{name}.{number}"));
        Ok((File::options().write(true).create_new(true).open(&draft)?, draft))
    }

    /// Writes the report, all of it or nothing where the place allows that.
    pub(crate) fn write(&self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        match self.plain {
            true => self.replace(&line),
            // A reader that is not there, or does not read, is not waited for.
            false => {
                let mut options = File::options();
                options.append(true).custom_flags(OFlag::O_NONBLOCK.bits());
                options.open(&self.path)?.write_all(&line)
            }
        }
    }

    fn replace(&self, line: &[u8]) -> io::Result<()> {
        let (mut file, draft) = self.draft()?;
        file.write_all(line).and_then(|()| fs::rename(&draft, &self.path)).inspect_err(|_| {
            // Nothing is left behind; the first error is the one that counts.
            let _ = fs::remove_file(&draft);
        })
    }
}

fn is_plain(given: &Path, real: &Path) -> bool {
    let system = ["/dev", "/proc"].iter().any(|dir| given.starts_with(dir));
    let plain = fs::metadata(real).map_or(true, |there| there.is_file());
    plain && !system && real.file_name().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(report: &Report) -> String {
        serde_json::to_string(report).unwrap()
    }

    /// The object has the same fields for every outcome, in full.
    #[test]
    fn reports() {
        let mut report = Report::new("db");
        assert_eq!(
            json(&report),
            r#"{"schema":1,"key":"db","outcome":"usage","loss":null,"waited_ms":0,"held_ms":null,"fence":null,"child":null}"#
        );
        report.outcome = Outcome::Lost;
        report.loss = Some(Loss::MaxHold);
        report.held_ms = Some(1_500);
        report.fence = Some("7".into());
        report.child = Some(End::Signalled(9));
        assert_eq!(
            json(&report),
            r#"{"schema":1,"key":"db","outcome":"lost","loss":"max_hold","waited_ms":0,"held_ms":1500,"fence":"7","child":{"status":null,"signal":9}}"#
        );
        report.outcome = Outcome::Interrupted(15);
        assert!(json(&report).contains(r#""outcome":"interrupted""#), "{}", json(&report));
    }

    /// Every way to lose a lock is one word.
    #[test]
    fn losses() {
        let cases = [
            (Loss::Expired, "expired"),
            (Loss::Gone, "gone"),
            (Loss::Forced("ann: stuck".into()), "forced"),
            (Loss::MaxHold, "max_hold"),
            (Loss::Session, "session"),
            (Loss::Shutdown, "shutdown"),
        ];
        for (loss, word) in cases {
            let report = json(&Report { loss: Some(loss), ..Report::new("k") });
            assert!(report.contains(&format!(r#""loss":"{word}","#)), "{report}");
        }
    }

    /// Every outcome has its own status, and `-E` changes one of them.
    #[test]
    fn statuses() {
        let cases = [
            (Outcome::Lost, 79),
            (Outcome::NotAcquired, 75),
            (Outcome::NotForced, 75),
            (Outcome::Interrupted(15), 143),
            (Outcome::Unreachable, 69),
            (Outcome::NotRunnable, 126),
            (Outcome::NotFound, 127),
            (Outcome::Usage, 64),
            (Outcome::Signalled, 137),
        ];
        for (outcome, code) in cases {
            let report = Report { outcome, child: Some(End::Signalled(9)), ..Report::new("k") };
            assert_eq!(report.code(None), code, "{outcome:?}");
        }
        let report = Report { outcome: Outcome::NotAcquired, ..Report::new("k") };
        assert_eq!(report.code(Some(0)), 0);
        let report =
            Report { outcome: Outcome::Exited, child: Some(End::Exited(3)), ..Report::new("k") };
        assert_eq!(report.code(None), 3);
    }

    /// A report replaces the old one as a whole and leaves nothing beside it.
    #[test]
    fn files_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        fs::write(&path, "old").unwrap();
        let file = StatusFile::probe(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        file.write(&Report::new("k")).unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("}\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// A link that somebody planted where a draft may stand leads nowhere.
    #[test]
    fn planted_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("status.json"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let draft = format!(".status.json.{}", std::process::id());
        std::os::unix::fs::symlink(&victim, dir.path().join(draft)).unwrap();
        StatusFile::probe(&path).unwrap().write(&Report::new("k")).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(fs::read_to_string(&path).unwrap().starts_with('{'));
    }

    /// A link stays a link: the file it names is replaced.
    #[test]
    fn links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        StatusFile::probe(&link).unwrap().write(&Report::new("k")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&path).unwrap().starts_with('{'));
    }

    /// A device is written to, never replaced.
    #[test]
    fn devices_are_written_through() {
        StatusFile::probe(Path::new("/dev/null")).unwrap().write(&Report::new("k")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    /// A place that cannot be written is named, with the reason.
    #[test]
    fn unwritable_places_are_named() {
        let trouble = StatusFile::probe(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(trouble.outcome, Outcome::Usage);
        assert_eq!(
            trouble.chain,
            "cannot write the status file `/nowhere/at/all`: No such file or directory (os error 2)"
        );
    }
}
