//! Removing directories with a guard: nothing on another file system is ever touched, so that a mount that is
//! still there can never lose its content to a clean-up.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process;

/// Removes a file or a directory with all that is in it. What is not there is removed already.
///
/// # Errors
/// `EPERM` when it belongs to somebody else; `EXDEV` when something is mounted in it, which stays as it is.
pub fn remove(path: &Path) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Fault::from_os(format_args!("removing {}", path.display()), &error)),
    };
    if found.uid() != process::user() {
        return Err(Fault::new(Errno::EPERM, format!("{} belongs to somebody else", path.display())));
    }
    remove_on(path, found.dev())
}

fn remove_on(path: &Path, device: u64) -> Result<()> {
    let failed = |error| Fault::from_os(format_args!("removing {}", path.display()), &error);
    let found = path.symlink_metadata().map_err(failed)?;
    if found.dev() != device {
        return Err(Fault::new(Errno::EXDEV, format!("{} is mounted; it was left alone", path.display())));
    }
    if !found.is_dir() {
        return std::fs::remove_file(path).map_err(failed);
    }
    for entry in path.read_dir().map_err(failed)? {
        remove_on(&entry.map_err(failed)?.path(), device)?;
    }
    std::fs::remove_dir(path).map_err(failed)
}

/// Whether a directory is not there, or has nothing in it.
///
/// # Errors
/// It cannot be read.
pub fn is_empty(path: &Path) -> Result<bool> {
    match path.read_dir() {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Fault::from_os(format_args!("reading {}", path.display()), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_go_and_links_are_not_followed() {
        let temp = tempfile::tempdir().expect("a directory");
        let keep = temp.path().join("keep");
        std::fs::create_dir_all(keep.join("sub")).expect("made");
        let tree = temp.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).expect("made");
        std::fs::write(tree.join("a/b/file"), "x").expect("written");
        std::os::unix::fs::symlink(&keep, tree.join("a/link")).expect("a link");
        remove(&tree).expect("removed");
        remove(&tree).expect("gone already");
        assert!(!tree.exists() && keep.join("sub").is_dir());
        assert!(is_empty(&tree).expect("not there") && !is_empty(&keep).expect("read"));
    }
}
