//! Rules between the records of the homes on a node.

use super::super::key;
use super::super::record::{self, DirectoryRecord, InodeRecord};
use super::{Found, Known, Names, only_inode};
use crate::check::{Findings, Loss, Part};
use crate::table::{ReadTable, key_of_home, prefix};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::codec;
use tameike_core::{FileKind, HomeId, InodeId, Result};

impl Names {
    /// The counts of a directory at a home must match its entries there.
    pub(super) fn examine_children(&self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let (mut counted, mut sharded) = (self.children.clone(), BTreeSet::new());
        self.for_each(table, prefix::DIRECTORY, |Found { key, value, .. }| {
            if let (Some(dir), Ok(DirectoryRecord { sharded: true, .. })) =
                (key::number(key), record::decode(key, value))
            {
                sharded.insert(InodeId(dir));
            }
            Ok(())
        })?;
        let default_of =
            |dir: InodeId| DirectoryRecord { sharded: sharded.contains(&dir), ..DirectoryRecord::default() };
        self.for_each(table, prefix::DIRECTORY, |found| {
            let what = "the counts of a directory";
            let Some(dir) = only_inode(what, found, findings) else { return Ok(()) };
            let Found { home, key, value } = found;
            let (entries, subdirs) = counted.remove(&(home, dir)).unwrap_or_default();
            let Ok(children) = record::decode::<DirectoryRecord>(key, value) else {
                let message = format!(
                    "the counts of directory {dir} are damaged; they can be derived from its entries"
                );
                findings.wrong(Part::Names, message);
                return self.recount(home, dir, default_of(dir), (entries, subdirs), findings);
            };
            // At homes other than the inode's, the record of a removed directory stays, and refuses late entries.
            let is_seal = children.sealed.is_some() && entries == 0 && !self.is_kept_at(home, dir);
            if self.keeps(dir) && !self.inodes.contains_key(&dir) && !is_seal {
                let message = format!("the counts of directory {dir} remain, but it no longer exists");
                findings.wrong(Part::Names, message);
                findings.remove(found.full_key());
            } else if (children.entries, children.subdirs) != (entries, subdirs) {
                let message = format!(
                    "directory {dir} counts {} entries and {} directories among them, but has {entries} and {subdirs} \
                     at {home}",
                    children.entries, children.subdirs
                );
                findings.wrong(Part::Names, message);
                return self.recount(home, dir, children, (entries, subdirs), findings);
            } else if children.sealed.is_some() && entries > 0 {
                let message = format!("directory {dir} is sealed for its removal, but has {entries} entries");
                findings.wrong(Part::Names, message);
                let unsealed = DirectoryRecord { sealed: None, ..children };
                return self.recount(home, dir, unsealed, (entries, subdirs), findings);
            }
            Ok(())
        })?;
        for ((home, dir), counts) in counted {
            let message = format!("directory {dir} has {} entries at {home} and no counts", counts.0);
            findings.wrong(Part::Names, message);
            self.recount(home, dir, default_of(dir), counts, findings)?;
        }
        Ok(())
    }

    /// Repairs the counts. A directory whose entries would be at another home if it were not sharded must be sharded.
    fn recount(
        &self,
        home: HomeId,
        dir: InodeId,
        children: DirectoryRecord,
        (entries, subdirs): (u64, u64),
        findings: &mut Findings,
    ) -> Result<()> {
        let is_home_unsharded = self
            .shares
            .get(&home)
            .is_none_or(|share| dir.pinned_node().is_some() || share.keeps_slot(dir.children_slot()));
        let sharded = children.sharded || !is_home_unsharded;
        let repaired = DirectoryRecord { entries, subdirs, sharded, ..children };
        findings.set(key_of_home(home, &key::directory(dir)), codec::encode(&repaired)?);
        Ok(())
    }

