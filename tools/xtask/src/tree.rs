//! Reads the text files of the repository that lints check.
//!
//! Walks the directory without git, so that it also works in an unpacked archive. Skips hidden directories except `.ci`, and paths
//! that `.gitignore` names at the root (`/target`).

use std::fs;
use std::path::{Path, PathBuf};

const READ_EXTENSIONS: [&str; 10] = ["rs", "md", "py", "sh", "toml", "yml", "c", "h", "cpp", "f90"];
const READ_NAMES: [&str; 2] = ["Makefile", "run"];

/// A file of the repository.
#[derive(Debug)]
pub struct File {
    /// Relative to the root of the repository.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// Returns all files under `root` that lints check, ordered by path.
pub fn files(root: &Path) -> Result<Vec<File>, String> {
    let ignored = ignored_at(root);
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let cannot = |error| format!("xtask: cannot read {}: {error}", directory.display());
        for entry in fs::read_dir(&directory).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(cannot)?);
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if ignored.contains(&path) {
                continue;
            } else if kind.is_dir() && (!hidden || entry.file_name() == ".ci") {
                pending.push(path);
            } else if kind.is_file() && is_read(&path) {
                let cannot = |error| format!("xtask: cannot read {} as text: {error}", path.display());
                let text = fs::read_to_string(&path).map_err(cannot)?;
                let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
                found.push(File { path, text });
            }
        }
    }
    found.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(found)
}

fn is_read(path: &Path) -> bool {
    let extension = path.extension().and_then(|name| name.to_str());
    let name = path.file_name().and_then(|name| name.to_str());
    extension.is_some_and(|extension| READ_EXTENSIONS.contains(&extension))
        || name.is_some_and(|name| READ_NAMES.contains(&name))
}

/// Returns the paths at the root that `.gitignore` names.
fn ignored_at(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    text.lines().filter_map(|line| Some(root.join(line.trim().strip_prefix('/')?))).collect()
}
