//! A terminal for tests: typing on it, and reading its screen.

use crate::common::{Space, unmuted, wait_for};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

/// A terminal with a program on it.
pub(crate) struct Screen {
    keyboard: File,
    shown: Arc<Mutex<String>>,
    program: Child,
}

impl Screen {
    /// Starts a program in its own session, with a new controlling terminal.
    pub(crate) fn start(command: &Command) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut session = unmuted("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        command.get_current_dir().map(|dir| session.current_dir(dir));
        let end = || File::from(pty.slave.try_clone().unwrap());
        let program = session.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keyboard = File::from(pty.master);
        let shown = watch(keyboard.try_clone().unwrap());
        Screen { keyboard, shown, program }
    }

    /// An interactive shell in this space, where `$T` is the tool.
    pub(crate) fn shell(space: &Space) -> Self {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"]).current_dir(space.path(""));
        bash.env("T", assert_cmd::cargo::cargo_bin!("tenure")).env("TENURE_URL", space.url());
        bash.env("PS1", "ps1:").env("TERM", "dumb").env("HISTFILE", "/dev/null");
        let mut screen = Screen::start(&bash);
        screen.type_in("bind 'set enable-bracketed-paste off'; echo be''gin\n");
        screen.expect("begin");
        screen
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// The exit status of the program; waits for its end.
    pub(crate) fn code(&mut self) -> Option<i32> {
        wait_for("the program to end", || self.program.try_wait().unwrap().is_some());
        self.program.wait().unwrap().code()
    }

    /// Waits until the screen contains `text`.
    pub(crate) fn expect(&self, text: &str) {
        wait_for(&format!("{text:?} on the screen"), || self.shown().contains(text));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        #[allow(clippy::print_stderr, reason = "what was on the screen explains a failure best")]
        if std::thread::panicking() {
            eprintln!("the screen: {:?}", self.shown());
        }
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn watch(mut screen: File) -> Arc<Mutex<String>> {
    let shown = Arc::new(Mutex::new(String::new()));
    let all = shown.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            all.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    shown
}
