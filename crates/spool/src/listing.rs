//! Names that are in the container and not in the tree: the packer adds them to the tree when a program accesses their directory.

use super::tree::{Found, attributes};
use super::{Names, Packer, find};
use std::collections::HashMap;
use tameike_container::{Brief, split_path};
use tameike_core::spool::stub::Stub;
use tameike_core::{FileKind, Result};
use tameike_io::shared::join;

/// Directories whose names are in the tree, with the epoch of the listing.
#[derive(Default)]
pub struct Listed(HashMap<Vec<u8>, u64>);

impl Listed {
    /// Forgets directories at and below these paths.
    pub fn forget(&mut self, paths: [&[u8]; 2]) {
        let is_below = |dir: &[u8], path: &[u8]| {
            dir.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        self.0.retain(|dir, _| !paths.iter().any(|path| is_below(dir, path)));
    }
}

impl Packer {
    /// Adds the names of a directory, and of its parents, to the tree.
    pub fn list(&self, names: &mut Names, dir: &[u8]) -> Result<()> {
        if names.epoch == 0 || names.listed.0.get(dir) == Some(&names.epoch) {
            return Ok(());
        }
        if !dir.is_empty() {
            self.list(names, split_path(dir).0)?;
        }
        // If the tree has no directory there, the container's one was removed or replaced.
        let tree = &self.shared.tree;
        if tree.lookup(dir)? != Some(Found::Dir) {
            return Ok(());
        }
        let known = find(&self.session, dir)?.filter(|known| known.kind == FileKind::Directory);
        if known.is_some() {
            let names = self.session.read_dir(dir)?;
            tree.keeping_time(dir, || {
                names.iter().try_for_each(|(name, _)| self.add_name(&join(dir, name)))
            })?;
        }
        names.listed.0.insert(dir.to_vec(), names.epoch);
        Ok(())
    }

    /// Adds a name to the tree, unless the tree has a newer file. A stub is replaced by a newer one.
    fn add_name(&self, path: &[u8]) -> Result<()> {
        let tree = &self.shared.tree;
        let Some(known) = find(&self.session, path)? else { return Ok(()) };
        let Brief { kind, mode, uid, gid, mtime, size } = known;
        let stub = Stub { size, mode, uid, gid, mtime };
        let attributes = attributes(&stub);
        match (tree.lookup(path)?, kind) {
            (None, FileKind::Directory) => tree.make_dir(path, &attributes, &self.session.xattrs(path)?),
            (None, FileKind::Symlink) => tree.make_link(path, &self.session.read_link(path)?, &attributes),
            (None, FileKind::File) => tree.put_stub(path, &stub),
            (Some(Found::Packed(before)), FileKind::File) if before != stub => tree.put_stub(path, &stub),
            _ => Ok(()),
        }
    }
}
