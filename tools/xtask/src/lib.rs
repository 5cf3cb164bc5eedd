//! The rules of the house, as lints over the repository.
//!
//! One module per kind of rule; each gives [`Finding`]s and changes nothing. What the compiler and clippy
//! can check (function length, banned calls, missing docs) is set in `Cargo.toml` and `clippy.toml`, not here.
#![forbid(unsafe_code)]

pub mod circles;
pub mod crates;
pub mod header;
pub mod links;
pub mod prose;
pub mod semantics;
pub mod source;
pub mod tree;

use std::fmt;
use std::path::{Path, PathBuf};

/// One breach of a rule: where it is, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the root of the repository.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to do now.
    pub message: String,
}

impl Finding {
    /// A finding at `line` of `path`.
    pub fn new(path: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// The root of the repository that this program was built from.
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

/// The outcome of all lints.
#[derive(Debug)]
pub struct Report {
    /// Breaches, in the order of paths.
    pub findings: Vec<Finding>,
    /// Documents whose sentences are measured, with the mean number of words of a sentence.
    pub means: Vec<(PathBuf, f64)>,
}

/// Every lint on the repository at `root`; `Err` when it could not be read.
pub fn lint(root: &Path) -> Result<Report, String> {
    let files = tree::files(root)?;
    let mut findings = crates::check(root)?;
    for file in &files {
        findings.extend(source::check(&file.path, &file.text));
        findings.extend(links::check(root, &file.path, &file.text));
    }
    findings.extend(circles::check(&files));
    findings.extend(semantics::check(&files));
    let list = std::fs::read_to_string(root.join(prose::LIST));
    let list = list.map_err(|error| format!("xtask: cannot read {}: {error}", prose::LIST))?;
    let list = prose::read_list(&list)?;
    findings.extend(prose::check(&files, &list));
    findings.extend(prose::check_sentences(&files));
    findings.extend(prose::check_subjects(root, &list));
    findings.extend(header::check(root)?);
    findings.sort();
    let means = prose::means(&files).into_iter().map(|(path, mean)| (path.to_owned(), mean)).collect();
    Ok(Report { findings, means })
}
