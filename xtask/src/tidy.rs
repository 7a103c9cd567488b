//! Checks of style that the compiler does not make.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::layers;
use crate::manifests;
use crate::rows;
use crate::shell::Done;

/// A longer source file should be split.
const LINES_MAX: usize = 600;
/// A longer README is not read.
const README_MAX: usize = 120;
/// The longest line of prose in a page, and the longest comment.
const PROSE_MAX: usize = 120;

/// Checks every file that git knows.
pub fn check() -> Done {
    let files = files()?;
    let mut flaws: Vec<String> = files.iter().flat_map(|path| flaws(path)).collect();
    flaws.extend(files.iter().flat_map(|path| dead_names(path, &files)));
    flaws.extend(repeated_types(&files));
    flaws.extend(files.iter().flat_map(|path| odd_words(path)));
    flaws.extend(layers::flaws(&files));
    flaws.extend(manifests::flaws(&files));
    flaws.extend(rows::flaws(&files));
    match flaws.is_empty() {
        true => Ok(()),
        false => Err(format!("xtask: not tidy:\n  {}", flaws.join("\n  "))),
    }
}

/// Checks that the facade's documentation has the pages of the engines, and not only a line about each.
pub fn engines_have_pages() -> Done {
    let dir = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    for module in ["redis", "etcd", "axum", "tower"] {
        let page = Path::new(&dir).join("doc/tenure").join(module).join("index.html");
        if !page.exists() {
            return Err(format!("xtask: the facade's documentation has no page `{module}`"));
        }
    }
    Ok(())
}

fn files() -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output();
    let output = output.map_err(|error| format!("xtask: `git ls-files` cannot be run: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(Into::into).collect())
}

fn flaws(path: &str) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let mut flaws = Vec::new();
    let lines = text.lines().count();
    if path.starts_with("README") && lines > README_MAX {
        flaws.push(format!("{path}: {lines} lines, at most {README_MAX}"));
    }
    match Path::new(path).extension().and_then(|ending| ending.to_str()) {
        Some("rs") => {
            flaws.extend(rust_flaws(path, &text, lines));
            flaws.extend(long_comments(path, &text, "//"));
        }
        Some("lua") => flaws.extend(long_comments(path, &text, "--")),
        Some("go") => flaws.extend(long_comments(path, &text, "//")),
        Some("toml" | "yml" | "bash") => flaws.extend(long_comments(path, &text, "#")),
        Some("md") => {
            flaws.extend(dead_links(path, &text).into_iter().chain(long_lines(path, &text)))
        }
        _ => {}
    }
    flaws
}

/// Lines of prose that are too long to read and to compare. Tables and code may be longer.
fn long_lines(path: &str, text: &str) -> Vec<String> {
    let mut in_code = false;
    let is_long = |(_, line): &(usize, &str)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        let is_prose = !in_code && !line.trim_start().starts_with(['|', '#', '<', '!']);
        is_prose && !fence && line.chars().count() > PROSE_MAX
    };
    too_long(path, text.lines().enumerate().filter(is_long))
}

/// Comments that are too long, of lines that begin with `mark`. rustfmt does not wrap them.
fn long_comments(path: &str, text: &str, mark: &str) -> Vec<String> {
    let is_long = |(_, line): &(usize, &str)| {
        line.trim_start().starts_with(mark) && line.chars().count() > PROSE_MAX
    };
    too_long(path, text.lines().enumerate().filter(is_long))
}

/// Words that stood here in a sense of their own; the field's words are in `docs/glossary.md`.
const ODD_WORDS: [&str; 6] =
    ["whoever", "given back", "gives back", "giving back", " of which", "be had"];

