//! Copies files and trees to other files, or into a container.

use crate::pack::read_node;
use crate::session::{OpenFlags, Session};
use crate::tree::content::FileInput;
use crate::tree::create::{Files, Preserve, copy_pieces};
use crate::tree::walk::{Item, Walk, Within, by_directory};
use crate::{Node, Tally, split_path};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{SharedFs, join};

/// Target of a copy. Existing files are never replaced; existing directories are merged into.
pub enum Destination<'a> {
    /// A tree of files.
    Files {
        /// The file system.
        tree: &'a dyn SharedFs,
        /// Attributes that the copies keep.
        preserve: Preserve,
    },
    /// A container.
    Container(&'a Session),
}

/// Copies `from` to `to` with its attributes, on `threads` threads; `is_deep` includes everything below a directory. Failures are noted
/// in `tally`.
pub fn copy(
    (source, from): (&dyn SharedFs, &[u8]),
    (into, to): (&Destination<'_>, &[u8]),
    is_deep: bool,
    threads: usize,
    tally: &Tally,
) {
    let mut items = Vec::new();
    match source.stat(from) {
        Ok(stat) if stat.kind != FileKind::Directory => {
            items.push(Item { path: from.to_vec(), kind: stat.kind });
        }
        Ok(_) if !is_deep => {
            tally.note(from, &Fault::new(Errno::EISDIR, "it is a directory; copy it with `-r`"));
        }
        Ok(stat) => {
            items.push(Item { path: from.to_vec(), kind: stat.kind });
            let note = |path: &[u8], fault: &Fault| tally.note(path, fault);
            items.extend(Walk::new(source, from, &note).map(|(_, item)| item));
        }
        Err(fault) => tally.note(from, &fault),
    }
    let (dirs, files): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|item| item.kind == FileKind::Directory);
    let work = Work { source, into, from, to, tally };
    // The root of a tree has no name: only its contents are copied.
    let dirs: Vec<_> = dirs.into_iter().filter(|dir| !dir.path.is_empty()).collect();
    dirs.iter().for_each(|dir| tally.count(&dir.path, work.make_dir(dir)));
    by_directory(&files, |file| &file.path, threads, |dir, files| work.put_all(dir, files));
    // Attributes of directories last: new files change a directory's mtime, and a read-only directory admits none.
    for dir in dirs.iter().rev() {
        if let Err(fault) = work.finish_dir(dir) {
            tally.note(&dir.path, &fault);
        }
    }
}

struct Work<'a> {
    source: &'a dyn SharedFs,
    into: &'a Destination<'a>,
    from: &'a [u8],
    to: &'a [u8],
    tally: &'a Tally,
}

impl Work<'_> {
    /// The target path of an item.
    fn target(&self, item: &Item) -> Vec<u8> {
        let below = &item.path[self.from.len()..];
        match below.strip_prefix(b"/").unwrap_or(below) {
            b"" => self.to.to_vec(),
            below => join(self.to, below),
        }
    }

    fn make_dir(&self, item: &Item) -> Result<()> {
        let to = self.target(item);
        match *self.into {
            Destination::Files { tree, preserve } => Files { into: tree, preserve }.make_dir(&to),
            Destination::Container(session) => match session.make_dir(&to, 0o700) {
                Err(fault) if fault.errno == Errno::EEXIST => match session.stat(&to)?.kind {
                    FileKind::Directory => Ok(()),
                    _ => Err(fault),
                },
                made => made,
            },
        }
    }

    fn finish_dir(&self, item: &Item) -> Result<()> {
        let to = self.target(item);
        let (node, _) = read_node(&Within::new(self.source, b""), item)?;
        match *self.into {
            Destination::Files { tree, preserve } => Files { into: tree, preserve }.finish(&to, &node),
            Destination::Container(session) => {
                session.set_attributes(&to, &attributes(&node))?;
                if node.xattrs.is_empty() { Ok(()) } else { session.set_xattrs(&to, node.xattrs) }
            }
        }
    }

    /// Copies items of one directory.
    fn put_all(&self, dir: &[u8], items: &[Item]) {
        let from = Within::new(self.source, dir);
        match *self.into {
            Destination::Files { tree, preserve } => {
                let files = Files { into: tree, preserve };
                let target = items.first().map(|item| self.target(item)).unwrap_or_default();
                let to = files.within(split_path(&target).0);
                for item in items {
                    self.tally.count(&item.path, self.put_file(&from, (&files, &to), item));
                }
            }
            Destination::Container(session) => {
                items.iter().for_each(|item| self.tally.count(&item.path, self.put(&from, session, item)));
            }
        }
    }

    fn put_file(&self, from: &Within<'_>, (files, to): (&Files<'_>, &Within<'_>), item: &Item) -> Result<()> {
        let target = self.target(item);
        let (node, mut content) = read_node(from, item)?;
        let (into, path) = to.at(&target);
        Files { into, ..*files }.put(path, &node, &mut content, self.tally)
    }

    fn put(&self, from: &Within<'_>, session: &Session, item: &Item) -> Result<()> {
        let to = self.target(item);
        match read_node(from, item)? {
            (node, Some(content)) => self.add(session, &to, node, content),
            (node, None) => session.make(&to, node),
        }
    }

    /// Adds a regular file to a container.
    fn add(&self, session: &Session, to: &[u8], node: Node, mut input: FileInput) -> Result<()> {
        let flags = OpenFlags { write: true, create: true, exclusive: true, truncate: false };
        let file = session.open_file(to, flags, 0o600)?;
        let write = |data: &[u8], at| session.write(&file, data, Some(at)).map(drop);
        let copied = copy_pieces(node.size, &mut input, self.tally, write)
            .and_then(|()| match session.status(&file).size == node.size {
                true => Ok(()),
                false => session.truncate(&file, node.size),
            })
            .and_then(|()| session.set_file_attributes(&file, &attributes(&node)))
            .and_then(|()| match node.xattrs.is_empty() {
                true => Ok(()),
                false => session.set_xattrs(to, node.xattrs),
            });
        if copied.is_err() {
            // A partial file is not left behind.
            session.unlink(to)?;
        }
        session.close(file)?;
        copied
    }
}

fn attributes(node: &Node) -> AttrChange {
    AttrChange {
        mode: Some(node.mode),
        uid: Some(node.uid),
        gid: Some(node.gid),
        atime: Some(SetTime::To(node.atime)),
        mtime: Some(SetTime::To(node.mtime)),
        ..AttrChange::default()
    }
}
