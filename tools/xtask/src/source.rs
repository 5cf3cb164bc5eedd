//! Rules about single files: their length, opening, name, and words that mark unfinished work.

use crate::Finding;
use std::path::Path;

#[cfg(test)]
mod tests;

/// Lines of product code in one file, at most.
pub const PRODUCT_LINES_MAX: usize = 400;
/// Lines of one file of tests, or of a file together with the tests at its end, at most.
pub const TEST_LINES_MAX: usize = 700;
/// Names that say nothing about what is inside.
pub const BANNED_NAMES: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "misc", "manager"];
// In two parts each, or this file would be a finding.
const UNFINISHED_WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
const UNFINISHED_CALLS: [&str; 3] =
    [concat!("unimpl", "emented!"), concat!("to", "do!"), concat!("db", "g!")];

/// Checks one file; `path` is relative to the root of the repository.
pub fn check(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            findings.extend(check_name(path));
            findings.extend(check_opening(path, text));
            findings.extend(check_length(path, text));
            findings.extend(check_finished(path, text));
        }
        Some("md") => {}
        _ => {
            findings.extend(check_length(path, text));
            findings.extend(check_finished(path, text));
        }
    }
    findings
}

fn check_name(path: &Path) -> Option<Finding> {
    let parts = path.iter().filter_map(|part| part.to_str());
    let banned = parts.map(|part| part.strip_suffix(".rs").unwrap_or(part)).find(|part| is_banned(part))?;
    let message =
        format!("`{banned}` says nothing about what is inside: name it after the noun it deals with");
    Some(Finding::new(path, 1, message))
}

fn is_banned(name: &str) -> bool {
    BANNED_NAMES.contains(&name.trim_end_matches(|character: char| character.is_ascii_digit()))
}

fn check_opening(path: &Path, text: &str) -> Option<Finding> {
    if text.starts_with("//!") || path.file_name().is_some_and(|name| name == "tests.rs") {
        return None;
    }
    Some(Finding::new(
        path,
        1,
        "open with `//!`: what this room is for, what it does not do, what it promises",
    ))
}

fn check_length(path: &Path, text: &str) -> Option<Finding> {
    let all = text.lines().count();
    let product = product_lines(text);
    if is_test(path) || all > TEST_LINES_MAX {
        let message = format!("{all} lines, {TEST_LINES_MAX} at most: part it by what is tested");
        return (all > TEST_LINES_MAX).then(|| Finding::new(path, TEST_LINES_MAX + 1, message));
    }
    let message = format!("{product} lines, {PRODUCT_LINES_MAX} at most: make a module of one of its parts");
    (product > PRODUCT_LINES_MAX).then(|| Finding::new(path, PRODUCT_LINES_MAX + 1, message))
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The lines before an inline module of tests, which is the last thing in a file.
fn product_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let opens =
        |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    lines.windows(2).position(opens).unwrap_or(lines.len())
}

fn check_finished(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split(|character: char| !character.is_alphanumeric() && character != '_');
        let word = words.find(|word| UNFINISHED_WORDS.contains(word));
        let call = UNFINISHED_CALLS.iter().copied().find(|call| calls(line, call));
        if let Some(mark) = word.or(call) {
            findings.push(Finding::new(path, index + 1, format!("{mark}: finish it, or take it out")));
        }
    }
    findings
}

/// Whether `line` holds the macro `call` as a word of its own.
fn calls(line: &str, call: &str) -> bool {
    let part_of_name = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(call).any(|(at, _)| !line[..at].ends_with(part_of_name))
}
