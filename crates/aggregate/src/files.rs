//! Files of a tree that are made anew: nothing that is there is replaced.

use crate::Tally;
use crate::content::{Input, next_range};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{SharedFile, SharedFs, Special, XattrMode};
use tameike_store::container::{Node, split_path};

/// Bytes that are copied at once.
pub const COPY_SIZE: usize = 1 << 20;

/// A tree in which files are made.
pub struct Files<'a> {
    pub into: &'a dyn SharedFs,
    /// Files get their owners, too.
    pub keeps_owners: bool,
}

impl Files<'_> {
    /// Makes a directory and those that it lies in, where they are missing.
    pub fn make_dir(&self, path: &[u8]) -> Result<()> {
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

    /// Makes a file of any kind, with its attributes and content; a directory is there already.
    pub fn put(&self, path: &[u8], node: &Node, input: &mut dyn Input, tally: &Tally) -> Result<()> {
        match node.kind {
            FileKind::File => {
                let file = self.with_parents(path, || self.into.create(path, 0o600))?;
                let copied = copy(node.size, input, &*file, tally);
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
        self.finish(path, node)
    }

    fn make_special(&self, path: &[u8], special: &Special) -> Result<()> {
        self.with_parents(path, || self.into.make(path, special)).map(drop)
    }

    /// Gives a file its attributes.
    pub fn finish(&self, path: &[u8], node: &Node) -> Result<()> {
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

fn copy(size: u64, input: &mut dyn Input, file: &dyn SharedFile, tally: &Tally) -> Result<()> {
    copy_pieces(size, input, tally, |data, at| file.write_at(data, at))?;
    if file.stat()?.size == size { Ok(()) } else { file.truncate(size) }
}

/// Reads up to `size` bytes of content, and has those written that are no hole.
pub fn copy_pieces(
    size: u64,
    input: &mut dyn Input,
    tally: &Tally,
    mut write: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; COPY_SIZE.min(size as usize)];
    let mut at = 0;
    while at < size {
        let range = next_range(input, at, size)?.unwrap_or(size..size);
        at = range.start.min(size);
        let end = range.end.min(size);
        while at < end {
            let wanted = (end - at).min(buffer.len() as u64) as usize;
            let count = input.read_at(&mut buffer[..wanted], at)?;
            if count == 0 {
                return Err(Fault::new(Errno::EIO, "it became shorter while it was read"));
            }
            let data = &buffer[..count];
            // Holes stay holes.
            if data.iter().any(|&byte| byte != 0) {
                write(data, at)?;
            }
            at += count as u64;
        }
    }
    tally.add_bytes(size);
    Ok(())
}
