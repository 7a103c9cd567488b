//! Checks that the modules of a crate depend one way, in the order that ARCHITECTURE.md gives.
//!
//! In: the blocks of ARCHITECTURE.md whose first line is a source directory; each further line is a layer, the
//! lowest first. Out: uses of a module in a higher layer, and modules without a layer. Modules of one layer may
//! use each other. Code of tests may use everything.

use std::collections::BTreeMap;

const PAGE: &str = "ARCHITECTURE.md";

pub fn flaws(files: &[String]) -> Vec<String> {
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let orders: Vec<Order<'_>> = page.split("```text\n").skip(1).filter_map(Order::parse).collect();
    if orders.is_empty() {
        return vec![format!("{PAGE}: has no layers")];
    }
    orders.iter().flat_map(|order| files.iter().flat_map(|path| order.flaws(path))).collect()
}

/// The layers of one crate.
struct Order<'a> {
    directory: &'a str,
    /// The layer of each module, 0 for the lowest.
    layers: BTreeMap<&'a str, usize>,
}

impl<'a> Order<'a> {
    /// Reads a block from after its opening line; `None` if it has no layers.
    fn parse(text: &'a str) -> Option<Self> {
        let mut lines = text.split("```").next()?.lines();
        let directory = lines.next()?.strip_suffix("/src:")?;
        let words =
            |(layer, line): (usize, &'a str)| line.split_whitespace().map(move |m| (m, layer));
        Some(Order { directory, layers: lines.enumerate().flat_map(words).collect() })
    }

    fn flaws(&self, path: &str) -> Vec<String> {
        let Some(module) = self.module(path) else { return Vec::new() };
        let Some(own) = self.layers.get(module) else {
            return vec![format!("{path}: {PAGE} has no layer for `{module}`")];
        };
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let is_higher = |name: &&str| self.layers.get(name).is_some_and(|layer| layer > own);
        let higher = used(&text, &root_from(path)).into_iter().filter(is_higher);
        higher.map(|name| format!("{path}: uses `{name}`, a higher layer by {PAGE}")).collect()
    }

    /// The module of the crate that a source file belongs to; `None` for tests and files of other crates.
    fn module<'p>(&self, path: &'p str) -> Option<&'p str> {
        let file = path.strip_prefix(self.directory)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
        let mut parts = file.split('/');
        let module = parts.next()?;
        let is_root = ["lib", "main", "bin"].contains(&module);
        (!is_root && !file.split('/').any(|part| part == "tests")).then_some(module)
    }
}

/// The root of the crate as a source file names it with `super`, from after `src/` on.
fn root_from(path: &str) -> String {
    let below = path.split("/src/").nth(1).unwrap_or_default().trim_end_matches("/mod.rs");
    "super::".repeat(below.split('/').count())
}

/// The modules after `crate::` or `root` in the code before the tests of a file.
fn used<'a>(text: &'a str, root: &str) -> Vec<&'a str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = move |rest: &'_ str| rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    let uses = |line: &'a str| line.split("crate::").skip(1).chain(line.split(root).skip(1));
    lines.flat_map(uses).map(|rest| &rest[..word(rest)]).collect()
}
