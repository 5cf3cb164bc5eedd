//! Files of the node-local view, which are files of the node's own disk: each is read to its end. More than that they can be
//! read nobody knows of them: their file system keeps checksums, or none.

use super::Counts;
use super::book::{Aside, Book, Loss, Part};
use crate::directory::LOCAL;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tameike_core::Errno;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Reads a file to its end; its size.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<u64>;

pub(super) fn read_file(path: &Path) -> io::Result<u64> {
    let (mut file, mut piece, mut size) = (std::fs::File::open(path)?, vec![0; PIECE], 0);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(size),
            count => size += count as u64,
        }
    }
}

/// Reads all files of the view below the store's directory.
pub(super) fn examine(dir: &Path, read: ReadFile<'_>, counts: &mut Counts, book: &mut Book) {
    let root = dir.join(LOCAL);
    // A job may have had no need of the view.
    let mut left: Vec<_> = root.exists().then(|| root.clone()).into_iter().collect();
    while let Some(path) = left.pop() {
        let examined = path.read_dir().and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    left.push(entry.path());
                } else if kind.is_file() {
                    examine_file(&root, &entry.path(), read, counts, book);
                }
            }
            Ok(())
        });
        if let Err(error) = examined {
            tell(&root, &path, &error, book);
        }
    }
}

fn examine_file(root: &Path, path: &Path, read: ReadFile<'_>, counts: &mut Counts, book: &mut Book) {
    match read(path) {
        Ok(size) => {
            counts.local_files += 1;
            counts.local_bytes += size;
        }
        Err(error) => tell(root, path, &error, book),
    }
}

/// What the disk cannot read is lost; what this user may not read is not examined.
fn tell(root: &Path, path: &Path, error: &io::Error, book: &mut Book) {
    let below = path.strip_prefix(root).unwrap_or(path);
    let called = format!("node-local:/{}", below.display());
    if error.raw_os_error() != Some(Errno::EIO.0) {
        return book.note(Part::Local, format!("{called} is not examined: {error}"));
    }
    let loss = Loss { file: Some(called.clone()), inode: None, bytes: None, cached: false };
    book.lost(
        Part::Local,
        format!("{called} cannot be read ({error}): it is lost, or a part of it"),
        vec![loss],
    );
    let inside: PathBuf = Path::new(LOCAL).join(below);
    book.set_aside(Aside::File(inside));
}
