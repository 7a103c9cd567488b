//! What tenure costs, beside what the bare thing costs, in the same run.
//!
//! `cargo run --release -p tenure-bench` prints one line per figure: ours, the bare cost, their
//! ratio, and the bar to hold. Medians of interleaved rounds, so that a busy machine hits both
//! sides alike. A metrics recorder and a log subscriber are installed, as in a real service.

mod held;
mod local;
mod processes;
mod report;

use clap::Parser;

use report::Report;

/// Measures tenure against the bare thing, in one run.
#[derive(Parser)]
struct Args {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Only figures whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Used by the bench itself: be one of the processes that fight for a lock.
    #[arg(long, hide = true)]
    contender: Option<String>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(url) = args.contender {
        return runtime.block_on(processes::contend(&url));
    }
    observe()?;
    let mut report = Report::new(args.only);
    runtime.block_on(async {
        local::measure(&mut report).await?;
        held::measure(&mut report).await?;
        processes::measure(&mut report).await
    })?;
    report.print(args.json)?;
    if report.is_met() { Ok(()) } else { Err("a bar was missed".into()) }
}

/// What a real service has installed.
fn observe() -> Result<(), Box<dyn std::error::Error>> {
    metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .init();
    Ok(())
}
