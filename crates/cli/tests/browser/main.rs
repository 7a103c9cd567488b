//! The page in a real browser, beside real processes: what its script does, and whether everybody can use it.
//!
//! One test, because a browser is heavy: it has one browser at a time and goes from page to page. It waits for
//! states, with the deadline of the test kit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod browser;

use std::process::{Command, Stdio};

use fantoccini::Locator;
use tenure::Locker;
use tenure_testkit::process::Program;
use tenure_testkit::servers::RedisServer;

use browser::{Browser, Look};

/// Which flaws a page has for people who cannot see it, see little, or have no mouse.
const AUDIT: &str = include_str!("audit.js");

/// `tenure ARGS` on the locks of this server.
fn tool(server: &RedisServer, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("tenure"));
    command.args(args).env("TENURE_URL", server.url()).env("XDG_CONFIG_HOME", "/no/such/directory");
    command.stderr(Stdio::null());
    command
}

/// A page that is served, and its address.
struct Site {
    _program: Program,
    base: String,
}

impl Site {
    fn new(server: &RedisServer, rights: &[&str]) -> Self {
        let mut program =
            Program::spawn(&mut tool(server, &[&["serve", "-l", "127.0.0.1:0"], rights].concat()));
        let base = format!("http://{}", program.wait_for("http://").trim_end_matches('/'));
        Site { _program: program, base }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

/// Another process that holds `key`.
fn holds(server: &RedisServer, key: &str) -> Program {
    let mut holder = Program::spawn(&mut tool(
        server,
        &["run", "--reason", "month end", key, "--", "sh", "-c", "echo held; exec sleep 600"],
    ));
    holder.wait_for("held");
    holder
}

/// F2: the page is live, can be filtered, paged, paused and used by keyboard; a lock is released with the right to do
/// so and not without; every page is accessible, light and wide, dark and narrow.
#[tokio::test(flavor = "multi_thread")]
async fn f2_the_page_in_a_browser() {
    let server = RedisServer::start();
    let (site, read_only) = (Site::new(&server, &["--allow-release"]), Site::new(&server, &[]));
    let locker = tenure::connect(&server.url()).await.unwrap();
    let browser = Browser::start(Look::Wide).await;
    let job = changes_as_it_happens(&browser, &site, &server).await;
    let _orders = orders(&locker).await;
    can_be_filtered_and_paged(&browser, &site).await;
    can_be_used_by_keyboard(&browser, &site).await;
    can_be_paused(&browser, &site, &server).await;
    is_released_with_right_only(&browser, &site, &read_only, job).await;
    let waiter = holds(&server, "busy");
    let _waits = Program::spawn(&mut tool(&server, &["run", "busy", "--", "true"]));
    for path in PAGES {
        is_accessible(&browser, &site.at(path)).await;
    }
    the_audit_finds_flaws(&browser, &site).await;
    browser.picture("wide", &site.at("/now")).await;
    browser.end().await;
    let narrow = Browser::start(Look::NarrowAndDark).await;
    for path in PAGES {
        is_accessible(&narrow, &site.at(path)).await;
    }
    narrow.picture("narrow", &site.at("/now")).await;
    narrow.end().await;
    drop(waiter);
}

const PAGES: [&str; 5] = ["/now", "/lock?key=busy", "/lock?key=free", "/contention", "/doctor"];

/// Enough locks for two pages of the list.
async fn orders(locker: &Locker) -> Vec<tenure::Guard> {
    let mut guards = Vec::new();
    for n in 0..150 {
        guards.push(locker.lock(format!("order:{n:03}")).await.unwrap());
    }
    guards
}

/// The table changes when another process takes a lock, without a new page.
async fn changes_as_it_happens(browser: &Browser, site: &Site, server: &RedisServer) -> Program {
    browser.goto(&site.at("/")).await;
    assert!(browser.url().await.ends_with("/now"));
    browser.shows("No locks.").await;
    browser.script("window.sameDocument = true").await;
    let job = holds(server, "job");
    browser.shows("month end").await;
    browser.finds("#locks a[href='lock?key=job']").await;
    assert_eq!(browser.script("return window.sameDocument").await, true);
    assert_eq!(
        browser.script("return document.getElementById('live-switch').textContent").await,
        "Live"
    );
    job
}

/// The filter and the pages of the list are made at the server, and stay while the page is live.
async fn can_be_filtered_and_paged(browser: &Browser, site: &Site) {
    browser.goto(&site.at("/now")).await;
    browser.shows("Page 1 of 2").await;
    browser.click("a[rel=next]").await;
    browser.shows("Page 2 of 2").await;
    browser.keys("/").await;
    browser.finds("#filter:focus").await;
    browser.keys("order:14?\u{e007}").await;
    browser.shows(": 10, the most").await;
    assert_eq!(browser.script(ROWS).await, 10);
    assert!(browser.url().await.contains("filter=order%3A14%3F"), "{}", browser.url().await);
}

const ROWS: &str = "return document.querySelectorAll('#locks tbody tr').length";
const HERE: &str = "return document.querySelector('tr.here a')?.textContent ?? null";

/// `j` and `k` move, also over an update; Enter opens; `?` explains.
async fn can_be_used_by_keyboard(browser: &Browser, site: &Site) {
    browser.goto(&site.at("/now?filter=order:00")).await;
    browser.finds("#locks tbody tr").await;
    for (keys, row) in [
        ("j", "order:000"),
        ("jj", "order:002"),
        ("k", "order:001"),
        ("kkkk", "order:000"),
        ("j", "order:001"),
    ] {
        browser.keys(keys).await;
        assert_eq!(browser.script(HERE).await, row, "after {keys}");
    }
    // The row is still the current one in the nodes of the next update.
    browser.script("document.querySelector('tr.here').dataset.old = 'yes'").await;
    browser.finds("tr.here:not([data-old]) a:focus").await;
    browser.keys("?").await;
    browser.finds("#help[open]").await;
    browser.keys("\u{e00c}").await;
    browser.finds("#help:not([open])").await;
    browser.keys("\u{e007}").await;
    browser.shows("Queue").await;
    assert!(browser.url().await.ends_with("/lock?key=order%3A001"));
}

/// A paused page stays as it is; then it is live again.
async fn can_be_paused(browser: &Browser, site: &Site, server: &RedisServer) {
    browser.goto(&site.at("/now?filter=late")).await;
    browser.shows("No lock matches.").await;
    browser.keys("p").await;
    browser.shows("this is how it was").await;
    let late = holds(server, "late");
    // Another page of the same server shows it: so does this one as soon as it may.
    let other = browser.client.new_window(true).await.unwrap();
    let first = browser.client.window().await.unwrap();
    browser.client.switch_to_window(other.handle).await.unwrap();
    browser.goto(&site.at("/lock?key=late")).await;
    browser.shows("month end").await;
    browser.client.close_window().await.unwrap();
    browser.client.switch_to_window(first).await.unwrap();
    assert!(browser.text().await.contains("No lock matches."));
    browser.click("#live-switch").await;
    browser.finds("#locks a[href='lock?key=late']").await;
    drop(late);
}

/// Without the right there is no way to release. With it, the key must be typed; then the command is ended.
async fn is_released_with_right_only(
    browser: &Browser,
    site: &Site,
    read_only: &Site,
    mut job: Program,
) {
    browser.goto(&read_only.at("/lock?key=job")).await;
    browser.shows("This page is read-only").await;
    assert!(browser.client.find_all(Locator::Css("a.danger")).await.unwrap().is_empty());
    browser.goto(&site.at("/lock?key=job")).await;
    browser.click("a.danger").await;
    browser.finds("#typed").await;
    browser.fill("#typed", "jobs").await;
    browser.click("button.danger").await;
    browser.shows("Nothing was released: the key was not typed.").await;
    assert!(job.is_running());
    browser.fill("#typed", "job").await;
    browser.fill("#reason", "stuck").await;
    browser.click("button.danger").await;
    browser.shows("Released by force.").await;
    assert_eq!(job.wait().code(), Some(79), "the command lost its lock");
}

/// A page with flaws does not pass: the audit looks at what it says.
async fn the_audit_finds_flaws(browser: &Browser, site: &Site) {
    browser.goto(&site.at("/now")).await;
    browser.finds("main h1").await;
    let script = "
        document.querySelector('.filter label').remove();
        document.querySelector('.filter button').style.color = '#aaa';
        document.querySelector('#help-title').outerHTML = '<h4 id=help-title>Keys</h4>';
        document.querySelector('#help').show();";
    let flaws = browser.script(&format!("{script}{AUDIT}")).await;
    let rules: Vec<_> = flaws
        .as_array()
        .unwrap()
        .iter()
        .map(|flaw| flaw.as_str().unwrap().split(':').next().unwrap())
        .collect();
    assert_eq!(rules[..2], ["headings skip no level", "a field has a label"], "{flaws}");
    assert!(rules[2].starts_with("contrast ") && rules.len() == 3, "{flaws}");
}

/// The page has no flaw that the audit knows.
async fn is_accessible(browser: &Browser, url: &str) {
    browser.goto(url).await;
    browser.finds("main h1").await;
    let flaws = browser.script(AUDIT).await;
    assert_eq!(flaws, serde_json::json!([]), "{url}");
}
