//! Checks what a published crate must carry.
//!
//! In: the manifests in `crates/` and the files beside them. Out: crates without the text of a licence, and crates
//! with features whose documentation on docs.rs would lack them.

use crate::features;

const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
const ALL_FEATURES: &str = "[package.metadata.docs.rs]\nall-features = true\n";

pub fn flaws(files: &[String]) -> Vec<String> {
    let manifests = files.iter().filter_map(|path| Some((path, krate(path)?)));
    manifests.flat_map(|(path, dir)| of_crate(path, dir)).collect()
}

/// The directory of the crate whose manifest is at `path`.
fn krate(path: &str) -> Option<&str> {
    path.starts_with("crates/").then_some(())?;
    path.strip_suffix("/Cargo.toml")
}

fn of_crate(path: &str, dir: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(path).unwrap_or_default();
    if manifest.contains("publish = false") {
        return Vec::new();
    }
    let lacking = LICENCES.into_iter().filter(|name| !has_text(dir, name));
    let mut flaws: Vec<String> =
        lacking.map(|name| format!("{dir}/{name}: is not the text of {name}")).collect();
    if features::names(&manifest).next().is_some() && !manifest.contains(ALL_FEATURES) {
        flaws.push(format!("{path}: features, but no `all-features` for docs.rs"));
    }
    flaws
}

/// The file itself must have the text. A symbolic link is not enough: where git cannot make one, it writes a file with
/// the path that the link has, and that file would be packaged.
fn has_text(dir: &str, name: &str) -> bool {
    let path = format!("{dir}/{name}");
    let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
    is_file
        && matches!((std::fs::read(path), std::fs::read(name)), (Ok(own), Ok(ours)) if own == ours)
}
