//! Passwords that are configured apart from the server's address: which servers get them.

use std::net::TcpListener;
use std::process::Command;

use tenure_testkit::servers::EtcdServer;

use crate::common::{PASSWORD, Space, bare, done};

/// An untrusted working directory, and a listener that its file names as the server.
struct Trap {
    space: Space,
    server: TcpListener,
}

impl Trap {
    fn new() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        Trap { space: Space::untouched(), server }
    }

    fn port(&self) -> u16 {
        self.server.local_addr().unwrap().port()
    }

    fn file(&self, name: &str, toml: &str) {
        let path = self.space.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, toml).unwrap();
    }

    /// The tool in the untrusted directory.
    fn tenure(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command.current_dir(self.space.path(".")).env("XDG_CONFIG_HOME", self.space.path("user"));
        command
    }

    /// The error message of a command. Asserts that it did not connect to the listener.
    fn refusal(&self, command: Command) -> String {
        let run = done(command);
        assert_eq!((run.code, run.out.as_str()), (Some(64), ""), "{run:?}");
        assert!(!run.err.contains(PASSWORD), "{run:?}");
        let error = self.server.accept().map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        run.err
    }
}

const WHY: &str = "a file in the working directory is not trusted with it; name the server where the password \
                   is, or in a file outside\n";

/// A password from the environment is not sent to a server that the working directory's file names, by its
/// host or by its port.
#[test]
fn of_the_environment() {
    let trap = Trap::new();
    let port = trap.port();
    let with_password = || {
        let mut command = trap.tenure(&["ls"]);
        command.env("TENURE_REDIS_PASSWORD", PASSWORD);
        command
    };
    trap.file("tenure.toml", &format!("[redis]\nhost = '127.0.0.1'\nport = {port}\n"));
    let refused = |field: &str| {
        format!(
            "tenure: error: `TENURE_REDIS_PASSWORD` in the environment is not sent to the server that \
             `redis.{field}` in `tenure.toml` names: {WHY}"
        )
    };
    assert_eq!(trap.refusal(with_password()), refused("host"));
    trap.file("tenure.toml", &format!("[redis]\nport = {port}\n"));
    assert_eq!(trap.refusal(with_password()), refused("port"));
}

/// A password from the user's own file is not sent there either.
#[test]
fn of_the_users_file() {
    let trap = Trap::new();
    let toml = format!("[redis]\nhost = '127.0.0.1'\nport = {}\n", trap.port());
    trap.file("tenure.toml", &toml);
    trap.file("user/tenure/tenure.toml", &format!("[redis]\npassword = '{PASSWORD}'\n"));
    let users = trap.space.path("user/tenure/tenure.toml");
    assert_eq!(
        trap.refusal(trap.tenure(&["run", "k", "--", "true"])),
        format!(
            "tenure: error: `redis.password` in `{}` is not sent to the server that `redis.host` in \
             `tenure.toml` names: {WHY}",
            users.display()
        )
    );
}

/// The login of `etcdctl` is not sent there either.
#[test]
fn of_etcdctl() {
    let trap = Trap::new();
    trap.file("tenure.toml", &format!("[lock]\nurl = 'etcd://127.0.0.1:{}'\n", trap.port()));
    for command in ["ls", "doctor"] {
        let mut command = trap.tenure(&[command]);
        command.env("ETCDCTL_USER", format!("me:{PASSWORD}"));
        let refused = trap.refusal(command);
        let words = "`ETCDCTL_USER` in the environment is not sent to the server that `lock.url` in \
                     `tenure.toml` names: ";
        assert!(refused.ends_with(&format!("{words}{WHY}")), "{refused}");
    }
}

/// The password is used if the environment, the command line or a file outside the working directory names
/// the server, or if one file has both server and password.
#[test]
fn where_they_go() {
    let space = Space::guarded();
    let port = space.server().port().to_string();
    let ls = |variables: &[(&str, &str)]| {
        let mut command = bare(["ls"]);
        command.current_dir(space.path(".")).env("XDG_CONFIG_HOME", space.path("user"));
        let run = done({
            command.envs(variables.iter().copied());
            command
        });
        assert_eq!((run.code, run.err.as_str()), (Some(0), "tenure: no locks\n"), "{variables:?}");
    };
    let password = ("TENURE_REDIS_PASSWORD", PASSWORD);
    let here = [("TENURE_REDIS_HOST", "127.0.0.1"), ("TENURE_REDIS_PORT", port.as_str()), password];
    // The environment overrides this file.
    std::fs::write(space.path("tenure.toml"), "[redis]\nhost = 'h'\nport = 1\n").unwrap();
    ls(&here);
    ls(&[("TENURE_URL", &space.secret_url()), password]);
    let toml = format!("[redis]\nhost = '127.0.0.1'\nport = {port}\n");
    std::fs::write(space.path("tenure.toml"), format!("{toml}password = '{PASSWORD}'\n")).unwrap();
    ls(&[]);
    std::fs::remove_file(space.path("tenure.toml")).unwrap();
    std::fs::create_dir_all(space.path("user/tenure")).unwrap();
    std::fs::write(space.path("user/tenure/tenure.toml"), toml).unwrap();
    ls(&[password]);
}

/// The file of the working directory may choose etcd if the environment names the members.
#[test]
fn etcdctl_names_the_members() {
    let server = EtcdServer::start();
    let trap = Trap::new();
    trap.file("tenure.toml", "[lock]\ndriver = 'etcd'\n");
    let mut command = trap.tenure(&["ls"]);
    command.env("ETCDCTL_ENDPOINTS", server.endpoint());
    let run = done(command);
    assert_eq!((run.code, run.err.as_str()), (Some(0), "tenure: no locks\n"), "{run:?}");
}

/// A command inherits none of our secrets.
#[test]
fn a_command_inherits_none() {
    const SECRETS: [&str; 6] = [
        "TENURE_URL",
        "TENURE_URL_FILE",
        "TENURE_LOCK_URL",
        "TENURE_REDIS_PASSWORD",
        "ETCDCTL_USER",
        "ETCDCTL_PASSWORD",
    ];
    let space = Space::new();
    let url = space.url();
    let mut run = bare(["run", "-u", &url, "k", "--", "env"]);
    run.envs(SECRETS.map(|name| (name, PASSWORD)));
    // Using both forms at once is rejected.
    let run = done({
        run.env_remove("TENURE_LOCK_URL");
        run
    });
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.out.contains(PASSWORD), "{run:?}");
}
