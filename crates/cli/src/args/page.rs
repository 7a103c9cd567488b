//! The command line of `serve` and `demo`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::positive;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8377")]
    pub(crate) listen: SocketAddr,
    /// Ask for the token in this file, as a password or as `Authorization: Bearer`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) auth_token_file: Option<PathBuf>,
    /// Answer to this host name too; it may be repeated [default: localhost and the address of --listen]
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// Let the users of the page release locks by force
    #[arg(long)]
    pub(crate) allow_release: bool,
}

pub(super) const SERVE_AFTER_HELP: &str = "\
Prints the address of the page to stdout, and serves until a signal ends it. Also: /api/locks and
/api/lock?key=KEY (JSON, as `ls --json` and `show --json`), /metrics (Prometheus), /healthz, /readyz.
Exit status: 128+N after signal N; else
   69  cannot listen, or refused         64  usage
An address that other machines can reach needs --auth-token-file. There is no TLS: put a proxy in front.";

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8377")]
    pub(crate) listen: SocketAddr,
    /// How many processes compete
    #[arg(long, value_name = "N", default_value = "6")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=20))]
    pub(crate) processes: u32,
    /// End after this time
    #[arg(long, value_name = "DUR", value_parser = positive, default_value = "1h")]
    pub(crate) time: Duration,
    /// Run as one of the processes, on the locks of this directory
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) worker: Option<PathBuf>,
}

pub(super) const DEMO_AFTER_HELP: &str = "\
Some processes of this machine compete for locks in a new directory, elect a leader, read and write;
now and then one is killed. Needs no server, and leaves nothing behind: the processes end with this
one, and the directory is removed.
Exit status: 0 after --time; 128+N after signal N; 69 cannot listen or start; 64 usage.";
