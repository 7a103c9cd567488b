//! Checks the tables of requirements and faults against the tests.
//!
//! In: `docs/testing/*.md`, and the names and first lines of all tests. Out: tests that a row names and that
//! do not exist or do not name the row, rows without a test, and ids in the names of tests that no row has.

use std::collections::{BTreeMap, BTreeSet};

const TABLES: [&str; 2] = ["docs/testing/requirements.md", "docs/testing/faults.md"];
/// The list of the conformance cases.
const CASES: &str = "crates/testkit/src/conformance/list.rs";
/// The texts that a row may have instead of a test.
const WITHOUT_TEST: [&str; 2] = ["not built yet", "the documentation itself"];

pub fn flaws(files: &[String]) -> Vec<String> {
    let functions: Vec<Function> = files.iter().flat_map(|path| functions(path)).collect();
    let cases = std::fs::read_to_string(CASES).unwrap_or_default();
    let known = claims(&functions, &cases);
    let mut flaws = Vec::new();
    let mut rows = BTreeSet::new();
    for table in TABLES {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        for (id, shown_by) in text.lines().filter_map(row) {
            rows.insert(id.to_lowercase());
            let tests: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
            if tests.is_empty() && !WITHOUT_TEST.contains(&shown_by) {
                flaws.push(format!("{table}: {id} names no test"));
            }
            flaws.extend(tests.iter().filter_map(|test| match known.get(test) {
                None => Some(format!("{table}: {id}: there is no test `{test}`")),
                Some(claims) if is_named(&id.to_lowercase(), test, claims) => None,
                Some(_) => Some(format!("{table}: {id}: the test `{test}` does not name it")),
            }));
        }
    }
    for name in known.keys() {
        let unknown = ids(name).filter(|id| !rows.contains(*id));
        flaws.extend(unknown.map(|id| format!("test `{name}`: no row has the id {id}")));
    }
    flaws
}

/// The first lines of the tests by name. A macro makes tests of the functions that are `cases`.
fn claims<'a>(functions: &'a [Function], cases: &'a str) -> BTreeMap<&'a str, Vec<&'a str>> {
    let cases = cases.lines().filter_map(|line| line.trim().strip_suffix(','));
    let cases = cases.filter(|case| case.chars().all(is_of_name));
    let tests = functions.iter().filter(|function| function.is_test).map(|test| &*test.name);
    let mut claims: BTreeMap<_, _> = tests.chain(cases).map(|name| (name, vec![])).collect();
    for function in functions {
        let of_name = claims.get_mut(&*function.name);
        of_name.into_iter().for_each(|claims| claims.push(&*function.claim));
    }
    claims
}

/// Whether the test's name or the first line of a test with this name has the id.
fn is_named(id: &str, test: &str, claims: &[&str]) -> bool {
    let is_in = |claim: &&str| claim.split([',', ':']).any(|word| word.trim().to_lowercase() == id);
    ids(test).any(|own| own == id) || claims.iter().any(is_in)
}

/// A function: a test, a case of the conformance suite, or another one.
struct Function {
    name: String,
    is_test: bool,
    /// The first line of its documentation.
    claim: String,
}

fn functions(path: &str) -> Vec<Function> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (mut functions, mut is_test, mut claim) = (Vec::new(), false, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = function(line) {
            let claim: Option<&str> = claim.take();
            let claim = claim.unwrap_or_default().to_owned();
            functions.push(Function { name: name.to_owned(), is_test, claim });
            is_test = false;
        } else if let Some(comment) = line.strip_prefix("///") {
            claim = claim.or(Some(comment));
        } else if !line.starts_with("#[") {
            claim = None;
        }
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    }
    functions
}

/// The name of the function that begins in this line.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    Some(&name[..name.find(|c| !is_of_name(c))?])
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A row's id and its last cell.
fn row(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split(" |").collect();
    let (id, shown_by) = (cells.first()?.trim(), cells.last()?.trim());
    is_id(&id.to_lowercase()).then_some((id, shown_by))
}

/// The ids at the beginning of a test's name: `t55_t57_bad_times` has two.
fn ids(name: &str) -> impl Iterator<Item = &str> {
    name.split('_').take_while(|word| is_id(word))
}

/// `t01` to `t999`, or `a1` to `g99`.
fn is_id(word: &str) -> bool {
    let Some((letter, digits)) = word.split_at_checked(1) else { return false };
    let is_long_enough = match letter {
        "t" => (2..=3).contains(&digits.len()),
        "a" | "b" | "c" | "d" | "e" | "f" | "g" => (1..=2).contains(&digits.len()),
        _ => false,
    };
    is_long_enough && digits.bytes().all(|byte| byte.is_ascii_digit())
}
