//! Completion: the script for a shell, and the replies to its requests.
//!
//! In: a shell's request, in a variable of our own (other programs may use `COMPLETE`). Out: candidates; for
//! a key, the keys that are locked now. A slow or unreachable backend yields no candidates: a Tab must
//! neither hang nor print an error into a command line.
//!
//! Other users choose the keys, and shells insert our candidates unchanged. So we offer only keys that every
//! shell takes as a plain word; `x$(reboot)` is not offered.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{CommandFactory as _, ValueEnum as _};
use clap_complete::CompleteEnv;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;

use crate::args::{Cli, CompletionsArgs, GlobalArgs, Shell, When};
use crate::error::CliError;
use crate::target::{Target, runtime};
use crate::ui::{self, Ui};

/// The variable that the script sets when it calls us.
const REQUEST: &str = "TENURE_COMPLETE";
/// Our bash completion function, and the function of clap's script that it replaces.
const BASH: (&str, &str) = ("-F _tenure_complete", "-F _clap_complete_tenure");
/// The text of our bash completion function.
const BASH_FUNCTION: &str = include_str!("complete.bash");
/// The longest time for one completion: a slower Tab feels broken.
const PATIENCE: Duration = Duration::from_millis(500);

/// If a shell asks for completions, prints them and exits.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command).var(REQUEST).complete();
}

/// Prints the script for a shell.
pub(crate) fn script(args: &CompletionsArgs, ui: &mut Ui) -> u8 {
    let shell = args.shell.to_possible_value().map(|value| value.get_name().to_owned());
    let shells = Shells::builtins();
    let mut script = Vec::new();
    let written = shells.completer(&shell.unwrap_or_default()).map(|completer| {
        completer.write_registration(REQUEST, "tenure", "tenure", "tenure", &mut script)
    });
    if !matches!(written, Some(Ok(()))) {
        return ui.trouble(&CliError::usage("this shell is not supported"));
    }
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Bash {
        script = script.replace(BASH.1, BASH.0) + BASH_FUNCTION;
    }
    ui::data(&script);
    0
}

/// The keys that are locked now and start with the typed text.
pub(crate) fn live_keys(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let keys = list(&flags(std::env::args_os())).unwrap_or_default();
    let fitting = keys.into_iter().filter(|key| key.starts_with(&*typed) && is_plain(key));
    fitting.map(CompletionCandidate::new).collect()
}

/// How the URL of each engine starts.
pub(crate) fn url_starts() -> Vec<CompletionCandidate> {
    let starts = tenure::url_forms().filter_map(|form| form.split(char::is_uppercase).next());
    starts.map(CompletionCandidate::new).collect()
}

/// Whether every shell takes the key literally, and we do not read it as an option.
fn is_plain(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@+".contains(c);
    key.starts_with(|c: char| c.is_ascii_alphanumeric() || "_./".contains(c))
        && key.chars().all(plain)
}

fn list(flags: &GlobalArgs) -> Option<Vec<String>> {
    let target = Target::find(flags).ok()?;
    let locks = async {
        let locker = target.look().await.ok()?;
        locker.list("*").await.ok()
    };
    let locks = runtime().ok()?.block_on(async { tokio::time::timeout(PATIENCE, locks).await });
    Some(locks.ok()??.into_iter().map(|lock| lock.key.to_string()).collect())
}

/// The flags of the unfinished command line that choose where the locks are.
fn flags(words: impl Iterator<Item = OsString>) -> GlobalArgs {
    let words: Vec<String> = words.filter_map(|word| word.into_string().ok()).collect();
    let url = value_of(&words, "-u").or_else(|| value_of(&words, "--url"));
    let url_file = value_of(&words, "--url-file").map(Into::into);
    let prefix = value_of(&words, "--prefix");
    GlobalArgs { url, url_file, prefix, color: When::Never, quiet: true, verbose: 0 }
}

fn value_of(words: &[String], option: &str) -> Option<String> {
    let joined = words.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
    let apart = words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1].as_str());
    joined.or(apart).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// t123: ordinary keys complete; keys with shell syntax, or that look like an option, do not.
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

    /// The flags of an unfinished command line choose where to look.
    #[test]
    fn places_on_the_command_line() {
        let url = |line: &str| flags(line.split(' ').map(OsString::from)).url;
        assert_eq!(url("tenure run -u file:x d").as_deref(), Some("file:x"));
        assert_eq!(url("tenure --url=file:y run d").as_deref(), Some("file:y"));
        assert_eq!(url("tenure run d"), None);
    }
}
