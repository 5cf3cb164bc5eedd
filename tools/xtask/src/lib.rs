//! House lints: rules of this repository that the compiler and clippy cannot check.
//!
//! Each module checks one kind of rule, returns [`Finding`]s and changes nothing. `Cargo.toml` and `clippy.toml` configure the
//! compiler's and clippy's rules (function length, banned calls, missing docs).
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

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the root of the repository.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The violation and its remedy.
    pub message: String,
}

impl Finding {
    /// Creates a finding at `line` of `path`.
    pub fn new(path: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Returns the root of the repository that this program was built from.
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

/// The result of all lints.
#[derive(Debug)]
pub struct Report {
    /// Violations, ordered by path.
    pub findings: Vec<Finding>,
    /// Advice that does not make the lints fail, ordered by path.
    pub advice: Vec<Finding>,
    /// The mean number of words per sentence of each measured document.
    pub means: Vec<(PathBuf, f64)>,
}

/// Runs every lint on the repository at `root`. Fails if a file cannot be read.
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
    let advice = files.iter().filter_map(|file| source::advise(&file.path, &file.text)).collect();
    Ok(Report { findings, advice, means })
}
