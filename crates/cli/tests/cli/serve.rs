//! `tenure serve`: the page on an address, and what it refuses.

use nix::sys::signal::Signal;

use crate::common::{PASSWORD, Running, Space, bare, done};
use crate::http::Served;

fn serving(space: &Space, args: &str) -> Served {
    let args = format!("serve --listen 127.0.0.1:0 {args}");
    Served::start(Running::start(space.tenure(args.split_whitespace())))
}

/// F1: the page shows who holds a lock, with the command that does the same; a signal ends it with its status.
#[test]
fn f1_the_page_is_served() {
    let space = Space::new();
    let _holds = space.hold("run --reason release-41 db-migrate");
    let mut page = serving(&space, "");
    let dir = space.path("locks");
    assert_eq!(
        page.run.line(),
        format!("tenure: serving the locks of file:{}, read-only", dir.display())
    );
    let now = page.shows("/now", "lock?key=db%2Dmigrate");
    assert!(now.contains("alive</span>: its process runs"), "{now}");
    assert!(
        page.shows("/lock?key=db-migrate", "release-41")
            .contains("<code>tenure show db-migrate</code>")
    );
    let (_, json) = page.get("/api/locks", "");
    assert!(json.contains("{\"schema\":1,\"locks\":[{\"key\":\"db-migrate\","), "{json}");
    assert!(page.get("/metrics", "").1.contains("\ntenure_page_held 1\n"));
    assert_eq!((page.get("/healthz", "").0, page.get("/readyz", "").0), (200, 200));
    page.run.send(Signal::SIGTERM);
    assert_eq!(page.run.finish().code, Some(128 + 15));
}

/// t70: an address that other machines can reach is refused without a token, and with a token that can be guessed.
#[test]
fn t70_an_open_address_needs_a_token() {
    let space = Space::new();
    let refused = |args: &[&str]| {
        let done = space.done([&["serve", "--listen", "0.0.0.0:0"], args].concat());
        assert_eq!((done.code, done.out.as_str()), (Some(64), ""), "{done:?}");
        done.err
    };
    assert_eq!(
        refused(&[]),
        "tenure: error: other machines can reach `0.0.0.0:0`, so a token is needed\n\
         hint: add --auth-token-file FILE, or listen on 127.0.0.1 behind a proxy\n"
    );
    assert_eq!(
        refused(&["--auth-token-file", "missing"]),
        "tenure: error: cannot read the token from `missing`: No such file or directory (os error 2)\n"
    );
    std::fs::write(space.path("short"), "guess me\n").unwrap();
    assert_eq!(
        refused(&["--auth-token-file", "short"]),
        "tenure: error: the token in `short` has 8 characters, at least 16 are needed\n"
    );
}

/// t70: with a token, the address is served, and nothing is shown without it.
#[test]
fn t70_the_token_is_asked_for() {
    let space = Space::new();
    std::fs::write(space.path("token"), "0123456789abcdef\n").unwrap();
    let args = ["serve", "-l", "0.0.0.0:0", "--auth-token-file", "token", "--allow-release"];
    let mut page = Served::start(Running::start(space.tenure(args)));
    let dir = space.path("locks");
    assert_eq!(
        page.run.line(),
        format!("tenure: serving the locks of file:{}, its users can release locks", dir.display())
    );
    assert_eq!(page.get("/now", "").0, 401);
    assert_eq!(page.get("/now", "Authorization: Bearer 0123456789abcdef\r\n").0, 200);
}

/// A port that is taken is named, with the reason.
#[test]
fn a_port_that_is_taken() {
    let space = Space::new();
    let page = serving(&space, "");
    let done = space.done(["serve", "--listen", &page.at]);
    let why = format!(
        "tenure: error: cannot listen on `{}`: Address already in use (os error 98)\n",
        page.at
    );
    assert_eq!((done.code, done.err), (Some(69), why));
}

/// t66: the password of the server is on no page and in no message. The page says that the server is away, and serves
/// on.
#[test]
fn t66_no_password_on_the_page() {
    let space = Space::guarded();
    let url = space.secret_url();
    let command = space.tenure(["serve", "-l", "127.0.0.1:0", "-u", &url]);
    let mut page = Served::start(Running::start(command));
    let line = page.run.line();
    assert_eq!(
        line,
        format!("tenure: serving the locks of redis://:***@{}, read-only", space.address())
    );
    page.shows("/now", "No locks.");
    space.server().kill();
    page.shows("/now", "The engine does not answer.");
    for path in ["/now", "/lock?key=k", "/doctor", "/contention", "/api/locks"] {
        let (status, text) = page.get(path, "");
        assert!(status == 200 && !text.contains(PASSWORD), "{path}: {text}");
    }
}

/// An address without a port is a usage error.
#[test]
fn bad_addresses() {
    let done = done(bare(["serve", "--listen", "localhost"]));
    let first = done.err.lines().next().unwrap();
    assert_eq!(done.code, Some(64));
    assert_eq!(
        first,
        "error: invalid value 'localhost' for '--listen <ADDR:PORT>': invalid socket address syntax"
    );
}
