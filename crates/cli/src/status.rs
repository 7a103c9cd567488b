//! The outcome of a run: outcomes, exit statuses, the status file.
//!
//! In: a [`Report`] from `run.rs`. Out: a number for the shell, a JSON object for scripts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, Uid, access, geteuid};
use serde::Serialize;
use tenure::backend::Loss;
use tenure::time::UnixMillis;
use tenure::{Fence, Mode, Token};

use crate::child::End;
use crate::error::CliError;

/// A usage error (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The backend is unreachable or rejected the request (`EX_UNAVAILABLE`).
const UNREACHABLE: u8 = 69;
/// Another process holds the lock (`EX_TEMPFAIL`: a retry may help). `-E` changes it.
const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while it was needed. The number is just above the sysexits range, and no shell uses it.
const LOST: u8 = 79;
/// As in shells: the command was found, but cannot be run.
const NOT_RUNNABLE: u8 = 126;
/// As in shells: the command was not found.
const NOT_FOUND: u8 = 127;
/// As in shells: 128+N, ended by signal N.
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
    /// Another process holds the lock.
    NotAcquired,
    /// The lock was not released by force: it has another holder by now, or the operator did not confirm.
    NotForced,
    /// A signal ended the wait.
    Interrupted(i32),
    /// The backend is unreachable or rejected the request.
    Unreachable,
    /// The command exists, but cannot be run.
    NotRunnable,
    /// The command does not exist.
    NotFound,
    /// A usage error.
    Usage,
}

/// The content of the status file.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: u32,
    /// The process id of `tenure`, not of the command.
    pid: u32,
    started_unix_ms: u64,
    pub(crate) ended_unix_ms: u64,
    /// The first key that was named.
    key: String,
    mode: &'static str,
    pub(crate) outcome: Outcome,
    /// Why the lock was lost, if it was.
    #[serde(serialize_with = "loss")]
    pub(crate) loss: Option<Loss>,
    /// The key that was lost, or that was in the way.
    pub(crate) failed_key: Option<String>,
    pub(crate) waited_ms: u64,
    pub(crate) held_ms: Option<u64>,
    /// A string: as a number it would not survive a reader that uses doubles.
    fence: Option<String>,
    permits: Option<u32>,
    slot: Option<u32>,
    /// All keys, as they were named.
    keys: Vec<KeyReport>,
    #[serde(serialize_with = "child")]
    pub(crate) child: Option<End>,
}

/// One key of a run.
#[derive(Debug, Serialize)]
struct KeyReport {
    key: String,
    fence: Option<String>,
}

impl Report {
    /// A report with no results yet.
    pub(crate) fn new(keys: &[impl AsRef<OsStr>], mode: &Mode) -> Self {
        let shown = |key: &OsStr| KeyReport { key: key.to_string_lossy().into(), fence: None };
        let keys: Vec<_> = keys.iter().map(|key| shown(key.as_ref())).collect();
        let now = UnixMillis::now().0;
        Report {
            schema: 1,
            pid: std::process::id(),
            started_unix_ms: now,
            ended_unix_ms: now,
            key: keys.first().map(|first| first.key.clone()).unwrap_or_default(),
            mode: mode.as_str(),
            outcome: Outcome::Usage,
            loss: None,
            failed_key: None,
            waited_ms: 0,
            held_ms: None,
            fence: None,
            permits: Some(mode.permits()).filter(|permits| *permits > 0),
            slot: None,
            keys,
            child: None,
        }
    }

    /// The keys are held: the fence of each, in the order of the keys.
    pub(crate) fn granted(&mut self, fences: impl Iterator<Item = Fence>, slot: Option<u32>) {
        for (key, fence) in self.keys.iter_mut().zip(fences) {
            key.fence = Some(fence.to_string());
        }
        self.fence = self.keys.first().and_then(|first| first.fence.clone());
        self.slot = slot;
    }

    /// The exit status.
    pub(crate) fn code(&self, not_acquired: Option<u8>) -> u8 {
        match (self.outcome, self.child) {
            (Outcome::Exited | Outcome::Signalled, Some(end)) => end.code(),
            (Outcome::NotAcquired, _) => not_acquired.unwrap_or(NOT_ACQUIRED),
            (outcome, _) => outcome.code(),
        }
    }
}

