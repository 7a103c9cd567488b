//! The tables of Cargo features, in the rustdoc and in the guide.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

const MANIFEST: &str = include_str!("../Cargo.toml");
const RUSTDOC: &str = include_str!("../src/lib.rs");
const GUIDE: &str = include_str!("../../../docs/guide/configuration.md");

/// Every feature has a row in both tables, with its default. There are no other rows.
#[test]
fn every_feature_is_in_the_tables() {
    let section = MANIFEST.split_once("[features]").unwrap().1.split("\n[").next().unwrap();
    let features = section.lines().filter_map(|line| line.split_once(" = "));
    let (default, features): (Vec<_>, Vec<_>) = features.partition(|(name, _)| *name == "default");
    let is_default = |name: &str| default[0].1.contains(&format!("{name:?}"));
    for text in [RUSTDOC, GUIDE] {
        for (name, _) in &features {
            let row = format!("| `{name}` | {} |", if is_default(name) { "yes" } else { "no" });
            assert!(text.contains(&row), "no row `{row}`");
        }
        let table = text.split_once("| feature | by default |").unwrap().1;
        let rows = table.lines().skip(2).take_while(|line| line.contains("| `")).count();
        assert_eq!(rows, features.len());
    }
}
