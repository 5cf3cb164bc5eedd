//! Lint: banned phrases in documents, comments, messages and commit subjects, and the length of sentences.
//!
//! `tools/xtask/banned.txt` lists the phrases, each with the words to write instead. The lint reads Markdown without its code,
//! comments ([`comments`]), and string literals of Rust code that hold a space.

use crate::Finding;
use crate::tree::File;
use std::path::Path;
use std::process::Command;

mod comments;
#[cfg(test)]
mod tests;

/// The list of phrases, relative to the root of the repository.
pub const LIST: &str = "tools/xtask/banned.txt";
/// Paths that the lint skips.
const UNREAD: [&str; 3] = ["bench/runs", "tools/xtask/src/prose", "tools/xtask/tests"];
/// Maximum number of words in a sentence of a document.
pub const WORDS_MAX: usize = 50;
/// Documents with a limit on the mean length of sentences.
const MEASURED: [&str; 3] = ["README.md", "ARCHITECTURE.md", "SEMANTICS.md"];
/// Maximum mean number of words per sentence in these.
pub const WORDS_MEAN_MAX: usize = 22;

/// A banned phrase in lower case, and its replacement.
#[derive(Debug, PartialEq, Eq)]
pub struct Banned {
    phrase: String,
    instead: String,
}

/// Reads the list: on each line a phrase, ` => ` and its replacement; `#` begins a comment.
///
/// # Errors
/// A line without a replacement.
pub fn read_list(text: &str) -> Result<Vec<Banned>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split_once(" => ") {
            Some((phrase, instead)) => {
                Ok(Banned { phrase: phrase.to_lowercase(), instead: instead.to_owned() })
            }
            None => Err(format!("xtask: {LIST}: `{line}` has no ` => `")),
        })
        .collect()
}

/// Checks the phrases of all files except published runs and this lint's own.
pub fn check(files: &[File], list: &[Banned]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| is_read(&file.path)) {
        for (line, text) in prose_of(&file.path, &file.text) {
            findings.extend(banned_in(&text, list).map(|banned| {
                let message = format!("`{}`: write {}", banned.phrase, banned.instead);
                Finding::new(&file.path, line, message)
            }));
        }
    }
    findings
}

/// Checks the length of each sentence in all documents except published runs, and the mean in the measured ones.
pub fn check_sentences(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_document = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    for file in files.iter().filter(|file| is_document(&file.path) && is_read(&file.path)) {
        findings.extend(check_longest(&file.path, &file.text));
        if is_measured(&file.path) {
            findings.extend(check_mean(&file.path, &file.text));
        }
    }
    findings
}

/// Checks the subjects of commits since the list was added. Without git or a history, there are no findings.
pub fn check_subjects(root: &Path, list: &[Banned]) -> Vec<Finding> {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let added = git(&["log", "--diff-filter=A", "--format=%H", "--", LIST]);
    let Some(first) = added.as_deref().and_then(|added| added.lines().last()) else { return Vec::new() };
    let subjects = git(&["log", "--format=%s", &format!("{first}..HEAD")]).unwrap_or_default();
    let found =
        subjects.lines().flat_map(|subject| banned_in(subject, list).map(move |banned| (subject, banned)));
    found
        .map(|(subject, banned)| {
            let message = format!("commit \"{subject}\": `{}`: write {}", banned.phrase, banned.instead);
            Finding::new(Path::new(LIST), 1, message)
        })
        .collect()
}

/// Returns the mean number of words per sentence of each measured document.
pub fn means(files: &[File]) -> Vec<(&Path, f64)> {
    files.iter().filter(|file| is_measured(&file.path)).map(|file| (&*file.path, mean(&file.text))).collect()
}

fn is_read(path: &Path) -> bool {
    !UNREAD.iter().any(|unread| path.starts_with(unread))
}

fn is_measured(path: &Path) -> bool {
    MEASURED.iter().any(|measured| path == Path::new(measured))
}

fn mean(text: &str) -> f64 {
    let sentences = sentences(text);
    let words: usize = sentences.iter().map(|(_, words)| words).sum();
    words as f64 / sentences.len().max(1) as f64
}

fn check_longest(path: &Path, text: &str) -> Vec<Finding> {
    let long = sentences(text).into_iter().filter(|(_, words)| *words > WORDS_MAX);
    long.map(|(line, words)| {
        let message =
            format!("a sentence of {words} words, {WORDS_MAX} at most: make it a list, or several sentences");
        Finding::new(path, line, message)
    })
    .collect()
}