impl End {
    /// The status that a shell would return.
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

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Outcome {
    /// The exit status of this outcome alone.
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

    /// The outcome as one word in a report.
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

/// Writes the loss as one word. Who forced it, and why, appears only in the messages for people.
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

/// The most links that lead to the file, as in the kernel.
const LINKS_MAX: usize = 40;

/// The file for the report.
#[derive(Debug)]
pub(crate) struct StatusFile {
    /// Not a link, except below `/dev` and `/proc`.
    path: PathBuf,
    /// Whether the file can be replaced as a whole. A pipe or a device is written to instead: replacing
    /// `/dev/stderr` would do harm.
    plain: bool,
}

impl StatusFile {
    /// Checks at the start that the report can be written, and removes the report of an earlier run: if we
    /// are killed, the old report must not be mistaken for ours.
    pub(crate) fn probe(path: &Path) -> Result<Self, CliError> {
        Self::probe_as(geteuid(), path).map_err(|error| {
            let shown = path.display();
            CliError::usage(format!("cannot write the status file `{shown}`: {error}"))
        })
    }

    fn probe_as(us: Uid, path: &Path) -> io::Result<Self> {
        // A symbolic link is followed: its target is replaced, not the link.
        let path = follow(us, path)?;
        let file = StatusFile { plain: is_plain(&path), path };
        file.try_out()?;
        Ok(file)
    }

    fn try_out(&self) -> io::Result<()> {
        match self.plain {
            true => {
                self.draft().and_then(|(_, draft)| fs::remove_file(draft))?;
                fs::remove_file(&self.path).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })
            }
            // It is not opened: if we closed it again, the reader of a pipe would see the end of the file.
            false => Ok(access(&self.path, AccessFlags::W_OK)?),
        }
    }

    /// Creates a new file next to the report. Its name cannot be guessed, and an existing file is never
    /// opened: in a directory that others can write to, it could be a link to another file.
    fn draft(&self) -> io::Result<(File, PathBuf)> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let number = Token::random().map_err(io::Error::other)?.expose();
        let draft = self.path.with_file_name(format!(".{name}.{number}"));
        Ok((File::options().write(true).create_new(true).open(&draft)?, draft))
    }

    /// Writes the report. A plain file is replaced atomically.
    pub(crate) fn write(&self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        match self.plain {
            true => self.replace(&line),
            // Do not wait for a reader that is missing or does not read.
            false => {
                let links = if is_system(&self.path) { OFlag::empty() } else { OFlag::O_NOFOLLOW };
                let mut options = File::options();
                options.append(true).custom_flags((OFlag::O_NONBLOCK | links).bits());
                options.open(&self.path)?.write_all(&line)
            }
        }
    }

    fn replace(&self, line: &[u8]) -> io::Result<()> {
        let (mut file, draft) = self.draft()?;
        file.write_all(line).and_then(|()| fs::rename(&draft, &self.path)).inspect_err(|_| {
            // Remove the draft. The first error is returned, so this one is ignored.
            let _ = fs::remove_file(&draft);
        })
    }
}

/// The path at the end of the links at `path`. A link of another user is refused: in a directory that others can
/// write to, it could lead to any of our files. Links of directories are left to the kernel.
fn follow(us: Uid, path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let link = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_symlink);
        let Some(link) = link.filter(|_| !is_system(&path)) else { return Ok(path) };
        let owner = Uid::from_raw(link.uid());
        if owner != us && !owner.is_root() {
            let what = format!("it is a link that user {owner} has made");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        let target = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other("too many links lead to it"))
}

/// Links below these directories may lead to something without a path, such as a pipe.
fn is_system(path: &Path) -> bool {
    ["/dev", "/proc"].iter().any(|dir| path.starts_with(dir))
}

