//! Compiles the crates that have features with none of them and with each alone, and runs the facade's unit tests so.
//!
//! A build of the workspace has all features on. So have the tests of these crates: their dev-dependencies, the crate
//! itself and `tenure-testkit`, switch features on. The facade's unit tests need neither of the two, so they run with
//! a copy of the manifest that lacks them.
//!
//! Absent on purpose: the examples in the documentation, the tests in `tests/` and the unit tests of an engine. They
//! need those dev-dependencies, and run with all features only.

use std::path::Path;

use crate::shell::{Done, cargo};

/// The manifest of the facade.
const FACADE: &str = "crates/tenure/Cargo.toml";
/// The manifests of the other published crates that have features.
const OTHERS: [&str; 2] = ["crates/redis/Cargo.toml", "crates/etcd/Cargo.toml"];
/// The directory of the copied manifest.
const COPY: &str = "target/features";

/// Checks each crate with none of its features, and with each alone; tests the facade likewise.
pub fn check() -> Done {
    let without_dev = copy()?;
    for path in [FACADE].into_iter().chain(OTHERS) {
        let manifest = read(path)?;
        for feature in std::iter::once("").chain(names(&manifest)) {
            let only = ["--no-default-features", "--features", feature];
            cargo(&[&["check", "--locked", "--manifest-path", path], &only[..]].concat())?;
            if path == FACADE {
                let test =
                    ["test", "--lib", "--target-dir", "target", "--manifest-path", &without_dev];
                cargo(&[&test[..], &only[..]].concat())?;
            }
        }
    }
    Ok(())
}

/// The names in the section `[features]`, without `default`.
pub fn names(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.split_once("\n[features]\n").map_or("", |(_, rest)| rest);
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).filter(is_feature)
}

fn is_feature(name: &&str) -> bool {
    *name != "default" && !name.starts_with('#')
}

/// Writes a manifest for the facade's sources without the two dev-dependencies, and returns its path. It is a workspace
/// of its own, with the dependencies and versions of ours.
fn copy() -> Result<String, String> {
    let root = std::env::current_dir().map_err(|error| format!("xtask: no directory: {error}"))?;
    let root = root.display();
    let facade = read(FACADE)?;
    let facade = facade.lines().filter(|line| !is_left_out(line)).collect::<Vec<_>>().join("\n");
    let lib = format!("[lib]\npath = \"{root}/crates/tenure/src/lib.rs\"");
    let workspace = read("Cargo.toml")?.replace("path = \"", &format!("path = \"{root}/"));
    // The profiles of packages that the copy does not have.
    let workspace = workspace.split("[profile.dev.package").next().unwrap_or_default();
    let is_kept =
        |line: &&str| !line.starts_with("members") && !line.starts_with("default-members");
    let workspace = workspace.lines().filter(is_kept).collect::<Vec<_>>().join("\n");
    write(&format!("{COPY}/Cargo.lock"), &read("Cargo.lock")?)?;
    let path = format!("{COPY}/Cargo.toml");
    write(&path, &[facade, lib, workspace].join("\n\n"))?;
    Ok(path)
}

/// A dependency on the crate itself, or on the test kit.
fn is_left_out(line: &str) -> bool {
    line.contains("path = \".\"") || line.starts_with("tenure-testkit")
}

fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("xtask: cannot read {path}: {error}"))
}

fn write(path: &str, text: &str) -> Done {
    let dir = Path::new(path).parent().unwrap_or(Path::new(""));
    let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(path, text));
    written.map_err(|error| format!("xtask: cannot write {path}: {error}"))
}
