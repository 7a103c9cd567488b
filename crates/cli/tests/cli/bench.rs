//! `tenure bench`.

use serde_json::Value;

use crate::common::{Space, assert_matches, bare, done};

/// F1: every workload has a line, in the table and in the JSON, and nothing stays at the server.
#[test]
fn bench_on_a_server() {
    let space = Space::redis();
    let run = space.done(["bench", "--time", "100ms"]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert_matches(
        &run.out,
        "WHAT +P50 +P99 +PER SECOND\n\
         one request +\\d+ .s +\\d+ .s +\\d+\n\
         lock and release +\\d+ .s +\\d+ .s +\\d+\n\
         lock and release, 64 tasks with a key each +\\d+ .s +\\d+ .s +\\d+\n\
         hand-over between two processes +\\d+ .s +\\d+ .s +-\n",
    );
    let run = space.done(["bench", "--time", "100ms", "--json"]);
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 4);
    for figure in figures {
        assert!(figure["samples"].as_u64().unwrap() > 1, "{figure}");
        assert!(figure["p50_us"].as_u64() <= figure["p99_us"].as_u64(), "{figure}");
    }
    assert_eq!(space.done(["ls"]).out, "", "nothing is left");
}

/// The embedded engine can be measured too. `memory:` is refused: it ends with the process.
#[test]
fn bench_without_a_server() {
    let run = Space::new().done(["bench", "--time", "500ms", "--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert!(report["figures"][3]["samples"].as_u64().unwrap() > 1, "{report}");
    let run = done(bare(["bench", "-u", "memory:"]));
    assert_eq!(run.code, Some(64));
    assert_eq!(run.err, "tenure: error: `memory:` has no server, and ends with this process\n");
}