fn check_mean(path: &Path, text: &str) -> Option<Finding> {
    let mean = mean(text);
    let message = format!("sentences have {mean:.1} words on average, {WORDS_MEAN_MAX} at most");
    (mean > WORDS_MEAN_MAX as f64).then(|| Finding::new(path, 1, message))
}

/// Returns the lines of prose in a file, with their numbers.
fn prose_of(path: &Path, text: &str) -> Vec<(usize, String)> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("md") => markdown_prose(text),
        Some("rs") => {
            let lines = text.lines().enumerate();
            lines
                .map(|(index, line)| (index + 1, rust_prose(line)))
                .filter(|(_, prose)| !prose.is_empty())
                .collect()
        }
        Some("c" | "h" | "cpp") => comments::of_c(text),
        Some("f90") => comments::behind(text, "! "),
        Some("py") => comments::of_python(text),
        // Shell, TOML, YAML, Makefile.
        _ => comments::behind(text, "# "),
    }
}

/// Returns the lines of a document, without blocks and spans of code.
fn markdown_prose(text: &str) -> Vec<(usize, String)> {
    let (mut prose, mut in_code) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            prose.push((index + 1, without_spans(line)));
        }
    }
    prose
}

/// Returns a line without text between backquotes and without the targets of links.
fn without_spans(line: &str) -> String {
    let plain: Vec<&str> = line.split('`').step_by(2).collect();
    let mut text = String::new();
    for (number, part) in plain.join("code").split("](").enumerate() {
        let part = if number == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) };
        text.push_str(part);
    }
    text
}

/// Returns the comment of a line of Rust, and its string literals that hold a space; or the comment of a script in a longer literal.
fn rust_prose(line: &str) -> String {
    if let Some(comment) = comments::of_script(line) {
        return without_spans(comment);
    }
    let (code, comment) = match line.split_once("//") {
        // `//` after a scheme is part of a URL.
        Some((code, comment)) if !code.ends_with(':') => (code, without_spans(comment)),
        _ => (line, String::new()),
    };
    let strings = code.split('"').skip(1).step_by(2).filter(|text| text.contains(' '));
    let mut prose: Vec<&str> = strings.collect();
    prose.push(&comment);
    prose.join(" ").trim().to_owned()
}

/// Returns the banned phrases that a text holds as whole words.
fn banned_in<'a>(text: &str, list: &'a [Banned]) -> impl Iterator<Item = &'a Banned> {
    let text = text.to_lowercase();
    list.iter().filter(move |banned| {
        text.match_indices(&banned.phrase).any(|(at, phrase)| {
            let (before, after) = (&text[..at], &text[at + phrase.len()..]);
            !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
        })
    })
}

/// Returns the sentences of a document, each with its line and number of words. Skips headings, tables and code; each list item begins
/// a sentence.
fn sentences(text: &str) -> Vec<(usize, usize)> {
    let (mut found, mut words, mut first) = (Vec::new(), 0, 0);
    let mut end = |words: &mut usize, line: usize| {
        if *words > 0 {
            found.push((line, *words));
            *words = 0;
        }
    };
    let mut last = 0;
    for (line, prose) in markdown_prose(text) {
        let prose = prose.trim();
        let begins_item = prose.starts_with("- ") || prose.starts_with("* ") || is_numbered(prose);
        if prose.is_empty() || begins_item || prose.starts_with(['#', '|']) || line > last + 1 {
            end(&mut words, first);
        }
        last = line;
        if prose.starts_with(['#', '|']) {
            continue;
        }
        // An ID or a title in bold letters at the begin of an item is not part of the sentence.
        let is_word = |word: &&str| {
            word.contains(char::is_alphanumeric) && !(word.starts_with("**") && word.ends_with("**"))
        };
        for word in prose.split_whitespace().filter(is_word) {
            if words == 0 {
                first = line;
            }
            words += 1;
            let bare = word.trim_end_matches([')', '"', '*', '_']);
            if bare.ends_with(['.', '!', '?']) && !["e.g.", "i.e."].contains(&bare) {
                end(&mut words, first);
            }
        }
    }
    end(&mut words, first);
    found
}

fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}
