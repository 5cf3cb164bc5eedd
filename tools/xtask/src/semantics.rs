//! Promises and their tests: each sentence of `SEMANTICS.md` must be quoted by a test, and no test may quote what is not there.
//!
//! A test quotes in a comment, with the number under which the sentence stands: `S9: "rename replaces atomically"`. Part of a
//! sentence is enough, and a quotation may span several. Whether the test proves what it quotes is for its reader to judge.

use crate::Finding;
use crate::tree::File;
use std::ops::Range;
use std::path::Path;

#[cfg(test)]
mod tests;

/// Where the promises stand.
pub const DOCUMENT: &str = "SEMANTICS.md";
/// Letters of a sentence that a quotation must have, unless the sentence has fewer.
const QUOTED_MIN: usize = 20;

/// One numbered paragraph.
struct Promise {
    number: u32,
    text: String,
    /// The line of the document at which each sentence begins, and where it is in the text.
    sentences: Vec<(usize, Range<usize>)>,
}

/// One quotation in a comment.
struct Quotation {
    line: usize,
    number: u32,
    text: String,
}

/// Checks the document against the tests in `files`; no finding when there is no document.
pub fn check(files: &[File]) -> Vec<Finding> {
    let Some(document) = files.iter().find(|file| file.path == Path::new(DOCUMENT)) else {
        return Vec::new();
    };
    let promises = promises(&document.text);
    let mut quoted: Vec<(u32, Range<usize>)> = Vec::new();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.extension().is_some_and(|name| name == "rs")) {
        let first = if is_test(&file.path) { 0 } else { inline_tests(&file.text) };
        for quotation in quotations(&file.text).into_iter().filter(|quotation| quotation.line > first) {
            let promise = promises.iter().find(|promise| promise.number == quotation.number);
            match promise.and_then(|promise| promise.text.find(&quotation.text)) {
                Some(at) => quoted.push((quotation.number, at..at + quotation.text.len())),
                None => findings.push(Finding::new(
                    &file.path,
                    quotation.line,
                    format!("S{} does not say \"{}\": quote what {DOCUMENT} says now, and see whether the test still proves it", quotation.number, quotation.text),
                )),
            }
        }
    }
    for promise in &promises {
        for (line, sentence) in &promise.sentences {
            if !quoted.iter().any(|(number, part)| *number == promise.number && covers(part, sentence)) {
                let message = format!(
                    "no test quotes \"{}\": write one, with S{}: \"...\" in its comment",
                    &promise.text[sentence.clone()],
                    promise.number
                );
                findings.push(Finding::new(Path::new(DOCUMENT), *line, message));
            }
        }
    }
    findings
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The line at which the tests at the end of a file begin.
fn inline_tests(text: &str) -> usize {
    text.lines().position(|line| line == "#[cfg(test)]").unwrap_or(usize::MAX)
}

fn covers(part: &Range<usize>, sentence: &Range<usize>) -> bool {
    let shared = part.end.min(sentence.end).saturating_sub(part.start.max(sentence.start));
    shared >= QUOTED_MIN.min(sentence.len())
}

/// The numbered paragraphs; lines that go on are indented.
fn promises(document: &str) -> Vec<Promise> {
    let mut promises: Vec<(Promise, Vec<(usize, usize)>)> = Vec::new();
    let mut inside = false;
    for (index, line) in document.lines().enumerate() {
        if let Some((number, text)) = numbered(line) {
            let promise = Promise { number, text: text.to_owned(), sentences: Vec::new() };
            promises.push((promise, vec![(0, index + 1)]));
            inside = true;
        } else if let (true, true, Some((promise, starts))) =
            (inside, line.starts_with("   "), promises.last_mut())
        {
            promise.text.push(' ');
            starts.push((promise.text.len(), index + 1));
            promise.text.push_str(line.trim());
        } else {
            inside = false;
        }
    }
    let with_sentences = |(mut promise, starts): (Promise, Vec<(usize, usize)>)| {
        for sentence in sentences(&promise.text) {
            let line = starts.iter().rev().find(|(at, _)| *at <= sentence.start).map_or(1, |(_, line)| *line);
            promise.sentences.push((line, sentence));
        }
        promise
    };
    promises.into_iter().map(with_sentences).collect()
}

fn numbered(line: &str) -> Option<(u32, &str)> {
    let (number, text) = line.split_once(". ")?;
    Some((number.parse().ok()?, text.trim()))
}

/// Where sentences are in a text: each ends with a full stop before a capital letter or a bracket, or with the text.
fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(' ') {
        let ends = text[..at].trim_end_matches(')').ends_with('.');
        let begins =
            text[at + 1..].starts_with(|next: char| next.is_uppercase() || next == '(' || next == '`');
        if ends && begins {
            found.push(start..at);
            start = at + 1;
        }
    }
    found.push(start..text.len());
    found
}

/// The quotations in the comments of a source text.
fn quotations(source: &str) -> Vec<Quotation> {
    let mut found = Vec::new();
    let mut comment = String::new();
    let mut start = 0;
    for (index, line) in source.lines().chain([""]).enumerate() {
        if let Some(text) = line.trim_start().strip_prefix("//") {
            if comment.is_empty() {
                start = index + 1;
            }
            comment.push(' ');
            comment.push_str(text.trim_start_matches(['/', '!']).trim());
        } else if !comment.is_empty() {
            found.extend(quoted_in(&comment).map(|(number, text)| Quotation { line: start, number, text }));
            comment.clear();
        }
    }
    found
}

/// `S<number>: "<text>"`, as often as it occurs.
fn quoted_in(comment: &str) -> impl Iterator<Item = (u32, String)> {
    comment.split(": \"").zip(comment.split(": \"").skip(1)).filter_map(|(before, after)| {
        let number = before.rsplit(|character: char| !character.is_ascii_alphanumeric()).next()?;
        let number = number.strip_prefix('S')?.parse().ok()?;
        let text = after.split('"').next()?.trim_end_matches("...").trim();
        Some((number, text.to_owned()))
    })
}
