//! Promises to a writing program (acknowledged changes), from its log, and their check in the shared directory.
//!
//! ```text
//! begin NAME               content is about to change: any content is allowed until `whole`
//! prefix NAME SIZE SHA     the first SIZE bytes stay in any case
//! whole NAME SIZE SHA      close has returned: the file is exactly this
//! rename A B, renamed A B  before and after: in between, the content is under A or B
//! remove A, removed A      before and after
//! line N                   line N of this node is in the file that all nodes append to
//! ```

use super::out;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file that all nodes append to.
pub const TOGETHER: &str = "together";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Promise {
    Whole { size: usize, sum: String },
    Prefix { size: usize, sum: String },
    Nothing,
    Gone,
}

/// Promises on the files of one node.
#[derive(Default)]
pub struct Promises {
    files: BTreeMap<String, Promise>,
    /// A rename that was not acknowledged.
    moving: Option<(String, String, Promise)>,
    lines: Vec<String>,
    /// Errors that the writer got.
    pub errors: Vec<String>,
}

impl Promises {
    /// Reads the log of a node; an incomplete last line is ignored.
    pub fn read(log: &Path, node: u32) -> Self {
        let mut promises = Self::default();
        let text = fs::read_to_string(log).unwrap_or_default();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            promises.take(node, &line.split_whitespace().collect::<Vec<_>>());
        }
        promises
    }

    fn take(&mut self, node: u32, words: &[&str]) {
        let known = |size: &str, sum: &str| (size.parse().expect("a size"), sum.to_owned());
        match *words {
            ["begin", name] | ["remove", name] => {
                self.files.insert(name.to_owned(), Promise::Nothing);
            }
            ["prefix", name, size, sum] => {
                let (size, sum) = known(size, sum);
                self.files.insert(name.to_owned(), Promise::Prefix { size, sum });
            }
            ["whole", name, size, sum] => {
                let (size, sum) = known(size, sum);
                self.files.insert(name.to_owned(), Promise::Whole { size, sum });
            }
            ["removed", name] => {
                self.files.insert(name.to_owned(), Promise::Gone);
            }
            ["rename", from, to] => {
                let promise = self.files.remove(from).expect("a known file is renamed");
                self.files.remove(to);
                self.moving = Some((from.to_owned(), to.to_owned(), promise));
            }
            ["renamed", from, to] => {
                let (_, _, promise) = self.moving.take().expect("the rename has begun");
                self.files.insert(to.to_owned(), promise);
                self.files.insert(from.to_owned(), Promise::Gone);
            }
            ["line", number] => self.lines.push(format!("node {node} line {number}")),
            ["error", error] => self.errors.push(error.to_owned()),
            ["end"] => {}
            _ => unreachable!("a line that no writer writes: {words:?}"),
        }
    }

    /// Number of files that are promised completely.
    pub fn whole_files(&self) -> usize {
        self.files.values().filter(|promise| matches!(promise, Promise::Whole { .. })).count()
    }

    /// Messages on promises that the directory breaks.
    pub fn broken(&self, dir: &Path) -> Vec<String> {
        let mut broken: Vec<_> =
            self.files.iter().filter_map(|(name, promise)| breach(dir, name, promise)).collect();
        if let Some((from, to, promise)) = &self.moving
            && let (Some(at_from), Some(at_to)) = (breach(dir, from, promise), breach(dir, to, promise))
        {
            broken.push(format!("neither before nor after the rename: {at_from}; {at_to}"));
        }
        let together = fs::read(dir.join(TOGETHER)).unwrap_or_default();
        let together = String::from_utf8_lossy(&together);
        // A node that crashed between the reservation of its range at the end and the write has left zeros.
        let present: std::collections::BTreeSet<_> =
            together.lines().map(|line| line.trim_start_matches('\0')).collect();
        let absent = self.lines.iter().filter(|line| !present.contains(line.as_str()));
        let lacks: Vec<_> = absent.map(|line| format!("{TOGETHER} lacks: {line}")).collect();
        if !lacks.is_empty() {
            broken.extend(lacks);
            broken.push(format!("{TOGETHER}: {together:?}"));
        }
        broken
    }

    /// Like [`Promises::broken`] for one file; `None` if it is as promised, or nothing is promised.
    pub fn breach(&self, dir: &Path, name: &str) -> Option<String> {
        breach(dir, name, self.files.get(name)?)
    }
}

fn breach(dir: &Path, name: &str, promise: &Promise) -> Option<String> {
    let (size, sum, exact) = match promise {
        Promise::Nothing => return None,
        Promise::Gone => return dir.join(name).exists().then(|| format!("{name} was removed, and is there")),
        Promise::Whole { size, sum } => (*size, sum, true),
        Promise::Prefix { size, sum } => (*size, sum, false),
    };
    let Ok(found) = fs::read(dir.join(name)) else {
        return Some(format!("{name} of {size} bytes is not there"));
    };
    if found.len() < size || (exact && found.len() != size) {
        return Some(format!("{name} has {} bytes in place of {size}", found.len()));
    }
    (sha256(&found[..size]) != *sum).then(|| format!("{name}: wrong bytes among the first {size}"))
}

fn sha256(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum is installed");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("sha256sum reads");
    let output = child.wait_with_output().expect("sha256sum ends");
    out(&output).split_whitespace().next().expect("a sum").to_owned()
}