    /// Contents and extended attributes must have an inode that matches them.
    pub(super) fn examine_belongings(&self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let mut sizes = BTreeMap::new();
        let mut stale = 0;
        self.for_each(table, prefix::CONTENT, |found| {
            let Some(inode) = only_inode("the content of a small file", found, findings) else {
                return Ok(());
            };
            let fits = |known: &Known| known.record.inline || known.record.kind == FileKind::Symlink;
            match self.inodes.get(&inode).filter(|known| known.home == found.home) {
                Some(known) if fits(known) => {
                    sizes.insert(inode, found.value.len() as u64);
                }
                _ => {
                    stale += 1;
                    found.set_aside(findings);
                }
            }
            Ok(())
        })?;
        self.for_each(table, prefix::XATTR, |found| {
            let inode = key::number(found.key).filter(|_| found.key.len() > 9).map(InodeId);
            let known = inode.and_then(|inode| self.inodes.get(&inode));
            if known.is_none_or(|known| known.home != found.home) {
                stale += 1;
                found.set_aside(findings);
            }
            Ok(())
        })?;
        if stale > 0 {
            let message = format!("{stale} contents or extended attributes belong to no inode");
            findings.wrong(Part::Names, message);
        }
        for (&inode, known) in &self.inodes {
            let found = sizes.get(&inode).copied().unwrap_or(0);
            self.examine_size(table, inode, known, found, findings)?;
        }
        Ok(())
    }

    fn examine_size(
        &self,
        table: &dyn ReadTable,
        inode: InodeId,
        Known { home, record, .. }: &Known,
        found: u64,
        findings: &mut Findings,
    ) -> Result<()> {
        let key = key_of_home(*home, &key::inode(inode));
        let has_content =
            (record.kind == FileKind::File && record.inline) || record.kind == FileKind::Symlink;
        if !has_content || record.size == found {
            return Ok(());
        }
        let path = self.path(table, inode);
        let name = path.clone().unwrap_or_else(|| inode.to_string());
        if found < record.size {
            let message =
                format!("bytes {found} to {} of {name} are lost: the content is missing", record.size - 1);
            findings.lost(Part::Names, message, vec![Loss::of(inode, path, Some(found..record.size))]);
        } else {
            let message = format!("{name} has size {}, but {found} bytes of content", record.size);
            findings.wrong(Part::Names, message);
        }
        if record.kind == FileKind::Symlink && found == 0 {
            findings.remove_aside(key, codec::encode(record)?);
        } else {
            findings.set(key, codec::encode(&InodeRecord { size: found, ..record.clone() })?);
        }
        Ok(())
    }

    /// The link count must be at least the names here, and equal if no other node can have names of the inode.
    pub(super) fn examine_links(&self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        for (&inode, known) in &self.inodes {
            let (record, key) = (&known.record, key_of_home(known.home, &key::inode(inode)));
            let is_root = record.parent == inode && record.kind == FileKind::Directory;
            let names = if is_root { 1 } else { known.names };
            let right = record.links >= names && (!self.has_all_names(inode) || record.links == names);
            if right || self.busy {
                continue;
            }
            let name = self.path(table, inode).unwrap_or_else(|| inode.to_string());
            if names == 0 {
                let message = format!(
                    "{name} has no name on any node, but counts {} links: no path reaches it",
                    record.links
                );
                findings.lost(Part::Names, message, vec![Loss::of(inode, None, None)]);
                findings.remove_aside(key, codec::encode(record)?);
                continue;
            }
            findings
                .wrong(Part::Names, format!("{name} counts {} links, but has {names} names", record.links));
            findings.set(key, codec::encode(&InodeRecord { links: names, ..record.clone() })?);
        }
        Ok(())
    }

    /// Exactly the inodes without links must have an orphan mark.
    pub(super) fn examine_orphans(&mut self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        let mut stale = 0;
        let mut orphans = BTreeSet::new();
        self.for_each(table, prefix::ORPHAN, |found| {
            let Some(inode) = only_inode("an orphan mark", found, findings) else {
                return Ok(());
            };
            match self.inodes.get(&inode).filter(|known| known.home == found.home) {
                Some(known) if known.record.links == 0 => {
                    orphans.insert(inode);
                }
                _ => {
                    stale += 1;
                    findings.remove(found.full_key());
                }
            }
            Ok(())
        })?;
        if stale > 0 {
            let message = format!("{stale} orphan marks are of inodes that do not exist or have names");
            findings.wrong(Part::Names, message);
        }
        self.orphans = orphans;
        for (&inode, known) in &self.inodes {
            if known.record.links == 0 && !self.orphans.contains(&inode) {
                findings.wrong(Part::Names, format!("{inode} has no links, but no orphan mark"));
                findings.set(key_of_home(known.home, &key::orphan(inode)), Vec::new());
            }
        }
        let count = self.orphans.len();
        if count > 0 {
            let message = format!("{count} removed files were open; the next start of the node removes them");
            findings.note(Part::Names, message);
        }
        Ok(())
    }
}
