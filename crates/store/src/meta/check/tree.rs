//! Check of the directory tree: each directory has one name, there are no cycles, and all are below the root of their
//! view.

use super::super::key;
use super::Names;
use crate::check::{Findings, Part};
use crate::table::key_of_home;
use std::collections::BTreeSet;
use tameike_core::wire::codec;
use tameike_core::wire::meta::{EntryName, Target};
use tameike_core::{FileKind, HomeId, InodeId, Result};

/// The entry of a directory in its parent.
pub(super) struct ParentEntry {
    pub(super) dir: InodeId,
    /// The home that has the entry.
    pub(super) home: HomeId,
    /// Its key there.
    pub(super) key: Vec<u8>,
}

impl ParentEntry {
    /// Its key in the table of the node.
    fn full_key(&self) -> Vec<u8> {
        key_of_home(self.home, &self.key)
    }

    fn name(&self) -> String {
        key::offset_and_name(&self.key)
            .map_or_else(String::new, |(_, name)| String::from_utf8_lossy(name).into())
    }
}

impl Names {
    /// Checks the names on this node. Skipped while operations are pending, because a rename may break the rules for a
    /// while.
    pub(super) fn examine_tree(&mut self, findings: &mut Findings) -> Result<()> {
        if self.busy {
            return Ok(());
        }
        let named: Vec<InodeId> = self.parent_entries.keys().copied().collect();
        for &inode in &named {
            self.remove_extra_names(inode, findings)?;
        }
        for &inode in &named {
            self.examine_parent(inode, findings)?;
        }
        self.break_cycles(&named, findings)
    }

    /// Keeps the name of a directory that matches its recorded parent, or else the first; a root has none.
    fn remove_extra_names(&mut self, inode: InodeId, findings: &mut Findings) -> Result<()> {
        let Some(known) = self.inodes.get_mut(&inode) else { return Ok(()) };
        let Some(entries) = self.parent_entries.get_mut(&inode) else { return Ok(()) };
        let parent = known.record.parent;
        let kept = match parent == inode {
            true => None,
            false => Some(entries.iter().position(|entry| entry.dir == parent).unwrap_or(0)),
        };
        let mut number = 0;
        let extra = entries.extract_if(.., |_| {
            number += 1;
            kept != Some(number - 1)
        });
        for entry in extra {
            let message = format!(
                "the name {:?} in directory {} refers to directory {inode}, which is in {parent}: a directory must have \
                 one name",
                entry.name(),
                entry.dir
            );
            findings.wrong(Part::Names, message);
            let target = Target { inode, kind: FileKind::Directory };
            findings.remove_aside(entry.full_key(), codec::encode(&target)?);
            known.names -= 1;
        }
        Ok(())
    }

    /// The recorded parent must be the directory with the name.
    fn examine_parent(&mut self, inode: InodeId, findings: &mut Findings) -> Result<()> {
        let has_all_names = self.has_all_names(inode);
        let (Some(known), Some([entry])) =
            (self.inodes.get(&inode), self.parent_entries.get(&inode).map(Vec::as_slice))
        else {
            return Ok(());
        };
        if !has_all_names || known.record.parent == entry.dir {
            return Ok(());
        }
        let message =
            format!("directory {inode} has parent {}, but its name is in {}", known.record.parent, entry.dir);
        findings.wrong(Part::Names, message);
        self.set_parent(inode, entry.dir, findings)
    }

    fn set_parent(&mut self, inode: InodeId, parent: InodeId, findings: &mut Findings) -> Result<()> {
        let Some(known) = self.inodes.get_mut(&inode) else { return Ok(()) };
        known.record.parent = parent;
        findings.set(key_of_home(known.home, &key::inode(inode)), codec::encode(&known.record)?);
        Ok(())
    }

    /// Breaks cycles. Moves one directory of each into the root; if this node may not have all of its names, removes
    /// its name.
    fn break_cycles(&mut self, named: &[InodeId], findings: &mut Findings) -> Result<()> {
        let mut seen = BTreeSet::new();
        for &start in named {
            let mut path = Vec::new();
            let mut at = start;
            while seen.insert(at) {
                path.push(at);
                match self.parent_entries.get(&at).and_then(|entries| entries.first()) {
                    Some(entry) => at = entry.dir,
                    None => break,
                }
            }
            let cycle = path.iter().position(|&inode| inode == at).map(|first| &path[first..]);
            let is_named = self.parent_entries.get(&at).is_some_and(|entries| !entries.is_empty());
            if let Some(cycle) = cycle.filter(|_| is_named) {
                self.break_cycle(cycle, findings)?;
            }
        }
        Ok(())
    }

    fn break_cycle(&mut self, cycle: &[InodeId], findings: &mut Findings) -> Result<()> {
        let Some(&first) = cycle.iter().min() else { return Ok(()) };
        let Some(entry) = self.parent_entries.get_mut(&first).and_then(Vec::pop) else { return Ok(()) };
        let all: Vec<String> = cycle.iter().map(ToString::to_string).collect();
        let message = format!(
            "directories form a cycle that no path reaches: {}; the one with the lowest inode number, {:?} in directory \
             {}, is moved out",
            all.join(", "),
            entry.name(),
            entry.dir
        );
        findings.wrong(Part::Names, message);
        let target = codec::encode(&Target { inode: first, kind: FileKind::Directory })?;
        if let Some((root, home)) = self.root_of(first).filter(|_| self.has_all_names(first)) {
            let name = format!("lost+found-{:016x}", first.0).into_bytes();
            findings.set(key_of_home(home, &key::entry(&EntryName { dir: root, name })), target);
            findings.remove(entry.full_key());
            return self.set_parent(first, root, findings);
        }
        if let Some(known) = self.inodes.get_mut(&first) {
            known.names -= 1;
        }
        findings.remove_aside(entry.full_key(), target);
        Ok(())
    }

    /// The root of the directory's view, with the home of its entries, if both are here. A node with all homes has no sharded directory.
    fn root_of(&self, inode: InodeId) -> Option<(InodeId, HomeId)> {
        let is_root = |(number, known): &(&InodeId, &super::Known)| {
            known.record.parent == **number
                && (number.view(), number.pinned_node()) == (inode.view(), inode.pinned_node())
        };
        let (&root, known) = self.inodes.iter().find(is_root)?;
        let of_slot = || {
            let mut shares = self.shares.values();
            shares.find(|share| share.keeps_slot(root.children_slot())).map(|share| share.home)
        };
        let home = if root.pinned_node().is_some() { Some(known.home) } else { of_slot() };
        Some((root, home?))
    }
}
