//! What must hold between the records of a node.

use super::super::key;
use super::super::record::{self, DirectoryRecord, InodeRecord};
use super::{Known, Names, only_inode};
use crate::check::{Book, Loss, Part};
use crate::table::{Table, for_each, prefix};
use std::collections::BTreeMap;
use tameike_core::wire::codec;
use tameike_core::{FileKind, InodeId, Result};

impl Names {
    /// Counts of directories are those of their entries here.
    pub(super) fn examine_children(&self, table: &dyn Table, book: &mut Book) -> Result<()> {
        let mut counted = self.children.clone();
        for_each(table, prefix::DIRECTORY, |key, value| {
            let what = "what is known of the entries of a directory";
            let Some(dir) = only_inode(what, key, value, book) else { return Ok(()) };
            let (entries, subdirs) = counted.remove(&dir).unwrap_or_default();
            let Ok(children) = record::decode::<DirectoryRecord>(key, value) else {
                book.wrong(
                    Part::Names,
                    format!("the counts of directory {dir} are damaged; they follow from its entries"),
                );
                return self.recount(dir, DirectoryRecord::default(), (entries, subdirs), book);
            };
            if self.keeps(dir) && !self.inodes.contains_key(&dir) {
                book.wrong(Part::Names, format!("directory {dir} is gone, and its counts are still there"));
                book.remove(key.to_vec());
            } else if (children.entries, children.subdirs) != (entries, subdirs) {
                let words = format!(
                    "directory {dir} counts {} entries and {} directories among them, and has {entries} and {subdirs} \
                     on this node",
                    children.entries, children.subdirs
                );
                book.wrong(Part::Names, words);
                return self.recount(dir, children, (entries, subdirs), book);
            } else if children.sealed.is_some() && entries > 0 {
                let words = format!("directory {dir} is closed to be removed, and has {entries} entries");
                book.wrong(Part::Names, words);
                return self.recount(
                    dir,
                    DirectoryRecord { sealed: None, ..children },
                    (entries, subdirs),
                    book,
                );
            }
            Ok(())
        })?;
        for (dir, counts) in counted {
            book.wrong(
                Part::Names,
                format!("directory {dir} has {} entries on this node and no counts", counts.0),
            );
            self.recount(dir, DirectoryRecord::default(), counts, book)?;
        }
        Ok(())
    }

    /// A directory that this node would not keep the entries of while it is narrow is wide.
    fn recount(
        &self,
        dir: InodeId,
        children: DirectoryRecord,
        (entries, subdirs): (u64, u64),
        book: &mut Book,
    ) -> Result<()> {
        let narrow_here = self.share.is_none_or(|share| {
            dir.pinned_node().is_some() || dir.children_slot().0 % share.count.max(1) == share.place
        });
        let wide = children.wide || !narrow_here;
        let mended = DirectoryRecord { entries, subdirs, wide, ..children };
        book.set(key::directory(dir), codec::encode(&mended)?);
        Ok(())
    }

    /// Contents and extended attributes have an inode, which says the same of them.
    pub(super) fn examine_belongings(&self, table: &dyn Table, book: &mut Book) -> Result<()> {
        let mut sizes = BTreeMap::new();
        let mut needless = 0;
        for_each(table, prefix::CONTENT, |key, value| {
            let Some(inode) = only_inode("the content of a small file", key, value, book) else {
                return Ok(());
            };
            let fits = |known: &Known| known.record.inline || known.record.kind == FileKind::Symlink;
            match self.inodes.get(&inode) {
                Some(known) if fits(known) => {
                    sizes.insert(inode, value.len() as u64);
                }
                _ => {
                    needless += 1;
                    book.remove_aside(key.to_vec(), value.to_vec());
                }
            }
            Ok(())
        })?;
        for_each(table, prefix::XATTR, |key, value| {
            let inode = key::number(key).filter(|_| key.len() > 9).map(InodeId);
            if !inode.is_some_and(|inode| self.inodes.contains_key(&inode)) {
                needless += 1;
                book.remove_aside(key.to_vec(), value.to_vec());
            }
            Ok(())
        })?;
        if needless > 0 {
            let words = format!("{needless} contents or extended attributes belong to no inode");
            book.wrong(Part::Names, words);
        }
        for (&inode, known) in &self.inodes {
            let found = sizes.get(&inode).copied().unwrap_or(0);
            self.examine_size(table, inode, &known.record, found, book)?;
        }
        Ok(())
    }

