//! Lint: a test cites each claim of `SEMANTICS.md`, and no test cites a missing claim.
//!
//! A claim is an item `- **S21a.** text` of at most two sentences. A comment of a test cites it by its ID, `S21a`. `S21` refers to
//! all claims with that number, and cites none. The lint does not check that a test proves the claims that it cites.

use crate::Finding;
use crate::tree::File;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[cfg(test)]
mod tests;

/// The document that states the claims.
pub const DOCUMENT: &str = "SEMANTICS.md";
/// This lint's own tests, which cite missing claims.
const OWN: &str = "tools/xtask/src/semantics";
/// Maximum number of sentences of a claim.
const SENTENCES_MAX: usize = 2;

struct Claim {
    line: usize,
    text: String,
}

/// Checks the document against the tests in `files`. Without the document, there are no findings.
pub fn check(files: &[File]) -> Vec<Finding> {
    let Some(document) = files.iter().find(|file| file.path == Path::new(DOCUMENT)) else {
        return Vec::new();
    };
    let (claims, mut findings) = claims(&document.text);
    let numbers: BTreeSet<&str> = claims.keys().map(|id| number_of(id)).collect();
    let mut cited = BTreeSet::new();
    let is_read = |path: &Path| {
        !path.starts_with(OWN) && path.extension().is_some_and(|name| name == "rs" || name == "py")
    };
    for file in files.iter().filter(|file| is_read(&file.path)) {
        let first = if is_test(&file.path) { 0 } else { inline_tests(&file.text) };
        for (line, id) in ids(&file.text).into_iter().filter(|(line, _)| *line > first) {
            if !claims.contains_key(&id) && !numbers.contains(&*id) {
                let message =
                    format!("{DOCUMENT} has no claim {id}: cite the claim that the test proves now");
                findings.push(Finding::new(&file.path, line, message));
            }
            cited.insert(id);
        }
    }
    for (id, claim) in claims.iter().filter(|(id, _)| !cited.contains(*id)) {
        let message = format!("no test cites {id} (\"{}\"): write one, with {id} in its comment", claim.text);
        findings.push(Finding::new(Path::new(DOCUMENT), claim.line, message));
    }
    findings
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| {
        part == "tests" || part == "tests.rs" || part.to_str().is_some_and(|part| part.starts_with("test_"))
    })
}

/// Returns the line at which the inline tests of a file begin.
fn inline_tests(text: &str) -> usize {
    text.lines().position(|line| line == "#[cfg(test)]").unwrap_or(usize::MAX)
}

/// Returns the claims by ID, and findings about them. Continuation lines of a claim are indented.
fn claims(document: &str) -> (BTreeMap<String, Claim>, Vec<Finding>) {
    let (mut claims, mut findings) = (BTreeMap::<String, Claim>::new(), Vec::new());
    let mut last: Option<String> = None;
    for (index, line) in document.lines().enumerate() {
        if let Some((id, text)) = line.strip_prefix("- **").and_then(|rest| rest.split_once(".** ")) {
            let claim = Claim { line: index + 1, text: text.trim().to_owned() };
            if claims.insert(id.to_owned(), claim).is_some() {
                let message = format!("{id} is used twice: an ID belongs to one claim");
                findings.push(Finding::new(Path::new(DOCUMENT), index + 1, message));
            }
            last = Some(id.to_owned());
        } else if let (true, Some(claim)) =
            (line.starts_with("  "), last.as_ref().and_then(|id| claims.get_mut(id)))
        {
            claim.text.push(' ');
            claim.text.push_str(line.trim());
        } else {
            last = None;
        }
    }
    for (id, claim) in &claims {
        let mut problems = Vec::new();
        if !is_id(id) || number_of(id) == *id {
            problems.push(format!("{id} is not an ID: write a number and a letter, as S21a"));
        }
        let count = sentences(&claim.text);
        if count > SENTENCES_MAX {
            problems
                .push(format!("{id} has {count} sentences, {SENTENCES_MAX} at most: make it several claims"));
        }
        findings.extend(
            problems.into_iter().map(|problem| Finding::new(Path::new(DOCUMENT), claim.line, problem)),
        );
    }
    (claims, findings)
}

/// Counts the sentences of a text: each ends with a full stop, before a capital letter or at the end.
fn sentences(text: &str) -> usize {
    let inner =
        text.match_indices(". ").filter(|(at, _)| text[at + 2..].starts_with(char::is_uppercase)).count();
    inner + 1
}

fn number_of(id: &str) -> &str {
    id.trim_end_matches(|character: char| character.is_ascii_lowercase())
}

/// Returns true if a word is `S`, a number, and at most one letter.
fn is_id(word: &str) -> bool {
    let Some(rest) = word.strip_prefix('S') else { return false };
    let digits = rest.trim_end_matches(|character: char| character.is_ascii_lowercase());
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && rest.len() - digits.len() <= 1
}

/// Returns the IDs in the comments of a source text, with their lines.
fn ids(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in source.lines().enumerate() {
        let comment = ["//", "# ", "\"\"\""].iter().find_map(|mark| line.split_once(mark));
        let Some((_, comment)) = comment else { continue };
        let words = comment.split(|character: char| !character.is_ascii_alphanumeric() && character != '-');
        found.extend(words.filter(|word| is_id(word)).map(|word| (index + 1, word.to_owned())));
    }
    found
}
