//! Check of the directory tree: each directory has one name, there are no cycles, and all are below the root of their
//! view.

use super::super::key;
use super::Names;
use crate::check::{Book, Part};
use std::collections::BTreeSet;
use tameike_core::wire::codec;
use tameike_core::wire::meta::{EntryName, Target};
use tameike_core::{FileKind, InodeId, Result};

/// The entry of a directory.
pub(super) struct Place {
    pub(super) dir: InodeId,
    pub(super) key: Vec<u8>,
}

impl Place {
    fn name(&self) -> String {
        key::offset_and_name(&self.key)
            .map_or_else(String::new, |(_, name)| String::from_utf8_lossy(name).into())
    }
}

impl Names {
    /// Checks the names on this node. Skipped while operations are pending, because a rename may break the rules for a
    /// while.
    pub(super) fn examine_tree(&mut self, book: &mut Book) -> Result<()> {
        if self.busy {
            return Ok(());
        }
        let named: Vec<InodeId> = self.places.keys().copied().collect();
        for &inode in &named {
            self.remove_extra_names(inode, book)?;
        }
        for &inode in &named {
            self.examine_parent(inode, book)?;
        }
        self.break_cycles(&named, book)
    }

    /// Keeps the name of a directory that matches its recorded parent, or else the first; a root has none.
    fn remove_extra_names(&mut self, inode: InodeId, book: &mut Book) -> Result<()> {
        let Some(known) = self.inodes.get_mut(&inode) else { return Ok(()) };
        let Some(places) = self.places.get_mut(&inode) else { return Ok(()) };
        let parent = known.record.parent;
        let kept = match parent == inode {
            true => None,
            false => Some(places.iter().position(|place| place.dir == parent).unwrap_or(0)),
        };
        let mut number = 0;
        let extra = places.extract_if(.., |_| {
            number += 1;
            kept != Some(number - 1)
        });
        for place in extra {
            let message = format!(
                "the name {:?} in directory {} refers to directory {inode}, which is in {parent}: a directory must have \
                 one name",
                place.name(),
                place.dir
            );
            book.wrong(Part::Names, message);
            let target = Target { inode, kind: FileKind::Directory };
            book.remove_aside(place.key, codec::encode(&target)?);
            known.names -= 1;
        }
        Ok(())
    }

    /// The recorded parent must be the directory with the name.
    fn examine_parent(&mut self, inode: InodeId, book: &mut Book) -> Result<()> {
        let has_all_names = self.has_all_names(inode);
        let (Some(known), Some([place])) =
            (self.inodes.get(&inode), self.places.get(&inode).map(Vec::as_slice))
        else {
            return Ok(());
        };
        if !has_all_names || known.record.parent == place.dir {
            return Ok(());
        }
        let message =
            format!("directory {inode} has parent {}, but its name is in {}", known.record.parent, place.dir);
        book.wrong(Part::Names, message);
        self.set_parent(inode, place.dir, book)
    }

    fn set_parent(&mut self, inode: InodeId, parent: InodeId, book: &mut Book) -> Result<()> {
        let Some(known) = self.inodes.get_mut(&inode) else { return Ok(()) };
        known.record.parent = parent;
        book.set(key::inode(inode), codec::encode(&known.record)?);
        Ok(())
    }

    /// Breaks cycles. Moves one directory of each into the root; if this node may not have all of its names, removes
    /// its name.
    fn break_cycles(&mut self, named: &[InodeId], book: &mut Book) -> Result<()> {
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
            let cycle = path.iter().position(|&inode| inode == at).map(|first| &path[first..]);
            if let Some(cycle) =
                cycle.filter(|_| self.places.get(&at).is_some_and(|places| !places.is_empty()))
            {
                self.break_cycle(cycle, book)?;
            }
        }
        Ok(())
    }

    fn break_cycle(&mut self, cycle: &[InodeId], book: &mut Book) -> Result<()> {
        let Some(&first) = cycle.iter().min() else { return Ok(()) };
        let Some(place) = self.places.get_mut(&first).and_then(Vec::pop) else { return Ok(()) };
        let all: Vec<String> = cycle.iter().map(ToString::to_string).collect();
        let message = format!(
            "directories form a cycle that no path reaches: {}; the one with the lowest inode number, {:?} in directory \
             {}, is moved out",
            all.join(", "),
            place.name(),
            place.dir
        );
        book.wrong(Part::Names, message);
        let target = codec::encode(&Target { inode: first, kind: FileKind::Directory })?;
        if let Some(root) = self.root_of(first).filter(|_| self.has_all_names(first)) {
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

    /// The root of the directory's view, if it is kept here.
    fn root_of(&self, inode: InodeId) -> Option<InodeId> {
        let is_root = |(number, known): &(&InodeId, &super::Known)| {
            known.record.parent == **number
                && (number.view(), number.pinned_node()) == (inode.view(), inode.pinned_node())
        };
        self.inodes.iter().find(is_root).map(|(number, _)| *number)
    }
}