    fn examine_size(
        &self,
        table: &dyn Table,
        inode: InodeId,
        record: &InodeRecord,
        found: u64,
        book: &mut Book,
    ) -> Result<()> {
        let has_content =
            (record.kind == FileKind::File && record.inline) || record.kind == FileKind::Symlink;
        if !has_content || record.size == found {
            return Ok(());
        }
        let path = self.path(table, inode);
        let called = path.clone().unwrap_or_else(|| inode.to_string());
        if found < record.size {
            let words = format!(
                "bytes {found} to {} of {called} are lost: its content is not there",
                record.size - 1
            );
            book.lost(Part::Names, words, vec![Loss::of(inode, path, Some(found..record.size))]);
        } else {
            let words = format!("{called} is said to have {} bytes, and has {found}", record.size);
            book.wrong(Part::Names, words);
        }
        if record.kind == FileKind::Symlink && found == 0 {
            book.remove_aside(key::inode(inode), codec::encode(record)?);
        } else {
            book.set(key::inode(inode), codec::encode(&InodeRecord { size: found, ..record.clone() })?);
        }
        Ok(())
    }

    /// Links are at least the names here, and no more where no other node can have names of the inode.
    pub(super) fn examine_links(&self, table: &dyn Table, book: &mut Book) -> Result<()> {
        for (&inode, known) in &self.inodes {
            let record = &known.record;
            let is_root = record.parent == inode && record.kind == FileKind::Directory;
            let names = if is_root { 1 } else { known.names };
            let right = record.links >= names && (!self.is_alone(inode) || record.links == names);
            if right || self.busy {
                continue;
            }
            let called = self.path(table, inode).unwrap_or_else(|| inode.to_string());
            if names == 0 {
                let words = format!(
                    "{called} has no name on any node, but counts {}: nobody can reach it",
                    record.links
                );
                book.lost(Part::Names, words, vec![Loss::of(inode, None, None)]);
                book.remove_aside(key::inode(inode), codec::encode(record)?);
                continue;
            }
            book.wrong(Part::Names, format!("{called} counts {} links, and has {names} names", record.links));
            book.set(key::inode(inode), codec::encode(&InodeRecord { links: names, ..record.clone() })?);
        }
        Ok(())
    }

    /// An inode without links is marked to be removed, and no other is.
    pub(super) fn examine_orphans(&mut self, table: &dyn Table, book: &mut Book) -> Result<()> {
        let mut needless = 0;
        for_each(table, prefix::ORPHAN, |key, value| {
            let Some(inode) = only_inode("the mark of an inode without names", key, value, book) else {
                return Ok(());
            };
            match self.inodes.get(&inode) {
                Some(known) if known.record.links == 0 => {
                    self.orphans.insert(inode);
                }
                _ => {
                    needless += 1;
                    book.remove(key.to_vec());
                }
            }
            Ok(())
        })?;
        if needless > 0 {
            book.wrong(
                Part::Names,
                format!("{needless} inodes are marked to be removed that are gone or have names"),
            );
        }
        for (&inode, known) in &self.inodes {
            if known.record.links == 0 && !self.orphans.contains(&inode) {
                book.wrong(
                    Part::Names,
                    format!("{inode} has no links, and no mark that it is to be removed"),
                );
                book.set(key::orphan(inode), Vec::new());
            }
        }
        let count = self.orphans.len();
        if count > 0 {
            let words = format!("{count} removed files were open; the next start of the node removes them");
            book.note(Part::Names, words);
        }
        Ok(())
    }
}
