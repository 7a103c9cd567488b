//! Requests to a page that the tool serves: as few bytes of HTTP as they need.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::common::{DEADLINE, Running, wait_for};

/// A running `serve` or `demo`.
pub(crate) struct Served {
    pub(crate) run: Running,
    /// `127.0.0.1:PORT`.
    pub(crate) at: String,
}

impl Served {
    /// Waits for the address on stdout.
    pub(crate) fn start(run: Running) -> Self {
        wait_for("the address", || run.printed().ends_with("/\n"));
        let at =
            run.printed().trim().strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
        Served { run, at }
    }

    /// The status and the rest of the answer to `GET path`.
    pub(crate) fn get(&self, path: &str, headers: &str) -> (u16, String) {
        let port = self.at.rsplit(':').next().unwrap();
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer[9..12].parse().unwrap(), answer)
    }

    /// Waits until the page contains `text`, and returns it.
    pub(crate) fn shows(&self, path: &str, text: &str) -> String {
        wait_for(text, || self.get(path, "").1.contains(text));
        self.get(path, "").1
    }
}
