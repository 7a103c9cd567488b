//! Completion: the script for a shell, and the answers to what it asks.
//!
//! In: a shell's request, in a variable of our own (`COMPLETE` could be somebody else's). Out:
//! candidates; for a key, those that are locked right now. A backend that is slow or gone completes
//! to nothing: a Tab must neither hang nor print an error into a command line.
//!
//! Known limit: bash splits words at `:` (`COMP_WORDBREAKS`), so it completes `ord` to `order:42` but
//! nothing after the colon itself.
//!
//! Others choose keys, and shells insert what we offer as it is. So only keys are offered that every shell
//! takes as a plain word: `x$(reboot)` is not.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{CommandFactory as _, ValueEnum as _};
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;

use crate::args::{Cli, CompletionsArgs, Everywhere, When};
use crate::talk::{self, Talk};
use crate::trouble::Trouble;
use crate::url::{Place, runtime};

/// What the script sets when it asks us.
const REQUEST: &str = "TENURE_COMPLETE";
/// A Tab that takes longer feels broken.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers a shell and ends the program, if it was a shell that called.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(REQUEST).complete();
}

/// Prints the script for a shell.
pub(crate) fn script(args: &CompletionsArgs, talk: &mut Talk) -> u8 {
    let shell = args.shell.to_possible_value().map(|value| value.get_name().to_owned());
    let shells = Shells::builtins();
    let mut script = Vec::new();
    let written = shells.completer(&shell.unwrap_or_default()).map(|completer| {
        completer.write_registration(REQUEST, "tenure", "tenure", "tenure", &mut script)
    });
    if !matches!(written, Some(Ok(()))) {
        return talk.trouble(&Trouble::usage("this shell is not supported"));
    }
    talk::data(&String::from_utf8_lossy(&script));
    0
}

/// The keys that are locked right now and begin with what has been typed.
pub(crate) fn live_keys(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let keys = list(&flags(std::env::args_os())).unwrap_or_default();
    let fitting = keys.into_iter().filter(|key| key.starts_with(&*typed) && is_plain(key));
    fitting.map(CompletionCandidate::new).collect()
}

/// Whether every shell takes it literally, and we do not take it for an option.
fn is_plain(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@+".contains(c);
    key.starts_with(|c: char| c.is_ascii_alphanumeric() || "_./".contains(c))
        && key.chars().all(plain)
}

fn list(flags: &Everywhere) -> Option<Vec<String>> {
    let place = Place::find(flags).ok()?;
    let locks = async {
        let locker = place.look().await.ok()?;
        locker.list("*").await.ok()
    };
    let locks = runtime().ok()?.block_on(async { tokio::time::timeout(PATIENCE, locks).await });
    Some(locks.ok()??.into_iter().map(|lock| lock.key.to_string()).collect())
}

/// What the unfinished command line says about where the locks are.
fn flags(words: impl Iterator<Item = OsString>) -> Everywhere {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let url = value_of(&words, "-u").or_else(|| value_of(&words, "--url"));
    let url_file = value_of(&words, "--url-file").map(Into::into);
    let prefix = value_of(&words, "--prefix");
    Everywhere { url, url_file, prefix, color: When::Never, quiet: true, verbose: 0 }
}

fn value_of(words: &[String], option: &str) -> Option<String> {
    let joined = words.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
    let apart = words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1].as_str());
    joined.or(apart).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Usual keys complete; what means something to a shell, or looks like an option, does not.
    #[test]
    fn plain_keys() {
        for key in ["db-migrate", "order:42", "a/b.c_d", "me@host", "/locks/a"] {
            assert!(is_plain(key), "{key}");
        }
        for odd in " $`'\"\\;&|<>()[]{}*?!#~=%^,\n\té".chars() {
            assert!(!is_plain(&format!("x{odd}y")), "{odd:?}");
        }
        assert!(!is_plain("--url=redis://h") && !is_plain("@x") && !is_plain(""));
    }

    /// An unfinished command line already says where to look.
    #[test]
    fn places_on_the_command_line() {
        let url = |line: &str| flags(line.split(' ').map(OsString::from)).url;
        assert_eq!(url("tenure run -u file:x d").as_deref(), Some("file:x"));
        assert_eq!(url("tenure --url=file:y run d").as_deref(), Some("file:y"));
        assert_eq!(url("tenure run d"), None);
    }
}
