//! Directories form a tree: each has one name, none lies in itself, and all hang on the root of their view.

use super::super::key;
use super::Names;
use crate::check::{Book, Part};
use std::collections::BTreeSet;
use tameike_core::wire::codec;
use tameike_core::wire::meta::{EntryName, Target};
use tameike_core::{FileKind, InodeId, Result};

/// Where a directory has a name.
pub(super) struct Place {
    /// The directory that the name is in.
    pub(super) dir: InodeId,
    /// The key of the entry.
    pub(super) key: Vec<u8>,
}

impl Place {
    fn name(&self) -> String {
        key::place_and_name(&self.key)
            .map_or_else(String::new, |(_, name)| String::from_utf8_lossy(name).into())
    }
}

impl Names {
    /// As far as the names on this node tell. A rename that is half done leads to all of it for a while.
    pub(super) fn examine_tree(&mut self, book: &mut Book) -> Result<()> {
        if self.busy {
            return Ok(());
        }
        let named: Vec<InodeId> = self.places.keys().copied().collect();
        for &inode in &named {
            self.cut_further_names(inode, book)?;
        }
        for &inode in &named {
            self.examine_parent(inode, book)?;
        }
        self.open_rings(&named, book)
    }

    /// The name of a directory that its record knows of stands, or else the first; a root has none.
    fn cut_further_names(&mut self, inode: InodeId, book: &mut Book) -> Result<()> {
        let Some(known) = self.inodes.get_mut(&inode) else { return Ok(()) };
        let Some(places) = self.places.get_mut(&inode) else { return Ok(()) };
        let parent = known.record.parent;
        let stands = match parent == inode {
            true => None,
            false => Some(places.iter().position(|place| place.dir == parent).unwrap_or(0)),
        };
        let mut number = 0;
        let further = places.extract_if(.., |_| {
            number += 1;
            stands != Some(number - 1)
        });
        for place in further {
            let words = format!(
                "the name {:?} in directory {} leads to directory {inode}, which is in {parent}: a directory has one name, \
                 or could lie in itself",
                place.name(),
                place.dir
            );
            book.wrong(Part::Names, words);
            let target = Target { inode, kind: FileKind::Directory };
            book.remove_aside(place.key, codec::encode(&target)?);
            known.names -= 1;
        }
        Ok(())
    }

    /// A directory knows where it is.
    fn examine_parent(&mut self, inode: InodeId, book: &mut Book) -> Result<()> {
        let is_alone = self.is_alone(inode);
        let (Some(known), Some([place])) =
            (self.inodes.get(&inode), self.places.get(&inode).map(Vec::as_slice))
        else {
            return Ok(());
        };
        if !is_alone || known.record.parent == place.dir {
            return Ok(());
        }
        let words =
            format!("directory {inode} is said to be in {}, and is in {}", known.record.parent, place.dir);
        book.wrong(Part::Names, words);
        self.set_parent(inode, place.dir, book)
    }

    fn set_parent(&mut self, inode: InodeId, parent: InodeId, book: &mut Book) -> Result<()> {
        let Some(known) = self.inodes.get_mut(&inode) else { return Ok(()) };
        known.record.parent = parent;
        book.set(key::inode(inode), codec::encode(&known.record)?);
        Ok(())
    }

    /// Directories that are in each other hang on no root. One of each ring is put into the root; where this node does not
    /// keep all names, its name is cut.
    fn open_rings(&mut self, named: &[InodeId], book: &mut Book) -> Result<()> {
        let mut seen = BTreeSet::new();
        for &start in named {
            let mut path = Vec::new();
            let mut at = start;
            while seen.insert(at) {
                path.push(at);
                match self.places.get(&at).and_then(|places| places.first()) {
                    Some(place) => at = place.dir,
                    None => break,
                }
            }
            let ring = path.iter().position(|&inode| inode == at).map(|first| &path[first..]);
            if let Some(ring) = ring.filter(|_| self.places.get(&at).is_some_and(|places| !places.is_empty()))
            {
                self.open_ring(ring, book)?;
            }
        }
        Ok(())
    }

    fn open_ring(&mut self, ring: &[InodeId], book: &mut Book) -> Result<()> {
        let Some(&first) = ring.iter().min() else { return Ok(()) };
        let Some(place) = self.places.get_mut(&first).and_then(Vec::pop) else { return Ok(()) };
        let all: Vec<String> = ring.iter().map(ToString::to_string).collect();
        let words = format!(
            "directories are in each other, and no path leads to them: {}; the first of them by number, {:?} in directory \
             {}, is taken out",
            all.join(", "),
            place.name(),
            place.dir
        );
        book.wrong(Part::Names, words);
        let target = codec::encode(&Target { inode: first, kind: FileKind::Directory })?;
        if let Some(root) = self.root_of(first).filter(|_| self.is_alone(first)) {
            let name = format!("lost+found-{:016x}", first.0).into_bytes();
            book.set(key::entry(&EntryName { dir: root, name }), target);
            book.remove(place.key);
            return self.set_parent(first, root, book);
        }
        if let Some(known) = self.inodes.get_mut(&first) {
            known.names -= 1;
        }
        book.remove_aside(place.key, target);
        Ok(())
    }

    /// The root of the view that a directory is in, if it is kept here.
    fn root_of(&self, inode: InodeId) -> Option<InodeId> {
        let is_root = |(number, known): &(&InodeId, &super::Known)| {
            known.record.parent == **number
                && (number.view(), number.pinned_node()) == (inode.view(), inode.pinned_node())
        };
        self.inodes.iter().find(is_root).map(|(number, _)| *number)
    }
}