/// Odd words in comments and pages. The changelog quotes old names.
fn odd_words(path: &str) -> Vec<String> {
    let is_page = path.ends_with(".md");
    if path == "CHANGELOG.md" || !is_page && !path.ends_with(".rs") && !path.ends_with(".lua") {
        return Vec::new();
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let is_prose = |line: &str| is_page || line.trim_start().starts_with(['/', '-']);
    let prose = text.lines().enumerate().filter(|(_, line)| is_prose(line));
    let odd = prose.flat_map(|(index, line)| {
        let found = ODD_WORDS.into_iter().filter(|word| line.to_lowercase().contains(word));
        found.map(move |word| format!("{path}:{}: `{word}`: use an ordinary word", index + 1))
    });
    odd.collect()
}

fn too_long<'a>(path: &str, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<String> {
    let numbers = lines.map(|(index, _)| index + 1);
    numbers.map(|number| format!("{path}:{number}: longer than {PROSE_MAX} characters")).collect()
}

/// Source files that a page or a comment names and that do not exist.
fn dead_names(path: &str, files: &[String]) -> Vec<String> {
    let is_source = |path: &str| path.ends_with(".rs") || path.ends_with(".lua");
    let is_page = path.ends_with(".md") && path != "CHANGELOG.md";
    let Some(text) = std::fs::read_to_string(path).ok().filter(|_| is_page || is_source(path))
    else {
        return Vec::new();
    };
    let is_comment = |line: &&str| is_page || line.trim_start().starts_with(['/', '-']);
    let quoted =
        text.lines().filter(is_comment).flat_map(|line| line.split('`').skip(1).step_by(2));
    let named = quoted.filter(|name| is_source(name) && !name.contains(['*', '{', ' ']));
    let is_there =
        |name: &str| files.iter().any(|file| format!("/{file}").ends_with(&format!("/{name}")));
    let dead = named.filter(|name| !is_there(name));
    dead.map(|name| format!("{path}: there is no file `{name}`")).collect()
}

/// The blocking twins of async types have the same names, in a module of their own.
const TWINS: &str = "crates/core/src/blocking";

/// Types that others in the crate can see and that have the same name.
fn repeated_types(files: &[String]) -> Vec<String> {
    let mut seen = BTreeMap::<(&str, String), &str>::new();
    let mut flaws = Vec::new();
    let is_source = |path: &&String| {
        path.starts_with("crates/") && path.contains("/src/") && !path.contains("/bin/")
    };
    for path in files.iter().filter(is_source).filter(|path| !path.starts_with(TWINS)) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let krate = path.split('/').nth(1).unwrap_or_default();
        for name in text.lines().filter_map(visible_type) {
            if let Some(other) = seen.insert((krate, name.to_owned()), path) {
                flaws.push(format!("{path}: the type `{name}` is also in {other}"));
            }
        }
    }
    flaws
}

/// The type that a line declares, if it can be seen outside of its module.
fn visible_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let mut words = rest.split_whitespace().filter(|word| !word.starts_with('('));
    matches!(words.next()?, "struct" | "enum" | "trait").then_some(())?;
    words.next()?.split(['<', '(', ';', ':', '{']).next()
}

/// Links of a page to files that do not exist.
fn dead_links(path: &str, text: &str) -> Vec<String> {
    let dir = Path::new(path).parent().unwrap_or(Path::new(""));
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    let here = targets.filter(|target| !target.is_empty() && !target.contains("://"));
    let dead = here.filter(|target| !dir.join(target).exists());
    dead.map(|target| format!("{path}: no file for the link `{target}`")).collect()
}

fn rust_flaws(path: &str, text: &str, lines: usize) -> Vec<String> {
    let mut flaws = Vec::new();
    if lines > LINES_MAX {
        flaws.push(format!("{path}: {lines} lines, at most {LINES_MAX}"));
    }
    if !text.starts_with("//!") {
        flaws.push(format!("{path}: no header that says what comes in and what goes out"));
    }
    // Written in two parts, so that the check does not find this file.
    let banned = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[", "ignore"),
        concat!("FIX", "ME"),
    ];
    for (number, line) in text.lines().enumerate() {
        for word in banned.iter().filter(|word| line.contains(**word)) {
            flaws.push(format!("{path}:{}: `{word}`", number + 1));
        }
    }
    flaws
}