fn is_plain(path: &Path) -> bool {
    let plain = fs::metadata(path).map_or(true, |there| there.is_file());
    plain && !is_system(path) && path.file_name().is_some()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    fn json(report: &Report) -> String {
        serde_json::to_string(report).unwrap()
    }

    fn new(key: &str) -> Report {
        Report::new(&[key], &Mode::Exclusive)
    }

    fn report() -> Report {
        Report { pid: 812, started_unix_ms: 1, ended_unix_ms: 2, ..new("db") }
    }

    /// The object has the same fields for every outcome.
    #[test]
    fn reports() {
        let mut report = report();
        assert_eq!(
            json(&report),
            r#"{"schema":1,"pid":812,"started_unix_ms":1,"ended_unix_ms":2,"key":"db","mode":"exclusive","outcome":"usage","loss":null,"failed_key":null,"waited_ms":0,"held_ms":null,"fence":null,"permits":null,"slot":null,"keys":[{"key":"db","fence":null}],"child":null}"#
        );
        report.outcome = Outcome::Lost;
        report.loss = Some(Loss::MaxHold);
        report.held_ms = Some(1_500);
        report.failed_key = Some("db".into());
        report.granted([Fence::from_raw(7)].into_iter(), None);
        report.child = Some(End::Signalled(9));
        assert_eq!(
            json(&report),
            r#"{"schema":1,"pid":812,"started_unix_ms":1,"ended_unix_ms":2,"key":"db","mode":"exclusive","outcome":"lost","loss":"max_hold","failed_key":"db","waited_ms":0,"held_ms":1500,"fence":"7","permits":null,"slot":null,"keys":[{"key":"db","fence":"7"}],"child":{"status":null,"signal":9}}"#
        );
        report.outcome = Outcome::Interrupted(15);
        assert!(json(&report).contains(r#""outcome":"interrupted""#), "{}", json(&report));
    }

    /// B3, B4: a run with permits says how many and which slot; a run with several keys has the fence of each.
    #[test]
    fn b3_b4_reports_of_other_modes() {
        let mode = Mode::Permits { permits: 1, capacity: 4 };
        let mut report = Report::new(&["limit"], &mode);
        report.granted([Fence::from_raw(7)].into_iter(), Some(2));
        let shown = json(&report);
        assert!(shown.contains(r#""mode":"permits","#), "{shown}");
        assert!(shown.contains(r#""fence":"7","permits":1,"slot":2,"#), "{shown}");
        let mut report = Report::new(&["b", "a"], &Mode::Read);
        report.granted([8, 7].map(Fence::from_raw).into_iter(), None);
        let shown = json(&report);
        assert!(shown.contains(r#""key":"b","mode":"shared","#), "{shown}");
        let keys = r#""keys":[{"key":"b","fence":"8"},{"key":"a","fence":"7"}],"#;
        assert!(shown.contains(r#""fence":"8","#) && shown.contains(keys), "{shown}");
    }

    /// Every kind of loss is one word.
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
            let report = json(&Report { loss: Some(loss), ..new("k") });
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
            let report = Report { outcome, child: Some(End::Signalled(9)), ..new("k") };
            assert_eq!(report.code(None), code, "{outcome:?}");
        }
        let report = Report { outcome: Outcome::NotAcquired, ..new("k") };
        assert_eq!(report.code(Some(0)), 0);
        let report = Report { outcome: Outcome::Exited, child: Some(End::Exited(3)), ..new("k") };
        assert_eq!(report.code(None), 3);
    }

    /// An old report is removed at the start. The new one is complete, and no other file is left.
    #[test]
    fn files_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        fs::write(&path, "old").unwrap();
        let file = StatusFile::probe(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        file.write(&new("k")).unwrap();
        assert!(fs::read_to_string(&path).unwrap().ends_with("}\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// t123: a link that another user planted at the report's path is refused, also behind a link of ours, and
    /// its target stays as it is. The name of a draft is different each time, so no link can wait there.
    #[test]
    fn planted_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, ours, victim] = ["planted", "ours", "victim"].map(|name| dir.path().join(name));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        symlink("planted", &ours).unwrap();
        // Only root can make a link of another user. Without that, we are another user than the one who made it.
        let us = match lchown(&path, Some(1), None) {
            Ok(()) => geteuid(),
            Err(_) => Uid::from_raw(geteuid().as_raw() + 1),
        };
        for link in [&path, &ours] {
            let error = StatusFile::probe_as(us, link).unwrap_err().to_string();
            assert!(error.starts_with("it is a link that user "), "{error}");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let file = StatusFile::probe(&dir.path().join("status.json")).unwrap();
        let drafts = [(); 2].map(|()| file.draft().unwrap().1);
        assert_ne!(drafts[0], drafts[1]);
    }

    /// A link that leads to itself is refused.
    #[test]
    fn a_link_to_itself() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("link", &link).unwrap();
        let trouble = StatusFile::probe(&link).unwrap_err();
        assert!(trouble.chain.ends_with("`: too many links lead to it"), "{}", trouble.chain);
    }

    /// A link that is put in the place of a pipe while the command runs is not followed.
    #[test]
    fn a_pipe_that_becomes_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("pipe"), dir.path().join("victim"));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let file = StatusFile::probe(&path).unwrap();
        fs::write(&victim, "precious").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        file.write(&new("k")).unwrap_err();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    /// A link stays a link: its target is replaced.
    #[test]
    fn links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&path, "old").unwrap();
        symlink(&path, &link).unwrap();
        StatusFile::probe(&link).unwrap().write(&new("k")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&path).unwrap().starts_with('{'));
    }

    /// A device is written to, and not replaced.
    #[test]
    fn devices_are_written_through() {
        StatusFile::probe(Path::new("/dev/null")).unwrap().write(&new("k")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    /// The error for a path that cannot be written has the path and the reason.
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
