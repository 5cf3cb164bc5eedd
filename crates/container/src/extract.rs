//! Extracts files from a container.

use crate::tree::create::{Files, Preserve};
use crate::tree::walk::{Within, by_directory};
use crate::{Container, IndexEntry, Tally};
use tameike_core::{FileKind, Result};
use tameike_io::shared::SharedFs;

/// Extracts `entries` into `into` on `threads` threads. Missing directories are created; existing files are never replaced. `preserve` selects
/// the attributes; failures are noted in `tally`.
pub fn extract(
    container: &Container,
    entries: Vec<IndexEntry>,
    into: &dyn SharedFs,
    threads: usize,
    preserve: Preserve,
    tally: &Tally,
) {
    let is_dir = |entry: &IndexEntry| entry.node.is_some_and(|node| node.kind == FileKind::Directory);
    let (mut dirs, files): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_dir);
    // Parents first.
    dirs.sort_by(|one, other| one.path.cmp(&other.path));
    let work = Work { container, files: Files { into, preserve } };
    dirs.iter().for_each(|dir| tally.count(&dir.path, work.files.make_dir(&dir.path)));
    by_directory(
        &files,
        |file| &file.path,
        threads,
        |dir, files| {
            let within = work.files.within(dir);
            files.iter().for_each(|file| tally.count(&file.path, work.make_file(&within, file, tally)));
        },
    );
    // Attributes of directories last: new files change a directory's mtime, and a read-only directory admits none.
    for dir in dirs.iter().rev() {
        if let Err(fault) = work.finish_dir(dir) {
            tally.note(&dir.path, &fault);
        }
    }
}

struct Work<'a> {
    container: &'a Container,
    files: Files<'a>,
}

impl Work<'_> {
    fn make_file(&self, within: &Within<'_>, entry: &IndexEntry, tally: &Tally) -> Result<()> {
        let mut reader = self.container.open_entry(entry)?;
        let node = reader.node().clone();
        let (into, path) = within.at(&entry.path);
        Files { into, ..self.files }.put(path, &node, &mut reader, tally)
    }

    fn finish_dir(&self, entry: &IndexEntry) -> Result<()> {
        self.files.finish(&entry.path, &self.container.node(entry)?)
    }
}
