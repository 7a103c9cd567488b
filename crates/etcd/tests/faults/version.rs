//! The warning about a server with known bugs. A logger is installed once per process, so this test runs its
//! own program again.

use std::process::Command;

use tenure_testkit::servers::EtcdServer;
use tenure_testkit::servers::proxy::{Cut, Proxy};

use crate::support::{locker, through};

/// Set for the child process: the port of the server.
const THERE: &str = "TENURE_TEST_VERSION_PORT";

/// A server below the floors causes one warning, with its version and the reason, however often a client
/// connects to it.
#[test]
fn a_warning_is_given_once() {
    if let Ok(port) = std::env::var(THERE) {
        return connect_again_and_again(port.parse().unwrap());
    }
    let server = EtcdServer::start();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "version::a_warning_is_given_once", "--nocapture"]);
    let output = child.env(THERE, server.port().to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    let version = server.version();
    let shown = format!("{}.{}.{}", version.0, version.1, version.2);
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains(&shown)).collect();
    match version {
        (3, 4, 38..) | (3, 5, 23..) | (3, 6, 5..) | (3, 7.., _) | (4.., ..) => {
            assert!(warnings.is_empty(), "{said}");
        }
        _ => {
            assert_eq!(warnings.len(), 1, "{said}");
            assert!(warnings[0].contains("WARN") && warnings[0].contains("lease"), "{said}");
        }
    }
}

fn connect_again_and_again(port: u16) {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stdout).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let proxy = Proxy::raw(port);
        let a = locker(&through(&proxy)).await;
        for _ in 0..3 {
            a.lock("k").await.unwrap().release().await.unwrap();
            proxy.cut(Cut::Reset);
        }
        assert!(proxy.accepted() >= 3, "{} connections", proxy.accepted());
    });
}
