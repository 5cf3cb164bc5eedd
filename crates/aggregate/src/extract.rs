//! What is in a container becomes files again.

use crate::Tally;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::{SharedFile, SharedFs, Special, XattrMode};
use tameike_store::container::{Container, FileReader, IndexEntry, Node, split_path};

/// Bytes that are copied at once.
const COPY_SIZE: usize = 1 << 20;

/// Brings `entries` of a container back as files of `into`, by so many threads: directories that are missing are made, and nothing that is
/// there is replaced. With `keeps_owners`, files get their owners, too. What could not be brought back is told of in `tally`.
pub fn extract(
    container: &Container,
    mut entries: Vec<IndexEntry>,
    into: &dyn SharedFs,
    threads: usize,
    keeps_owners: bool,
    tally: &Tally,
) {
    // Parents first.
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let is_dir = |entry: &IndexEntry| entry.node.is_some_and(|node| node.kind == FileKind::Directory);
    let (dirs, files): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_dir);
    let work = Work { container, into, keeps_owners };
    dirs.iter().for_each(|dir| work.count(&dir.path, work.make_dir(&dir.path), tally));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work.count(&file.path, work.make_file(file, tally), tally);
                }
            });
        }
    });
    // Last: what is made in a directory changes its time, and may not be made where it is read-only.
    for dir in dirs.iter().rev() {
        if let Err(fault) = work.finish_dir(dir) {
            tally.note(&dir.path, &fault);
        }
    }
}

struct Work<'a> {
    container: &'a Container,
    into: &'a dyn SharedFs,
    keeps_owners: bool,
}

impl Work<'_> {
    fn count(&self, path: &[u8], done: Result<()>, tally: &Tally) {
        match done {
            Ok(()) => tally.add_file(),
            Err(fault) => tally.note(path, &fault),
        }
    }

    /// Makes a directory and those that it lies in, where they are missing.
    fn make_dir(&self, path: &[u8]) -> Result<()> {
        let make = || match self.into.make(path, &Special::Directory(0o700)) {
            Err(fault) if fault.errno == Errno::EEXIST => Ok(()),
            made => made.map(drop),
        };
        self.with_parents(path, make)
    }

    /// Makes something; when the directory is missing that it lies in, that first.
    fn with_parents<T>(&self, path: &[u8], make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(fault) if fault.errno == Errno::ENOENT && path.contains(&b'/') => {
                self.make_dir(split_path(path).0)?;
                make()
            }
            made => made,
        }
    }

    fn make_file(&self, entry: &IndexEntry, tally: &Tally) -> Result<()> {
        let path = &entry.path[..];
        let mut reader = self.container.open_entry(entry)?;
        let node = reader.node().clone();
        match node.kind {
            FileKind::File => {
                let file = self.with_parents(path, || self.into.create(path, 0o600))?;
                let copied = copy(&mut reader, &*file, tally);
                if copied.is_err() {
                    // Half a file is not left behind.
                    self.into.unlink(path)?;
                }
                copied?;
            }
            FileKind::Directory => {}
            FileKind::Symlink => self.make_special(path, &Special::Symlink(node.target.clone()))?,
            kind
            @ (FileKind::Fifo | FileKind::Socket | FileKind::CharacterDevice | FileKind::BlockDevice) => {
                self.make_special(path, &Special::Node { kind, mode: node.mode, rdev: node.rdev })?;
            }
        }
        self.finish(path, &node)
    }

    fn make_special(&self, path: &[u8], special: &Special) -> Result<()> {
        self.with_parents(path, || self.into.make(path, special)).map(drop)
    }

    fn finish_dir(&self, entry: &IndexEntry) -> Result<()> {
        let reader = self.container.open_entry(entry)?;
        self.finish(&entry.path, reader.node())
    }

    /// Gives a file its attributes.
    fn finish(&self, path: &[u8], node: &Node) -> Result<()> {
        let is_link = node.kind == FileKind::Symlink;
        for xattr in &node.xattrs {
            self.into.set_xattr(path, &xattr.name, &xattr.value, XattrMode::Any)?;
        }
        let change = AttrChange {
            uid: self.keeps_owners.then_some(node.uid),
            gid: self.keeps_owners.then_some(node.gid),
            mode: (!is_link).then_some(node.mode),
            atime: Some(SetTime::To(node.atime)),
            mtime: Some(SetTime::To(node.mtime)),
            ..AttrChange::default()
        };
        self.into.change(path, &change)
    }
}

fn copy(reader: &mut FileReader, file: &dyn SharedFile, tally: &Tally) -> Result<()> {
    let size = reader.node().size;
    let mut buffer = vec![0; COPY_SIZE.min(size as usize)];
    let mut at = 0;
    while at < size {
        let count = reader.read_at(&mut buffer, at)?;
        // Holes stay holes.
        if buffer[..count].iter().any(|&byte| byte != 0) {
            file.write_at(&buffer[..count], at)?;
        }
        tally.add_bytes(count as u64);
        at += count as u64;
    }
    if file.stat()?.size == size { Ok(()) } else { file.truncate(size) }
}
