//! A headless Chromium, driven over WebDriver.
//!
//! In: what a page must show. Out: clicks, keys, and waits with a deadline. The driver leads a process group of its
//! own, which is killed at the end, so that no browser outlives its test.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use fantoccini::actions::{InputSource as _, KeyAction, KeyActions};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testkit::process::Program;
use tenure_testkit::wait::{eventually, within};

/// What kind of window the page is seen in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Wide,
    NarrowAndDark,
}

/// A running browser.
pub(crate) struct Browser {
    pub(crate) client: Client,
    driver: Program,
    _profile: TempDir,
}

impl Browser {
    /// Starts the driver on a free port, and a browser with an empty profile.
    pub(crate) async fn start(look: Look) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").process_group(0).stderr(Stdio::null());
        // What the browser leaves behind when it is killed goes with the profile.
        command.env("TMPDIR", profile.path());
        let mut driver = Program::spawn(&mut command);
        let port = driver.wait_for("ChromeDriver was started successfully on port ");
        let url = format!("http://127.0.0.1:{}", port.trim_end_matches('.'));
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities(look, &profile).as_object().unwrap().clone());
        let client = within("the browser", builder.connect(&url)).await;
        let client = client.unwrap_or_else(|error| panic!("no browser: {error}"));
        Browser { client, driver, _profile: profile }
    }

    pub(crate) async fn goto(&self, url: &str) {
        within(url, self.client.goto(url)).await.unwrap();
    }

    pub(crate) async fn url(&self) -> String {
        self.client.current_url().await.unwrap().to_string()
    }

    /// The text of the page, as a person sees it.
    pub(crate) async fn text(&self) -> String {
        self.script("return document.body.innerText").await.as_str().unwrap_or_default().into()
    }

    /// Waits until the page shows `text`.
    pub(crate) async fn shows(&self, text: &str) {
        eventually(text, || async { self.text().await.contains(text) }).await;
    }

    /// Waits until the page has an element.
    pub(crate) async fn finds(&self, css: &str) {
        let script = format!("return document.querySelector({}) !== null", json!(css));
        eventually(css, || async { self.script(&script).await == true }).await;
    }

    /// Clicks by the page's own means: an update may replace an element between two requests of the driver.
    pub(crate) async fn click(&self, css: &str) {
        self.finds(css).await;
        self.script(&format!("document.querySelector({}).click()", json!(css))).await;
    }

    pub(crate) async fn fill(&self, css: &str, text: &str) {
        let field = self.client.find(Locator::Css(css)).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// Types on whatever has the focus.
    pub(crate) async fn keys(&self, keys: &str) {
        let mut actions = KeyActions::new("keys".into());
        for value in keys.chars() {
            actions = actions.then(KeyAction::Down { value }).then(KeyAction::Up { value });
        }
        self.client.perform_actions(actions).await.unwrap();
    }

    pub(crate) async fn script(&self, text: &str) -> Value {
        // While a page loads there may be none to run it in.
        self.client.execute(text, Vec::new()).await.unwrap_or_default()
    }

    /// Keeps a picture of the page among the temporary files of the build, to be looked at.
    pub(crate) async fn picture(&self, name: &str, url: &str) {
        self.goto(url).await;
        self.finds("#live").await;
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{name}.png"));
        std::fs::write(path, self.client.screenshot().await.unwrap()).unwrap();
    }

    pub(crate) async fn end(self) {
        // The drop kills what does not end.
        let _ = self.client.clone().close().await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.driver.pid()).unwrap());
        // An error means that all of them have ended.
        let _ = killpg(group, Signal::SIGKILL);
    }
}

fn capabilities(look: Look, profile: &TempDir) -> Value {
    let mut args: Vec<String> = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ]
    .map(String::from)
    .into();
    args.push(format!("--user-data-dir={}", profile.path().display()));
    let mut options = json!({ "binary": "/usr/bin/chromium" });
    if look == Look::NarrowAndDark {
        args.push("--blink-settings=preferredColorScheme=0".into());
        options["mobileEmulation"] =
            json!({ "deviceMetrics": { "width": 360, "height": 780, "pixelRatio": 1.0 } });
    }
    options["args"] = json!(args);
    json!({ "browserName": "chrome", "goog:chromeOptions": options })
}
