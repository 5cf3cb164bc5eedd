//! Finds the entries of packed files in a container.

use crate::unless_missing;
use tameike_container::{Container, IndexEntry};
use tameike_core::wire::pack::PACKED_NAMES_MAX;
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::join;

fn is_file(entry: &IndexEntry) -> bool {
    entry.node.is_some_and(|node| node.kind == FileKind::File)
}

/// The entry of the file at a path.
///
/// # Errors
/// `ENOENT` when the container has no such file.
pub fn file_at(container: &Container, path: &[u8]) -> Result<IndexEntry> {
    container.find(path)?.filter(is_file).ok_or_else(|| Errno::ENOENT.into())
}

/// The entries of a page of the files in a directory whose names follow `after`.
///
/// # Errors
/// `EIO` when the index is damaged there.
pub fn files_after(container: &Container, dir: &[u8], after: &[u8]) -> Result<Vec<IndexEntry>> {
    let may_be_file = |entry: &Result<IndexEntry>| entry.as_ref().map_or(true, is_file);
    container.children_after(dir, after)?.filter(may_be_file).take(PACKED_NAMES_MAX).collect()
}

/// The paths of all files below a directory.
///
/// # Errors
/// `EIO` when the index is damaged there.
pub fn files_below(container: &Container, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (mut dirs, mut paths) = (vec![dir.to_vec()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in container.children(&dir)? {
            paths.push(entry?.path);
        }
        let names = container.directories_in(&dir)?;
        dirs.extend(names.iter().map(|name| join(&dir, name)));
    }
    let files = paths.into_iter().map(|path| Ok(unless_missing(file_at(container, &path))?.map(|_| path)));
    files.filter_map(Result::transpose).collect()
}

/// Whether the container has any entry below a directory.
///
/// # Errors
/// As [`files_below`].
pub fn has_below(container: &Container, dir: &[u8]) -> Result<bool> {
    let has_children = container.children(dir)?.next().transpose()?.is_some();
    Ok(has_children || !container.directories_in(dir)?.is_empty())
}
